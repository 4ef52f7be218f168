"""Stretches of remote files, asked for again as often as it helps; what has come is not asked for twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gristmill.kernels.common.http import backoff
from gristmill.pipeline.crawls.pace import Pace
from gristmill.pipeline.crawls.wires import Answer, Interrupted, Missing, Wire, count, counting, wire_to
from gristmill.pipeline.errors import RunFailed
from gristmill.stages.read.cc import CrawlLimits

LONGEST_PAUSE = 60.0
MISSING = 2  # requests for a file that is not there: a list that was just written may be a moment late


@dataclass(frozen=True)
class Facts:
    """What is known of a remote file."""

    size: int
    tag: str


class Fetcher:
    """Requests to one root. `asked` counts its requests and the bytes that came."""

    def __init__(self, root: str, limits: CrawlLimits, pace: Pace, asked: Counter[str]) -> None:
        self.wire: Wire = wire_to(root, limits.timeout)
        self.limits = limits
        self.pace = pace
        self.asked = asked
        self.remarks: list[str] = []

    @property
    def root(self) -> str:
        return self.wire.root

    def stretch(
        self,
        name: str,
        start: int,
        end: int | None,
        tag: str = "",
        learn: Callable[[int, Facts], object] = lambda start, facts: None,
    ) -> Iterator[bytes]:
        """Bytes from `start` up to `end` (None: to the file's end; the last ones where `start` is negative). After a
        fault it goes on behind the last byte that came. `learn` hears where they begin, and of the file."""
        at, tries, known = start, 0, False
        while end is None or at < end or not known:
            try:
                answer = self._ask(name, at, end, tag)
                if not known:
                    at, known, tag = answer.start, True, tag or answer.tag
                    end = answer.size if end is None else min(end, answer.size)
                    learn(at, Facts(answer.size, answer.tag))
                for chunk in answer.chunks:
                    with counting:
                        self.asked["bytes"] += len(chunk)
                    at, tries = at + len(chunk), 0
                    yield chunk
                if end is not None and at >= end:
                    return
            except Interrupted as fault:
                tries += 1
                self._pause(name, fault, tries)

    def _ask(self, name: str, start: int, end: int | None, tag: str) -> Answer:
        self.pace.request()
        with counting:
            self.asked["requests"] += 1
        answer = self.wire.ask(name, start, end, tag)
        if answer.remark:
            self.remarks.append(f"{name}: {answer.remark}")
        return answer

    def _pause(self, name: str, fault: Interrupted, tries: int) -> None:
        self.remarks.append(f"{name}: {fault}")
        address = f"{self.root}/{name}"
        if fault.missing and tries >= MISSING:
            raise Missing(f"{address}: {fault}") from fault
        if tries >= self.limits.tries:
            raise RunFailed(
                f"{address}: {fault}; {tries} requests in a row brought nothing. What is finished is kept, the same "
                "command goes on"
            ) from fault
        count(retries=1)
        if fault.wait is not None:
            self.pace.hold(fault.wait)
        else:
            time.sleep(backoff(tries, self.limits.pause, LONGEST_PAUSE))

    def whole(self, name: str) -> bytes:
        return b"".join(self.stretch(name, 0, None))

    def facts(self, name: str) -> Facts:
        """Size and tag, learned from the file's first byte: servers err in answers that have no body."""
        heard: list[Facts] = []
        for _ in self.stretch(name, 0, 1, learn=lambda start, facts: heard.append(facts)):
            pass
        return heard[0]

    def close(self) -> None:
        self.wire.close()
