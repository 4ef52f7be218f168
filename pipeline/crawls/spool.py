"""What was fetched of remote files, on this machine's disk: a sparse file for each, and a list of the pieces that it
has.

A piece is known by the hash of its bytes, which are held against it before they are used again: a machine may lose what
it wrote last. Processes that fetch the same file write the same bytes. A killed run leaves its pieces, and the next one
goes on behind them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import xxhash

from gristmill.kernels.common.files import write_whole

PIECES, BYTES, TAG = "pieces", "bytes", "tag"
STRETCH = tuple[int, int]


class Piece(NamedTuple):
    start: int
    end: int
    hash: str


class Spool:
    """One file. `tag` is that of its version, as far as it was known when it was listed."""

    def __init__(self, folder: Path, address: str, tag: str) -> None:
        self.folder = folder_of_file(folder, address, tag)
        while True:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                self._list = os.open(self.folder / PIECES, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            except FileNotFoundError:
                continue  # somebody makes room by it
            fcntl.flock(self._list, fcntl.LOCK_SH)  # as long as it is open, nobody makes room by it
            if os.fstat(self._list).st_nlink:
                break
            os.close(self._list)
        os.utime(self._list)
        self._bytes = os.open(self.folder / BYTES, os.O_RDWR | os.O_CREAT, 0o600)
        self._hash = xxhash.xxh3_64()
        self._begun = self._at = 0

    def sound(self, wanted: Iterable[STRETCH]) -> list[STRETCH]:
        """What there is of some stretches, held against its hashes."""
        wanted = list(wanted)
        return [
            (piece.start, piece.end)
            for piece in pieces_in(self.folder)
            if any(piece.start < end and start < piece.end for start, end in wanted)
            and xxhash.xxh3_64_hexdigest(self.read(piece.start, piece.end - piece.start)) == piece.hash
        ]

    @property
    def tag(self) -> str:
        """Of the version that the pieces are of, if it was known only once they came."""
        try:
            return (self.folder / TAG).read_text("utf-8", "replace")
        except OSError:
            return ""

    def set_tag(self, tag: str) -> None:
        write_whole(self.folder / TAG, tag.encode())

    def forget(self) -> None:
        """The pieces are of a version that is gone."""
        os.ftruncate(self._list, 0)
        (self.folder / TAG).unlink(missing_ok=True)

    def begin(self, at: int) -> None:
        self._begun = self._at = at
        self._hash.reset()

    def write(self, data: bytes) -> None:
        """Behind what was written since `begin`."""
        at, view = self._at, memoryview(data)
        while view:
            written = os.pwrite(self._bytes, view, at)
            at, view = at + written, view[written:]
        self._hash.update(data)
        self._at = at

    def end(self) -> None:
        """What was written since `begin` is a piece."""
        if self._at > self._begun:
            line = f"{self._begun} {self._at} {self._hash.hexdigest()}\n"
            os.write(self._list, line.encode())
            self.begin(self._at)

    @property
    def since(self) -> int:
        return self._at - self._begun

    def read(self, at: int, length: int) -> bytes:
        data = os.pread(self._bytes, length, at)
        while len(data) < length and (more := os.pread(self._bytes, length - len(data), at + len(data))):
            data += more
        return data

    def close(self) -> None:
        os.close(self._bytes)
        os.close(self._list)


def pieces_in(folder: Path) -> list[Piece]:
    try:
        lines = (folder / PIECES).read_text("ascii", "replace").splitlines()
    except OSError:
        return []
    pieces = []
    for line in lines:
        words = line.split(" ")
        if len(words) == 3 and words[0].isdecimal() and words[1].isdecimal() and len(words[2]) == 16:
            pieces.append(Piece(int(words[0]), int(words[1]), words[2]))
    return pieces


def missing(wanted: Iterable[STRETCH], have: Iterable[STRETCH]) -> list[STRETCH]:
    """What of some stretches is not in others."""
    pieces = joined(have)
    gaps, first = [], 0
    for start, end in sorted(wanted):
        while first < len(pieces) and pieces[first][1] <= start:
            first += 1
        at = start
        for piece_start, piece_end in pieces[first:]:
            if piece_start >= end or at >= end:
                break
            if piece_start > at:
                gaps.append((at, piece_start))
            at = max(at, piece_end)
        if at < end:
            gaps.append((at, end))
    return gaps


def joined(stretches: Iterable[STRETCH], gap: int = 0) -> list[STRETCH]:
    """In order, and as one where they overlap or lie at most `gap` apart."""
    whole: list[STRETCH] = []
    for start, end in sorted(stretches):
        if whole and start <= whole[-1][1] + gap:
            whole[-1] = whole[-1][0], max(end, whole[-1][1])
        else:
            whole.append((start, end))
    return whole


def not_cached(folder: Path, address: str, tag: str, wanted: list[STRETCH]) -> list[STRETCH]:
    """What would have to be fetched, if all that is there is sound."""
    where = folder_of_file(folder, address, tag)
    return missing(wanted, [(piece.start, piece.end) for piece in pieces_in(where)])


def folder_of_file(folder: Path, address: str, tag: str) -> Path:
    return folder / xxhash.xxh3_128_hexdigest(f"{address}\0{tag}".encode())


def remove(path: Path) -> bool:
    """Remove the folder of a file; False if it is in use."""
    with (path / PIECES).open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        (path / PIECES).unlink()  # first, while it is locked: whoever waits for it sees that it is gone
        shutil.rmtree(path, ignore_errors=True)
        return True


def make_room(folder: Path, most: int) -> None:
    """The files that were used longest ago go, until the others have `most` bytes at most; none that is in use."""
    there = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                used = (path / PIECES).stat()
                there.append((used.st_mtime, (path / BYTES).stat().st_blocks * 512, path))
    size = sum(one for _, one, _ in there)
    for _, one, path in sorted(there):
        if size <= most:
            return
        with contextlib.suppress(OSError):
            size -= one if remove(path) else 0
