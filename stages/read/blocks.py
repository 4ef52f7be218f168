"""Blocks of whole records, which a kernel reads at once: members of a compressed archive, inflated one behind the
other, or a stretch of a file that is not compressed.

Nothing is decided here. What a block cannot take, a member that is damaged or large or a record that is cut, is read
from its start by the reader of single records, which knows what is wrong with it. So a block changes no result, and
where blocks do not help, few are tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gristmill.kernels.base.types import Array, Offsets
from gristmill.stages.read.members import CHUNK, Codec, Window

MEMBERS = 1 << 20  # inflated bytes after which a block of members ends
STRETCH = 1 << 22  # bytes of a file that is not compressed
LARGEST = 1 << 22  # inflated bytes of a member of a block
FIRST_FEED, FEEDS = 1 << 13, 4  # bytes for one call of inflate: at first, and how many times the mean of members so far
MOST_SINGLY = 1024
NO_BOUNDS = np.zeros(0, np.int64)


@dataclass
class Block:
    """Records behind each other from the first byte on, and how far they have been read. In a block of members each
    record is one of them."""

    data: memoryview  # read-only
    starts: list[int]  # of members in the archive; else of the data alone
    ends: list[int] = field(default_factory=list)  # of members in the archive
    bounds: Offsets = field(default_factory=lambda: NO_BOUNDS)  # of members in the data
    stop: int = STRETCH  # no record may begin from here on
    last: bool = False  # is the archive's end that of the data?
    at: int = 0
    number: int = 0  # of records so far

    @property
    def reached(self) -> int:
        """The place in the archive up to which it was read."""
        if not len(self.bounds):
            return self.starts[0] + self.at
        return self.ends[self.number - 1] if self.number else self.starts[0]

    def places(self, records: Array) -> list[int]:
        """Where in the archive records begin: members by number, others by their places in the data."""
        return [self.starts[n] for n in records.tolist()] if len(self.bounds) else (records + self.starts[0]).tolist()


class Blocks:
    """The blocks of an archive. Behind one that was left early, some records are to be read one by one, twice as many
    each time."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._memory = memoryview(np.empty(2 * MEMBERS, np.uint8))
        self._singly, self._next = 0, 1

    def due(self) -> bool:
        """Is the next record to be read in a block?"""
        self._singly -= 1
        return self._singly <= 0

    def left(self, block: Block) -> bool:
        """To be called behind a block; was most of it read?"""
        if 2 * block.at > len(block.data):
            self._next = 1
            return True
        self._next = self._singly = min(2 * self._next, MOST_SINGLY)
        return False

    def stretch(self, at: int, end: int, size: int) -> Block:
        """A block from a place of an archive on; records of the span begin before `end`."""
        data = self._window.stretch(at, min(STRETCH, end - at + CHUNK))
        return Block(memoryview(data), [at], stop=end - at, last=at + len(data) >= size)

    def members(self, codec: Codec, at: int, end: int) -> tuple[Block, int]:
        """A block of the members from a place on that begin before `end`, and where the last one ends; those that are
        empty are passed over."""
        starts: list[int] = []
        ends: list[int] = []
        bounds, held, begin, feed = [0], 0, at, FIRST_FEED
        while at < end and held < MEMBERS:
            member = codec.open(self._window, at)
            data = member.whole(feed, LARGEST)
            if data is None:
                break
            if data:
                self._memory = with_room(self._memory, held, len(data))
                self._memory[held : held + len(data)] = data
                held += len(data)
                starts.append(at)
                ends.append(member.end)
                bounds.append(held)
                feed = max(FIRST_FEED, FEEDS * (member.end - begin) // len(starts))
            at = member.end
        return Block(self._memory[:held].toreadonly(), starts, ends, np.array(bounds), stop=held), at


def with_room(memory: memoryview, held: int, more: int) -> memoryview:
    """Memory with what it holds, and room for more behind that."""
    if held + more <= len(memory):
        return memory
    larger = memoryview(np.empty(2 * (held + more), np.uint8))
    larger[:held] = memory[:held]
    return larger
