"""Compressed members in a file: where each begins, reading it in bounded pieces, and finding the next after damage.

A member is a gzip member or a zstd frame; crawls write one for each record, so that a record can be read without its
neighbours. fastwarc stops at the first damaged member and cannot start in the middle of a file, hence a reader of our
own, on isal. A start is *verified* if the first inflated bytes are a record header. Verification feeds the same bytes
however the file is cut into spans, so that all spans agree on it. What it cannot tell from a real start is a whole WARC
stored, uncompressed by the outer gzip, as the payload of a record.

A decompressor gives nothing of the bytes of a call in which it fails. A member that breaks is therefore inflated once
more from its start, slowly, and what comes before the break is given out whatever the calls were.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol

import zstandard
from isal import igzip_lib, isal_zlib

CHUNK = 1 << 18  # bytes for one read of the file
FEED = 1 << 16  # bytes for one call of inflate: about three records; what is left over is copied each time
ZSTD_FEED = 1 << 12  # zstd has no limit on output; four bytes can say 128 KB, so 4 KB stay under 128 MB
INFLATED = 1 << 20  # bytes from one call of inflate
PROBE = 256  # bytes for one step of verification
STEP, FINER = 1 << 12, 1 << 6  # bytes for one call of zlib near a break; after a failure of STEP, STEP // FINER, then 1
FIRST_LINE = 1 << 13  # inflated bytes in which a header's first line has to end
MAX_WINDOW = 1 << 27  # zstd's own default limit
MAX_DICTIONARY = 1 << 26
ENDS = "the file ends inside this record"
NOTHING = "no record begins here"

Begins = Callable[[bytes], bool]
Chunks = Callable[[], bytes]


class Damaged(Exception):
    """The bytes of a member cannot be read; the message says why."""


class WrongChecksum(Damaged):
    """All bytes of a member were given, but its checksum or its length is of others. The member's end is known."""


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

    def stretch(self, position: int, length: int) -> bytes:
        """Up to `length` bytes, read at once and not held here."""
        self._file.seek(position)
        data = self._file.read(length)
        self._file_at = position + len(data)
        return data

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


class Codec(Protocol):
    magic: bytes

    def open(self, window: Window, start: int) -> Member: ...

    def whole(self, window: Window, start: int, feed: int, most: int) -> tuple[list[bytes], int] | None:
        """All bytes of a member, `feed` at a time, and its end; None where they are more than `most` or anything is
        wrong: `open` it then."""


class Member(ABC):
    """One member; `end` is known once `chunk` has returned nothing."""

    feed: int  # bytes for one call of inflate
    trailer: int  # bytes of checksum and length at its end

    def __init__(self, window: Window, start: int) -> None:
        self.start = self.end = start
        self._window = window
        self._given = 0
        self._rest: Iterator[bytes] | None = None  # up to the break, once one is met

    def chunk(self) -> bytes:
        """The next inflated bytes, none after the last; raises Damaged behind the last before a break, once."""
        if self._rest is None:
            try:
                data = self._inflate(self.feed)
            except (igzip_lib.IsalError, zstandard.ZstdError) as error:  # type: ignore[misc]  # see probe
                self._rest = self._up_to_the_break(error)
            else:
                self._given += len(data)
                return data
        return next(self._rest, b"")

    def probe(self) -> bytes:
        """The next bytes in small steps, for a look at the first bytes; raises Damaged as soon as anything is wrong."""
        try:
            return self._inflate(PROBE)
        except (igzip_lib.IsalError, zstandard.ZstdError) as error:  # type: ignore[misc]  # the stub calls it a value
            raise Damaged(self._says(error)) from error

    def _up_to_the_break(self, error: Exception) -> Iterator[bytes]:
        """What was not given yet."""
        total, held = 0, bytearray()
        try:
            for data in self._slowly():
                total += len(data)
                if total > self._given:
                    held += data[self._given - total :]
                if len(held) >= INFLATED:
                    yield bytes(held)
                    held.clear()
        except Damaged as damage:
            if held:
                yield bytes(held)
            if total == 0:
                self.end = self.start
            said = str(damage)
            raise type(damage)(said if said == ENDS else self._says(error)) from error
        if held:
            yield bytes(held)

    @abstractmethod
    def _says(self, error: Exception) -> str: ...

    @abstractmethod
    def _inflate(self, feed: int) -> bytes:
        """The next bytes; the decompressor's own errors come through."""

    @abstractmethod
    def _slowly(self) -> Iterator[bytes]:
        """The bytes from the start to the break, which raises Damaged; `end` is then where it is."""


