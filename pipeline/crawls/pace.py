"""How often a server is asked by all processes of a machine together: a file of two times, under a lock.

A request takes the next free slot, and waits for it. What a server asks to wait (Retry-After) holds for all.
"""

from __future__ import annotations

import contextlib
import fcntl
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import xxhash

FORMAT = struct.Struct("<2d")  # when the next request may go, and when the server may be asked again
LONGEST = 600.0  # seconds; a time farther ahead is of a clock that was set back


class Pace:
    def __init__(self, folder: Path, root: str, requests: float) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = folder / f"pace-{xxhash.xxh3_64_hexdigest(root.encode())}"
        self._each = 1 / requests

    def request(self) -> None:
        """Returns when a request may go."""
        while True:
            with self._times() as times:
                now = time.time()
                if times[1] <= now:
                    at = max(now, times[0])
                    times[0] = at + self._each
                    break
                at = times[1]
            time.sleep(min(max(0.0, at - now), LONGEST))
        time.sleep(max(0.0, at - now))

    def hold(self, seconds: float) -> None:
        """Nobody asks for so long."""
        with self._times() as times:
            times[1] = max(times[1], time.time() + min(seconds, LONGEST))

    @contextlib.contextmanager
    def _times(self) -> Iterator[list[float]]:
        with self._path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            data = file.read(FORMAT.size)
            now = time.time()
            times = list(FORMAT.unpack(data)) if len(data) == FORMAT.size else [0.0, 0.0]
            times = [at if at < now + LONGEST else now for at in times]
            yield times
            file.truncate(0)
            file.write(FORMAT.pack(*times))
