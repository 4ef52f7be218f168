"""Web archives inside a ZIP file, which is what a WACZ is: where each of its WARC files lies, and reading it without
unpacking the rest.

The directory at the end of the file is read by the standard library, and is not believed: its length and its entries
are bounded, members may not lie over each other or past the file, and no name in it is ever a path on this machine. A
member that is deflated is unpacked to a temporary file, up to what its like may grow to. Where the directory is
missing, as in a file that was cut short, the archives' own members are still found.
"""

from __future__ import annotations

import io
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, cast

from gristmill.stages.read.members import Gzip, Zstd
from gristmill.stages.stage import CannotRun

MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
MOST_READ = 8 << 20  # bytes of a directory: 100,000 entries or so; a WACZ has tens
LOCAL_HEADER = 30
END_MAGIC, END_RECORD, LONGEST_COMMENT = b"PK\x05\x06", 22, 1 << 16
NO_ROOM = 0xFFFF  # then the number stands in a larger record before it
ARCHIVES = "archive/"  # the folder of a WACZ that has nothing but web archives
LONGEST_NAME = 100
CHUNK = 1 << 20
FEED = 1 << 12  # bytes for one call of inflate, which gives nothing of them where they are damaged
# How much larger a deflated member may get. What is packed already does not shrink again; more than this is a bomb.
SPARE, PACKED_RATIO, PLAIN_RATIO = 64 << 20, 10, 200
SKIPPABLE = b"\x2a\x4d\x18"  # after the first byte: a frame before zstd's own, such as a dictionary
ENCRYPTED = 0x1
WRONG_SUM = "its zip checksum is wrong"


class BrokenZip(Exception):
    """A directory that cannot be read or used; the message says why."""


@dataclass(frozen=True)
class Entry:
    """A member of a zip file: where its header lies, and its bytes as stored. `wrong` is why it cannot be read."""

    name: str
    header: int
    start: int
    end: int
    deflated: bool
    checksum: int
    wrong: str | None = None


