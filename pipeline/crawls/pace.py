"""How fast a server is asked by all processes of a machine together: a file of three times, under a lock.

A request takes the next free slot, and waits for it. Bytes are paid for after they came. What a server asks to wait
(Retry-After) holds for all.
"""

from __future__ import annotations

import contextlib
import fcntl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import xxhash

FORMAT = struct.Struct("<3d")  # when the next request may go, the next byte may come, and the server may be asked again
LONGEST = 600.0  # seconds; a time farther ahead is of a clock that was set back
BURST = 0.25  # seconds by which bytes may be ahead


class Pace:
    def __init__(self, folder: Path, root: str, requests: float, size: int | None) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = folder / f"pace-{xxhash.xxh3_64_hexdigest(root.encode())}"
        self._each, self._byte = 1 / requests, 1 / size if size else 0.0

    def request(self) -> None:
        """Returns when a request may go."""
        while True:
            with self._times() as times:
                now = time.time()
                if times[2] <= now:
                    at = max(now, times[0])
                    times[0] = at + self._each
                    break
                at = times[2]
            time.sleep(min(max(0.0, at - now), LONGEST))
        time.sleep(max(0.0, at - now))

    def came(self, size: int, stop: threading.Event) -> None:
        """Returns when that many bytes more may come."""
        if not self._byte:
            return
        with self._times() as times:
            now = time.time()
            times[1] = max(now, times[1]) + size * self._byte
            ahead = times[1] - now
        if ahead > BURST:
            stop.wait(ahead - BURST)

    def hold(self, seconds: float) -> None:
        """Nobody asks for so long."""
        with self._times() as times:
            times[2] = max(times[2], time.time() + min(seconds, LONGEST))

    @contextlib.contextmanager
    def _times(self) -> Iterator[list[float]]:
        with self._path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            data = file.read(FORMAT.size)
            now = time.time()
            times = list(FORMAT.unpack(data)) if len(data) == FORMAT.size else [0.0, 0.0, 0.0]
            times = [at if at < now + LONGEST else now for at in times]
            yield times
            file.truncate(0)
            file.write(FORMAT.pack(*times))
