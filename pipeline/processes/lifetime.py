"""Processes that end with the one that started them, so that kill -9 of a run leaves nothing at work; what stages start
ends with them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import connection, forkserver, parent_process

import psutil

EVERY = 0.2  # seconds
PR_SET_CHILD_SUBREAPER = 36


def end_with_parent() -> None:
    """Watch from a thread what this process lives for; end it as soon as that is gone."""
    threading.Thread(
        target=_follow, args=(os.getppid(), threading.Event()), daemon=True, name="end-with-parent"
    ).start()


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
        end_descendants()
        os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, which init would be: a process that a stage left behind
    can be found (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """The processes below this one, or another."""
    with contextlib.suppress(psutil.Error):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def end_descendants() -> None:
    end(descendants())


def end(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def how_it_ended(code: int) -> str:
    """What an exit code says, as `subprocess` and `os.waitstatus_to_exitcode` give it."""
    if code >= 0:
        return f"ended with code {code}"
    with contextlib.suppress(ValueError):
        return f"died of {signal.Signals(-code).name}"
    return f"died of signal {-code}"


@contextlib.contextmanager
def no_way_back_for_forks() -> Iterator[None]:
    """End a process that was forked in the block where it leaves it: it would do all that its parent does a second
    time."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(1)


def let_go_of_the_template() -> None:
    """In a process that a stage forked: the template serves until nobody holds on to it."""
    server = forkserver._forkserver
    if server._forkserver_alive_fd is not None:  # type: ignore[attr-defined]
        os.close(server._forkserver_alive_fd)  # type: ignore[attr-defined]
        server._forkserver_alive_fd = None  # type: ignore[attr-defined]
