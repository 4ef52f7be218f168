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
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from gristmill.kernels.common.files import write_whole

Line = dict[str, Any]


def memory_in_use(device: torch.device) -> tuple[int, int]:
    """Now and at the most, in bytes: of the allocator on CUDA, of the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else peak, peak


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Metrics:
    """The metrics file of a run that resumes after update number `resumed`.

    Lines of later updates are dropped, because those are made again. Call `sync` before a checkpoint is written: the
    file is then never behind it.
    """

    def __init__(self, path: Path, resumed: int = 0) -> None:
        keep_to(path, resumed)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def write(self, line: Mapping[str, Any]) -> None:
        """In one piece, so that another process reads whole lines."""
        self._file.write(
            json.dumps({name: _finite(value) for name, value in line.items()}, allow_nan=False).encode() + b"\n"
        )

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self.sync()
        self._file.close()

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
