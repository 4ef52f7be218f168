"""Counts over the words of a text: how many, how long, which of them hold letters, which are stop words."""

from __future__ import annotations

import statistics

import numpy as np

from gristmill.kernels.base.bare import inlined, kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import LETTER, NUMBER, properties
from gristmill.kernels.words.words import HOLDS_LETTER, HOLDS_LETTER_OR_NUMBER, word_hash_plain

# Columns of the result.
UNITS, WORDS, WITH_LETTERS, WORD_CHARACTERS, MEDIAN_TWICE, STOP_WORDS, STOP_WORD_OCCURRENCES = range(7)
WORD_COLUMNS = 7
LONGEST_COUNTED = 1023  # a longer word counts as one of this length in the median

_LENGTH = np.uint64(0xFFFFFFFF)
_SALT = np.uint64(0x9E3779B97F4A7C15)


@kernel
def word_counts(rows, ends, lists, stop_table, lengths, seen, out):
    """out[i]: the columns above. Words are units with a letter or a number; the median is doubled, so that it is an
    integer. lists[i] is the list of stop words of document i; `lengths` int64[1024] and `seen` int64[entries of the
    table] are scratch memory."""
    last = np.uint64(len(stop_table) - 1)
    seen[:] = -1
    for d in range(len(ends) - 1):
        for size in range(len(lengths)):
            lengths[size] = 0
        words, letters, characters, distinct, occurrences = 0, 0, 0, 0, 0
        salt = np.uint64(lists[d]) * _SALT
        for j in range(ends[d], ends[d + 1]):
            meta = rows[j, 1]
            length = np.int64(meta & _LENGTH)
            letters += (meta & np.uint64(HOLDS_LETTER)) != 0
            if meta & np.uint64(HOLDS_LETTER_OR_NUMBER):
                words += 1
                characters += length
                lengths[min(length, LONGEST_COUNTED)] += 1
                key = rows[j, 0] ^ salt
                slot = key & last
                while stop_table[slot] != 0:
                    if stop_table[slot] == key:
                        occurrences += 1
                        distinct += seen[slot] != d
                        seen[slot] = d
                        break
                    slot = (slot + np.uint64(1)) & last
        out[d, UNITS], out[d, WORDS], out[d, WITH_LETTERS], out[d, WORD_CHARACTERS] = (
            ends[d + 1] - ends[d],
            words,
            letters,
            characters,
        )
        out[d, MEDIAN_TWICE] = nth_length(lengths, (words - 1) // 2) + nth_length(lengths, words // 2) if words else 0
        out[d, STOP_WORDS], out[d, STOP_WORD_OCCURRENCES] = distinct, occurrences


@inlined
def nth_length(lengths, place):
    """The length at this place of the words sorted by length."""
    size = 0
    before = lengths[0]
    while before <= place:
        size += 1
        before += lengths[size]
    return size


def stop_table(lists: list[list[str]]) -> Array:
    """The stop words of all lists in one open hash table, keyed by hash and number of the list; at most a quarter
    full."""
    keys = {
        word_hash_plain(word.encode()) ^ (number * int(_SALT) % 2**64)
        for number, words in enumerate(lists)
        for word in words
    }
    slots = 64
    while slots < 4 * len(keys):
        slots *= 2
    table = np.zeros(slots, np.uint64)
    for key in sorted(keys):
        slot = key % slots
        while table[slot]:
            slot = (slot + 1) % slots
        table[slot] = key
    return table


def word_counts_plain(units: list[str], stop_words: list[str]) -> list[int]:
    words = [unit for unit in units if any(properties()[ord(c)] & (LETTER | NUMBER) for c in unit)]
    stop_words_met = [word for word in words if word in stop_words]
    return [
        len(units),
        len(words),
        sum(any(properties()[ord(c)] & LETTER for c in unit) for unit in units),
        sum(map(len, words)),
        int(2 * statistics.median([min(len(word), LONGEST_COUNTED) for word in words])) if words else 0,
        len(set(stop_words_met)),
        len(stop_words_met),
    ]
