"""A remote file to read from, which is fetched onto this machine's disk as it is read. What the server sends meanwhile
waits in the connection: a few megabytes, which is what a batch takes.

Where all records of a stretch are wanted it is fetched with one request, and a little beyond its end, for the record
that reaches over it. Where some are, they are fetched in stretches that lie more than `gap` bytes apart.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from gristmill.kernels.base.code_cache import cache_folder
from gristmill.pipeline.crawls.fetch import Facts, Fetcher
from gristmill.pipeline.crawls.pace import Pace
from gristmill.pipeline.crawls.spool import STRETCH, Spool, joined, make_room, missing
from gristmill.pipeline.crawls.wires import Changed
from gristmill.stages.read.cc import Cc

TAIL = 256 << 10  # bytes beyond a stretch: few records are longer, and a longer one costs a request more
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


def fetcher_for(reader: Cc, root: str, asked: Counter[str]) -> Fetcher:
    return Fetcher(root, reader.limits, Pace(folder_of(reader), root, reader.limits.requests), asked)


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
    """What was asked for of a file, fetched as it is read; of other places it has nothing, unless its size is known:
    then they are fetched too."""

    def __init__(
        self, reader: Cc, place: Place, wanted: list[STRETCH], size: int | None, asked: Counter[str] | None = None
    ) -> None:
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
        self._fetcher = fetcher_for(reader, place.root, Counter() if asked is None else asked)
        self._at = 0
        self._stream: Iterator[bytes] = iter(())  # of the request that is open
        self._next = self._until = 0  # where its next byte lies, and its end

    # --- fetching -----------------------------------------------------------------------------------------------------

    def _fetch(self, at: int, stop: int) -> None:
        """The next bytes of the open request, or of one that begins with the first byte that is missing here."""
        start, _ = missing([(at, stop)], self._have)[0]
        if not self._next <= start < self._until:
            end = next(end for begin, end in self._wanted if begin <= start < end)
            _, self._until = missing([(start, end)], self._have)[0]
            self._next = start
            self._spool.end()
            self._spool.begin(start)
            self._stream = self._fetcher.stretch(self.place.name, start, self._until, self.place.tag, self._learn)
        try:
            data = next(self._stream, b"")
        except Changed:
            self._spool.forget()
            note(self._facts, self.place.name, None)
            raise
        if not data:
            raise OSError(f"{self.place.address}: bytes {at:,} to {stop:,} were not fetched")
        self._spool.write(data)
        self._have = joined([*self._have, (self._next, self._next + len(data))])
        self._next += len(data)
        if self._spool.since >= PIECE:
            self._spool.end()

    def _learn(self, start: int, facts: Facts) -> None:
        """The first answer tells the version; later ranges are of the same."""
        if not self.place.tag:
            self.place = Place(self.place.root, self.place.name, facts.tag)
            self._spool.set_tag(facts.tag)

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
        while missing([(at, stop)], self._have):
            self._fetch(at, stop)
        self._at = stop
        return self._spool.read(at, stop - at)

    def _limit(self, at: int) -> int:
        """Where the wanted stretch ends that a place is in; more is wanted where all places may be."""
        found = next((end for start, end in self._wanted if start <= at < end), None)
        if found is None and self._size is not None and at < self._size:
            found = min(self._size, at + TAIL)
            self._wanted.append((at, found))
        return at if found is None else found

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._spool.end()
        self._fetcher.close()
        self._spool.close()
        with contextlib.suppress(OSError):
            make_room(self._folder, self._most)
