"""Ctrl-C, and what else asks a run to end (SIGTERM of a cluster or container, SIGHUP of a terminal that closes): once
is enough. A second one would break off the tidying up that the first began, and the run would end later for it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

ASKING = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}


@contextlib.contextmanager
def one_is_enough() -> Iterator[None]:
    """The first such signal in the block interrupts it, those that follow are not heard until the block has ended."""
    # whoever handles a signal in a way of his own, or has it ignored (nohup), goes on doing so
    before = {number: usual for number, usual in ASKING.items() if signal.getsignal(number) is usual}
    if threading.current_thread() is not threading.main_thread() or not before:
        yield
        return

    def interrupt(_: int, frame: FrameType | None) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
