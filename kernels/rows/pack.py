"""Which tokens of which documents go into which training row: best fit, concatenate and cut, or one document a row.

Best fit is that of Ding et al. 2024 (Fewer Truncations Improve Language Modeling): only documents longer than a row are
cut, into full rows and a tail; tails are placed, longest first, where they leave the least room. The paper finds the
smallest sufficient room in a segment tree of maxima; here it is a tree of bits with 64 branches, and the choice is the
same. Documents stay inside their window, so an order or a shuffle of windows survives. Longest first would sort the
rows of a window by length; instead rows are in the order of the documents that opened them, which are their longest. In
a shuffled window the correlation of a row's place with its number of documents falls from 0.7 to 0.14 at 2,048 tokens
and 0.06 at 4,096. Measured on one core, rows of 2,048 to 8,192, windows of 100,000 (benchmarks/tokens/pack.py): 12 to
22 million documents a second, most of it for writing the five columns; as many rows as TRL 1.16's packer makes of the
same window, 420 to 1,140 times as fast as its bin packing alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import inlined, kernel
from gristmill.kernels.base.types import Array, Offsets
from gristmill.kernels.base.wide import lowest

LONGEST_ROW = 1 << 24  # of tokens: what a tree of four levels can tell apart
LEVELS = 4


class Packed(NamedTuple):
    """Piece i is tokens start[i] to start[i] + length[i] of document[i], at offset[i] in row[i]. Pieces are in order of
    row and offset, those of a row in the order of their documents and without gaps; the rest of a row is padding. Empty
    documents have no piece."""

    row: Offsets
    offset: Array  # int32
    document: Offsets
    start: Offsets
    length: Array  # int32
    rows: int


def best_fit(lengths: Offsets, row_length: int, bounds: Offsets) -> Packed:
    """Best fit, decreasing. Window w is documents bounds[w] to bounds[w + 1]; no row spans two windows."""
    lengths, bounds = _checked(lengths, row_length), _checked_bounds(bounds, len(lengths))
    openers = np.full(len(lengths), -1, np.int64)
    levels = _levels(row_length)
    widest = int(np.diff(bounds).max(initial=0))
    rooms, gaps = np.zeros(levels[-1], np.uint64), np.zeros(levels[-1], np.uint64)
    counts, heads = np.zeros(row_length, np.int64), np.full(row_length, -1, np.int64)
    order, below = np.empty(widest, np.int64), np.empty(widest, np.int64)
    _choose_rows(lengths, bounds, row_length, levels, rooms, gaps, counts, heads, order, below, openers)
    return _laid_out(lengths, bounds, row_length, openers)


def one_each(lengths: Offsets, row_length: int) -> Packed:
    """One document a row; a document longer than a row continues in the next."""
    lengths = _checked(lengths, row_length)
    bounds = _fixed(windows(len(lengths), max(len(lengths), 1)))
    return _laid_out(lengths, bounds, row_length, np.where(lengths % row_length > 0, np.arange(len(lengths)), -1))


def concatenate(lengths: Offsets, row_length: int) -> Packed:
    """All documents end to end, cut wherever a row is full; only the last row has padding."""
    lengths = _checked(lengths, row_length)
    rows, pieces = _count_concatenated(lengths, row_length)
    packed = _room_for(pieces, rows)
    _concatenate(lengths, row_length, *packed[:-1])
    return packed


def windows(documents: int, most: int) -> Offsets:
    """Bounds of as few windows as possible of at most this many documents, equal in size within one document."""
    if most < 1:
        raise ValueError(f"windows of {most} documents: at least 1 is needed")
    number = -(-documents // most)
    return np.arange(number + 1, dtype=np.int64) * documents // max(number, 1)


def fewest_rows(lengths: Offsets, row_length: int) -> int:
    """A lower bound on the rows of any packer that only cuts documents longer than a row."""
    lengths = _checked(lengths, row_length)
    tails = lengths % row_length
    in_two_halves = int((lengths // row_length).sum()) + int((tails > row_length // 2).sum())
    return max(-(-int(lengths.sum()) // row_length), in_two_halves)


def _checked(lengths: Offsets, row_length: int) -> Offsets:
    if not 1 <= row_length <= LONGEST_ROW:
        raise ValueError(f"rows of {row_length:,} tokens: between 1 and {LONGEST_ROW:,} are possible")
    lengths = np.ascontiguousarray(lengths, np.int64)
    if lengths.min(initial=0) < 0:
        raise ValueError(
            f"document {int(lengths.argmin()):,} has {int(lengths.min()):,} tokens: a length cannot be negative"
        )
    return _fixed(lengths)


def _checked_bounds(bounds: Offsets, documents: int) -> Offsets:
    bounds = np.ascontiguousarray(bounds, np.int64)
    if len(bounds) == 0 or bounds[0] != 0 or bounds[-1] != documents or (np.diff(bounds) < 0).any():
        raise ValueError(f"bounds of windows must rise from 0 to {documents:,}, the number of documents")
    return _fixed(bounds)


def _fixed(array: Array) -> Array:
    array = array.view()
    array.flags.writeable = False
    return array


def _levels(row_length: int) -> Offsets:
    """Where each level of a tree of bits begins among its words, and where the last ends. A word at the end of each is
    never set."""
    words = [row_length // 64 ** (level + 1) + 2 for level in range(LEVELS)]
    return np.cumsum([0, *words], dtype=np.int64)


def _room_for(pieces: int, rows: int) -> Packed:
    row, document, start = (np.empty(pieces, np.int64) for _ in range(3))
    offset, length = np.empty(pieces, np.int32), np.empty(pieces, np.int32)
    return Packed(row, offset, document, start, length, rows)


def _laid_out(lengths: Offsets, bounds: Offsets, row_length: int, openers: Offsets) -> Packed:
    """The tail of document d is in the row that the tail of openers[d] opened."""
    rows, pieces = _count_rows(lengths, row_length, openers)
    packed = _room_for(pieces, rows)
    widest = int(np.diff(bounds).max(initial=0))
    tails, places, rows_of = np.zeros(widest, np.int64), np.empty(widest, np.int64), np.empty(widest, np.int64)
    _lay_out(lengths, bounds, row_length, openers, tails, places, rows_of, *packed[:-1])
    return packed


@inlined
def _tail(length, row_length):
    return length if length < row_length else length % row_length  # most documents fit, and a division is slow


@inlined
def _full(length, row_length):
    return 0 if length < row_length else length // row_length


@inlined
def _put(levels, words, bit):
    for level in range(LEVELS):
        word = levels[level] + (bit >> 6)
        before = words[word]
        words[word] = before | (np.uint64(1) << np.uint64(bit & 63))
        if before != 0:
            return
        bit >>= 6


@inlined
def _take(levels, words, bit):
    for level in range(LEVELS):
        word = levels[level] + (bit >> 6)
        words[word] &= ~(np.uint64(1) << np.uint64(bit & 63))
        if words[word] != 0:
            return
        bit >>= 6


@inlined
def _next(levels, words, bit):
    """The first number in the tree that is not smaller; -1 where there is none."""
    for level in range(LEVELS):
        bits = words[levels[level] + (bit >> 6)] >> np.uint64(bit & 63)
        if bits != 0:
            bit += lowest(bits)
            for lower in range(level - 1, -1, -1):
                bit = (bit << 6) + lowest(words[levels[lower] + bit])
            return bit
        bit = (bit >> 6) + 1
    return np.int64(-1)


@kernel
def _choose_rows(lengths, bounds, row_length, levels, rooms, gaps, counts, heads, order, below, openers):
    """`rooms`, `gaps`, `counts` and `heads` are empty before and after each window, so the cost of a window depends on
    its documents alone. `gaps` holds the row length minus each length that occurs, so that the smallest is the longest
    document; `counts` is by length. `rooms` holds the room of open rows; rows of equal room are a stack, from `heads`
    by `below`."""
    for w in range(len(bounds) - 1):
        low, high = bounds[w], bounds[w + 1]
        for d in range(low, high):
            tail = _tail(lengths[d], row_length)
            if tail:
                if counts[tail] == 0:
                    _put(levels, gaps, row_length - tail)
                counts[tail] += 1
        number = 0
        gap = _next(levels, gaps, 1)
        while gap > 0:
            tails = counts[row_length - gap]
            counts[row_length - gap] = number
            number += tails
            gap = _next(levels, gaps, gap + 1)
        for d in range(low, high):
            tail = _tail(lengths[d], row_length)
            if tail:
                order[counts[tail]] = d
                counts[tail] += 1
        i = 0
        gap = _next(levels, gaps, 1)
        while gap > 0:
            tail = row_length - gap
            end = counts[tail]
            counts[tail] = 0
            _take(levels, gaps, gap)
            while i < end:
                room = _next(levels, rooms, tail)
                if room < 0:
                    opener, room = order[i], row_length
                else:
                    opener = heads[room]
                    heads[room] = below[opener - low]
                    if heads[room] < 0:
                        _take(levels, rooms, room)
                while room >= tail and i < end:  # the room that remains is still the smallest that suffices
                    openers[order[i]] = opener
                    room -= tail
                    i += 1
                if room:
                    below[opener - low] = heads[room]
                    if heads[room] < 0:
                        _put(levels, rooms, room)
                    heads[room] = opener
            gap = _next(levels, gaps, gap + 1)
        room = _next(levels, rooms, 1)
        while room > 0:
            heads[room] = -1
            _take(levels, rooms, room)
            room = _next(levels, rooms, room + 1)


@kernel
def _count_rows(lengths, row_length, openers):
    rows, pieces = 0, 0
    for d in range(len(lengths)):
        full = _full(lengths[d], row_length)
        rows += full + (openers[d] == d)
        pieces += full + (openers[d] >= 0)
    return rows, pieces


@kernel
def _lay_out(lengths, bounds, row_length, openers, tails, places, rows_of, row, offset, document, start, length):
    """For the row that a document opened: its number of tails (then tokens), where its next piece is written, its
    number."""
    next_row, next_piece = 0, 0
    for w in range(len(bounds) - 1):
        low, high = bounds[w], bounds[w + 1]
        for d in range(low, high):
            if openers[d] >= 0:
                tails[openers[d] - low] += 1
        for d in range(low, high):
            for chunk in range(_full(lengths[d], row_length)):
                row[next_piece] = next_row
                offset[next_piece] = 0
                document[next_piece] = d
                start[next_piece] = chunk * row_length
                length[next_piece] = row_length
                next_row += 1
                next_piece += 1
            if openers[d] == d:
                places[d - low] = next_piece
                rows_of[d - low] = next_row
                next_row += 1
                next_piece += tails[d - low]
                tails[d - low] = 0
        for d in range(low, high):
            if openers[d] >= 0:
                opener = openers[d] - low
                i, tail = places[opener], _tail(lengths[d], row_length)
                row[i] = rows_of[opener]
                offset[i] = tails[opener]
                document[i] = d
                start[i] = lengths[d] - tail
                length[i] = tail
                tails[opener] += tail
                places[opener] = i + 1
        tails[: high - low] = 0


@kernel
def _count_concatenated(lengths, row_length):
    tokens, pieces = 0, 0
    for d in range(len(lengths)):
        if lengths[d]:
            pieces += (tokens + lengths[d] - 1) // row_length - tokens // row_length + 1
            tokens += lengths[d]
    return -(-tokens // row_length), pieces


@kernel
def _concatenate(lengths, row_length, row, offset, document, start, length):
    here, used, i = 0, 0, 0
    for d in range(len(lengths)):
        position = 0
        while position < lengths[d]:
            if used == row_length:
                here += 1
                used = 0
            taken = min(lengths[d] - position, row_length - used)
            row[i] = here
            offset[i] = used
            document[i] = d
            start[i] = position
            length[i] = taken
            position += taken
            used += taken
            i += 1
