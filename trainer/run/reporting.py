"""Metrics and clock of a run: the first process writes lines (`gristmill.trainer.run.metrics`) over what all did.

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

from gristmill.kernels.common.energy import Energy, grams_co2, machine_name, meter_for
from gristmill.trainer.model.flops import Flops, flops_of, mfu, peak_of
from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.run.feed import BatchFacts
from gristmill.trainer.run.metrics import Metrics, memory_in_use
from gristmill.trainer.run.progress import METRICS, Progress
from gristmill.trainer.run.settings import Training
from gristmill.trainer.run.unlocking import BucketsOpened
from gristmill.trainer.step.world import World

Told = Callable[[Mapping[str, Any]], None]
# Of a process: its machine, joules of its device and of all processors there.
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
        world: World,
        told: Told | None = None,
    ) -> None:
        self._told = told
        self._folder, self._training, self._shape, self._device, self._world = folder, training, shape, device, world
        self._metrics: Metrics | None = None
        self._meter, self._machine = meter_for(device), machine_name()
        kind = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        peak = peak_of(kind)
        self._peak = None if peak is None else peak * world.count
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
        """At the start: lines of updates after the checkpoint are dropped."""
        self._began = (now.tokens, now.seconds)
        if self._world.first:
            self._metrics = Metrics(self._folder / METRICS, now.update)
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
        by_process = self._world.gather(self._of_this_process(energy - self._line_energy))
        flops = sum((of_one for of_one, _, _ in by_process), Flops(0, 0, 0, 0))
        readings, memory = ([facts[place] for facts in by_process] for place in (1, 2))
        joules, losses = self._of_devices(readings), now.line_losses
        line: dict[str, Any] = {
            "step": now.update,
            "tokens": now.tokens,
            "loss": sum(losses) / len(losses) if losses else math.nan,
            "rate": self._training.optimizer.rate * self._last.share,
            "norm": self._last.norm,
            "seconds": round(seconds, 6),
            "tokens_per_second": _rate(self._tokens, seconds),
            "matmul_flops_per_second": _rate(flops.matmul, seconds),
            "attention_flops_per_second": _rate(flops.attention, seconds),
            "mfu": mfu(flops, seconds, self._peak) if seconds else None,
            "memory": max(used for used, _ in memory),
            "peak_memory": max(most for _, most in memory),
            "joules": joules,
            "tokens_per_joule": _rate(self._tokens, joules),
            "processor_joules": _of_machines(readings),
        }
        if self._training.grams_per_kwh is not None:
            line["grams_co2"] = grams_co2(joules, self._training.grams_per_kwh)
        if now.line_events:
            line["events"] = now.line_events
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
        used = self._of_devices(self._world.gather(self._reading(energy - self._energy_at)))
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
        if self._world.first:
            warnings.warn(text, stacklevel=2)

    def _reading(self, used: Energy) -> Reading:
        return self._machine, used.device, used.processors

    def _of_devices(self, readings: Iterable[Reading]) -> float | None:
        return _sum(device for _, device, _ in readings) if self._device.type == "cuda" else _of_machines(readings)

    def _of_this_process(self, energy: Energy) -> tuple[Flops, Reading, tuple[int, int]]:
        lengths = np.concatenate(self._lengths) if self._lengths and self._world.reports else np.zeros(0, np.int64)
        return flops_of(self._shape, lengths), self._reading(energy), memory_in_use(self._device)

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
    """Processes of one machine have the same processors."""
    return _sum({machine: processors for machine, _, processors in readings}.values())


def _sum(values: Any) -> float | None:
    readings = list(values)
    return None if any(value is None for value in readings) else sum(readings)


def _rate(count: float, per: float | None) -> float | None:
    return count / per if per else None
