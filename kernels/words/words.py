"""Words of a text as arrays, for every signal that counts words: words by whitespace or by Unicode's word boundaries,
and counts over them.

A word is kept as a 64-bit hash of its bytes, its length in characters and what it holds. Two different words of one
text share a hash with a chance of 2**-64 a pair; the text of a word is never read again. Documents are processed in
slices of 1 MB, so that words stay in cache.

By Unicode (UAX 29, rules WB3 to WB16) a word is a segment with a letter or a number; segments of punctuation, symbols,
emoji or space alone are no words. Where UAX 29 leaves a script to dictionaries: Han and Hiragana are one unit a
character (which is the default rule too), a run of Katakana is one word but cut after 8 characters, and Thai, Lao,
Khmer, Myanmar and the Tai scripts are cut after 3 letters with their marks: their words have about 3 such letters, so
that counts and n-grams are comparable.
"""
# ruff: noqa: SIM109, SIM114 (loops and comparisons are written out: that is what compiles to fast code)

from __future__ import annotations

import statistics
from functools import cache

import numpy as np

from gristmill.kernels.base.bare import code_point, helper, inlined, kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import (
    DENSE,
    EMOJI,
    LETTER,
    NUMBER,
    POINTS,
    SCRIPTS,
    SPACE,
    WORD_BREAKS,
    properties,
    script,
    word_break,
)
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


# --- words by Unicode's boundaries ------------------------------------------------------------------------------------

_CLASS = 31  # lower bits of `boundary_marks()`: index into WORD_BREAKS, or DENSE_LETTER
_PICTURE, _PLAIN = 1 << 8, 1 << 9  # Extended_Pictographic; an ASCII letter, digit or underscore
DENSE_LETTER = 30
_DENSE_PIECE, _KATAKANA_PIECE = 3, 8

_EXTEND, _ZWJ, _FORMAT = WORD_BREAKS.index("Extend"), WORD_BREAKS.index("ZWJ"), WORD_BREAKS.index("Format")
_KATAKANA, _HEBREW, _LETTER = (
    WORD_BREAKS.index("Katakana"),
    WORD_BREAKS.index("Hebrew_Letter"),
    WORD_BREAKS.index("ALetter"),
)
_MID_LETTER, _MID_NUMBER, _MID_BOTH = (
    WORD_BREAKS.index("MidLetter"),
    WORD_BREAKS.index("MidNum"),
    WORD_BREAKS.index("MidNumLet"),
)
_QUOTE, _DOUBLE_QUOTE = WORD_BREAKS.index("Single_Quote"), WORD_BREAKS.index("Double_Quote")
_NUMERIC, _JOINER = WORD_BREAKS.index("Numeric"), WORD_BREAKS.index("ExtendNumLet")


@cache
def boundary_marks() -> Array:
    """uint32[0x110000]: the class in the lower bits, and the bits above."""
    breaks, kinds = word_break(), properties()
    table = breaks.astype(np.uint32)
    thai_like = (breaks == 0) & ((kinds & DENSE) != 0)
    for name in ("Han", "Hiragana"):
        thai_like &= script() != SCRIPTS.index(name)
    table[thai_like] = DENSE_LETTER
    table[(kinds & EMOJI) != 0] |= _PICTURE
    for character in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_":
        table[ord(character)] |= _PLAIN
    table |= word_marks() & np.uint32(IS_LETTER | IS_NUMBER)
    table.flags.writeable = False
    return table


@kernel
def boundary_words(data, offsets, marks, rows, ends):
    """Words of each document, end to end; returns their number."""
    n = 0
    ends[0] = 0
    for d in range(len(offsets) - 1):
        i, stop = offsets[d], offsets[d + 1]
        while i < stop:
            start = i
            bits = np.uint32(0)
            while i < stop and data[i] < 0x80 and marks[data[i]] & _PLAIN:
                bits |= marks[data[i]]
                i += 1
            if i > start:
                if i >= stop or (
                    data[i] < 0x80 and not may_go_on(data[i])
                ):  # nothing but ASCII, and nothing follows that could join
                    if bits & (IS_LETTER | IS_NUMBER):
                        rows[n, 0], rows[n, 1] = word_hash(data, start, i), np.uint64(i - start) | holds(bits)
                        n += 1
                    continue
                last = i - 1
            else:
                point, size = code_point(data, i, stop)
                if not marks[point] & (IS_LETTER | IS_NUMBER) and marks[point] & _CLASS != _JOINER:
                    i += size
                    continue
                last = i
            i = segment_end(data, last, stop, marks)
            n_after = put_word(data, start, i, marks, rows, n)
            if rows[n, 1] & np.uint64(HOLDS_LETTER | HOLDS_LETTER_OR_NUMBER):
                n = n_after
        ends[d + 1] = n
    return n


@inlined
def may_go_on(byte):
    """ASCII that may be inside a word: " ' , . : ;"""
    return byte == 0x22 or byte == 0x27 or byte == 0x2C or byte == 0x2E or byte == 0x3A or byte == 0x3B


@inlined
def class_after(data, i, stop, marks):
    """The class at byte i, its bytes, and whether it is a picture; (-1, 0, False) at the end."""
    if i >= stop:
        return np.int64(-1), 0, False
    point, size = code_point(data, i, stop)
    return np.int64(marks[point] & _CLASS), size, (marks[point] & _PICTURE) != 0


