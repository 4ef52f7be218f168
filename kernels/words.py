"""Words of a text as arrays: what every signal that counts words shares, and the words that whitespace gives.

A word is kept as a 64-bit hash of its bytes, its length in characters and what it holds. Two different words of one text share a hash with a chance
of 2**-64 for each pair; nothing here looks at the text of a word again. Of a slice of 1 MB at a time, so that words stay in cache.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from kernels.bare import code_point, inlined, kernel
from kernels.unicode import LETTER, NUMBER, POINTS, SPACE, properties

HOLDS_LETTER, HOLDS_LETTER_OR_NUMBER = 1 << 32, 1 << 33  # bits beside a word's length

# Bits of `word_marks()`, and the upper bits of every table of marks that words are cut by.
IS_LETTER, IS_NUMBER, IS_BLANK = 1 << 30, 1 << 31, 1 << 0

HASH_START = np.uint64(0xCBF29CE484222325)
HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, of bits without pattern (2**64 over the golden ratio)

Array = np.ndarray[Any, np.dtype[Any]]


class Words(NamedTuple):
    """Words `ends[i]` to `ends[i + 1]` of `rows` are those of document i. Views of scratch memory: good until the next slice is cut."""

    rows: Array  # uint64[words, 2]: hash; characters and what they hold
    ends: Array  # int64, one more than documents


def word_scratch(slice_bytes: int) -> Array:
    """Memory for the words of a slice of documents: a word has a byte at least."""
    return np.empty((slice_bytes + 1, 2), np.uint64)


@intrinsic
def eight_bytes(typing_context, data, i):  # type: ignore[no-untyped-def]
    """Bytes i to i + 8, the first lowest, in one load; nothing checks that they are there."""

    def load(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array = make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(address, align=1)

    return types.uint64(data, types.int64), load


@inlined
def word_hash(data, start, end):  # type: ignore[no-untyped-def]
    """A hash of bytes start to end, eight at a time; what lacks to eight is zero, so the length counts too."""
    h = HASH_START ^ np.uint64(end - start)
    i = start
    while i + 8 <= end:
        h = (h ^ eight_bytes(data, i)) * HASH_FACTOR
        h ^= h >> np.uint64(32)
        i += 8
    if i < end:
        if i + 8 <= len(data):
            rest = eight_bytes(data, i) & ((np.uint64(1) << np.uint64(8 * (end - i))) - np.uint64(1))
        else:
            rest = np.uint64(0)
            for j in range(i, end):
                rest |= np.uint64(data[j]) << np.uint64(8 * (j - i))
        h = (h ^ rest) * HASH_FACTOR
        h ^= h >> np.uint64(32)
    return h


@inlined
def put_word(data, start, end, marks, rows, n):  # type: ignore[no-untyped-def]
    """Write bytes start to end as word n; returns n + 1. The two upper bits of `marks` say what a character is."""
    length = 0
    bits = np.uint32(0)
    i = start
    while i < end:
        if data[i] < 0x80:
            bits |= marks[data[i]]
            i += 1
        else:
            point, size = code_point(data, i, end)
            bits |= marks[point]
            i += size
        length += 1
    rows[n, 0] = word_hash(data, start, end)
    rows[n, 1] = np.uint64(length) | holds(bits)
    return n + 1


@inlined
def holds(bits):  # type: ignore[no-untyped-def]
    return np.uint64((HOLDS_LETTER if bits & IS_LETTER else 0) | (HOLDS_LETTER_OR_NUMBER if bits & (IS_LETTER | IS_NUMBER) else 0))


@cache
def word_marks() -> Array:
    """uint32[0x110000]: the bits above."""
    found = properties()
    table = np.zeros(POINTS, np.uint32)
    table[(found & LETTER) != 0] |= IS_LETTER
    table[(found & NUMBER) != 0] |= IS_NUMBER
    table[(found & SPACE) != 0] |= IS_BLANK
    table[0x1C:0x20] |= IS_BLANK  # as Python sees it
    table.flags.writeable = False
    return table


@kernel
def whitespace_words(data, offsets, marks, rows, ends):  # type: ignore[no-untyped-def]
    """What stands between whitespace, as Python's str.split() sees it."""
    n = 0
    ends[0] = 0
    for d in range(len(offsets) - 1):
        i, stop = offsets[d], offsets[d + 1]
        while i < stop:
            start = i
            blank = 0
            while i < stop:
                if data[i] < 0x80:
                    point, size = np.int64(data[i]), 1
                else:
                    point, size = code_point(data, i, stop)
                if marks[point] & IS_BLANK:
                    blank = size
                    break
                i += size
            if i > start:
                n = put_word(data, start, i, marks, rows, n)
            i += blank
        ends[d + 1] = n
    return n


def whitespace_words_plain(text: str) -> list[str]:
    return text.split()


def word_hash_plain(word: bytes) -> int:
    h = int(HASH_START) ^ len(word)
    for i in range(0, len(word), 8):
        h = (h ^ int.from_bytes(word[i : i + 8], "little")) * int(HASH_FACTOR) % 2**64
        h ^= h >> 32
    return h
