"""A remote file to read from: a thread fetches ahead what will be wanted, onto this machine's disk.

Where all records of a stretch are wanted it is fetched with one request, and a little beyond its end, for the record
that reaches over it. Where some are, they are fetched in stretches that lie more than `gap` bytes apart.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import threading
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import xxhash

from gristmill.kernels.base.code_cache import cache_folder
from gristmill.pipeline.crawls.fetch import Facts, Fetcher, Stopped
from gristmill.pipeline.crawls.pace import Pace
from gristmill.pipeline.crawls.spool import STRETCH, Spool, joined, make_room, missing
from gristmill.pipeline.crawls.wires import Changed
from gristmill.stages.read.cc import Cc

TAIL = 256 << 10  # bytes beyond a stretch: few records are longer, and a longer one costs a request more
AHEAD = 64 << 20  # bytes fetched before they are read
PIECE = 4 << 20


def stretches_of(
    size: int, start: int, end: int | None, records: tuple[tuple[int, int], ...] | None, gap: int
) -> list[STRETCH]:
    """The ranges that are fetched of a file: a request each."""
    if records is not None:
        return joined(((at, at + length) for at, length in records if length > 0), gap)
    stop = size if end is None or end >= size else min(size, end + TAIL)
    return [(start, stop)] if stop > start else []


@dataclass(frozen=True)
class Place:
    """Where a file lies, and how it is fetched."""

    root: str
    name: str
    tag: str

    @property
    def address(self) -> str:
        return f"{self.root.rstrip('/')}/{self.name}"


def folder_of(reader: Cc) -> Path:
    return Path(reader.cache).expanduser() if reader.cache else cache_folder() / "crawls"


def fetcher_for(reader: Cc, root: str, stop: threading.Event | None = None) -> Fetcher:
    pace = Pace(folder_of(reader), root, reader.limits.requests, reader.limits.bytes)
    return Fetcher(root, reader.limits, pace, stop)


def facts_path(reader: Cc, root: str) -> Path:
    """Where sizes and tags of files are kept, a line each."""
    return folder_of(reader) / f"facts-{xxhash.xxh3_64_hexdigest(root.rstrip('/').encode())}"


def note(path: Path, name: str, facts: Facts | None) -> None:
    """In one write, for others may write too."""
    line = json.dumps([name, facts.size if facts else -1, facts.tag if facts else ""]) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


class RemoteFile(io.RawIOBase):
    """What was asked for of a file; of other places it has nothing, unless `more` lets it fetch them too."""

    def __init__(self, reader: Cc, place: Place, wanted: list[STRETCH], size: int | None) -> None:
        self.place = place
        self._most = reader.cache_bytes
        self._folder = folder_of(reader) / "files"
        self._facts = facts_path(reader, place.root)
        self._size = size  # None: no other places than those wanted
        self._wanted = list(wanted)
        self._spool = Spool(self._folder, place.address, place.tag)
        if not place.tag:
            self.place = Place(place.root, place.name, self._spool.tag)
        self._have = joined(self._spool.sound(wanted))
        self._todo = missing(wanted, self._have)
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._at = 0
        self._working = False
        self._waiting = False  # for what is not at hand yet
        self._fetcher = fetcher_for(reader, place.root, self._stop)
        self._thread: threading.Thread | None = None

    # --- fetching -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._todo and not self._working and self._failure is None:
            self._working = True
            self._thread = threading.Thread(target=self._fetch, name="crawl", daemon=True)
            self._thread.start()

    def _fetch(self) -> None:
        try:
            while True:
                with self._changed:
                    if not self._todo:
                        self._working = False
                        self._changed.notify_all()
                        return
                    stretch = self._todo[0]
                self._fetch_one(*stretch)
                with self._changed:
                    self._todo.remove(stretch)
        except Stopped:
            pass
        except Changed as error:
            self._spool.forget()
            note(self._facts, self.place.name, None)
            with self._changed:
                self._failure = error
        except BaseException as error:
            with self._changed:
                self._failure = error
        finally:
            self._fetcher.wire.close()
            with self._changed:
                self._working = False
                self._changed.notify_all()

    def _fetch_one(self, start: int, end: int) -> None:
        spool, at = self._spool, start
        spool.begin(start)
        try:
            for data in self._fetcher.stretch(self.place.name, start, end, self.place.tag, self._learn):
                spool.write(data)
                with self._changed:
                    self._have = joined([*self._have, (at, at + len(data))])
                    at += len(data)
                    self._changed.notify_all()
                    while self._ahead() > AHEAD and not self._waiting and not self._stop.is_set():
                        self._changed.wait(1.0)
                if spool.since >= PIECE:
                    spool.end()
        finally:
            spool.end()

    def _learn(self, start: int, facts: Facts) -> None:
        """The first answer tells the version; later ranges are of the same."""
        if not self.place.tag:
            self.place = Place(self.place.root, self.place.name, facts.tag)
            self._spool.set_tag(facts.tag)

    def _ahead(self) -> int:
        """Bytes at hand that are not read yet."""
        return sum(end - max(start, self._at) for start, end in self._have if end > self._at)

    @property
    def remarks(self) -> list[str]:
        """What was odd about the server's answers."""
        return self._fetcher.remarks

    # --- reading ------------------------------------------------------------------------------------------------------

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            offset += self._size or 0
        self._at = offset + self._at if whence == io.SEEK_CUR else offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        at = self._at
        limit = self._limit(at)
        stop = limit if size < 0 else min(at + size, limit)
        if stop <= at:
            return b""
        with self._changed:
            self._start()
            while not self._holds(at, stop):
                if self._failure is not None:
                    raise self._failure
                if not self._working:
                    raise OSError(f"{self.place.address}: bytes {at:,} to {stop:,} were not fetched")
                self._waiting = True
                self._changed.notify_all()
                self._changed.wait(1.0)
            self._waiting = False
            self._at = stop
            self._changed.notify_all()
        return self._spool.read(at, stop - at)

    def _limit(self, at: int) -> int:
        """Where the wanted stretch ends that a place is in; more is wanted where all places may be."""
        found = next((end for start, end in self._wanted if start <= at < end), None)
        if found is not None:
            return found
        if self._size is None or at >= self._size:
            return at
        more = at, min(self._size, at + TAIL)
        with self._changed:
            self._wanted.append(more)
            self._todo[:0] = missing([more], self._have)
        return more[1]

    def _holds(self, start: int, stop: int) -> bool:
        place = bisect_right(self._have, (start, 1 << 62)) - 1
        return place >= 0 and self._have[place][1] >= stop

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._fetcher.close()
        self._spool.close()
        with contextlib.suppress(OSError):
            make_room(self._folder, self._most)
