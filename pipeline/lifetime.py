"""Processes that end with the one that started them, so that kill -9 of a run leaves nothing at work."""

from __future__ import annotations

import os
import threading
import time


def end_with_parent() -> None:
    """Watch the parent from a thread; end this process as soon as it is an orphan."""
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True, name="end-with-parent").start()


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(0)
