"""Token spans cut out of text, with clean seams: no doubled space or punctuation, and no word that was not there
before.

Signs up to the last white space before a span close the text before it and stay. Signs up to the first white space
after a span belong to it and go. Of the white space on both sides the one with more line ends stays. Where the
beginning or the end of a text goes, its white space goes too. The remaining tokens are exactly those that were not cut.
Twin: `mended_plain` in `tests/reference/suffix_plain.py`.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.bare import helper, kernel, point_at
from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.base.unicode import DENSE, SPACE, properties
from gristmill.kernels.words.tokens import Tokens


def mended(column: TextColumn, tokens: Tokens, spans: tuple[Array, Array, Array]) -> tuple[Bytes, Offsets]:
    """The column without the spans (document, first token, end; counted in the document, sorted, apart from each
    other)."""
    data, offsets = np.empty(int(column.offsets[-1] - column.offsets[0]), np.uint8), np.zeros(len(column) + 1, np.int64)
    size = _mend(*column, properties(), tokens.starts, tokens.ends, tokens.first, *spans, data, offsets)
    return data[:size], offsets


@kernel
def _mend(data, offsets, kinds, starts, ends, first, documents, begins, stops, out, out_offsets):
    span, size = 0, 0
    for document in range(len(offsets) - 1):
        position, high = offsets[document], offsets[document + 1]
        while span < len(documents) and documents[span] == document:
            left, right, space = _seam(
                data,
                kinds,
                starts,
                ends,
                position,
                high,
                first[document],
                first[document + 1],
                begins[span],
                stops[span],
            )
            size = _copied(data, position, left, out, size)
            if space:
                out[size] = 32
                size += 1
            position = right
            span += 1
        size = _copied(data, position, high, out, size)
        out_offsets[document + 1] = size
    return size


@helper
def _copied(data, begin, end, out, size):
    for i in range(begin, end):
        out[size] = data[i]
        size += 1
    return size


@helper
def _seam(data, kinds, starts, ends, low, high, first, last, begin, stop):
    """The end of the text before the span, the beginning of the text after it, and whether a space must separate
    them."""
    run, end = starts[first + begin], ends[first + stop - 1]
    before = ends[first + begin - 1] if begin > 0 else low
    after = starts[first + stop] if first + stop < last else high
    if begin == 0 and first + stop == last:
        return low, high, False
    left, white, breaks = _last_white(data, kinds, before, run)
    right, next_white, next_breaks = _first_white(data, kinds, end, after)
    if begin == 0:
        return low, next_white if right >= 0 else (after if low < run else end), False
    if first + stop == last:
        return white if left >= 0 else run, high, False
    if left < 0:
        left, white = run, run
    if right < 0:
        right = next_white = end if before == run else after
    if white < left and right < next_white:
        if next_breaks > breaks:
            left = white
        else:
            right = next_white
    if left > before or right < after:
        return left, right, False
    back = before - 1
    while back > low and data[back] & 0xC0 == 0x80:
        back -= 1
    glues = (kinds[point_at(data, back, before)[0]] | kinds[point_at(data, after, high)[0]]) & DENSE == 0
    return left, right, glues


@helper
def _last_white(data, kinds, begin, end):
    """The last white space: its end (-1 if there is none), its beginning, its line ends."""
    stop, start, breaks = np.int64(-1), np.int64(-1), 0
    while begin < end:
        point, size = point_at(data, begin, end)
        if kinds[point] & SPACE:
            if stop != begin:
                start, breaks = begin, 0
            stop = begin + size
            breaks += point == 10
        begin += size
    return stop, start, breaks


@helper
def _first_white(data, kinds, begin, end):
    """The first white space: its beginning (-1 if there is none), its end, its line ends."""
    start, stop, breaks = np.int64(-1), np.int64(-1), 0
    while begin < end:
        point, size = point_at(data, begin, end)
        if kinds[point] & SPACE:
            if start < 0:
                start = begin
            stop = begin + size
            breaks += point == 10
        elif start >= 0:
            break
        begin += size
    return start, stop, breaks
