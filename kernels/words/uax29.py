"""Words by Unicode's default word boundaries (UAX 29, rules WB3 to WB16), and useful units for scripts without spaces.

A word is a segment with a letter or a number; segments of punctuation, symbols, emoji or space alone are no words.
Where UAX 29 leaves a script to dictionaries: Han and Hiragana are one unit a character (which is the default rule too),
a run of Katakana is one word but cut after 8 characters, and Thai, Lao, Khmer, Myanmar and the Tai scripts are cut
after 3 letters with their marks: their words have about 3 such letters, so that counts and n-grams are comparable.
"""
# ruff: noqa: SIM109, SIM114 (loops and comparisons are written out: that is what compiles to fast code)

from __future__ import annotations

from functools import cache

import numpy as np

from gristmill.kernels.base.bare import code_point, helper, inlined, kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import DENSE, EMOJI, SCRIPTS, WORD_BREAKS, properties, script, word_break
from gristmill.kernels.words.words import (
    HOLDS_LETTER,
    HOLDS_LETTER_OR_NUMBER,
    IS_LETTER,
    IS_NUMBER,
    holds,
    put_word,
    word_hash,
    word_marks,
)

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
