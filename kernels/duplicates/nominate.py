"""Which documents of a band's bucket are compared: all pairs of a small bucket, a few for each document of a large one,
so that work is bounded.

In a large bucket (a template, a page that was copied a hundred thousand times) each document is compared with the first
of the bucket, with the first of those that agree in the next band too, and with the `NEXT` documents after it in that
order. Pairs that a bucket leaves out meet in other bands, or through a third document
(`gristmill.kernels.duplicates.forest.proposals`). Copies, which agree in all bands, are left to the last band, so they
become candidates once. A pair that agrees in some bands is a candidate in each of them, since the next may be a large
bucket that leaves it out.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.compiled import helper, kernel
from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.base.types import Array

SMALL = 8  # buckets of up to this size are compared in full
NEXT = 4
PASSED_ON = 1  # the bit of a sibling: there is a next band
# of a sibling, the bits from this one on are those of its next band; between them and the lowest, those of all its
# bands
NEXT_BAND = 12


def siblings(keys_NB: Array) -> Array:
    """What is stored beside each band of each document: bits of the hash of its next band, so that documents that agree
    there too are sorted together, and bits of all bands, which identify copies."""
    following = np.roll(keys_NB, -1, axis=1) << np.uint64(NEXT_BAND) & np.uint64(0xFFFFFFFF)
    copies = mixed_all(keys_NB.sum(axis=1, dtype=np.uint64)) % np.uint64(1 << (NEXT_BAND - 1)) << np.uint64(1)
    sibling_bits = (following | copies[:, None]).astype(np.uint32)
    sibling_bits[:, :-1] |= PASSED_ON
    return sibling_bits


def passed_on(a: int, b: int) -> bool:
    return a == b and bool(a & PASSED_ON)


@helper
def _put(i, j, sibling, uid, left, right, count):
    if uid[i] == uid[j] or (sibling[i] == sibling[j] and sibling[i] & PASSED_ON):
        return count
    if len(left):
        left[count], right[count] = min(i, j), max(i, j)
    return count + 1


@kernel
def _pairs(key, sibling, uid, left, right):
    """Only counts where the arrays are empty."""
    count, start, total = 0, 0, len(key)
    while start < total:
        end = start + 1
        while end < total and key[end] == key[start]:
            end += 1
        small = end - start <= SMALL
        leader, branch = start, start
        for i in range(start, end):
            if uid[i] < uid[leader]:
                leader = i
        for i in range(start, end):
            if sibling[i] >> NEXT_BAND != sibling[branch] >> NEXT_BAND:
                branch = i
            for j in range(i + 1, end if small else min(end, i + 1 + NEXT)):
                count = _put(i, j, sibling, uid, left, right, count)
            if not small and abs(i - leader) > NEXT:
                count = _put(i, leader, sibling, uid, left, right, count)
            if (
                not small and i - branch > NEXT and branch != leader and i != leader
            ):  # the branch has paired with the leader
                count = _put(i, branch, sibling, uid, left, right, count)
        start = end
    return count


def pairs_in_buckets(key: Array, sibling: Array, uid: Array) -> tuple[Array, Array]:
    """Indices of the rows to compare. Rows are sorted by key, sibling, uid."""
    none = np.empty(0, np.int64)
    count = _pairs(key, sibling, uid, none, none)
    left, right = np.empty(count, np.int64), np.empty(count, np.int64)
    if count:
        _pairs(key, sibling, uid, left, right)
    return left, right


def pairs_in_buckets_plain(rows: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
    """Pairs of indices, the smaller first."""
    pairs = set()
    for place, (key, sibling, uid) in enumerate(rows):
        bucket = [i for i, row in enumerate(rows) if row[0] == key]
        leader = min(bucket, key=lambda i: (rows[i][2], i))
        branch = min(i for i in bucket if rows[i][1] >> NEXT_BAND == sibling >> NEXT_BAND)
        others = (
            bucket
            if len(bucket) <= SMALL
            else [leader, branch, *range(place + 1, min(bucket[-1] + 1, place + 1 + NEXT))]
        )
        pairs |= {
            (min(place, o), max(place, o)) for o in others if rows[o][2] != uid and not passed_on(rows[o][1], sibling)
        }
    return pairs


@kernel
def _pairs_with_saved(key, sibling, uid, saved, places, left, right):
    """`places` is scratch memory for the saved rows of a bucket."""
    count, start, total = 0, 0, len(key)
    while start < total:
        end, olds = start, 0
        while end < total and key[end] == key[start]:
            if saved[end]:
                places[olds] = end
                olds += 1
            end += 1
        after = 0  # of the saved ones, the first that comes after this row
        for i in range(start, end):
            if saved[i]:
                after += 1
                continue
            for j in range(max(0, after - NEXT), min(olds, after + NEXT)):
                other = places[j]
                if uid[other] != uid[i] and not (sibling[other] == sibling[i] and sibling[i] & PASSED_ON):
                    left[count], right[count] = i, other
                    count += 1
        start = end
    return count


def pairs_with_saved(key: Array, sibling: Array, uid: Array, saved: Array) -> tuple[Array, Array]:
    """Indices of the rows that are not saved, each with the nearest saved rows of its bucket, 2 * NEXT at most. Rows
    are sorted by key, sibling, uid. A document that is saved itself is not compared with itself."""
    size = int((~saved).sum()) * 2 * NEXT
    left, right = np.empty(size, np.int64), np.empty(size, np.int64)
    count = _pairs_with_saved(key, sibling, uid, saved, np.empty(len(key), np.int64), left, right)
    return left[:count], right[:count]


def pairs_with_saved_plain(rows: list[tuple[int, int, int]], saved: list[bool]) -> set[tuple[int, int]]:
    pairs = set()
    for place, (key, sibling, uid) in enumerate(rows):
        olds = [i for i, row in enumerate(rows) if row[0] == key and saved[i]]
        near = [i for i in olds if i < place][-NEXT:] + [i for i in olds if i > place][:NEXT]
        pairs |= {
            (place, o) for o in near if not saved[place] and rows[o][2] != uid and not passed_on(rows[o][1], sibling)
        }
    return pairs
