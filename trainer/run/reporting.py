"""What a run writes down while it goes: lines of metrics (`gristmill.trainer.run.metrics`) by the first rank, over what
all ranks did, and the clock.

A line's loss is the mean over the accepted updates since the line before; what is still waiting for its line is part of
a run's progress, so that a run that was killed writes the lines of one that was not. Times and joules are those of the
sessions that were. Evaluations and checkpoints stop the clock of the speed, not that of the run.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch

from gristmill.trainer.model.flops import Flops, flops_of, peak_of
from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.run.energy import Energy, machine_name, meter_of
from gristmill.trainer.run.feed import Read
from gristmill.trainer.run.metrics import MemoryUse, Metrics, Work, line_of, memory_in_use
from gristmill.trainer.run.progress import METRICS, Progress
from gristmill.trainer.run.settings import Training
from gristmill.trainer.run.unlocking import Opened
from gristmill.trainer.step.parallel import Grid

BOARD = "tensorboard"
Reading = tuple[
    str, float | None, float | None
]  # of a rank: its machine, joules of its device and of all processors there


class UpdateResult(NamedTuple):
    """One update, as fetched from the device; `limits` are those of its loss and norm."""

    update: int
    read: Read
    share: float
    loss: float
    norm: float
    accepted: bool
    counted: int
    tokens: int
    limits: tuple[float, float]

    @property
    def overflow(self) -> bool:
        """Where losses are scaled that is how the scale finds its place."""
        return math.isfinite(self.loss) and self.loss <= self.limits[0] and not math.isfinite(self.norm)

    @property
    def reason(self) -> str:
        if not math.isfinite(self.loss):
            return "loss not finite"
        if self.loss > self.limits[0]:
            return f"loss above {self.limits[0]:.4g}"
        return f"norm above {self.limits[1]:.4g}" if math.isfinite(self.norm) else "norm not finite"


class Reporter:
    """A context: leaving it closes the file."""

    def __init__(
        self, folder: Path, training: Training, shape: DecoderShape, device: torch.device, ranks: Grid
    ) -> None:
        self._folder, self._training, self._shape, self._device, self._ranks = folder, training, shape, device, ranks
        self._metrics: Metrics | None = None
        self._meter, self._machine = meter_of(device), machine_name()
        kind = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        peak = peak_of(kind)
        self._peak = None if peak is None else peak * ranks.all.count
        self._lengths: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        self._tokens = 0
        self._last: UpdateResult | None = None
        self._paused = 0.0
        self._lines = 0
        self._steady = (0, 0.0)  # tokens and seconds of all lines but the first, in which code is compiled
        self._began: tuple[int, float] | None = None  # tokens and seconds of the sessions before
        self._clock_at = self._line_at = time.perf_counter()
        self._energy_at = self._line_energy = self._meter.read()

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def begin(self, now: Progress) -> None:
        """Here, and again where the run went back to: what was written of later updates is dropped."""
        self._close()
        self._began = self._began or (now.tokens, now.seconds)
        if self._ranks.all.first:
            board = self._folder / BOARD if self._training.tensorboard else None
            self._metrics = Metrics(self._folder / METRICS, now.update, board)
        self._restart()

    def made(self, made: UpdateResult) -> None:
        self._lengths.append(made.read.lengths)
        self._tokens += made.tokens
        self._last = made

    def report(self, now: Progress) -> None:
        """A line, after its updates were looked at."""
        if self._last is None:
            return
        seconds = time.perf_counter() - self._line_at - self._paused
        energy = self._meter.read()
        of_all = self._ranks.all.gather(self._of_this_rank(energy - self._line_energy))
        flops = sum((Flops(*said["flops"]) for said in of_all), Flops(0, 0, 0, 0))
        work = Work(
            self._tokens,
            flops,
            seconds,
            Energy(self._of_devices(s["energy"] for s in of_all), _of_machines(s["energy"] for s in of_all)),
        )
        memory = MemoryUse(max(s["memory"] for s in of_all), max(s["peak"] for s in of_all))
        losses = now.line_losses
        line = line_of(
            now.update, now.tokens, sum(losses) / len(losses) if losses else math.nan, self._training.optimizer.rate * self._last.share,
            self._last.norm, work, memory, peak=self._peak, grams_per_kwh=self._training.grams_per_kwh, events=now.line_events,
        )  # fmt: skip
        self._write(line)
        now.line_losses, now.line_events = [], []
        if self._lines:
            self._steady = (self._steady[0] + self._tokens, self._steady[1] + seconds)
        self._lines += 1
        self._restart()

    def evaluated(self, update: int, found: dict[str, float]) -> None:
        """Numbers of numpy and torch too."""
        self._write(
            {
                "step": update,
                **{
                    f"evaluation.{name}": value if type(value) is int else float(value) for name, value in found.items()
                },
            }
        )

    def clock(self, now: Progress) -> None:
        """Adds the time and the joules since it was last asked."""
        at, energy = time.perf_counter(), self._meter.read()
        used = self._of_devices(self._ranks.all.gather(self._reading(energy - self._energy_at)))
        known = 0.0 if now.seconds == 0 else now.joules  # of a part of the run alone nothing can be said
        now.joules = None if used is None or known is None else known + used
        now.seconds += at - self._clock_at
        self._clock_at, self._energy_at = at, energy

    @contextmanager
    def pause(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - began

    def sync(self) -> None:
        if self._metrics is not None:
            self._metrics.sync()

    def speed(self, now: Progress) -> float:
        """Tokens a second of this session."""
        tokens, seconds = self._steady
        if not tokens and self._began:
            tokens, seconds = max(now.tokens - self._began[0], 0), now.seconds - self._began[1]
        return tokens / seconds if seconds > 0 else 0.0

    def warn(self, text: str) -> None:
        if self._ranks.all.first:
            warnings.warn(text, stacklevel=2)

    def _reading(self, used: Energy) -> Reading:
        return self._machine, used.device, used.processors

    def _of_devices(self, said: Iterable[Reading]) -> float | None:
        return _sum(device for _, device, _ in said) if self._device.type == "cuda" else _of_machines(said)

    def _of_this_rank(self, energy: Energy) -> dict[str, Any]:
        """Ranks that share layers saw the same tokens: the first of them tells of the work."""
        lengths = np.concatenate(self._lengths) if self._lengths and self._ranks.tensor.first else np.zeros(0, np.int64)
        flops = flops_of(self._shape, lengths)
        memory = memory_in_use(self._device)
        return {
            "flops": [flops.matmul_forward, flops.matmul_backward, flops.attention_forward, flops.attention_backward],
            "energy": self._reading(energy),
            "memory": memory.now,
            "peak": memory.peak,
        }

    def _write(self, line: dict[str, Any]) -> None:
        if self._metrics is not None:
            self._metrics.write(line)

    def _restart(self) -> None:
        self._lengths, self._tokens, self._last, self._paused = [], 0, None, 0.0
        self._line_at, self._line_energy = time.perf_counter(), self._meter.read()

    def _close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None


def refused(made: UpdateResult) -> dict[str, Any]:
    """As an event of a line."""
    finite = {name: value for name, value in (("loss", made.loss), ("norm", made.norm)) if math.isfinite(value)}
    return {"refused": made.update, "reason": made.reason, "place": made.read.place, **finite}


def opened(bucket: int, more: Opened) -> dict[str, Any]:
    return {"opened": bucket, **more.facts()}


def _of_machines(said: Iterable[Reading]) -> float | None:
    """Ranks of one machine have the same processors."""
    return _sum({machine: processors for machine, _, processors in said}.values())


def _sum(values: Any) -> float | None:
    known = list(values)
    return None if any(value is None for value in known) else sum(known)
