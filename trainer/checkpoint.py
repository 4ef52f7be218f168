"""Checkpoints: a folder of safetensors and one JSON, written whole or not at all, from which a run goes on bit for bit.

    step-00001000/   model.safetensors  optimizer.safetensors  state.json {version, step, files: {name: sha256}, scalars, facts}

The folder is written under another name, synced, and renamed: a reader never meets half of one. State of the optimiser is kept by the names of
parameters, so that it does not depend on their order. Random generators' states are tensors of the second file. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VERSION = 1
STATE, MODEL, OPTIMIZER = "state.json", "model.safetensors", "optimizer.safetensors"
RANDOM = "random."
NAME = re.compile(r"step-(\d{8,})")


class CheckpointError(ValueError):
    """A checkpoint that is not there, is damaged, or belongs to another run."""


@dataclass(frozen=True)
class Restored:
    step: int
    facts: dict[str, Any]


def save(
    folder: Path, step: int, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, facts: Mapping[str, Any], keep: int = 2
) -> Path:
    """Writes `folder/step-NNNNNNNN` and leaves the newest `keep` there. `weights` are those that the optimiser steps on, and buffers."""
    from safetensors.torch import save_file

    final = folder / f"step-{step:08d}"
    draft = folder / f".{final.name}.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    scalars, tensors = _optimizer_state(optimizer)
    save_file({name: _plain(tensor) for name, tensor in weights.items()}, draft / MODEL)
    save_file({name: _plain(tensor) for name, tensor in (tensors | _random_state()).items()}, draft / OPTIMIZER)
    files = {name: sha256_of(draft / name) for name in (MODEL, OPTIMIZER)}
    state = {"version": VERSION, "step": step, "files": files, "scalars": scalars, "facts": dict(facts)}
    (draft / STATE).write_text(json.dumps(state, indent=1, sort_keys=True, allow_nan=False), encoding="utf-8")
    for name in (MODEL, OPTIMIZER, STATE):
        _sync(draft / name)
    _sync(draft)
    if final.exists():
        shutil.rmtree(final)
    draft.rename(final)
    _sync(folder)
    for old in steps(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def steps(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    found = [path for path in folder.glob("step-*") if NAME.fullmatch(path.name) and (path / STATE).is_file()]
    return sorted(found, key=lambda path: int(path.name[5:]))


def load(path: Path, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> Restored:
    """Fills `weights` in place, and the optimiser, and sets the random generators. Refuses what was changed or belongs to other parameters."""
    from safetensors.torch import load_file

    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        version, step, files, scalars, facts = (state[key] for key in ("version", "step", "files", "scalars", "facts"))
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: no checkpoint that can be read ({error})") from error
    if version != VERSION:
        raise CheckpointError(f"{path}: a checkpoint of version {version}; this program reads {VERSION}")
    for name in (MODEL, OPTIMIZER):
        if not (path / name).is_file() or sha256_of(path / name) != files.get(name):
            raise CheckpointError(f"{path / name}: missing, or not the bytes that were written; take an older checkpoint")
    saved, stored = load_file(path / MODEL), load_file(path / OPTIMIZER)
    if unlike := sorted(
        n for n in saved.keys() | weights.keys() if n not in saved or n not in weights or saved[n].shape != weights[n].shape
    ):
        raise CheckpointError(f"{path}: of another model: {', '.join(unlike[:5])}")
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(saved[name])
    _restore_optimizer(optimizer, scalars, stored, path)
    _restore_random(stored)
    return Restored(step, facts)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _named(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {name: p for group in optimizer.param_groups for name, p in zip(group["names"], group["params"], strict=True)}


def _optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    scalars: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for name, parameter in _named(optimizer).items():
        for key, value in optimizer.state.get(parameter, {}).items():
            (tensors if isinstance(value, Tensor) else scalars)[f"{key}:{name}"] = value
    return scalars, tensors


def _restore_optimizer(optimizer: torch.optim.Optimizer, scalars: dict[str, Any], tensors: dict[str, Tensor], path: Path) -> None:
    named = _named(optimizer)
    optimizer.state.clear()
    for place, value in [*scalars.items(), *tensors.items()]:
        if place.startswith(RANDOM):
            continue
        key, _, name = place.partition(":")
        if name not in named:
            raise CheckpointError(f"{path}: the optimiser's state is of another model: {name}")
        parameter = named[name]
        if isinstance(value, Tensor):  # `step` lives on the CPU unless the optimiser is fused
            fused = any(group.get("fused") for group in optimizer.param_groups)
            value = value.to(parameter.device if key != "step" or fused else "cpu")
        optimizer.state[parameter][key] = value


def _random_state() -> dict[str, Tensor]:
    states = {RANDOM + "cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states[RANDOM + "cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_random(stored: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(stored[RANDOM + "cpu"])
    if RANDOM + "cuda" in stored and torch.cuda.is_available():
        torch.cuda.set_rng_state(stored[RANDOM + "cuda"])


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def _sync(path: Path) -> None:
    at = os.open(path, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)
