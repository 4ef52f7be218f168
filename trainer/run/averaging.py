"""The mean of a run's last checkpoints: the weights that a falling rate would have led to, without the fall, and a
less noisy measurement of what was learned.

Uniform (Izmailov et al. 2018, and LAWA, Kaddour 2022) or exponential: of n checkpoints, the k-th before the last
weighs decay**k, and the first has the rest. Sums are float64, one tensor of all checkpoints at a time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gristmill.trainer.step import checkpoint
from gristmill.trainer.step.checkpoint import MODEL, STATE, CheckpointError, Due, step_of


def average_last(folder: Path, count: int, decay: float | None = None, due: Due | None = None) -> dict[str, Tensor]:
    """The mean of the newest `count` checkpoints of a run's folder that were `due` (None: all): where the run was
    stopped must not affect its model."""
    paths = [path for path in checkpoint.steps(folder) if due is None or due(step_of(path))]
    if len(paths) < count:
        raise CheckpointError(
            f"{folder}: holds {len(paths)} checkpoints, of which {count} are to be averaged; keep more of them"
        )
    return average_checkpoints(paths[len(paths) - count :], decay)


def average_checkpoints(paths: Sequence[Path], decay: float | None = None) -> dict[str, Tensor]:
    """The mean of checkpoints, oldest first, each a folder or a safetensors file; in their stored dtype, on the CPU.
    `decay` None: equal weights.

    Checkpoints whose tensors differ in name, shape or dtype are refused, and so are damaged ones and one that is
    named twice. Tensors that are not floating point must be equal in all.
    """
    from safetensors import safe_open

    shares = weights_of(len(paths), decay)
    if len({path.resolve() for path in paths}) < len(paths):
        raise CheckpointError("a checkpoint is named twice: " + ", ".join(str(path) for path in paths))
    files = [_file(path) for path in paths]
    with ExitStack() as open_files:
        readers = [open_files.enter_context(safe_open(file, framework="pt")) for file in files]
        types = [_tensor_types(reader) for reader in readers]
        for file, other in zip(files[1:], types[1:], strict=True):
            if differing := sorted(
                name for name in types[0].keys() | other.keys() if types[0].get(name) != other.get(name)
            ):
                raise CheckpointError(f"{file}: of another model than {files[0]}: {', '.join(differing[:5])}")
        return {name: _mean(name, readers, shares, files) for name in types[0]}


def weights_of(count: int, decay: float | None) -> list[float]:
    """Of each checkpoint, oldest first; they add up to 1."""
    if count < 1:
        raise CheckpointError("there is no checkpoint to average")
    if decay is None:
        return [1 / count] * count
    if not 0 <= decay < 1:
        raise ValueError(f"decay {decay}: between 0 and 1, 1 left out")
    newer = [(1 - decay) * decay**back for back in range(count - 1)]
    return [1 - sum(newer), *reversed(newer)]


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    file = path / MODEL
    try:
        stated = json.loads((path / STATE).read_text(encoding="utf-8"))["files"][MODEL]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: no checkpoint that can be read ({error})") from error
    if not file.is_file() or checkpoint.sha256_of(file) != stated:
        raise CheckpointError(f"{file}: missing, or not the bytes that were written")
    return file


def _tensor_types(reader: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    slices = {name: reader.get_slice(name) for name in reader.keys()}  # noqa: SIM118  # a reader is no dictionary
    return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}


def _mean(name: str, readers: Sequence[Any], shares: Sequence[float], files: Sequence[Path]) -> Tensor:
    first: Tensor = readers[0].get_tensor(name)
    if not first.is_floating_point():
        for reader, file in zip(readers[1:], files[1:], strict=True):
            if not torch.equal(first, reader.get_tensor(name)):
                raise CheckpointError(
                    f"{file}: {name} is no weight that can be averaged, and differs from that of {files[0]}"
                )
        return first.clone()
    total = first.double() * shares[0]
    for reader, share in zip(readers[1:], shares[1:], strict=True):
        total += reader.get_tensor(name).double() * share
    return total.to(first.dtype)
