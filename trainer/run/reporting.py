"""Metrics and clock of a run: the first rank writes lines (`gristmill.trainer.run.metrics`) over what all ranks did.

A line's loss is the mean over the accepted updates since the line before; what still waits for its line is part of a
run's progress, so a killed run writes the same lines as one that was not. Times and joules are those of all
sessions. Evaluations and checkpoints stop the clock of the speed, not that of the run.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch

from gristmill.kernels.common.energy import Energy, machine_name, meter_for
from gristmill.trainer.model.flops import Flops, flops_of, peak_of
from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.parallel.ranks import Grid
from gristmill.trainer.run.feed import BatchFacts
from gristmill.trainer.run.metrics import MemoryUse, Metrics, Work, line_of, memory_in_use
from gristmill.trainer.run.progress import METRICS, Progress
from gristmill.trainer.run.settings import Training
from gristmill.trainer.run.unlocking import BucketsOpened

BOARD = "tensorboard"
Told = Callable[[Mapping[str, Any]], None]
# Of a rank: its machine, joules of its device and of all processors there.
Reading = tuple[str, float | None, float | None]


class UpdateResult(NamedTuple):
    """One update, as fetched from the device; `limits` are those of its loss and norm."""

    update: int
    read: BatchFacts
    share: float
    loss: float
    norm: float
    accepted: bool
    counted: int
    tokens: int
    limits: tuple[float, float]

    @property
    def overflow(self) -> bool:
        """How a loss scale finds its value, where losses are scaled."""
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
        self,
        folder: Path,
        training: Training,
        shape: DecoderShape,
        device: torch.device,
        ranks: Grid,
        told: Told | None = None,
    ) -> None:
        self._told = told
        self._folder, self._training, self._shape, self._device, self._ranks = folder, training, shape, device, ranks
        self._metrics: Metrics | None = None
        self._meter, self._machine = meter_for(device), machine_name()
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
        """At the start, and again after a return to a checkpoint: lines of later updates are dropped."""
        self._close()
        self._began = self._began or (now.tokens, now.seconds)
        if self._ranks.all.first:
            board = self._folder / BOARD if self._training.tensorboard else None
            self._metrics = Metrics(self._folder / METRICS, now.update, board)
        self._restart()

    def add(self, result: UpdateResult) -> None:
        self._lengths.append(result.read.lengths)
        self._tokens += result.tokens
        self._last = result

    def report(self, now: Progress, also: Mapping[str, float]) -> None:
        """Writes a line, after its updates were fetched."""
        if self._last is None:
            return
        seconds = time.perf_counter() - self._line_at - self._paused
        energy = self._meter.read()
        by_rank = self._ranks.all.gather(self._of_this_rank(energy - self._line_energy))
        flops = sum((Flops(*facts["flops"]) for facts in by_rank), Flops(0, 0, 0, 0))
        work = Work(
            self._tokens,
            flops,
            seconds,
            Energy(
                self._of_devices(facts["energy"] for facts in by_rank),
                _of_machines(facts["energy"] for facts in by_rank),
            ),
        )
        memory = MemoryUse(max(facts["memory"] for facts in by_rank), max(facts["peak"] for facts in by_rank))
        losses = now.line_losses
        line = line_of(
            now.update,
            now.tokens,
            sum(losses) / len(losses) if losses else math.nan,
            self._training.optimizer.rate * self._last.share,
            self._last.norm,
            work,
            memory,
            peak=self._peak,
            grams_per_kwh=self._training.grams_per_kwh,
            events=now.line_events,
        )
        self._write({**line, **also})
        now.line_losses, now.line_events = [], []
        if self._lines:
            self._steady = (self._steady[0] + self._tokens, self._steady[1] + seconds)
        self._lines += 1
        self._restart()

    def report_evaluation(self, update: int, values: dict[str, float]) -> None:
        """Numbers of numpy and torch too."""
        self._write(
            {
                "step": update,
                **{
                    f"evaluation.{name}": value if type(value) is int else float(value)
                    for name, value in values.items()
                },
            }
        )

    def clock(self, now: Progress) -> None:
        """Adds the time and the joules since the last call."""
        now_seconds, energy = time.perf_counter(), self._meter.read()
        used = self._of_devices(self._ranks.all.gather(self._reading(energy - self._energy_at)))
        joules_before = 0.0 if now.seconds == 0 else now.joules  # of a part of the run alone nothing can be said
        now.joules = None if used is None or joules_before is None else joules_before + used
        now.seconds += now_seconds - self._clock_at
        self._clock_at, self._energy_at = now_seconds, energy

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

    def _of_devices(self, readings: Iterable[Reading]) -> float | None:
        return _sum(device for _, device, _ in readings) if self._device.type == "cuda" else _of_machines(readings)

    def _of_this_rank(self, energy: Energy) -> dict[str, Any]:
        """Of ranks that read the same rows only the first counts the work."""
        grid = self._ranks
        counts = bool(self._lengths) and grid.tensor.first and grid.context.first and grid.pipeline.first
        lengths = np.concatenate(self._lengths) if counts else np.zeros(0, np.int64)
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
            if self._told is not None:
                self._told(line)

    def _restart(self) -> None:
        self._lengths, self._tokens, self._last, self._paused = [], 0, None, 0.0
        self._line_at, self._line_energy = time.perf_counter(), self._meter.read()

    def _close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None


def refused_event(result: UpdateResult) -> dict[str, Any]:
    """As an event of a line."""
    finite = {name: value for name, value in (("loss", result.loss), ("norm", result.norm)) if math.isfinite(value)}
    return {"refused": result.update, "reason": result.reason, "place": result.read.place, **finite}


def opened_event(bucket: int, more: BucketsOpened) -> dict[str, Any]:
    return {"opened": bucket, **more.facts()}


def _of_machines(readings: Iterable[Reading]) -> float | None:
    """Ranks of one machine have the same processors."""
    return _sum({machine: processors for machine, _, processors in readings}.values())


def _sum(values: Any) -> float | None:
    readings = list(values)
    return None if any(value is None for value in readings) else sum(readings)
