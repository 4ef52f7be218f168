"""Checkpoints: a folder of safetensors and one JSON, written whole or not at all, from which a run resumes bit for bit.

    step-00001000/
        model.safetensors
        optimizer.safetensors
        state.json    {version, step, files: {name: sha256}, scalars, facts, also}

The folder is written under another name, synced, and renamed: a reader never sees half of one. Optimiser state is
stored by the names of parameters, so it does not depend on their order. Tensors are whole in the files however many
ranks hold parts of them: a run may resume with other ranks and another layout. States of random generators are tensors
of the second file, one for each rank, and so is what ranks have of their own (rounding that a later update makes up
for, which another layout drops). Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gristmill.kernels.common.files import whole_folder
from gristmill.trainer.parallel.parts import (
    Part,
    gather_wholes,
    list_tensors,
    part_of,
    read_cut,
    whole_cut,
    write_safetensors,
)
from gristmill.trainer.parallel.ranks import ALONE, RankGroup

VERSION = 1
STATE, MODEL, OPTIMIZER = "state.json", "model.safetensors", "optimizer.safetensors"
RANDOM, OWN = "random.", "own."  # followed by a rank
NAME = re.compile(r"step-(\d{8,})")

# Whether a run makes a checkpoint after this many updates in any case; others are made when it is told to stop.
Due = Callable[[int], bool]


class CheckpointError(ValueError):
    """A checkpoint that is not there, is damaged, or belongs to another run."""


@dataclass(frozen=True)
class Restored:
    step: int
    facts: dict[str, Any]
    also: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Tensor] = field(default_factory=dict)


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
    own: Mapping[str, Tensor] | None = None,
) -> Path:
    """Writes `folder/step-NNNNNNNN` and keeps the newest `keep`. `weights` are those that the optimiser steps on, and
    buffers.

    With `ranks`, all of them call this and the first one writes. `also`: state of the run that its facts do not hold;
    `own`: tensors of this rank alone. A checkpoint that is not `due` (None: all are) never displaces one that is.
    """
    final = folder / f"step-{step:08d}"
    parts = {name: part_of(tensor) for name, tensor in weights.items()}
    scalars, states = _optimizer_state(optimizer, parts)
    states |= {name: part_of(tensor) for name, tensor in _random_state(ranks.rank).items()}
    states |= {f"{OWN}{ranks.rank}.{name}": part_of(tensor) for name, tensor in (own or {}).items()}
    if ranks.first:
        for abandoned in folder.glob(".step-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
    with whole_folder(final, replace=True) if ranks.first else nullcontext(final) as draft:
        files = {}
        for name, tensors in ((MODEL, parts), (OPTIMIZER, states)):
            table = list_tensors(tensors, ranks)
            arriving = gather_wholes(tensors, table, ranks)
            if ranks.first:
                files[name] = write_safetensors(draft / name, table, arriving)
            else:
                list(arriving)
        all_scalars = {key: value for of_rank in ranks.gather(scalars) for key, value in of_rank.items()}
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
    if ranks.first:
        for old in order_due_last(steps(folder), due)[:-keep]:
            if old != final:
                _remove(old)
    ranks.wait()
    return final


def _remove(path: Path) -> None:
    """Renames it first, so that nobody reads a half; if this process is killed, the next save removes the rest."""
    removed = path.with_name(f".{path.name}.{os.getpid()}.old")
    path.rename(removed)
    shutil.rmtree(removed)


def steps(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    complete = [path for path in folder.glob("step-*") if NAME.fullmatch(path.name) and (path / STATE).is_file()]
    return sorted(complete, key=step_of)


def remove_after(folder: Path, step: int) -> None:
    """The checkpoints of later steps, whose updates will be made differently."""
    for path in steps(folder):
        if step_of(path) > step:
            _remove(path)


def step_of(path: Path) -> int:
    return int(path.name[5:])


def order_due_last(paths: Sequence[Path], due: Due | None) -> list[Path]:
    """Checkpoints, oldest first, with those that were due (None: all) after those that were not."""
    return list(paths) if due is None else sorted(paths, key=lambda path: (due(step_of(path)), step_of(path)))


def load(
    path: Path, weights: Mapping[str, Tensor | Part], optimizer: torch.optim.Optimizer, ranks: RankGroup = ALONE
) -> Restored:
    """Fills `weights` in place, and the optimiser, and sets the random generators. Refuses files that were changed or
    belong to other parameters.

    With `ranks`, all of them call this; each reads its own parts, and only the first checks that the files are whole.
    """
    from safetensors import safe_open

    state, problem = _read_state(path) if ranks.first else ({}, "")
    state, problem = ranks.gather([state, problem])[0]
    if problem:
        raise CheckpointError(problem)
    parts = {name: part_of(tensor) for name, tensor in weights.items()}
    shapes = {
        name: tuple(shape)
        for of_rank in ranks.gather({n: p.cut.shape for n, p in parts.items()})
        for name, shape in of_rank.items()
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
        mine = f"{OWN}{ranks.rank}."
        own = {
            key.removeprefix(mine): file.get_tensor(key)
            for key in file.keys()  # noqa: SIM118
            if key.startswith(mine)
        }
    return Restored(state["step"], state["facts"], state.get("also", {}), own)


def _read_state(path: Path) -> tuple[dict[str, Any], str]:
    """The content of state.json, and what is wrong with the checkpoint ("" if nothing)."""
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
    shapes: Mapping[str, Any],
    scalars: dict[str, Any],
    file: Any,
    path: Path,
) -> None:
    named = _named(optimizer)
    fused = any(group.get("fused") for group in optimizer.param_groups)
    optimizer.state.clear()
    keys = [full_key for full_key in file.keys() if not full_key.startswith((RANDOM, OWN))]  # noqa: SIM118
    for full_key in [*scalars, *keys]:
        key, _, name = full_key.partition(":")
        if name not in shapes:
            raise CheckpointError(f"{path}: the optimiser's state is of another model: {name}")
        if name not in named:  # another rank's
            continue
        parameter = named[name]
        if full_key in scalars:
            optimizer.state[parameter][key] = scalars[full_key]
            continue
        shape = tuple(file.get_slice(full_key).get_shape())
        cut = parts[name].cut if shape and shape == parts[name].cut.shape else whole_cut(shape)
        value = read_cut(file, full_key, cut) if cut.spans else torch.empty(cut.local_shape)
        # `step` lives on the CPU unless the optimiser is fused
        optimizer.state[parameter][key] = value.to(parameter.device if key != "step" or fused else "cpu")


def _random_state(rank: int) -> dict[str, Tensor]:
    states = {_random_key("cpu", rank): torch.get_rng_state()}
    if torch.cuda.is_available():
        states[_random_key("cuda", rank)] = torch.cuda.get_rng_state()
    return states


def _random_key(kind: str, rank: int) -> str:
    return f"{RANDOM}{kind}.{rank}" if rank else RANDOM + kind


def _restore_random(file: Any, ranks: RankGroup) -> None:
    """With another number of ranks than wrote it, those after the first are reseeded from the first one's state."""
    keys = set(file.keys())
    first = file.get_tensor(_random_key("cpu", 0))
    same_ranks = sum(key.startswith(RANDOM + "cpu") for key in keys) == ranks.count
    if not same_ranks and not ranks.first:
        digest = hashlib.sha256(first.numpy().tobytes() + ranks.rank.to_bytes(8, "little")).digest()
        torch.manual_seed(int.from_bytes(digest[:7], "little"))
        return
    torch.set_rng_state(file.get_tensor(_random_key("cpu", ranks.rank)))
    if torch.cuda.is_available() and _random_key("cuda", ranks.rank) in keys:
        torch.cuda.set_rng_state(file.get_tensor(_random_key("cuda", ranks.rank)))
