"""Byte-pair merging (Sennrich et al. 2016): the ids of a piece of text, in n log n for any length.

The neighbors that were learned first are merged first, the leftmost of equal ones, until no known pair is left. Up to
64 symbols, the next merge is found by a scan of all ranks, 16 at a time in the processor's vectors; ranks of pairs of
bytes come from a table of 256 x 256. Longer pieces use a heap of (rank, place), where outdated entries are skipped.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import helper, inlined, kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.wide import equal_of_8, equal_of_16, highest, least_of_16, lowest

NO_RANK = (1 << 32) - 1
LARGEST_ID, LARGEST_RANK = (1 << 20) - 2, (1 << 24) - 2  # that a slot of the table can hold
BUCKET = 8  # slots of a cache line, compared at once
SCANNED = 64  # symbols; longer pieces use the heap

_NONE, _NO_RANK, _ONE = np.uint64((1 << 64) - 1), np.uint32(NO_RANK), np.uint64(1)
_LOW, _HALF = np.uint64(NO_RANK), np.uint64(32)
_ID_BITS, _RANK_BITS, _RANK = np.uint64(20), np.uint64(24), np.uint64((1 << 24) - 1)
_NO_ID, _WITHIN = np.uint32((1 << 20) - 1), SCANNED - 1
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Merges(NamedTuple):
    """The merges of a vocabulary."""

    pairs: Array  # uint64 slots, a power of two, in buckets: left id, right id (20 bits each), rank; _NONE if empty
    of_bytes: Array  # uint32[65536]: the rank of a pair of bytes, or NO_RANK
    results: Array  # uint32: the id that each rank merges to
    bytes: Array  # uint32[256]: the id of each byte


class Desk(NamedTuple):
    """Scratch memory to merge a piece: as long as its bytes, the heap three times that. A piece only touches what it
    needs."""

    ids: Array  # uint32
    ranks: Array  # uint32: of a symbol and the next; NO_RANK if they do not merge, or the symbol was merged away
    before: Array  # int64
    behind: Array  # int64
    heap: Array  # uint64: rank << 32 | place


class Rows(NamedTuple):
    """Pieces that are merged in turns, a merge each: one waits for memory while the others go on."""

    ids: Array  # uint32 rows_SCANNED
    ranks: Array  # uint32 rows_SCANNED
    symbols: Array  # uint64 rows: a bit for each symbol that was not merged away
    pieces: Array  # int64 rows: which piece a row has
    begins: Array  # int64 rows: the first place of a row


def rows_of(count: int) -> Rows:
    ids, ranks = np.empty((2, count * SCANNED), np.uint32)
    return Rows(ids, ranks, np.empty(count, np.uint64), np.empty(count, np.int64), np.arange(count) * SCANNED)


def desk_for(longest: int) -> Desk:
    length = max(longest, SCANNED)
    narrow, wide = ([np.empty(length, kind) for _ in range(2)] for kind in (np.uint32, np.int64))
    return Desk(*narrow, *wide, np.empty(3 * length, np.uint64))


def merges_of(pairs: Array, results: Array, of_bytes: Array) -> Merges:
    """The tables of merges uint32_M2, in the order in which they were learned, and the id of each merged pair."""
    slots = 1 << max(4, (2 * len(pairs)).bit_length())
    results = np.ascontiguousarray(results, np.uint32)
    merges = Merges(
        _lines_of_cache(slots),
        np.empty(1 << 16, np.uint32),
        results if len(results) else np.zeros(1, np.uint32),
        np.ascontiguousarray(of_bytes, np.uint32),
    )
    _fill(np.ascontiguousarray(pairs, np.uint32), merges)
    return merges


def _lines_of_cache(slots: int) -> Array:
    """Empty slots, from the beginning of a cache line on."""
    memory = np.full(slots + BUCKET, _NONE, np.uint64)
    first = -memory.ctypes.data % (8 * BUCKET) // 8
    return memory[first : first + slots]


@kernel
def _fill(pairs, merges):
    for rank in range(len(pairs)):
        key = np.uint64(pairs[rank, 0]) << _ID_BITS | np.uint64(pairs[rank, 1])
        slot = _bucket(merges, key)
        while merges.pairs[slot] != _NONE and merges.pairs[slot] >> _RANK_BITS != key:
            slot = (slot + 1) & (len(merges.pairs) - 1)
        merges.pairs[slot] = key << _RANK_BITS | np.uint64(rank)  # the later of two equal merges, as in the package
    for left in range(256):
        for right in range(256):
            merges.of_bytes[left << 8 | right] = _rank(merges, merges.bytes[left], merges.bytes[right])


@inlined
def _bucket(merges, key):
    """The first slot of the bucket of a pair."""
    product = key * _FACTOR
    return np.int64((product ^ product >> _HALF) & np.uint64(len(merges.pairs) - BUCKET))


@inlined
def _rank(merges, left, right):
    """The rank of a pair of ids, or NO_RANK."""
    key = np.uint64(left) << _ID_BITS | np.uint64(right)
    slot = _bucket(merges, key)
    equal = equal_of_8(merges.pairs, slot, _RANK_BITS, key)
    while not equal and merges.pairs[slot + BUCKET - 1] != _NONE:
        slot = (slot + BUCKET) & (len(merges.pairs) - 1)
        equal = equal_of_8(merges.pairs, slot, _RANK_BITS, key)
    rank = np.uint32(merges.pairs[slot + (lowest(equal) & 7)] & _RANK)
    return rank if equal else _NO_RANK


@helper
def merge_bytes(data, start, end, merges, desk):
    """Leaves the ids of bytes start to end in `desk.ids`; returns how many there are."""
    if end - start > SCANNED:
        return _merge_by_heap(data, start, end - start, merges, desk)
    symbols, before = begin_row(data, start, end - start, merges, desk.ids, desk.ranks, 0), np.uint64(0)
    while symbols != before:
        before = symbols
        symbols = merge_next(merges, desk.ids, desk.ranks, 0, symbols)
    n = 0
    while symbols:
        desk.ids[n] = desk.ids[lowest(symbols)]
        symbols &= symbols - _ONE
        n += 1
    return n


@inlined
def begin_row(data, start, length, merges, ids, ranks, row):
    """Writes the symbols of a piece of up to SCANNED bytes, and the ranks of their pairs, from place `row` on; returns
    a bit for each symbol. Each merge removes one."""
    left = data[start]
    ids[row] = merges.bytes[left]
    for place in range(1, length):
        right = data[start + place]
        ids[row + place] = merges.bytes[right]
        ranks[row + place - 1] = merges.of_bytes[np.int64(left) << 8 | np.int64(right)]
        left = right
    for place in range(length - 1, (length + 15) & ~15):
        ranks[row + place] = _NO_RANK
    return _NONE >> np.uint64(SCANNED - length)


@inlined
def merge_next(merges, ids, ranks, row, symbols):
    """Does the merge that is next, if there is one; returns the symbols that remain."""
    stop = highest(symbols)
    least, block = least_of_16(ranks, row), 0
    for other in range(16, stop + 1, 16):
        rank = least_of_16(ranks, row + other)
        block = other if rank < least else block
        least = min(rank, least)
    if least == _NO_RANK:
        return symbols
    place = block + lowest(equal_of_16(ranks, row + block, least))
    before = symbols & ((_ONE << np.uint64(place)) - _ONE)
    behind = symbols >> np.uint64(place) >> _ONE << np.uint64(place) << _ONE
    gone = lowest(behind)
    behind &= behind - _ONE
    left, right = highest(before) & _WITHIN, lowest(behind) & _WITHIN
    merged, to_right, to_left = merges.results[least], ids[row + right], ids[row + left]
    ids[row + place] = merged
    ranks[row + gone] = _NO_RANK
    ranks[row + place] = _rank(merges, merged, to_right if behind else _NO_ID)
    ranks[row + left] = _rank(merges, to_left if before else _NO_ID, merged)  # the last place, if there is none
    return symbols ^ _ONE << np.uint64(gone)


@inlined
def _look(merges, desk, place, size):
    """Notes the rank of symbol `place` and the next one; returns the heap's new size."""
    behind, rank = desk.behind[place], _NO_RANK
    if behind >= 0:
        rank = _rank(merges, desk.ids[place], desk.ids[behind])
    desk.ranks[place] = rank
    if rank == _NO_RANK:
        return size
    return _pushed(desk.heap, size, np.uint64(rank) << _HALF | np.uint64(place))


