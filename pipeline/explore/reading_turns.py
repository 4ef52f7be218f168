"""Whose turn it is to read Parquet: two at a time, the newest first; whoever is waited for stops early and says how far
it came."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

AT_ONCE = 2
FAIR = 0.5  # seconds that a search has in any case
PATIENCE = 20.0  # seconds after which one that waits gives up


class Busy(Exception):
    """Too many want to read at once."""


@dataclass
class Turn:
    """One reader's time."""

    turns: Turns
    seconds: float
    began: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        spent = time.monotonic() - self.began
        return spent > self.seconds or (spent > FAIR and self.turns.waited_for)


class Turns:
    """A semaphore that lets the newest through first: a person who asked again has forgotten what was asked before."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._free = at_once
        self._waiting: list[object] = []
        self._changed = threading.Condition()

    @property
    def waited_for(self) -> bool:
        return bool(self._waiting)

    @contextlib.contextmanager
    def turn(self, seconds: float) -> Iterator[Turn]:
        me = object()
        with self._changed:
            self._waiting.append(me)
            is_my_turn = self._changed.wait_for(lambda: self._free > 0 and self._waiting[-1] is me, PATIENCE)
            self._waiting.remove(me)
            if not is_my_turn:
                self._changed.notify_all()
                raise Busy("others are reading; ask again in a moment")
            self._free -= 1
            self._changed.notify_all()
        try:
            yield Turn(self, seconds)
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()
