"""What a run asks of its process: to be told before it is ended, and to compute the same bits again."""

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
    """The run was told to stop, left a checkpoint, and can go on from it."""


class StopAsked:
    """By which signal, if any. A second one does what it does without us."""

    def __init__(self) -> None:
        self.name: str | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.name = signal.Signals(number).name
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@contextmanager
def stop_asked() -> Iterator[StopAsked]:
    """Only the main thread hears signals; in another, nobody asks."""
    asked = StopAsked()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before: dict[int, Any] = {number: signal.signal(number, asked) for number in SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def reproducible(deterministic: bool) -> Iterator[None]:
    """Inside, torch refuses algorithms that give other bits each time, and attention takes its slower, ordered sums.
    The CPU has none of either."""
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