class GzipMember(Member):
    feed = FEED
    trailer = 8

    def __init__(self, window: Window, start: int) -> None:
        super().__init__(window, start)
        self._inflater = isal_zlib.decompressobj(wbits=31)  # checks the CRC and the length too

    def _says(self, error: Exception) -> str:
        return f"gzip: {error}"

    def _inflate(self, feed: int) -> bytes:
        inflater = self._inflater
        while not inflater.eof:
            piece = self._window.piece(self.end, feed)
            data: bytes = inflater.decompress(piece, INFLATED)
            self.end += len(piece) - len(inflater.unused_data if inflater.eof else inflater.unconsumed_tail)
            if data:
                return data
            if not piece and not inflater.eof:
                begins = Gzip.magic.startswith(self._window.exact(self.start, len(Gzip.magic)))
                raise Damaged(ENDS if begins else "gzip: no gzip begins here")
        return b""

    def _slowly(self) -> Iterator[bytes]:
        self.end = self.start
        inflater, step = zlib.decompressobj(wbits=31), STEP
        while not inflater.eof:
            piece = self._window.exact(self.end, step)
            if not piece:
                raise Damaged(ENDS)
            before = inflater.copy()
            try:
                data = inflater.decompress(piece)
            except zlib.error as error:
                if step > 1:
                    inflater, step = before, step // FINER
                    continue
                for check, after in (("incorrect data check", 5), ("incorrect length check", 1)):
                    if check in str(error):
                        self.end += after
                        raise WrongChecksum(check) from error
                raise Damaged(str(error)) from error
            self.end += len(piece) - len(inflater.unused_data)
            yield data


class Gzip:
    magic = b"\x1f\x8b\x08"

    def open(self, window: Window, start: int) -> Member:
        return GzipMember(window, start)

    def whole(self, window: Window, start: int, feed: int, most: int) -> tuple[list[bytes], int] | None:
        inflater, parts = isal_zlib.decompressobj(wbits=31), []
        try:
            while not inflater.eof:
                piece = window.piece(start, feed)
                data = inflater.decompress(piece, INFLATED)
                start += len(piece) - len(inflater.unused_data if inflater.eof else inflater.unconsumed_tail)
                most -= len(data)
                if most < 0 or not (piece or data or inflater.eof):
                    return None
                parts.append(data)
        except igzip_lib.IsalError:  # type: ignore[misc]  # the stub calls it a value
            return None
        return parts, start


class ZstdFrame(Member):
    feed = ZSTD_FEED
    trailer = 4

    def __init__(self, window: Window, start: int, decompressor: zstandard.ZstdDecompressor) -> None:
        super().__init__(window, start)
        skipped = skippable(window, start)
        self._decompressor = decompressor
        self._inflater = None if skipped else decompressor.decompressobj()
        self.end += skipped

    def _says(self, error: Exception) -> str:
        return f"zstd: {error}"

    def _inflate(self, feed: int) -> bytes:
        inflater = self._inflater
        while inflater is not None and not inflater.eof:
            piece = self._window.piece(self.end, feed)
            if not piece:
                raise Damaged(ENDS)
            data: bytes = inflater.decompress(piece)
            self.end += len(piece) - len(inflater.unused_data)
            if data:
                return data
        return b""

    def _slowly(self) -> Iterator[bytes]:
        good, self.end = self.end, self.start  # the break is behind `good`
        inflater = self._decompressor.decompressobj()
        while not inflater.eof:
            piece = self._window.exact(self.end, min(ZSTD_FEED, good - self.end) if self.end < good else 1)
            if not piece:
                raise Damaged(ENDS)
            try:
                data: bytes = inflater.decompress(piece)
            except zstandard.ZstdError as error:
                if "checksum" in str(error):
                    self.end += 1
                    raise WrongChecksum(str(error)) from error
                raise Damaged(str(error)) from error
            self.end += len(piece) - len(inflater.unused_data)
            yield data


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

    def whole(self, window: Window, start: int, feed: int, most: int) -> tuple[list[bytes], int] | None:
        member, parts = ZstdFrame(window, start, self._decompressor), []
        try:
            while data := member._inflate(member.feed):
                most -= len(data)
                if most < 0:
                    return None
                parts.append(data)
        except (Damaged, zstandard.ZstdError):
            return None
        return parts, member.end


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
        self.broken = (0, 0)  # the stretch of the file that the last damage is of

    @property
    def at(self) -> int:
        """How far the file has been read."""
        return self._member.end

    def reached(self, place: int) -> int:
        """About where in the file the bytes up to a place end, of which some more were unpacked."""
        return self.at * place // max(place, self.unpacked)

    def chunk(self) -> bytes:
        """The next bytes, none after the last; raises Damaged, after which there are none, or WrongChecksum, after
        which the next member follows."""
        while not self._over:
            try:
                data = self._member.chunk()
            except WrongChecksum as damage:
                self.broken = (self.at - self._member.trailer, self.at)
                self._open_next()
                if not self._over and not self._begins_here():  # what seemed a member's end was none
                    self.broken, self._over = (self.at, self._size), True
                    raise Damaged(str(damage)) from damage
                raise
            except Damaged as damage:
                self.broken, self._over = (self.at, self._size), True
                raise Damaged(str(damage).replace(ENDS, "the file ends inside its compressed stream")) from damage
            if data:
                self.unpacked += len(data)
                return data
            self._open_next()
        return b""

    def _open_next(self) -> None:
        self._over = self.at >= self._size or not self._window.exact(self.at, 4).strip(b"\0")  # zeros: padding
        if not self._over:
            self._member = self._codec.open(self._window, self.at)

    def _begins_here(self) -> bool:
        start = self._member.start
        return (
            self._window.exact(start, len(self._codec.magic)) == self._codec.magic or skippable(self._window, start) > 0
        )


def verified(codec: Codec, window: Window, at: int, begins: Begins) -> bool:
    member = codec.open(window, at)
    data = b""
    try:
        while len(data) < FIRST_LINE and b"\n" not in data.lstrip() and (chunk := member.probe()):
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
