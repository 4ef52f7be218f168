"""WARC and ARC records in a stream of bytes: their headers, their bodies, and where the next one begins after a broken
one.

A record counts as whole if its header can be read, its body is as long as it says, and then the stream ends or another
header begins. A stream is one compressed member, or a whole file that is not compressed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gristmill.stages.read.members import CHUNK, ENDS, FIRST_LINE, NOTHING, Window

MAX_HEADER = 1 << 16
ARC_LINE = re.compile(
    rb"([a-zA-Z][a-zA-Z0-9+.-]{1,30}:[^\n]{0,7000}) (\d{8}|\d{14}) (?:[^\n]{0,1000} )?(\d{1,18})[ \t]*\r?\n"
)
# After damage a header is taken for one only with a WARC-Type near its start: pages write "WARC/1.0" too.
AGAIN = re.compile(
    rb"(?<=\n)(?:WARC/[01]\.\d+\r?\n(?:[^\r\n]{1,8000}\r?\n){0,12}?WARC-Type:"
    rb"|[a-z][a-z0-9+.-]{1,30}:/?/?[^\s]{0,7000} [0-9a-fA-F.:]{2,45} \d{14} "
    rb"(?:[^\n]{0,1000}[^\n\d])?\d{1,18}+[ \t]*+\r?\n)",
    re.IGNORECASE,
)
FOLD = re.compile(rb"\r?\n[ \t]+")
BLANK = b"\r\n"
WRONG_LENGTH = "its Content-Length is wrong"


@dataclass(slots=True)
class Record:
    place: int  # where its header begins in the stream
    fields: dict[bytes, bytes]  # names in lower case
    body: bytes | None  # None: larger than allowed, or before the span
    length: int


@dataclass(slots=True)
class Broken:
    place: int
    end: int
    what: str


def begins(data: bytes) -> bool:
    """Do these bytes, after blank lines, begin with a record's header?"""
    data = data.lstrip(BLANK)
    return data.startswith(b"WARC/") or ARC_LINE.match(data) is not None


class Inflow:
    """The front of a stream, held in memory as far as it is needed."""

    def __init__(self, chunk: Callable[[], bytes]) -> None:
        self._chunk = chunk
        self.data = b""
        self.at = 0
        self._base = 0  # place in the stream of data[0]

    @property
    def place(self) -> int:
        return self._base + self.at

    @property
    def end(self) -> int:
        """How much of the stream has been in memory so far."""
        return self._base + len(self.data)

    def more(self) -> bool:
        chunk = self._chunk()
        if chunk:
            self._base += self.at
            self.data = self.data[self.at :] + chunk if self.at < len(self.data) else chunk
            self.at = 0
        return bool(chunk)

    def take(self, length: int) -> bytes:
        """`length` bytes, fewer only where the stream ends."""
        have = len(self.data) - self.at
        if length <= have:
            self.at += length
            return self.data[self.at - length : self.at]
        parts = [self.data[self.at :]]
        self.at = len(self.data)
        while have < length and self.more():
            self.at = min(length - have, len(self.data))
            parts.append(self.data[: self.at])
            have += self.at
        return b"".join(parts)

    def skip(self, length: int) -> int:
        """Pass over bytes without keeping them; how many there were."""
        passed = min(length, len(self.data) - self.at)
        self.at += passed
        while passed < length and self.more():
            self.at = min(length - passed, len(self.data))
            passed += self.at
        return passed

    def blank(self) -> bool:
        """Pass over line ends; is there anything after them?"""
        while True:
            while self.at < len(self.data) and self.data[self.at] in BLANK:
                self.at += 1
            if self.at < len(self.data):
                return True
            if not self.more():
                return False

    def first_line(self) -> bytes:
        """What has been read, at least to the end of a line; not passed over."""
        while True:
            line_end = self.data.find(b"\n", self.at, self.at + FIRST_LINE)
            if line_end >= 0:
                return self.data[self.at : line_end + 1]
            if len(self.data) - self.at >= FIRST_LINE or not self.more():
                return self.data[self.at : self.at + FIRST_LINE]

    def back(self, place: int, body: bytes | None) -> None:
        """Return to just before a body that was taken; what was skipped in a compressed stream is gone."""
        if body is not None:
            self.data = body + self.data[self.at :]
            self.at, self._base = 0, place


class FileInflow(Inflow):
    """A file that is not compressed: what is not wanted is jumped over."""

    def __init__(self, window: Window, size: int) -> None:
        self._window, self._size = window, size
        super().__init__(self._read)

    def _read(self) -> bytes:
        return bytes(self._window.piece(self._base + len(self.data), CHUNK))

    def skip(self, length: int) -> int:
        passed = min(length, self._size - self.place)
        self.back(self.place + passed, None)
        return passed

    def back(self, place: int, body: bytes | None) -> None:
        inside = place - self._base
        if 0 <= inside <= len(self.data):
            self.at = inside
        else:
            self.data, self.at, self._base = b"", 0, place