class Bounded(io.RawIOBase):
    """A file of which only so much is read at once: `zipfile` reads a directory whole."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size, self._at = file, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError("a place before the file")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        size = max(0, self._size - self._at) if size < 0 else size
        if size > MOST_READ:
            raise BrokenZip(f"its zip directory is said to have {size:,} bytes, and {MOST_READ:,} at most are read")
        self._file.seek(self._at)
        data = self._file.read(size)
        self._at += len(data)
        return data


class FileSection(io.RawIOBase):
    """A stretch of a file, as a file."""

    def __init__(self, file: BinaryIO, start: int, end: int) -> None:
        self._file, self._start, self._end, self._at = file, start, end, 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = (
            offset
            if whence == io.SEEK_SET
            else self._at + offset
            if whence == io.SEEK_CUR
            else self._end - self._start + offset
        )
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        remaining = max(0, self._end - self._start - self._at)
        self._file.seek(self._start + self._at)
        data = self._file.read(remaining if size < 0 else min(size, remaining))
        self._at += len(data)
        return data


def archives_in(file: BinaryIO, size: int, suffixes: tuple[str, ...]) -> list[Entry]:
    """The web archives in a zip file, in the order in which they lie; raises BrokenZip."""
    try:
        with zipfile.ZipFile(cast(BinaryIO, Bounded(file, size))) as directory:
            infos = sorted(directory.infolist(), key=lambda info: (info.header_offset, info.filename))
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as error:
        raise BrokenZip(
            f"its zip directory cannot be read ({str(error)[:LONGEST_NAME]}), as in a file that was cut short"
        ) from error
    expected = count_at_the_end(file, size)
    if expected is not None and expected != len(infos):
        raise BrokenZip(f"its zip directory has {len(infos):,} entries and says that it has {expected:,}")
    entries: list[Entry] = []
    over = 0  # where the members before it end, as far as is known without looking at each
    for info in infos:
        lower = info.filename.lower()
        if lower.endswith("/") or not (lower.endswith(suffixes) or lower.startswith(ARCHIVES)):
            end = info.header_offset + LOCAL_HEADER + len(info.orig_filename) + info.compress_size
            over = max(over, end) if end <= size else over
            continue
        header = min(max(0, info.header_offset), size - 1)
        file.seek(header)
        local = file.read(LOCAL_HEADER)
        start = header + LOCAL_HEADER + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        end = start + info.compress_size
        wrong = wrong_with(info, local, end, size, header < over)
        over = end if wrong is None else over
        deflated = info.compress_type == zipfile.ZIP_DEFLATED
        entries.append(
            Entry(info.filename[:LONGEST_NAME], header, min(start, size), min(end, size), deflated, info.CRC, wrong)
        )
    return entries


def count_at_the_end(file: BinaryIO, size: int) -> int | None:
    """How many entries the record at the end of a zip file counts, which `zipfile` does not look at; None where that
    has no room for it."""
    start = max(0, size - END_RECORD - LONGEST_COMMENT)
    tail = FileSection(file, start, size).read()
    place = tail.rfind(END_MAGIC)
    count = int.from_bytes(tail[place + 10 : place + 12], "little") if place >= 0 else NO_ROOM
    return None if count == NO_ROOM else count


def spans_of_zip(file: BinaryIO, size: int, suffixes: tuple[str, ...], target: int) -> list[tuple[int, int | None]]:
    """Cuts between archives, about every `target` bytes."""
    cuts = [0]
    try:
        for entry in archives_in(file, size, suffixes):
            if entry.header - cuts[-1] >= target:
                cuts.append(entry.header)
    except BrokenZip:
        return [(0, None)]  # what is wrong is said by the span that reads it
    return list(zip(cuts, [*cuts[1:], size], strict=True))


def wrong_with(info: zipfile.ZipInfo, local: bytes, end: int, size: int, overlaps: bool) -> str | None:
    if (
        info.header_offset not in range(size)
        or not local.startswith(MAGIC[0])
        or len(local) < LOCAL_HEADER
        or end > size
    ):
        return "it does not lie where the zip directory says"
    if overlaps:
        return "it lies over another member of the zip file"
    if info.flag_bits & ENCRYPTED:
        return "it is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"it is packed by zip's method {info.compress_type}; stored or deflated was expected"
    return None


@contextmanager
def opened(file: BinaryIO, entry: Entry) -> Iterator[tuple[BinaryIO, int, str | None]]:
    """A member as a file of so many bytes, and what is wrong with it; one that breaks off is there as far as it
    goes."""
    if not entry.deflated:
        section = cast(BinaryIO, FileSection(file, entry.start, entry.end))
        wrong = None if is_packed(section.read(4)) or checksum_of(section) == entry.checksum else WRONG_SUM
        section.seek(0)
        yield section, entry.end - entry.start, wrong
        return
    with tempfile.TemporaryFile(prefix="gristmill-") as unpacked:
        wrong = unpack(FileSection(file, entry.start, entry.end), entry, unpacked)
        size = unpacked.tell()
        unpacked.seek(0)
        yield cast(BinaryIO, unpacked), size, wrong


def unpack(section: FileSection, entry: Entry, to: BinaryIO) -> str | None:
    """Write a deflated member out, as far as it may go; what is wrong with it."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    packed = entry.end - entry.start
    held, checksum, most = 0, 0, 0
    while not inflater.eof:
        fed = inflater.unconsumed_tail or section.read(FEED)
        try:
            data = inflater.decompress(fed, CHUNK)
        except zlib.error as error:
            return f"deflate: {error}"
        if not data and not fed and not inflater.eof:
            return "its deflated bytes end too early"
        most = most or SPARE + (PACKED_RATIO if is_packed(data) else PLAIN_RATIO) * packed
        if held + len(data) > most:
            return f"it unpacks to more than {most:,} bytes, from {packed:,}"
        try:
            to.write(data)
        except OSError as error:
            raise CannotRun(
                f"{entry.name} is deflated and cannot be unpacked to {tempfile.gettempdir()}: {error.strerror}"
            ) from error
        held, checksum = held + len(data), zlib.crc32(data, checksum)
    return None if checksum == entry.checksum else WRONG_SUM


def is_packed(head: bytes) -> bool:
    """Does a member begin as gzip or zstd does, which has checksums of its own?"""
    return head.startswith((Gzip.magic, Zstd.magic)) or head[1:4] == SKIPPABLE


def checksum_of(section: BinaryIO) -> int:
    section.seek(0)
    checksum = 0
    while data := section.read(CHUNK):
        checksum = zlib.crc32(data, checksum)
    return checksum
