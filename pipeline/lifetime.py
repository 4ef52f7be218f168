"""Processes that end with the one that started them, so that kill -9 of a run leaves nothing at work."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from multiprocessing import connection, parent_process

EVERY = 0.2  # seconds


def end_with_parent() -> None:
    """Watch from a thread what this process lives for; end it as soon as that is gone."""
    threading.Thread(target=_follow, args=(os.getppid(), threading.Event()), daemon=True, name="end-with-parent").start()


@contextlib.contextmanager
def ending_with_parent() -> Iterator[None]:
    """The same for the time of a block; after it no thread is left, so that the process can be forked."""
    enough = threading.Event()
    watch = threading.Thread(target=_follow, args=(os.getppid(), enough), daemon=True, name="end-with-parent")
    watch.start()
    try:
        yield
    finally:
        enough.set()
        watch.join()


def _follow(parent: int, enough: threading.Event) -> None:
    """The parent is the process that this one was forked from; a worker also has a driver, that asked for it."""
    driver = parent_process()
    while os.getppid() == parent and not enough.is_set():
        if driver is None:
            enough.wait(EVERY)
        elif connection.wait([driver.sentinel], EVERY):
            break
    if not enough.is_set():
        os._exit(0)