def records(inflow: Inflow, max_bytes: int, first: int = 0) -> Iterator[Record | Broken]:
    """Every record of a stream, and every stretch that is none; bodies are read from the place `first` on.

    A record comes out only when what follows it has been seen, so a bad checksum at a member's end is met before its
    last record has been handed over.
    """
    while inflow.blank():
        place = inflow.place
        fields = header(inflow)
        if isinstance(fields, str):
            if inflow.place == place:
                inflow.skip(1)
            yield Broken(place, resume(inflow), fields)
            continue
        body_place, length = inflow.place, int(fields[b"content-length"])
        body = inflow.take(length) if length <= max_bytes and place >= first else None
        got = inflow.skip(length) if body is None else len(body)
        whole = got == length and (not inflow.blank() or begins(inflow.first_line()))
        if whole:
            yield Record(place, fields, body, length)
        else:
            inflow.back(body_place, None if body is None else body + inflow_gap(inflow, body_place, body))
            yield Broken(place, resume(inflow), WRONG_LENGTH if got == length else ENDS)


def inflow_gap(inflow: Inflow, body_place: int, body: bytes) -> bytes:
    """The line ends passed over after a body, whose exact bytes no longer matter but whose number does."""
    return b"\n" * (inflow.place - body_place - len(body))


def header(inflow: Inflow) -> dict[bytes, bytes] | str:
    """The header's fields, with the stream after it; or what is wrong with it."""
    line = inflow.first_line()
    if not line.startswith(b"WARC/"):
        return arc_header(inflow, line)
    while True:
        data, start = inflow.data, inflow.at
        end = data.find(b"\r\n\r\n", start, start + MAX_HEADER)
        bare = data.find(b"\n\n", start, end if end >= 0 else start + MAX_HEADER)
        if bare >= 0:
            end, gap = bare, 2
        else:
            gap = 4
        if end >= 0:
            break
        if len(data) - start >= MAX_HEADER or not inflow.more():
            return "its header does not end"
    inflow.at = end + gap
    fields = fields_of(data[start:end])
    if not fields.get(b"content-length", b"").isdigit() or len(fields[b"content-length"]) > 18:
        return "its header has no Content-Length"
    return fields


ENCODINGS = (b"transfer-encoding", b"content-encoding")


def fields_of(block: bytes) -> dict[bytes, bytes]:
    """Fields of a header, first lines and lines without a colon left out; of repeated ones the first counts, but
    encodings are one list. Folded lines are one."""
    lines = (FOLD.sub(b" ", block) if b"\n " in block or b"\n\t" in block else block).split(b"\n")
    lines.reverse()
    fields: dict[bytes, bytes] = {}
    for line in lines[:-1]:
        name, colon, value = line.partition(b":")
        if colon:
            name, value = name.strip().lower(), value.strip()
            if name in ENCODINGS and name in fields and fields[name].lower() != value.lower():
                value += b", " + fields[name]
            fields[name] = value
    return fields


def arc_header(inflow: Inflow, line: bytes) -> dict[bytes, bytes] | str:
    """An ARC header, one line of `url ip date type ... length`, as the WARC fields that it corresponds to."""
    match = ARC_LINE.match(line)
    if match is None:
        return NOTHING
    inflow.at += len(line)
    url, _, ip = match[1].rpartition(b" ")
    date = match[2]
    scheme = url.split(b":", 1)[0].lower()
    stamp = date.ljust(14, b"0")
    day, time = b"-".join((stamp[:4], stamp[4:6], stamp[6:8])), b":".join((stamp[8:10], stamp[10:12], stamp[12:]))
    return {
        b"warc-type": b"warcinfo" if scheme == b"filedesc" else b"metadata" if scheme == b"dns" else b"response",
        b"warc-target-uri": url,
        b"warc-date": day + b"T" + time + b"Z",
        b"warc-ip-address": ip,
        b"content-length": match[3],
    }


def resume(inflow: Inflow) -> int:
    """Go to the next header after damage, or to the end of the stream; where that is."""
    while True:
        match = AGAIN.search(inflow.data, inflow.at + 1)  # one on, so that the line end before it is surely in memory
        if match:
            inflow.at = match.start()
            return inflow.place
        inflow.at = max(inflow.at, len(inflow.data) - MAX_HEADER)
        if not inflow.more():
            inflow.at = len(inflow.data)
            return inflow.place
