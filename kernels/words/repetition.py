"""How much of a text repeats: n-grams of words, by the rules of Gopher (Rae et al. 2021, table A1), exact and in one
sweep over n.

An n-gram can only repeat if the two (n-1)-grams in it do. So each n only looks at the positions left by the n before,
and two n-grams are equal when their two parts are: no text is compared and only words are hashed. On web pages 2 of 100
positions are left at n = 5, so n = 5 to 10 are nearly free.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from gristmill.kernels.base.bare import inlined, kernel
from gristmill.kernels.base.types import Array

TOP, DUPLICATE = (2, 3, 4), (5, 6, 7, 8, 9, 10)  # the n of columns 0-2 and 3-8 of the result
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_EMPTY = np.uint32(0xFFFFFFFF)
_MET = np.uint64(0xFFFFFFFFFFFFFFFF)  # no two classes make this key
_LENGTH = np.uint64(0xFFFFFFFF)


def repetition_scratch(words: int) -> tuple[Array, Array, Array, Array]:
    """Scratch memory for texts of up to this many words: a hash table of positions; for each word a class, a count and
    a place; a key; the characters before it."""
    slots = 1 << max(6, (2 * words - 1).bit_length())
    return (
        np.zeros(slots, np.uint32),
        np.zeros((3, words + 1), np.uint32),
        np.zeros(words + 1, np.uint64),
        np.zeros(words + 1, np.int64),
    )


def sweep_table(entries: int) -> Array:
    """An open hash table that is never cleared: an entry only counts in the sweep that wrote it. The last row holds the
    number of the last sweep."""
    return np.zeros(((1 << max(6, (2 * entries - 1).bit_length())) + 1, 2), np.uint64)


@kernel
def repeated_characters(rows, ends, table, state, keys, before, out):
    """out[i]: characters in the most frequent 2-, 3-, 4-gram of document i (spaces between words counted), then in
    repeated 5- to 10-grams (spaces not counted)."""
    classes, counts, places = (
        state[0],
        state[1],
        state[2],
    )  # class of the gram at a position (its first position); how often; positions left
    for d in range(len(ends) - 1):
        first, count = ends[d], ends[d + 1] - ends[d]
        for column in range(9):
            out[d, column] = 0
        if count < 2:
            continue
        shift = empty_table(table, count)
        characters = np.int64(0)
        for i in range(count):
            before[i] = characters
            characters += np.int64(rows[first + i, 1] & _LENGTH)
            places[i] = i
            put_gram(table, shift, keys, rows[first + i, 0], classes, counts, i)
        before[count] = characters
        remaining = count
        for n in range(2, 11):
            remaining = repeated_twice(classes, counts, places, remaining)
            if remaining == 0:
                break
            shift = empty_table(table, remaining)
            often, length = np.int64(2), np.int64(0)
            for j in range(remaining):  # positions ascend, so the class at i + 1 is still that of n - 1
                i = places[j]
                again = np.int64(
                    put_gram(
                        table,
                        shift,
                        keys,
                        np.uint64(classes[i]) << np.uint64(32) | np.uint64(classes[i + 1]),
                        classes,
                        counts,
                        i,
                    )
                )
                if again >= often:
                    size = before[i + n] - before[i] + n - 1
                    if again > often or size > length:
                        often, length = again, size
            if n <= 4:
                out[d, n - 2] = often * length
            else:
                out[d, n - 2] = duplicates(classes, keys, places, before, remaining, n)


@kernel
def repeats(rows, ends, table, out):
    """out[i]: the number of rows (hash, characters) of document i, of those that repeat an earlier row, and of their
    characters."""
    sweep = table[len(table) - 1, 0]
    for d in range(len(ends) - 1):
        first, count = ends[d], ends[d + 1] - ends[d]
        bits = bits_for(count)
        sweep += np.uint64(1)
        again, characters = 0, np.uint64(0)
        for i in range(count):
            if class_of(table, bits, sweep, rows[first + i, 0], i) != i:
                again += 1
                characters += rows[first + i, 1]
        out[d, 0], out[d, 1], out[d, 2] = count, again, np.int64(characters)
    table[len(table) - 1, 0] = sweep


@inlined
def bits_for(count):
    """The table is used up to a power of two that these entries fill by half at most, so that small texts stay in
    cache."""
    bits = np.uint64(6)
    while np.int64(1) << np.int64(bits) < 2 * count:
        bits += np.uint64(1)
    return bits


@inlined
def class_of(table, bits, sweep, key, position):
    """The first position that had this key in this sweep."""
    last = (np.uint64(1) << bits) - np.uint64(1)
    slot = (key * _SPREAD) >> (np.uint64(64) - bits)
    while table[slot, 1] >> np.uint64(32) == sweep:
        if table[slot, 0] == key:
            return np.int64(table[slot, 1] & _LENGTH)
        slot = (slot + np.uint64(1)) & last
    table[slot, 0] = key
    table[slot, 1] = sweep << np.uint64(32) | np.uint64(position)
    return np.int64(position)


@inlined
def empty_table(table, count):
    """Clears as much of the table as these entries fill by half at most; returns the shift that turns a hash into a
    slot."""
    bits = bits_for(count)
    slots = table[: np.int64(1) << np.int64(bits)]
    for slot in range(len(slots)):
        slots[slot] = _EMPTY
    return np.uint64(64) - bits


@inlined
def put_gram(table, shift, keys, key, classes, counts, i):
    """Gives the gram at position i its class, the first position with this key, and counts it. Whether a word was seen
    before is unpredictable, so nothing branches on it: an empty slot is above all positions, and the key of a position
    is written before it is looked up. The table only holds positions, 4 bytes each, and fits the L1 cache for most
    texts."""
    last = (np.uint64(1) << (np.uint64(64) - shift)) - np.uint64(1)
    keys[i] = key
    slot = (key * _SPREAD) >> shift
    same = min(np.int64(table[slot]), np.int64(i))
    while keys[same] != key:
        slot = (slot + np.uint64(1)) & last
        same = min(np.int64(table[slot]), np.int64(i))
    table[slot] = same
    classes[i] = same
    again = (counts[same] if same != i else np.uint32(0)) + np.uint32(1)
    counts[same] = again
    return again


@inlined
def repeated_twice(classes, counts, places, remaining):
    """Keeps only positions at which, and after which, a gram begins that occurs at least twice; returns their
    number."""
    kept = 0
    previous = np.int64(-2)
    again = np.int64(0)
    for j in range(remaining):
        i = np.int64(places[j])
        now = np.int64(counts[classes[i]] > 1)
        places[kept] = previous
        kept += again & now & np.int64(i == previous + 1)
        previous, again = i, now
    return kept


@inlined
def duplicates(classes, keys, places, before, remaining, n):
    """Characters in n-grams that occurred before, from left to right; one that counts is skipped whole. Uses up the
    keys."""
    characters = np.int64(0)
    free = np.int64(0)
    for j in range(remaining):
        i = places[j]
        if i < free:
            continue
        same = classes[i]
        if keys[same] == _MET:
            characters += before[i + n] - before[i]
            free = i + n
        else:
            keys[same] = _MET
    return characters


def repeated_characters_plain(words: list[str]) -> list[int]:
    out = []
    for n in TOP:
        counts = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
        often, size = max(((count, len(" ".join(gram))) for gram, count in counts.items()), default=(0, 0))
        out.append(often * size if often > 1 else 0)
    for n in DUPLICATE:
        seen, characters, i = set(), 0, 0
        while i + n <= len(words):
            gram = tuple(words[i : i + n])
            if gram in seen:
                characters += len("".join(gram))
                i += n
            else:
                seen.add(gram)
                i += 1
        out.append(characters)
    return out
