"""What the driver sees of its workers while it waits for results: how many there are, and which tasks stall.

A task is merely long while its worker is heard of, or its breadcrumb moves. It stalls when neither has happened for
`STALLED` seconds: the machine froze, or is cut off. Its worker is then removed, which is a death as any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.pipeline.formatting import one_line

if TYPE_CHECKING:
    from distributed import Client, Future

EVERY = 1.0  # seconds between looks at how many workers there are
CLOSELY = 15.0  # seconds between looks at tasks that take long
LONG = 600.0  # seconds over one task that are worth a word; then twice as many
STALLED = 120.0  # a compiler may hold a worker's heartbeat back for half of it


@dataclass
class Sent:
    """A group of tasks on its way, as it is watched."""

    what: str
    breadcrumb: Path | None  # there once a worker has begun
    at: float = field(default_factory=time.monotonic)
    told: float = LONG


@dataclass
class _Sign:
    """Of life: what was seen last, and since when it is the same."""

    seen: float
    since: float


class Watch:
    def __init__(self, client: Client, note: Callable[[str], None], at: str) -> None:
        self.client = client
        self.note = note
        self.at = at
        self.workers = len(client.nthreads())
        self._looked = self._looked_closely = time.monotonic()
        self._signs: dict[str, _Sign] = {}
        self._none_left = False

    def look(self, sent: Mapping[str, Sent]) -> None:
        """At most once a second. `sent` is by key of Dask."""
        now = time.monotonic()
        if now - self._looked < EVERY:
            return
        self._looked = now
        self.workers = len(self.client.nthreads())
        if not self.workers and not self._none_left:
            self.note(f"no worker is left{self.at}; waiting for one to join")
        elif self.workers and self._none_left:
            self.note(f"{self.workers:,} workers are there again" if self.workers > 1 else "a worker is there again")
        self._none_left = not self.workers
        if now - self._looked_closely >= CLOSELY:
            self._looked_closely = now
            old = {key: task for key, task in sent.items() if now - task.at >= min(STALLED, LONG)}
            if old:
                self._look_closely(old, now)
            else:
                self._signs.clear()

    def _look_closely(self, sent: Mapping[str, Sent], now: float) -> None:
        """At tasks that were sent long ago: where they are, and what is heard of them."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        signs = {address: self._sign(address, facts["last_seen"], now) for address, facts in workers.items()}
        silent: dict[str, str] = {}
        for address, keys in self.client.processing().items():
            for key in keys & sent.keys() if address in signs else ():
                task = sent[key]
                begun = (
                    task.breadcrumb.stat().st_mtime
                    if task.breadcrumb is not None and task.breadcrumb.exists()
                    else None
                )
                moved = signs[key] = self._sign(key, begun or 0.0, now)
                if now - max(signs[address].since, moved.since) >= STALLED:
                    silent[address] = task.what
                elif begun is not None and now - task.at >= task.told:
                    self.note(
                        f"{task.what}: sent {(now - task.at) / 60:.0f} minutes ago, and still at work on "
                        f"{one_line(str(workers[address].get('host')))}"
                    )
                    task.told = 2 * (now - task.at)
        self._signs = signs
        for address, what in silent.items():
            self.note(
                f"{what}: stalled; nothing was heard of its worker {one_line(address)} for {STALLED:.0f} s; "
                "it is done again elsewhere"
            )
            self.client.sync(self.client.scheduler.unregister, address=address, stimulus_id="stalled")

    def _sign(self, of: str, seen: float, now: float) -> _Sign:
        """By this machine's clock alone: those of others may be wrong."""
        before = self._signs.get(of)
        return before if before is not None and before.seen == seen else _Sign(seen, now)


class SchedulerLost(OSError):
    """The connection to it broke; it may come back."""


def check_connection(future: Future, client: Client) -> None:
    """Raise where a future that came to no answer was not cancelled by anybody: the scheduler went away.

    What is sent while Dask's client tries to connect again is cancelled without a word when it gives up. Where it
    succeeds by itself, the new scheduler does not know that we want to hear of answers: tasks end, and nothing comes.
    """
    from distributed.client import FutureCancelledError

    try:
        future.result()
    except FutureCancelledError as error:
        if error.reason == "scheduler-connection-lost" or client.status != "running":
            raise SchedulerLost("the connection closed") from error
    else:
        raise SchedulerLost("it was started anew")
