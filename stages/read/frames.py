"""Where the frames of a compressed file begin, and how many bytes come before each when unpacked, by headers alone.

Frames of zstd that state their size (those of a writer that packs block by block do) and members of gzip that state
their length (BGZF, as bgzip writes them) can be read from any of them on. Other files have one beginning. Headers are
read at a thousandth of the bytes; over a network that would be most of the file all the same, so remote files are not
looked into.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from gristmill.stages.read.members import Codec, Damaged, Member, Window, WrongChecksum

ZSTD, GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08\x04"
SKIPPABLE, DICTIONARY = b"\x2a\x4d\x18", 0x5D  # of a frame without text; the first may be WARC-zstd's dictionary
RAW, REPEATED, PACKED = 0, 1, 2  # kinds of blocks
EXTRA = 12  # bytes of a gzip header before its extra fields


class NotTold(Exception):
    """A frame does not say how long it is, or lies about it."""


@dataclass(frozen=True)
class Frame:
    """Stretches of a file, and of what it unpacks to."""

    start: int
    end: int
    place: int
    after: int


def frames_of(file: BinaryIO, size: int) -> list[Frame] | None:
    """All frames of a local file in their order; None where they cannot be told."""
    if hasattr(file, "fs"):
        return None
    frames: list[Frame] = []
    at = place = 0
    try:
        while at < size:
            head = at_place(file, at, 18)
            if not head.strip(b"\0"):  # padding
                break
            if 0x50 <= head[0] <= 0x5F and head[1:4] == SKIPPABLE and (at or head[0] != DICTIONARY):
                end, length = at + 8 + int.from_bytes(head[4:8], "little"), 0
            elif head.startswith(ZSTD):
                end, length = zstd_frame(file, at, head)
            elif head.startswith(GZIP):
                end, length = gzip_member(file, at, head)
            else:
                return None
            if end > size:
                return None
            if length:
                frames.append(Frame(at, end, place, place + length))
            at, place = end, place + length
    except NotTold:
        return None
    return frames or None


def at_place(file: BinaryIO, at: int, length: int) -> bytes:
    file.seek(at)
    return file.read(length)


def zstd_frame(file: BinaryIO, at: int, head: bytes) -> tuple[int, int]:
    """Where a frame ends, and the length that it unpacks to (RFC 8878, 3.1.1)."""
    kind = head[4] if len(head) > 4 else 0
    single, width = bool(kind & 0x20), (0, 2, 4, 8)[kind >> 6]
    width = width or (1 if single else 0)
    begin = 5 + (not single) + (0, 1, 2, 4)[kind & 3]
    if not width or len(head) < begin + width:
        raise NotTold
    length = int.from_bytes(head[begin : begin + width], "little") + (256 if width == 2 else 0)
    at += begin + width
    while True:
        block = at_place(file, at, 3)
        if len(block) < 3:
            raise NotTold
        facts = int.from_bytes(block, "little")
        if facts >> 1 & 3 > PACKED:
            raise NotTold
        at += 3 + (1 if facts >> 1 & 3 == REPEATED else facts >> 3)
        if facts & 1:
            return at + (4 if kind & 4 else 0), length


def gzip_member(file: BinaryIO, at: int, head: bytes) -> tuple[int, int]:
    """The same of a member whose first extra field is BGZF's."""
    if len(head) < 18 or head[EXTRA : EXTRA + 4] != b"BC\x02\x00":
        raise NotTold
    end = at + int.from_bytes(head[16:18], "little") + 1
    return end, int.from_bytes(at_place(file, end - 4, 4), "little")


def spans_of_frames(frames: list[Frame], size: int, target: int) -> list[tuple[int, int | None]]:
    """Cuts between frames, about every `target` bytes."""
    cuts = [0]
    for frame in frames:
        if frame.start - cuts[-1] >= target:
            cuts.append(frame.start)
    return list(zip(cuts, [*cuts[1:], size], strict=True)) if len(cuts) > 1 else [(0, None)]


class FrameReader:
    """The bytes of frames one after the other, from one of them on; a frame that breaks ends a stretch, and the next
    begins behind it. A wrong checksum ends none."""

    def __init__(self, codec: Codec, window: Window, frames: list[Frame], start: int, end: int | None) -> None:
        self._codec, self._window, self._frames = codec, window, frames
        starts, self._places = [frame.start for frame in frames], [frame.place for frame in frames]
        self.first = bisect_left(starts, start)
        self.last = len(frames) if end is None else bisect_left(starts, end)  # the first that is not of the span
        self.place = frames[self.first].place if self.first < len(frames) else frames[-1].after
        self.end = frames[self.last].place if self.last < len(frames) else frames[-1].after
        self._number = max(0, self.first - 1)  # where the line may begin that runs into the span
        self._member: Member | None = None
        self._taken = 0
        self.damage: Damaged | None = None
        self._damaged: Callable[[int, int, str], None] = lambda start, end, what: None

    def stretches(self, damaged: Callable[[int, int, str], None]) -> Iterator[int]:
        """Where each stretch begins when unpacked; `chunk` then gives its bytes."""
        self._damaged = damaged
        while self._number < len(self._frames):
            self._member, self.damage = None, None
            yield self._frames[self._number].place
            if self.damage is None:
                return
            self._record(self.damage)
            self._number += 1

    def _record(self, damage: Damaged) -> None:
        if self.first <= self._number < self.last:  # others are for whoever reads their span
            frame = self._frames[self._number]
            self._damaged(frame.start, frame.end, str(damage))

    @property
    def at(self) -> int:
        """How far the file has been read."""
        return (
            self._frames[min(self._number, len(self._frames) - 1)].start if self._member is None else self._member.end
        )

    def reached(self, place: int) -> int:
        """About where in the file the bytes up to a place end."""
        number = max(0, bisect_right(self._places, place - 1) - 1)
        frame = self._frames[number]
        share = min(place - frame.place, frame.after - frame.place) / (frame.after - frame.place)
        return frame.start + int(share * (frame.end - frame.start))

    def chunk(self) -> bytes:
        """The next bytes, none after the last; raises Damaged."""
        while self._number < len(self._frames):
            frame = self._frames[self._number]
            if self._member is None:
                self._member, self._taken = self._codec.open(self._window, frame.start), 0
            try:
                data = self._member.chunk()
                self._taken += len(data)
                length = frame.after - frame.place
                if self._taken > length or (not data and (self._taken, self._member.end) != (length, frame.end)):
                    raise Damaged("it is not as long as its header says")
            except Damaged as damage:
                if isinstance(damage, WrongChecksum) and (self._taken, self._member.end) == (
                    frame.after - frame.place,
                    frame.end,
                ):
                    self._record(damage)
                    self._number, self._member = self._number + 1, None
                    continue
                self.damage = damage
                raise
            if data:
                return data
            self._number, self._member = self._number + 1, None
        return b""
