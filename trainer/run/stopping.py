"""Signals that stop a run, and settings of the process that make it reproducible."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

SIGNALS = (signal.SIGTERM, signal.SIGINT)
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


class Stopped(RuntimeError):
    """The run was stopped, left a checkpoint, and can resume from it."""


class StopAsked:
    """The signal that asked for a stop, if any. A second signal has the effect that it had before."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.before: dict[int, Any] = {}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.name = signal.Signals(number).name
        signal.signal(number, self.before[number])


@contextmanager
def stop_asked() -> Iterator[StopAsked]:
    """Only the main thread receives signals; in another thread, nothing is watched."""
    asked = StopAsked()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    asked.before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, asked)
    try:
        yield asked
    finally:
        for number in SIGNALS:
            signal.signal(number, asked.before[number])


@contextmanager
def reproducible(deterministic: bool) -> Iterator[None]:
    """Inside, torch refuses nondeterministic algorithms, and attention uses its slower, ordered sums. The CPU has
    neither."""
    if not deterministic:
        yield
        return
    mode, benchmark = torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
    filling: Any = torch.utils.deterministic
    fill = filling.fill_uninitialized_memory
    workspace = os.environ.get(WORKSPACE)
    os.environ[WORKSPACE] = workspace or ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    filling.fill_uninitialized_memory = False  # costs a pass over memory that is written anyway
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.backends.cudnn.benchmark = benchmark
        filling.fill_uninitialized_memory = fill
        if workspace is None:
            del os.environ[WORKSPACE]
