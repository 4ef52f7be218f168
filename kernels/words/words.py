"""Words of a text as arrays, for every signal that counts words; and words by whitespace.

A word is kept as a 64-bit hash of its bytes, its length in characters and what it holds. Two different words of one
text share a hash with a chance of 2**-64 a pair; the text of a word is never read again. Documents are processed in
slices of 1 MB, so that words stay in cache.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from gristmill.kernels.base.bare import code_point, inlined, kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import LETTER, NUMBER, POINTS, SPACE, properties
from gristmill.kernels.base.wide import bytes_before, eight_bytes

HOLDS_LETTER, HOLDS_LETTER_OR_NUMBER = 1 << 32, 1 << 33  # bits beside a word's length

# Bits of `word_marks()`, and the upper bits of every table of marks that words are cut by.
IS_LETTER, IS_NUMBER, IS_BLANK = 1 << 30, 1 << 31, 1 << 0

HASH_START = np.uint64(0xCBF29CE484222325)
HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, of bits without pattern (2**64 over the golden ratio)

letters_at = bytes_before(
    16, (0x00, 0x60), (0x7B, 0xFF), with_bits=0x20
)  # letters of ASCII, and no capitals need be looked for


def word_scratch(slice_bytes: int) -> Array:
    """Memory for the words of a slice of documents: a word has a byte at least."""
    return np.empty((slice_bytes + 1, 2), np.uint64)


@inlined
def skip_letters(data, i, stop):
    """The first byte from i on that is no letter of ASCII, or `stop`."""
    letters = 16
    while letters == 16 and i + 16 <= len(data) and i < stop:
        letters = letters_at(data, i)
        i += letters
    if letters == 16:
        while i < stop and 0x61 <= data[i] | 0x20 <= 0x7A:
            i += 1
    return min(i, stop)


@inlined
def word_hash(data, start, end):
    """A hash of bytes start to end, eight at a time and at least sixteen. Padding is zero, so the length is part of
    it."""
    h = HASH_START ^ np.uint64(end - start)
    i = start
    while i + 16 <= end:
        h = mixed(mixed(h, eight_bytes(data, i)), eight_bytes(data, i + 8))
        i += 16
    if i < end or i == start:
        if i + 16 <= len(data):  # whether a word has more than eight bytes is unpredictable: nothing branches on it
            h = mixed(
                mixed(h, first_bytes(eight_bytes(data, i), end - i)), first_bytes(eight_bytes(data, i + 8), end - i - 8)
            )
        else:
            low, high = np.uint64(0), np.uint64(0)
            for j in range(i, end):
                if j < i + 8:
                    low |= np.uint64(data[j]) << np.uint64(8 * (j - i))
                else:
                    high |= np.uint64(data[j]) << np.uint64(8 * (j - i - 8))
            h = mixed(mixed(h, low), high)
    return h


@inlined
def mixed(h, eight):
    h = (h ^ eight) * HASH_FACTOR
    return h ^ h >> np.uint64(32)


@inlined
def first_bytes(eight, count):
    """The first `count` of eight bytes (0 to 8), padded with zeros."""
    lacking = np.uint64(64 - 8 * min(max(count, 1), 8))
    kept = eight << lacking >> lacking
    return kept if count > 0 else np.uint64(0)


@inlined
def put_word(data, start, end, marks, rows, n):
    """Write bytes start to end as word n; returns n + 1. The two upper bits of `marks` say what a character is."""
    i = skip_letters(data, start, end)
    length = i - start
    bits = np.uint32(IS_LETTER if i > start else 0)
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
def holds(bits):
    return np.uint64(
        (HOLDS_LETTER if bits & IS_LETTER else 0) | (HOLDS_LETTER_OR_NUMBER if bits & (IS_LETTER | IS_NUMBER) else 0)
    )


@cache
def word_marks() -> Array:
    """uint32[0x110000]: the bits above."""
    kinds = properties()
    table = np.zeros(POINTS, np.uint32)
    table[(kinds & LETTER) != 0] |= IS_LETTER
    table[(kinds & NUMBER) != 0] |= IS_NUMBER
    table[(kinds & SPACE) != 0] |= IS_BLANK
    table[0x1C:0x20] |= IS_BLANK  # as Python sees it
    table.flags.writeable = False
    return table


@kernel
def whitespace_words(data, offsets, marks, rows, ends):
    """Text between whitespace, as in Python's str.split()."""
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
    for i in range(0, -(-max(len(word), 1) // 16) * 16, 8):
        h = (h ^ int.from_bytes(word[i : i + 8], "little")) * int(HASH_FACTOR) % 2**64
        h ^= h >> 32
    return h
