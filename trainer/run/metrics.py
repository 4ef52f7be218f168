"""Metrics of a run, one line of JSON at a time; a killed and resumed run writes the same lines as one that was not
killed.

    {"step": 120, "tokens": 62914560, "loss": 3.91, "rate": 0.0003, "norm": 0.41, "seconds": 1.2,
     "tokens_per_second": 436906.7, "matmul_flops_per_second": ..., "attention_flops_per_second": ..., "mfu": 0.47,
     "memory": ..., "peak_memory": ..., "joules": 820.5, "tokens_per_joule": 639.0, "processor_joules": null,
     "grams_co2": 0.09, "events": [...]}

`step` and `tokens` count from the run's beginning, rates and joules from the line before. FLOPs are those of documents
(`gristmill.trainer.model.flops`), MFU is against the data sheet's bf16 peak of all GPUs. null: no meter, no peak known,
or a number that was not finite. With experts, of the last update: `expert_load`, the largest load of an expert over the
mean of its layer, `auxiliary_loss`, and `tokens_dropped`. `grams_co2` is there if an intensity was stated, `events` if
something happened.
"""

from __future__ import annotations

import json
import math
import os
import resource
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from gristmill.kernels.common.energy import Energy, grams_co2
from gristmill.kernels.common.files import write_whole
from gristmill.trainer.model.flops import Flops, mfu

Line = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """What all ranks together did since the line before: tokens of documents, no padding."""

    tokens: int
    flops: Flops
    seconds: float
    energy: Energy


@dataclass(frozen=True)
class MemoryUse:
    """In bytes: of the allocator on CUDA, of the process elsewhere."""

    now: int
    peak: int


def memory_in_use(device: torch.device) -> MemoryUse:
    if device.type == "cuda":
        return MemoryUse(torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    statm = Path("/proc/self/statm")
    now = int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else peak
    return MemoryUse(now, peak)


def line_of(
    step: int,
    tokens: int,
    loss: float,
    rate: float,
    norm: float,
    work: Work,
    memory: MemoryUse,
    *,
    peak: float | None = None,
    grams_per_kwh: float | None = None,
    events: Sequence[Mapping[str, Any]] = (),
) -> Line:
    """After update number `step`, counted from 1. `peak`: FLOP/s of all ranks' devices; `grams_per_kwh`: of CO2 at the
    plug, None: not given."""
    joules = work.energy.device
    line: Line = {
        "step": step,
        "tokens": tokens,
        "loss": loss,
        "rate": rate,
        "norm": norm,
        "seconds": round(work.seconds, 6),
        "tokens_per_second": _rate(work.tokens, work.seconds),
        "matmul_flops_per_second": _rate(work.flops.matmul, work.seconds),
        "attention_flops_per_second": _rate(work.flops.attention, work.seconds),
        "mfu": mfu(work.flops, work.seconds, peak) if work.seconds else None,
        "memory": memory.now,
        "peak_memory": memory.peak,
        "joules": joules,
        "tokens_per_joule": _rate(work.tokens, joules),
        "processor_joules": work.energy.processors,
    }
    if grams_per_kwh is not None:
        line["grams_co2"] = grams_co2(joules, grams_per_kwh)
    if events:
        line["events"] = [dict(event) for event in events]
    return {name: _finite(value) for name, value in line.items()}


def _rate(count: float, per: float | None) -> float | None:
    return count / per if per else None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Metrics:
    """The metrics file of a run that resumes after update number `resumed`, and TensorBoard's in a folder if one is
    named.

    Lines of later updates are dropped, because those are made again. Call `sync` before a checkpoint is written: the
    file is then never behind it.
    """

    def __init__(self, path: Path, resumed: int = 0, tensorboard: Path | None = None) -> None:
        keep_to(path, resumed)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._board = None if tensorboard is None else _board(tensorboard, resumed)

    def write(self, line: Mapping[str, Any]) -> None:
        """In one piece, so that another process reads whole lines."""
        self._file.write(
            json.dumps({name: _finite(value) for name, value in line.items()}, allow_nan=False).encode() + b"\n"
        )
        if self._board is not None:
            for name, value in line.items():
                if isinstance(value, int | float) and name != "step":
                    self._board.add_scalar(name, value, line["step"])

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        if self._board is not None:
            self._board.flush()

    def close(self) -> None:
        self.sync()
        self._file.close()
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> Metrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def keep_to(path: Path, step: int) -> None:
    """Leaves the lines up to update number `step`, and no half one."""
    if not path.exists():
        return
    written = path.read_bytes()
    kept = b"".join(raw + b"\n" for raw, line in _lines(written) if line is not None and line["step"] <= step)
    if kept == written:
        return
    write_whole(path, kept)


def read_metrics(path: Path) -> list[Line]:
    """All lines; one that is being written is left out."""
    lines: list[Line] = []
    for number, (_, line) in enumerate(_lines(path.read_bytes()), 1):
        if line is None:
            raise ValueError(f"{path}:{number}: not a line of metrics; the file was damaged or is something else")
        lines.append(line)
    return lines


def _lines(written: bytes) -> Iterable[tuple[bytes, Line | None]]:
    for raw in written.split(b"\n")[:-1]:
        try:
            line = json.loads(raw)
        except ValueError:
            line = None
        yield raw, line if isinstance(line, dict) and type(line.get("step")) is int else None


def _board(folder: Path, resumed: int) -> Any | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        warnings.warn(
            "metrics go to the JSON file alone: TensorBoard is not installed (pip install tensorboard)", stacklevel=3
        )
        return None
    return SummaryWriter(str(folder), purge_step=resumed + 1)  # type: ignore[no-untyped-call]
