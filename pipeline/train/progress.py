"""How far a run is, from its metrics and measurements. The job of an ablation keeps it in progress.json of its folder,
for whoever waits for the job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gristmill.pipeline.train.facts import read_facts, write_facts

PROGRESS = "progress.json"


@dataclass(frozen=True)
class RunProgress:
    """Seconds are of this session; `left` leaves out what is measured once, at the end of a job."""

    update: int
    loss: float | None
    tokens_per_second: float | None
    spent: float
    left: float
    measuring: bool = False  # training is done

    @property
    def share(self) -> float:
        return self.spent / max(1e-9, self.spent + self.left)


class RunClock:
    """The progress of `updates` updates, with a measurement after every `every` of them (None: none at all)."""

    def __init__(self, updates: int, every: int | None, metrics_every: int) -> None:
        self.updates, self.every, self.metrics_every = updates, every, metrics_every
        self.begun = time.perf_counter()
        self.measured: list[float] = []  # seconds of each measurement
        self._lines, self._step, self._made, self._seconds = 0, 0, 0, 0.0

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Around a measurement."""
        start = time.perf_counter()
        yield
        self.measured.append(time.perf_counter() - start)

    def read(self, line: Mapping[str, Any]) -> RunProgress:
        """After a line of the trainer's metrics that has a loss."""
        if self._lines == 1:  # code was compiled during the first
            self._made, self._seconds = 0, 0.0
        self._made += line["step"] - self._step if self._lines else min(line["step"], self.metrics_every)
        self._seconds += line["seconds"]
        self._lines, self._step = self._lines + 1, line["step"]
        left = (self.updates - self._step) * self._seconds / max(1, self._made)
        if self.every is not None and self.measured:
            to_come = -(-self.updates // self.every) - (self._step - 1) // self.every
            left += to_come * sum(self.measured) / len(self.measured)
        spent = time.perf_counter() - self.begun
        return RunProgress(self._step, line["loss"], line["tokens_per_second"], spent, left)


def progress_in(folder: Path) -> RunProgress | None:
    """None: the job has not said anything yet."""
    facts = read_facts(folder / PROGRESS, dict)
    return RunProgress(**facts) if facts else None


def keep_progress(folder: Path, clock: RunClock) -> Callable[[Mapping[str, Any]], None]:
    """What the trainer tells its lines of metrics to."""

    def told(line: Mapping[str, Any]) -> None:
        if "loss" in line:
            write_facts(folder / PROGRESS, asdict(clock.read(line)))

    return told


def begin_measuring(folder: Path, updates: int) -> None:
    """Write that training is done."""
    last = progress_in(folder) or RunProgress(updates, None, None, 0.0, 0.0)
    write_facts(folder / PROGRESS, asdict(replace(last, left=0.0, measuring=True)))
