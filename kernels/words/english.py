"""English words as DataTrove counts them: the cuts of spaCy's blank English tokenizer, so that its thresholds mean the
same here.

Text is split at whitespace. Then marks are taken off both ends of a chunk, one at a time, until an exception (`Mr.`,
`don't`) or a bare middle is left, and the middle is cut at inner marks (`word-word`) unless it is an address.
Punctuation marks are words. Letters are those of Unicode properties, where spaCy lists ranges. Nine chunks of ten are
ASCII letters, perhaps with a mark behind: these are cut here, all others in `gristmill.kernels.words.english_chunks`.
Left out: spaCy's second search for exceptions across words that were cut already (`great:)`), IP addresses. The plain
reference is `gristmill.kernels.words.english_rules.english_words_plain`.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.bare import inlined, kernel, point_at
from gristmill.kernels.words.english_chunks import cut_chunk, exception_at, find, may_be_exception, put_pieces
from gristmill.kernels.words.english_rules import BLANK, CLOSES, EXCEPTION, LOWER, PLAIN_DIGITS, SPECIAL
from gristmill.kernels.words.words import HOLDS_LETTER, HOLDS_LETTER_OR_NUMBER, put_word, skip_letters, word_hash


@kernel
def english_words(data, offsets, marks, filters, known, rows, ends):
    """Words of each document, end to end; returns their number."""
    n = 0
    ends[0] = 0
    for d in range(len(offsets) - 1):
        i, stop = offsets[d], offsets[d + 1]
        while i < stop:
            start = i
            letters_end, i, blank, seen = next_chunk(data, start, stop, marks)
            if i == start:
                i += blank
                continue
            if i == letters_end:
                n = put_letters(data, start, i, filters, known, rows, n)
            elif is_number(start, letters_end, seen):
                rows[n, 0], rows[n, 1] = (
                    word_hash(data, start, i),
                    np.uint64(i - start) | np.uint64(HOLDS_LETTER_OR_NUMBER),
                )
                n += 1
            elif comes_off(data, start, letters_end, i, marks, filters, known):
                n = put_letters(data, start, i - 1, filters, known, rows, n)
                rows[n, 0], rows[n, 1] = word_hash(data, i - 1, i), np.uint64(1)
                n += 1
            elif is_character(data, start, i):
                n = put_word(data, start, i, marks, rows, n)
            else:
                n = cut_chunk(data, start, i, marks, filters, known, rows, n)
            i += blank
        ends[d + 1] = n
    return n


@inlined
def next_chunk(data, start, stop, marks):
    """(end of the letters that begin the chunk; end of the chunk; bytes of the blank behind it; marks seen after the
    letters)."""
    letters_end = skip_letters(data, start, stop)
    i = letters_end
    seen = np.uint32(0)
    while i < stop:
        byte = data[i]
        if byte < 0x80:
            mark = marks[byte]
            if mark & BLANK:
                return letters_end, i, 1, seen
            seen |= mark
            i += 1
        else:
            point, size = point_at(data, i, stop)
            if marks[point] & BLANK:
                return letters_end, i, size, seen
            seen |= np.uint32(SPECIAL)
            i += size
    return letters_end, i, 0, seen


@inlined
def is_number(start, letters_end, seen):
    """Whether a chunk is ASCII digits and nothing else."""
    return letters_end == start and not seen & ~PLAIN_DIGITS


@inlined
def is_character(data, start, end):
    return start + 1 == end or (data[start] >= 0xC0 and point_at(data, start, end)[1] == end - start)


@inlined
def comes_off(data, start, letters_end, end, marks, filters, known):
    """Whether a chunk is letters and one mark that surely comes off."""
    if (
        letters_end == start
        or letters_end + 1 != end
        or data[letters_end] >= 0x80
        or exception_at(data, start, end, filters, known) >= 0
    ):
        return False
    return marks[data[letters_end]] & CLOSES or (data[letters_end] == 0x2E and marks[data[letters_end - 1]] & LOWER)


@inlined
def put_letters(data, start, end, filters, known, rows, n):
    """A word of A to Z, or the pieces that it is cut into."""
    h = word_hash(data, start, end)
    if may_be_exception(h, filters):
        row = find(known, h, EXCEPTION)
        if row >= 0:
            return put_pieces(known, row, rows, n)
    rows[n, 0], rows[n, 1] = h, np.uint64(end - start) | np.uint64(HOLDS_LETTER | HOLDS_LETTER_OR_NUMBER)
    return n + 1
