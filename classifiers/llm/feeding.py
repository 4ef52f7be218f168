"""How an engine is given its requests, chosen by measurement on the first of them: with or without its prefix cache, in
which order, how many at a time.

One choice after another: the current way and the one that differs in it take turns of some requests, and the faster
goes on to the next choice. Every request is answered once, and its answer does not depend on how it was fed, but for
the last digits that batches move in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gristmill.classifiers.llm.model import Request

FEWEST = 64  # requests of a turn that counts
TURN = 1024  # requests
ROUNDS = 2  # turns of each way


@dataclass(frozen=True)
class Feeding:
    """`cached`: prompts take their beginning from the prefix cache. `sorted`: those with one beginning follow each
    other, the shortest first."""

    cached: bool = True
    sorted: bool = False
    in_flight: int = 4096  # requests handed to the engine ahead

    def order(self, requests: Sequence[Request], rows: range) -> list[int]:
        if not self.sorted:
            return list(rows)
        return sorted(rows, key=lambda row: (requests[row].shared, len(requests[row].own)))

    def __str__(self) -> str:
        order = "sorted by beginning and length" if self.sorted else "as they come"
        return f"{'with' if self.cached else 'without'} prefix cache, {order}, {self.in_flight:,} at a time"


class FeedingChoice:
    """Which way is next to be tried, and once all choices are made the fastest."""

    def __init__(self, start: Feeding, measure: bool, fewer: int = 256) -> None:
        self.current = start
        other_ways: list[dict[str, bool | int]] = [{"sorted": not start.sorted}, {"in_flight": fewer}]
        if start.cached:  # an engine that was started without a cache gets none by asking
            other_ways.insert(0, {"cached": False})
        self._waiting = other_ways if measure else []
        self._warm = not measure  # the first turn pays for what an engine does once
        self._turns: list[Feeding] = []
        self._rates: dict[Feeding, tuple[int, float]] = {}

    @property
    def measuring(self) -> bool:
        return bool(self._waiting)

    def next(self) -> Feeding:
        """Whose turn it is."""
        if not self.measuring or not self._warm:
            return self.current
        if not self._turns:
            rival: Feeding = replace(self.current, **self._waiting[0])  # type: ignore[arg-type]
            self._turns, self._rates = [self.current, rival] * ROUNDS, {}
        return self._turns[0]

    def measured(self, requests: int, tokens: int, seconds: float) -> None:
        """Of the turn that `next` gave."""
        if not self.measuring or requests < FEWEST:
            return
        if not self._warm:
            self._warm = True
            return
        feeding = self._turns.pop(0)
        before = self._rates.get(feeding, (0, 0.0))
        self._rates[feeding] = before[0] + tokens, before[1] + seconds
        if not self._turns:
            self.current = max(self._rates, key=lambda way: self._rates[way][0] / max(self._rates[way][1], 1e-9))
            del self._waiting[0]