@inlined
def over_extenders(data, i, stop, marks):
    """Past what extends a character (WB4), and whether the last of it joins pictures."""
    joins = False
    while i < stop:
        kind, size, _ = class_after(data, i, stop, marks)
        if kind != _EXTEND and kind != _FORMAT and kind != _ZWJ:
            break
        joins = kind == _ZWJ
        i += size
    return i, joins


@helper
def segment_end(data, i, stop, marks):
    """The end of the segment that contains the character at byte i."""
    here, size, _ = class_after(data, i, stop, marks)
    i += size
    run = 1  # of letters of one script that is cut by length
    while True:
        i, joins = over_extenders(data, i, stop, marks)
        following, size, picture = class_after(data, i, stop, marks)
        if following < 0:
            return i
        letter, next_letter = here == _LETTER or here == _HEBREW, following == _LETTER or following == _HEBREW
        if joins and picture:  # WB3c
            here = following
            i += size
        elif (letter or here == _NUMERIC or here == _JOINER) and (
            next_letter or following == _NUMERIC or following == _JOINER
        ):  # WB5, 8-10, 13a, 13b
            here = following
            i += size
        elif here == _KATAKANA and following == _KATAKANA and run < _KATAKANA_PIECE:  # WB13
            run += 1
            i += size
        elif (here == _KATAKANA and following == _JOINER) or (here == _JOINER and following == _KATAKANA):
            run = 1
            here = following
            i += size
        elif here == DENSE_LETTER and following == DENSE_LETTER and run < _DENSE_PIECE:
            run += 1
            i += size
        else:
            quote = following == _QUOTE or following == _MID_BOTH
            inner, _ = over_extenders(data, i + size, stop, marks)
            beyond, beyond_size, _ = class_after(data, inner, stop, marks)
            if letter and (quote or following == _MID_LETTER) and (beyond == _LETTER or beyond == _HEBREW):  # WB6, 7
                here = beyond
                i = inner + beyond_size
            elif here == _NUMERIC and (quote or following == _MID_NUMBER) and beyond == _NUMERIC:  # WB11, 12
                i = inner + beyond_size
            elif here == _HEBREW and following == _DOUBLE_QUOTE and beyond == _HEBREW:  # WB7b, 7c
                i = inner + beyond_size
            elif here == _HEBREW and following == _QUOTE:  # WB7a
                return over_extenders(data, i + size, stop, marks)[0]
            else:
                return i


def boundary_words_plain(text: str) -> list[str]:
    """The same by testing each boundary between two characters, after joining extenders to theirs (WB4)."""
    marks = boundary_marks()
    groups: list[str] = []  # a character and what hangs on to it
    for character in text:
        kind = int(marks[ord(character)]) & _CLASS
        starts_word = int(marks[ord(character)]) & (IS_LETTER | IS_NUMBER)
        hangs = kind in (_EXTEND, _FORMAT, _ZWJ) and groups and not (starts_word and not _in_word(groups[-1], marks))
        if hangs:
            groups[-1] += character
        else:
            groups.append(character)
    kinds = [int(marks[ord(group[0])]) & _CLASS for group in groups]
    letters = {_LETTER, _HEBREW}
    out: list[str] = []
    open_word, run = False, 0
    for i, (group, kind) in enumerate(zip(groups, kinds, strict=True)):
        previous, second_last, after = (
            kinds[i - 1] if i else -1,
            kinds[i - 2] if i > 1 else -1,
            kinds[i + 1] if i + 1 < len(kinds) else -1,
        )
        quote_like, number_like = {_QUOTE, _MID_BOTH, _MID_LETTER}, {_QUOTE, _MID_BOTH, _MID_NUMBER}
        joins = open_word and (
            (groups[i - 1][-1] == "\u200d" and bool(int(marks[ord(group[0])]) & _PICTURE))
            or (previous in letters | {_NUMERIC, _JOINER} and kind in letters | {_NUMERIC, _JOINER})
            or (previous == kind == _KATAKANA and run < _KATAKANA_PIECE)
            or {previous, kind} == {_KATAKANA, _JOINER}
            or (previous == kind == DENSE_LETTER and run < _DENSE_PIECE)
            or (previous in letters and kind in quote_like and after in letters)
            or (second_last in letters and previous in quote_like and kind in letters)
            or (previous == _NUMERIC and kind in number_like and after == _NUMERIC)
            or (second_last == _NUMERIC and previous in number_like and kind == _NUMERIC)
            or (previous == _HEBREW and kind == _QUOTE)
            or (previous == _HEBREW and kind == _DOUBLE_QUOTE and after == _HEBREW)
            or (second_last == _HEBREW and previous == _DOUBLE_QUOTE and kind == _HEBREW)
        )
        run = run + 1 if joins and previous == kind else 1
        if joins:
            out[-1] += group
        else:
            open_word = _in_word(group, marks)
            out.append(group)
    return [word for word in out if any(int(marks[ord(c)]) & (IS_LETTER | IS_NUMBER) for c in word)]


def _in_word(group: str, marks: Array) -> bool:
    first = int(marks[ord(group[0])])
    return bool(first & (IS_LETTER | IS_NUMBER)) or first & _CLASS == _JOINER


# --- counts over words ------------------------------------------------------------------------------------------------

# Columns of `word_counts`.
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
