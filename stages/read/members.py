"""Compressed members in a file: where each begins, reading it in bounded pieces, and finding the next after damage.

A member is a gzip member or a zstd frame; crawls write one for each record, so that a record can be read without its
neighbours. fastwarc stops at the first damaged member and cannot start in the middle of a file, hence a reader of our
own, on isal. A start is *verified* if the first inflated bytes are a record header. Verification feeds the same bytes
however the file is cut into spans, so that all spans agree on it. What it cannot tell from a real start is a whole WARC
stored, uncompressed by the outer gzip, as the payload of a record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, Protocol

import zstandard
from isal import igzip_lib, isal_zlib

CHUNK = 1 << 18  # bytes for one read of the file
FEED = 1 << 16  # bytes for one call of inflate: about three records; what is left over is copied each time
ZSTD_FEED = 1 << 12  # zstd has no limit on output; four bytes can say 128 KB, so 4 KB stay under 128 MB
INFLATED = 1 << 20  # bytes from one call of inflate
PROBE = 256  # bytes for one step of verification
FIRST_LINE = 1 << 13  # inflated bytes in which a header's first line has to end
MAX_WINDOW = 1 << 27  # zstd's own default limit
MAX_DICTIONARY = 1 << 26
ENDS = "the file ends inside this record"
NOTHING = "no record begins here"

Begins = Callable[[bytes], bool]
Chunks = Callable[[], bytes]


class Damaged(Exception):
    """The bytes of a member cannot be read; the message says why."""


class Window:
    """The part of a file that is in memory; reads forward in large pieces and seeks only where it has to."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._data = b""
        self._start = 0
        self._file_at = -1

    def piece(self, position: int, limit: int) -> memoryview:
        """Up to `limit` bytes from a position on; none only at the end of the file, and less than PROBE only near
        it."""
        inside = position - self._start
        available = len(self._data) - inside
        if not 0 <= inside <= len(self._data):
            self._data, self._start, inside = self._read(position), position, 0
        elif available < limit and available < PROBE:
            self._data = self._data[inside:] + self._read(position + available)
            self._start, inside = position, 0
        return memoryview(self._data)[inside : inside + limit]

    def _read(self, position: int) -> bytes:
        if self._file_at != position:
            self._file.seek(position)
        data = self._file.read(CHUNK)
        self._file_at = position + len(data)
        return data

    def exact(self, position: int, length: int) -> bytes:
        """`length` bytes, fewer only at the end of the file."""
        data = bytes(self.piece(position, length))
        while len(data) < length and (more := self.piece(position + len(data), length - len(data))):
            data += more
        return data


class Member(Protocol):
    """One member; `end` is known once `chunk` has returned nothing."""

    start: int
    end: int

    def chunk(self, feed: int = FEED) -> bytes:
        """The next inflated bytes, none after the last; raises Damaged."""
        ...


class Codec(Protocol):
    magic: bytes

    def open(self, window: Window, start: int) -> Member: ...


class GzipMember:
    def __init__(self, window: Window, start: int) -> None:
        self.start = self.end = start
        self._window = window
        self._inflater = isal_zlib.decompressobj(wbits=31)  # checks the CRC and the length too

    def chunk(self, feed: int = FEED) -> bytes:
        inflater = self._inflater
        while not inflater.eof:
            piece = self._window.piece(self.end, feed)
            try:
                data: bytes = inflater.decompress(piece, INFLATED)
            except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stub calls the class a value
                raise Damaged(f"gzip: {error}") from error
            self.end += len(piece) - len(inflater.unused_data if inflater.eof else inflater.unconsumed_tail)
            if data:
                return data
            if not piece and not inflater.eof:
                begins = Gzip.magic.startswith(self._window.exact(self.start, len(Gzip.magic)))
                raise Damaged(ENDS if begins else "gzip: no gzip begins here")
        return b""


class Gzip:
    magic = b"\x1f\x8b\x08"

    def open(self, window: Window, start: int) -> Member:
        return GzipMember(window, start)


class ZstdFrame:
    def __init__(self, window: Window, start: int, decompressor: zstandard.ZstdDecompressor) -> None:
        self.start = self.end = start
        self._window = window
        skipped = skippable(window, start)
        self._inflater = None if skipped else decompressor.decompressobj()
        self.end += skipped

    def chunk(self, feed: int = ZSTD_FEED) -> bytes:
        inflater = self._inflater
        while inflater is not None and not inflater.eof:
            piece = self._window.piece(self.end, min(feed, ZSTD_FEED))
            if not piece:
                raise Damaged(ENDS)
            try:
                data: bytes = inflater.decompress(piece)
            except zstandard.ZstdError as error:
                raise Damaged(f"zstd: {error}") from error
            self.end += len(piece) - len(inflater.unused_data)
            if data:
                return data
        return b""


