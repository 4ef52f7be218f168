"""Checkpoints: a folder of safetensors and one JSON, written whole or not at all, from which a run resumes bit for bit.

    step-00001000/
        model.safetensors
        optimizer.safetensors
        state.json    {version, step, files: {name: sha256}, scalars, facts, also}

The folder is written under another name, synced, and renamed: a reader never sees half of one. Optimiser state is
stored by the names of parameters, so it does not depend on their order. Tensors are whole in the files, one after
another: where processes hold parts of them (`Tensors`), a run may resume with other processes. States of random
generators are tensors of the second file, one for each process. Files are safetensors (a length, a JSON header, the
bytes). Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gristmill.kernels.common.files import whole_folder
from gristmill.trainer.step.world import ONE, World

VERSION = 1
STATE, MODEL, OPTIMIZER = "state.json", "model.safetensors", "optimizer.safetensors"
RANDOM = "random."  # followed by the number of a process
NAME = re.compile(r"step-(\d{8,})")

# Whether a run makes a checkpoint after this many updates in any case; others are made when it is told to stop.
Due = Callable[[int], bool]

CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class CheckpointError(ValueError):
    """A checkpoint that is not there, is damaged, or belongs to another run."""


@dataclass(frozen=True)
class Restored:
    step: int
    facts: dict[str, Any]
    also: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A tensor as a file has it."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Tensors:
    """How a checkpoint takes and gives tensors. Here each is whole, and in this process."""

    world: World = ONE

    def entries(self, tensors: Mapping[str, Tensor]) -> dict[str, Entry]:
        """Of the wholes, in the order of a file."""
        return file_order({name: Entry(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()})

    def wholes(self, tensors: Mapping[str, Tensor], entries: Mapping[str, Entry]) -> Iterator[tuple[str, Tensor]]:
        """In the order of `entries`, on the CPU, one at a time. Every process iterates; the first gets them."""
        for name in entries:
            yield name, tensors[name].detach().cpu().contiguous()

    def shapes(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Of the wholes."""
        return {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    def read(self, file: Any, key: str) -> Tensor:
        """What this process holds of a tensor of a file that `safetensors.safe_open` opened."""
        whole: Tensor = file.get_tensor(key)
        return whole


WHOLE = Tensors()


def file_order(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Wide numbers first: all stay aligned in the file."""
    return dict(sorted(entries.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))


def save(
    folder: Path,
    step: int,
    weights: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    facts: Mapping[str, Any],
    keep: int = 2,
    also: Mapping[str, Any] | None = None,
    due: Due | None = None,
    tensors: Tensors = WHOLE,
) -> Path:
    """Writes `folder/step-NNNNNNNN` and keeps the newest `keep`. `weights` are those that the optimizer steps on, and
    buffers.

    Every process of `tensors.world` calls this and the first one writes. `also`: state of the run that its facts do not
    hold. A checkpoint that is not `due` (None: all are) never displaces one that is.
    """
    final, world = folder / f"step-{step:08d}", tensors.world
    scalars, states = _optimizer_state(optimizer)
    states |= _random_state(world.number)
    if world.first:
        for abandoned in folder.glob(".step-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
    with whole_folder(final, replace=True) if world.first else nullcontext(final) as draft:
        files = {}
        for name, held in ((MODEL, weights), (OPTIMIZER, states)):
            entries = tensors.entries(held)
            arriving = tensors.wholes(held, entries)
            if world.first:
                files[name] = write_safetensors(draft / name, entries, arriving)
            else:
                list(arriving)
        all_scalars = {key: value for each in world.gather(scalars) for key, value in each.items()}
        if world.first:
            state = {
                "version": VERSION,
                "step": step,
                "files": files,
                "scalars": all_scalars,
                "facts": dict(facts),
                "also": dict(also or {}),
            }
            (draft / STATE).write_text(json.dumps(state, indent=1, sort_keys=True, allow_nan=False), encoding="utf-8")
    if world.first:
        kept_last = sorted(steps(folder), key=lambda path: (due is None or due(step_of(path)), step_of(path)))
        for old in kept_last[:-keep]:
            if old != final:
                _remove(old)
    world.wait()
    return final


def write_safetensors(path: Path, entries: Mapping[str, Entry], tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Returns the file's sha256. `tensors` come in the order of `entries`, one at a time."""
    header: dict[str, Any] = {}
    end = 0
    for name, entry in entries.items():
        header[name] = {
            "dtype": CODES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [end, end + entry.size],
        }
        end += entry.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in (len(text).to_bytes(8, "little"), text):
            file.write(chunk)
            digest.update(chunk)
        for _, tensor in tensors:
            data: Any = tensor.reshape(-1).view(torch.uint8).numpy()
            file.write(data)
            digest.update(data)
    return digest.hexdigest()


def _remove(path: Path) -> None:
    """Renames it first, so that nobody reads a half; if this process is killed, the next save removes the rest."""
    removed = path.with_name(f".{path.name}.{os.getpid()}.old")
    path.rename(removed)
    shutil.rmtree(removed)


def steps(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    complete = [path for path in folder.glob("step-*") if NAME.fullmatch(path.name) and (path / STATE).is_file()]
    return sorted(complete, key=step_of)


def step_of(path: Path) -> int:
    return int(path.name[5:])


def load(
    path: Path, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, tensors: Tensors = WHOLE
) -> Restored:
    """Fills `weights` in place, and the optimizer, and sets the random generators. Refuses files that were changed or
    belong to other parameters.

    Every process calls this; each reads what it holds, and only the first checks that the files are whole.
    """
    from safetensors import safe_open

    world = tensors.world
    state, problem = _read_state(path) if world.first else ({}, "")
    state, problem = world.gather([state, problem])[0]
    if problem:
        raise CheckpointError(problem)
    shapes = tensors.shapes(weights)
    with safe_open(path / MODEL, "pt") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        if unlike := sorted(n for n in saved.keys() | shapes.keys() if saved.get(n) != shapes.get(n)):
            raise CheckpointError(f"{path}: of another model: {', '.join(unlike[:5])}")
        with torch.no_grad():
            for name, tensor in weights.items():
                tensor.copy_(tensors.read(file, name))
    with safe_open(path / OPTIMIZER, "pt") as file:
        _restore_optimizer(optimizer, tensors, shapes, state["scalars"], file, path)
        _restore_random(file, world)
    return Restored(state["step"], state["facts"], state.get("also", {}))


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


def _optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Numbers, and tensors, each by what it is and of which parameter."""
    scalars: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for name, parameter in _named(optimizer).items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{key}:{name}"] = value
            else:
                scalars[f"{key}:{name}"] = value
    return scalars, tensors


def _restore_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Tensors,
    shapes: Mapping[str, Any],
    scalars: dict[str, Any],
    file: Any,
    path: Path,
) -> None:
    named = _named(optimizer)
    fused = any(group.get("fused") for group in optimizer.param_groups)
    optimizer.state.clear()
    keys = [full_key for full_key in file.keys() if not full_key.startswith(RANDOM)]  # noqa: SIM118
    for full_key in [*scalars, *keys]:
        key, _, name = full_key.partition(":")
        if name not in shapes:
            raise CheckpointError(f"{path}: the optimiser's state is of another model: {name}")
        if name not in named:  # another process's
            continue
        parameter = named[name]
        if full_key in scalars:
            optimizer.state[parameter][key] = scalars[full_key]
            continue
        value = tensors.read(file, full_key)
        # `step` lives on the CPU unless the optimizer is fused
        optimizer.state[parameter][key] = value.to(parameter.device if key != "step" or fused else "cpu")


def _random_state(process: int) -> dict[str, Tensor]:
    states = {_random_key("cpu", process): torch.get_rng_state()}
    if torch.cuda.is_available():
        states[_random_key("cuda", process)] = torch.cuda.get_rng_state()
    return states


def _random_key(kind: str, process: int) -> str:
    return f"{RANDOM}{kind}.{process}" if process else RANDOM + kind


def _restore_random(file: Any, world: World) -> None:
    """With another number of processes than wrote it, those after the first are reseeded from the first one's state."""
    keys = set(file.keys())
    first = file.get_tensor(_random_key("cpu", 0))
    as_many = sum(key.startswith(RANDOM + "cpu") for key in keys) == world.count
    if not as_many and not world.first:
        digest = hashlib.sha256(first.numpy().tobytes() + world.number.to_bytes(8, "little")).digest()
        torch.manual_seed(int.from_bytes(digest[:7], "little"))
        return
    torch.set_rng_state(file.get_tensor(_random_key("cpu", world.number)))
    if torch.cuda.is_available() and _random_key("cuda", world.number) in keys:
        torch.cuda.set_rng_state(file.get_tensor(_random_key("cuda", world.number)))
