"""SimHash fingerprints, and pairs of a bucket within a Hamming distance (Charikar 2002; Manku, Jain, Das Sarma 2007).

A bit of a fingerprint is set where more of the text's shingles have it set than not, so texts that share most of their
shingles differ in few bits. Two fingerprints that differ in at most k bits agree in at least B - k of B blocks: each
choice of B - k blocks is a table, and fingerprints that agree in all blocks of a table are compared bit by bit.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from gristmill.kernels.base.bare import helper, kernel
from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.splitmix import ALL, mixed, mixed_plain
from gristmill.kernels.base.types import Array
from gristmill.kernels.words.token_rules import shingles_plain
from gristmill.kernels.words.tokens import shingle_column

SECOND = 0x9E3779B97F4A7C15  # added to a shingle for the upper 64 bits of a long fingerprint
WINDOW = 256  # in a large bucket each is compared with this many after it, by fingerprint
FEW = 4  # pairs of one document in a bucket; clusters connect the others

_ONE = np.uint64(1)


@kernel
def _fingerprints(hashes, first, step, counts, out):
    """One word of each fingerprint. `counts` is int32[64], scratch memory."""
    for document in range(len(first) - 1):
        for bit in range(64):
            counts[bit] = 0
        begin, end = first[document], first[document + 1]
        for i in range(begin, end):
            h = hashes[i] if step == 0 else mixed(hashes[i] + step)
            for bit in range(64):
                counts[bit] += np.int32(h >> np.uint64(bit) & _ONE)
        word = np.uint64(0)
        for bit in range(64):
            word |= np.uint64(2 * counts[bit] > end - begin) << np.uint64(bit)
        out[document] = word


def fingerprints(column: TextColumn, width: int, bits: int, seed: int = 0) -> tuple[Array, Array]:
    """uint64[documents, bits / 64], and the number of shingles of each. A text without words has all bits zero, which
    means nothing."""
    hashes, first = shingle_column(column, width, seed)
    words = np.zeros((bits // 64, len(column)), np.uint64)
    for word in range(len(words)):
        _fingerprints(hashes, first, np.uint64(word * SECOND % (1 << 64)), np.empty(64, np.int32), words[word])
    return np.ascontiguousarray(words.T), np.diff(first)


def fingerprint_plain(text: str, width: int, bits: int, seed: int = 0) -> int:
    shingles = shingles_plain(text, width, seed)
    features = [s | mixed_plain(s + SECOND & ALL) << 64 for s in shingles]
    return sum(1 << bit for bit in range(bits) if 2 * sum(f >> bit & 1 for f in features) > len(features))


def tables_of(bits: int, distance: int, blocks: int) -> list[list[int]]:
    """A mask for each table, as words of 64 bits, the lowest first."""
    ends = [bits * block // blocks for block in range(blocks + 1)]
    masks = [(1 << ends[block + 1]) - (1 << ends[block]) for block in range(blocks)]
    tables = [sum(chosen) for chosen in combinations(masks, blocks - distance)]
    return [[table >> 64 * word & ALL for word in range(bits // 64)] for table in tables]


@helper
def bits_set(x):
    x -= x >> np.uint64(1) & np.uint64(0x5555555555555555)
    x = (x & np.uint64(0x3333333333333333)) + (x >> np.uint64(2) & np.uint64(0x3333333333333333))
    x = x + (x >> np.uint64(4)) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64(x * np.uint64(0x0101010101010101) >> np.uint64(56))


@helper
def differing(words, i, j):
    bits = 0
    for word in range(words.shape[1]):
        bits += bits_set(words[i, word] ^ words[j, word])
    return bits


@helper
def first_agreed(words, masks, i, j):
    """The first table in which two fingerprints are in one bucket."""
    for table in range(len(masks)):
        same = True
        for word in range(words.shape[1]):
            same = same and (words[i, word] ^ words[j, word]) & masks[table, word] == 0
        if same:
            return table
    return -1


@kernel
def _pairs_within(key, table, words, uid, masks, distance, left, right):
    count, start, total = 0, 0, len(key)
    while start < total:
        end = start + 1
        while end < total and key[end] == key[start]:
            end += 1
        leader = start
        for i in range(start, end):
            if uid[i] < uid[leader]:
                leader = i
        for i in range(start, end):
            opened = 0
            for step in range(end - i if end - i <= WINDOW else WINDOW):
                j = leader if step == 0 else i + step
                if (
                    opened == FEW
                    or uid[i] == uid[j]
                    or differing(words, i, j) > distance
                    or first_agreed(words, masks, i, j) != table[i]
                ):
                    continue
                left[count], right[count] = i, j
                count += 1
                opened += step > 0
        start = end
    return count


def pairs_within(
    key: Array, table: Array, words: Array, uid: Array, masks: Array, distance: int
) -> tuple[Array, Array]:
    """Indices of rows whose fingerprints differ in at most `distance` bits, reported in the first table in which they
    meet. Rows are sorted by key, fingerprint, uid. In a group of many similar rows each is paired with the first of the
    bucket and the FEW next."""
    size = len(key) * (FEW + 1)
    left, right = np.empty(size, np.int64), np.empty(size, np.int64)
    count = _pairs_within(key, table, words, uid, masks, distance, left, right)
    return left[:count], right[:count]


@kernel
def _distances(words, left, right, out):
    for pair in range(len(left)):
        out[pair] = differing(words, left[pair], right[pair])


def distances(words: Array, left: Array, right: Array) -> Array:
    """The Hamming distances of pairs of fingerprints."""
    out = np.empty(len(left), np.int64)
    _distances(words, np.ascontiguousarray(left, np.int64), np.ascontiguousarray(right, np.int64), out)
    return out