class Zstd:
    """Frames of zstd, with the dictionary that WARC-zstd puts into a skippable frame at the start of the file."""

    magic = b"\x28\xb5\x2f\xfd"

    def __init__(self, window: Window) -> None:
        dictionary = dictionary_of(window)
        if dictionary is None:
            self._decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
        else:
            self._decompressor = zstandard.ZstdDecompressor(dict_data=dictionary, max_window_size=MAX_WINDOW)

    def open(self, window: Window, start: int) -> Member:
        return ZstdFrame(window, start, self._decompressor)


def skippable(window: Window, at: int) -> int:
    """The length of the skippable frame at a position, 0 if there is none."""
    head = window.exact(at, 8)
    if len(head) == 8 and 0x50 <= head[0] <= 0x5F and head[1:4] == b"\x2a\x4d\x18":
        return 8 + int.from_bytes(head[4:], "little")
    return 0


def dictionary_of(window: Window) -> zstandard.ZstdCompressionDict | None:
    length = skippable(window, 0)
    if window.exact(0, 1) != b"\x5d" or not 8 < length <= MAX_DICTIONARY:
        return None
    data = window.exact(8, length - 8)
    try:
        if data.startswith(Zstd.magic):
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_DICTIONARY)
        return zstandard.ZstdCompressionDict(data)
    except zstandard.ZstdError:
        return None  # then every frame that needs it is damaged, and says so


def codec_for(window: Window, path: str) -> Codec | None:
    """How a file is compressed, None if it is not. Contents go before names, names before nothing: the first member may
    be damaged."""
    head = window.exact(0, 8)
    if head.startswith(Gzip.magic):
        return Gzip()
    if head.startswith(Zstd.magic) or skippable(window, 0):
        return Zstd(window)
    if head.startswith((b"WARC/", b"filedesc", b"{")):
        return None
    return Gzip() if path.endswith(".gz") else Zstd(window) if path.endswith((".zst", ".zstd")) else None


def plain_chunks(window: Window, at: int) -> Chunks:
    """Pieces of a file as it is, from a position on."""

    def chunk() -> bytes:
        nonlocal at
        data = bytes(window.piece(at, CHUNK))
        at += len(data)
        return data

    return chunk


class Unpacked:
    """The inflated bytes of all members of a file, one after the other, without the zeros that pad its end."""

    def __init__(self, codec: Codec, window: Window, size: int) -> None:
        self._codec, self._window, self._size = codec, window, size
        self._member = codec.open(window, 0)
        self._over = size == 0
        self.unpacked = 0  # bytes so far

    @property
    def at(self) -> int:
        """How far the file has been read."""
        return self._member.end

    def reached(self, place: int) -> int:
        """About where in the file the bytes up to a place end, of which some more were unpacked."""
        return self.at * place // max(place, self.unpacked)

    def chunk(self) -> bytes:
        """The next bytes, none after the last; raises Damaged, once."""
        while not self._over:
            try:
                data = self._member.chunk()
            except Damaged as damage:
                self._over = True
                raise Damaged(str(damage).replace(ENDS, "the file ends inside its compressed stream")) from damage
            if data:
                self.unpacked += len(data)
                return data
            self._over = self.at >= self._size or not self._window.exact(self.at, 4).strip(b"\0")  # zeros: padding
            if not self._over:
                self._member = self._codec.open(self._window, self.at)
        return b""


def verified(codec: Codec, window: Window, at: int, begins: Begins) -> bool:
    member = codec.open(window, at)
    data = b""
    try:
        while len(data) < FIRST_LINE and b"\n" not in data.lstrip() and (chunk := member.chunk(PROBE)):
            data += chunk
    except Damaged:
        return False
    return begins(data)


def next_start(codec: Codec, window: Window, at: int, before: int, begins: Begins) -> int | None:
    """The first verified start of a member at `at` or later, and before `before`."""
    while at < before:
        block = window.exact(at, CHUNK)
        offset = block.find(codec.magic)
        while offset >= 0:
            if at + offset >= before:
                return None
            if verified(codec, window, at + offset, begins):
                return at + offset
            offset = block.find(codec.magic, offset + 1)
        if len(block) < CHUNK:
            return None
        at += len(block) - len(codec.magic) + 1
    return None


def only_zeros(window: Window, start: int, end: int) -> bool:
    """Is a stretch the padding that some writers leave at the end of a file?"""
    while start < end:
        piece = bytes(window.piece(start, min(CHUNK, end - start)))
        if not piece or piece.strip(b"\0"):
            return not piece
        start += len(piece)
    return True
