"""The mean of a run's last checkpoints: the weights that a falling rate would have led to, without the fall, and a
less noisy measurement of what was learned.

Izmailov et al. 2018; LAWA, Kaddour 2022. Sums are float64, one tensor of all checkpoints at a time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from gristmill.trainer.step import checkpoint
from gristmill.trainer.step.checkpoint import MODEL, STATE, CheckpointError, Due, step_of


def average_last(folder: Path, count: int, due: Due | None = None) -> dict[str, Tensor]:
    """The mean of the newest `count` checkpoints of a run's folder that were `due` (None: all), in their stored dtype,
    on the CPU: where the run was stopped must not affect its model. Damaged ones are refused."""
    from safetensors import safe_open

    paths = [path for path in checkpoint.steps(folder) if due is None or due(step_of(path))]
    if len(paths) < count:
        raise CheckpointError(
            f"{folder}: holds {len(paths)} checkpoints, of which {count} are to be averaged; keep more of them"
        )
    with ExitStack() as open_files:
        readers = [
            open_files.enter_context(safe_open(_whole_file(path), framework="pt"))
            for path in paths[len(paths) - count :]
        ]
        return {name: _mean(name, readers) for name in readers[0].keys()}  # noqa: SIM118  # a reader is no dictionary


def _whole_file(path: Path) -> Path:
    file = path / MODEL
    try:
        stated = json.loads((path / STATE).read_text(encoding="utf-8"))["files"][MODEL]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: no checkpoint that can be read ({error})") from error
    if not file.is_file() or checkpoint.sha256_of(file) != stated:
        raise CheckpointError(f"{file}: missing, or not the bytes that were written")
    return file


def _mean(name: str, readers: Sequence[Any]) -> Tensor:
    first: Tensor = readers[0].get_tensor(name)
    total = first.double()
    for reader in readers[1:]:
        total += reader.get_tensor(name).double()
    return (total / len(readers)).to(first.dtype)
