"""Checkpoints: a folder of safetensors and one JSON, written whole or not at all, from which a run goes on bit for bit.

    step-00001000/   model.safetensors  optimizer.safetensors  state.json {version, step, files: {name: sha256},
      scalars, facts, also}

The folder is written under another name, synced, and renamed: a reader never meets half of one. State of the optimiser
is kept by the names of parameters, so that it does not depend on their order. Tensors are whole in the files however
many ranks hold parts of them: a run may go on with other ranks and another layout. Random generators' states are
tensors of the second file, one for each rank. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gristmill.trainer.step.parallel import ALONE, RankGroup
from gristmill.trainer.step.parts import Part, listed, part_of, read_cut, whole_cut, wholes, write_safetensors

VERSION = 1
STATE, MODEL, OPTIMIZER = "state.json", "model.safetensors", "optimizer.safetensors"
RANDOM = "random."
NAME = re.compile(r"step-(\d{8,})")

Due = Callable[
    [int], bool
]  # whether a run makes a checkpoint after so many updates in any case; others are made where it is told to stop


class CheckpointError(ValueError):
    """A checkpoint that is not there, is damaged, or belongs to another run."""


@dataclass(frozen=True)
class Restored:
    step: int
    facts: dict[str, Any]
    also: dict[str, Any] = field(default_factory=dict)


def save(
    folder: Path,
    step: int,
    weights: Mapping[str, Tensor | Part],
    optimizer: torch.optim.Optimizer,
    facts: Mapping[str, Any],
    keep: int = 2,
    ranks: RankGroup = ALONE,
    also: Mapping[str, Any] | None = None,
    due: Due | None = None,
) -> Path:
    """Writes `folder/step-NNNNNNNN` and leaves the newest `keep` there. `weights` are those that the optimiser steps
    on, and buffers.

    With `ranks`, all of them call this and the first one writes. `also`: what else the run needs and its facts do not
    say. One that is not `due` (None: all are) pushes none out that is.
    """
    final = folder / f"step-{step:08d}"
    draft = folder / f".{final.name}.{os.getpid()}"
    parts = {name: part_of(tensor) for name, tensor in weights.items()}
    scalars, states = _optimizer_state(optimizer, parts)
    states |= {name: part_of(tensor) for name, tensor in _random_state(ranks.rank).items()}
    if ranks.first:
        for abandoned in folder.glob(".step-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        draft.mkdir(parents=True)
    files = {}
    for name, tensors in ((MODEL, parts), (OPTIMIZER, states)):
        table = listed(tensors, ranks)
        arriving = wholes(tensors, table, ranks)
        if ranks.first:
            files[name] = write_safetensors(draft / name, table, arriving)
        else:
            list(arriving)
    all_scalars = {place: value for said in ranks.gathered(scalars) for place, value in said.items()}
    if ranks.first:
        state = {
            "version": VERSION,
            "step": step,
            "files": files,
            "scalars": all_scalars,
            "facts": dict(facts),
            "also": dict(also or {}),
        }
        (draft / STATE).write_text(json.dumps(state, indent=1, sort_keys=True, allow_nan=False), encoding="utf-8")
        for name in (MODEL, OPTIMIZER, STATE):
            _sync(draft / name)
        _sync(draft)
        if final.exists():
            _remove(final)
        draft.rename(final)
        _sync(folder)
        for old in dues_last(steps(folder), due)[:-keep]:
            if old != final:
                _remove(old)
    ranks.wait()
    return final


def _remove(path: Path) -> None:
    """Under a name at first that nobody reads, and of which the next save takes away what is left if this one is
    killed."""
    going = path.with_name(f".{path.name}.{os.getpid()}.old")
    path.rename(going)
    shutil.rmtree(going)


def steps(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    found = [path for path in folder.glob("step-*") if NAME.fullmatch(path.name) and (path / STATE).is_file()]
    return sorted(found, key=step_of)


def remove_after(folder: Path, step: int) -> None:
    """The checkpoints of later steps: of updates that are to be made otherwise."""
    for path in steps(folder):
        if step_of(path) > step:
            _remove(path)


def step_of(path: Path) -> int:
    return int(path.name[5:])


def dues_last(found: Sequence[Path], due: Due | None) -> list[Path]:
    """Checkpoints, oldest first, but those that were due (None: all) after those that were not."""
    return list(found) if due is None else sorted(found, key=lambda path: (due(step_of(path)), step_of(path)))


def load(
    path: Path, weights: Mapping[str, Tensor | Part], optimizer: torch.optim.Optimizer, ranks: RankGroup = ALONE
) -> Restored:
    """Fills `weights` in place, and the optimiser, and sets the random generators. Refuses what was changed or belongs
    to other parameters.

    With `ranks`, all of them call this; each reads its own parts, and the first one alone looks whether the files are
    whole.
    """
    from safetensors import safe_open

    state, problem = _read_state(path) if ranks.first else ({}, "")
    state, problem = ranks.gathered([state, problem])[0]
    if problem:
        raise CheckpointError(problem)
    parts = {name: part_of(tensor) for name, tensor in weights.items()}
    shapes = {
        name: tuple(shape)
        for said in ranks.gathered({n: p.cut.shape for n, p in parts.items()})
        for name, shape in said.items()
    }
    with safe_open(path / MODEL, "pt") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        if unlike := sorted(n for n in saved.keys() | shapes.keys() if saved.get(n) != shapes.get(n)):
            raise CheckpointError(f"{path}: of another model: {', '.join(unlike[:5])}")
        with torch.no_grad():
            for name, part in parts.items():
                if part.cut.spans:
                    part.local.copy_(read_cut(file, name, part.cut))
    with safe_open(path / OPTIMIZER, "pt") as file:
        _restore_optimizer(optimizer, parts, shapes, state["scalars"], file, path)
        _restore_random(file, ranks)
    return Restored(state["step"], state["facts"], state.get("also", {}))


def _read_state(path: Path) -> tuple[dict[str, Any], str]:
    """What state.json says, and what is wrong with the checkpoint, if anything is."""
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        version, files = [state[key] for key in ("version", "files", "step", "scalars", "facts")][:2]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {}, f"{path}: no checkpoint that can be read ({error})"
    if version != VERSION:
        return {}, f"{path}: a checkpoint of version {version}; this program reads {VERSION}"
    for name in (MODEL, OPTIMIZER):
        if not (path / name).is_file() or sha256_of(path / name) != files.get(name):
            return {}, f"{path / name}: missing, or not the bytes that were written; take an older checkpoint"
    return state, ""


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _named(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        name: p for group in optimizer.param_groups for name, p in zip(group["names"], group["params"], strict=True)
    }


def _optimizer_state(
    optimizer: torch.optim.Optimizer, weights: Mapping[str, Part]
) -> tuple[dict[str, Any], dict[str, Part]]:
    scalars: dict[str, Any] = {}
    parts: dict[str, Part] = {}
    for name, parameter in _named(optimizer).items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                parts[f"{key}:{name}"] = weights[name].beside(value)
            else:
                scalars[f"{key}:{name}"] = value
    return scalars, parts


def _restore_optimizer(
    optimizer: torch.optim.Optimizer,
    parts: Mapping[str, Part],
    known: Mapping[str, Any],
    scalars: dict[str, Any],
    file: Any,
    path: Path,
) -> None:
    named = _named(optimizer)
    fused = any(group.get("fused") for group in optimizer.param_groups)
    optimizer.state.clear()
    places = [place for place in file.keys() if not place.startswith(RANDOM)]  # noqa: SIM118
    for place in [*scalars, *places]:
        key, _, name = place.partition(":")
        if name not in known:
            raise CheckpointError(f"{path}: the optimiser's state is of another model: {name}")
        if name not in named:  # another rank's
            continue
        parameter = named[name]
        if place in scalars:
            optimizer.state[parameter][key] = scalars[place]
            continue
        shape = tuple(file.get_slice(place).get_shape())
        cut = parts[name].cut if shape and shape == parts[name].cut.shape else whole_cut(shape)
        value = read_cut(file, place, cut) if cut.spans else torch.empty(cut.local_shape)
        # `step` lives on the CPU unless the optimiser is fused
        optimizer.state[parameter][key] = value.to(parameter.device if key != "step" or fused else "cpu")


def _random_state(rank: int) -> dict[str, Tensor]:
    states = {_of_rank("cpu", rank): torch.get_rng_state()}
    if torch.cuda.is_available():
        states[_of_rank("cuda", rank)] = torch.cuda.get_rng_state()
    return states


def _of_rank(kind: str, rank: int) -> str:
    return f"{RANDOM}{kind}.{rank}" if rank else RANDOM + kind


def _restore_random(file: Any, ranks: RankGroup) -> None:
    """With other ranks than wrote it, those after the first are seeded anew from the first one's state."""
    there = set(file.keys())
    first = file.get_tensor(_of_rank("cpu", 0))
    alike = sum(place.startswith(RANDOM + "cpu") for place in there) == ranks.count
    if not alike and not ranks.first:
        digest = hashlib.sha256(first.numpy().tobytes() + ranks.rank.to_bytes(8, "little")).digest()
        torch.manual_seed(int.from_bytes(digest[:7], "little"))
        return
    torch.set_rng_state(file.get_tensor(_of_rank("cpu", ranks.rank)))
    if torch.cuda.is_available() and _of_rank("cuda", ranks.rank) in there:
        torch.cuda.set_rng_state(file.get_tensor(_of_rank("cuda", ranks.rank)))


def _sync(path: Path) -> None:
    at = os.open(path, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)
