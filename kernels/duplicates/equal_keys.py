"""Rows with equal keys of 128 bits, and the first of each group by some order, without sorting.

Rows are cut by bits of their keys into parts whose hash tables (open addressing) fit the cache. Measured:
benchmarks/dedup/exact_dedup.py.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.base.types import Array, Hashes, Integers

ROWS_A_PART = 4096  # about; twice as many slots of 16 bytes are 128 kB
_TWENTY = np.uint64(20)
MOST_PARTS = 1 << 20


class Repeated(NamedTuple):
    """The rows that have their like, in order, the number of each one's group, and how many rows each group has."""

    rows: Integers
    group: Integers
    size: Integers


def repeated(high: Hashes, low: Hashes) -> Repeated:
    """`high` is well mixed."""
    parts = min(MOST_PARTS, 1 << (len(high) // ROWS_A_PART).bit_length())
    first = np.zeros(parts + 1, np.int64)
    part = (high & np.uint64(parts - 1)).astype(np.int64)
    np.cumsum(np.bincount(part, minlength=parts), out=first[1:])
    slots = np.zeros((1 << max(4, int(np.diff(first).max()).bit_length() + 1), 2), np.uint64)
    group, size = np.empty(len(high), np.int64), np.zeros(len(high), np.int64)
    rows = np.empty(len(high), np.int64)
    count = _find_repeated(high, low, part, first, slots, rows, np.empty((len(high), 2), np.uint64), group, size)
    return Repeated(rows[:count], group[:count], size)


def first_of_each(group: Integers, count: int, words: Array) -> Integers:
    """The row of each group whose words are the smallest: `words[k, row]` decides where all before it are equal."""
    first = np.full(count, -1, np.int64)
    _find_first(group, words, first)
    return first


@kernel
def _find_repeated(high, low, part, first, slots, rows, keys, group, size):
    """A slot has the high half of a key and, from 1 on, the number of the first row that has it among those of its
    part, which is the number of its group too."""
    at = first.copy()
    for row in range(len(high)):
        place = at[part[row]]
        at[part[row]] += 1
        rows[place], keys[place, 0], keys[place, 1] = row, high[row], low[row]
    mask = len(slots) - 1
    for number in range(len(first) - 1):
        slots[:] = 0
        for place in range(first[number], first[number + 1]):
            high_half = keys[place, 0]
            slot = np.int64(high_half >> _TWENTY) & mask
            while True:
                its = np.int64(slots[slot, 1])
                if its == 0:
                    slots[slot, 0], slots[slot, 1] = high_half, np.uint64(place + 1)
                    its = place + 1
                    break
                if slots[slot, 0] == high_half and keys[its - 1, 1] == keys[place, 1]:
                    break
                slot = (slot + 1) & mask
            size[its - 1] += 1
            group[rows[place]] = its - 1
    count = 0
    for row in range(len(high)):
        if size[group[row]] > 1:
            rows[count], group[count] = row, group[row]
            count += 1
    return count


@kernel
def _find_first(group, words, first):
    for row in range(len(group)):
        best = first[group[row]]
        if best < 0:
            first[group[row]] = row
            continue
        for k in range(len(words)):
            if words[k, row] != words[k, best]:
                if words[k, row] < words[k, best]:
                    first[group[row]] = row
                break
