"""Ctrl-C: once is enough. A second one would break off the tidying up that the first began, and the run would end later for it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def one_is_enough() -> Iterator[None]:
    """The first Ctrl-C in the block interrupts it, those that follow are not heard until the block has ended."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield  # whoever handles the signal in a way of his own goes on doing so
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