@inlined
def _pushed(heap, size, entry):
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        if heap[parent] <= entry:
            break
        heap[child] = heap[parent]
        child = parent
    heap[child] = entry
    return size + 1


@inlined
def _pop(heap, size):
    """Removes the least entry, heap[0]; `size` is the number left."""
    entry, parent = heap[size], 0
    while 2 * parent + 1 < size:
        child = 2 * parent + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= entry:
            break
        heap[parent] = heap[child]
        parent = child
    heap[parent] = entry


@helper
def _merge_by_heap(data, start, length, merges, desk):
    for place in range(length):
        desk.ids[place] = merges.bytes[data[start + place]]
        desk.before[place] = place - 1
        desk.behind[place] = place + 1 if place + 1 < length else -1
    size = 0
    for place in range(length):
        size = _look(merges, desk, place, size)
    while size > 0:
        entry = desk.heap[0]
        size -= 1
        _pop(desk.heap, size)
        place, rank = np.int64(entry & _LOW), np.uint32(entry >> _HALF)
        if desk.ranks[place] != rank:
            continue
        gone, before = desk.behind[place], desk.before[place]
        desk.ids[place] = merges.results[rank]
        desk.ranks[gone] = _NO_RANK
        behind = desk.behind[gone]
        desk.behind[place] = behind
        if behind >= 0:
            desk.before[behind] = place
        size = _look(merges, desk, place, size)
        if before >= 0:
            size = _look(merges, desk, before, size)
    n, place = 0, np.int64(0)
    while place >= 0:
        desk.ids[n] = desk.ids[place]
        n += 1
        place = desk.behind[place]
    return n


def merged_plain(piece: bytes, ranks: dict[tuple[int, int], tuple[int, int]], of_bytes: list[int]) -> list[int]:
    """`ranks` maps two ids to their rank and the id that they merge to."""
    ids = [of_bytes[byte] for byte in piece]
    while mergeable := [(ranks[pair][0], place) for place, pair in enumerate(pairwise(ids)) if pair in ranks]:
        _, place = min(mergeable)
        ids[place : place + 2] = [ranks[ids[place], ids[place + 1]][1]]
    return ids
