"""Text with spans cut out, a margin around each, and short remains dropped (as Brown et al. 2020, appendix C, did).

Twin: `widened_plain` and `cut_plain` in `tests/reference/ngrams_plain.py`.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.bare import helper, kernel
from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.types import Array
from gristmill.kernels.words.tokens import Tokens

Spans = tuple[Array, Array, Array]  # document, first byte, end; in order, none overlaps another


def widened(column: TextColumn, tokens: Tokens, spans: Spans, margin: int) -> Spans:
    """The spans with this many more characters on each side, which end outside tokens. Spans that come to touch are
    merged."""
    spans_out = tuple(np.empty(len(spans[0]), np.int64) for _ in range(3))
    count = _widen(*column, tokens.starts, tokens.ends, tokens.first, *spans, margin, *spans_out)
    return spans_out[0][:count], spans_out[1][:count], spans_out[2][:count]


@kernel
def _widen(
    data, offsets, starts, ends, first, documents, begins, stops, margin, wide_documents, wide_begins, wide_stops
):
    count = 0
    for span in range(len(documents)):
        document = documents[span]
        low, high, begin, stop = offsets[document], offsets[document + 1], begins[span], stops[span]
        remaining = margin
        while remaining > 0 and begin > low:
            begin -= 1
            remaining -= data[begin] & 0xC0 != 0x80  # a byte that begins a character
        remaining = margin
        while remaining > 0 and stop < high:
            stop += 1
            while stop < high and data[stop] & 0xC0 == 0x80:
                stop += 1
            remaining -= 1
        begin, stop = max(begin, low), min(stop, high)
        token = _token_before(starts, first[document], first[document + 1], begin)
        if token >= 0 and ends[token] > begin:
            begin = starts[token]
        token = _token_before(starts, first[document], first[document + 1], stop)
        if token >= 0 and ends[token] > stop:
            stop = ends[token]
        if count and wide_documents[count - 1] == document and begin <= wide_stops[count - 1]:
            wide_stops[count - 1] = max(wide_stops[count - 1], stop)
        else:
            wide_documents[count], wide_begins[count], wide_stops[count] = document, begin, stop
            count += 1
    return count


@helper
def _token_before(starts, low, high, place):
    """The last token that begins before a place, -1 if there is none."""
    begin = low
    while low < high:
        middle = (low + high) // 2
        if starts[middle] < place:
            low = middle + 1
        else:
            high = middle
    return low - 1 if low > begin else np.int64(-1)


def cut(column: TextColumn, spans: Spans, shortest_piece: int) -> tuple[Array, Array, Array]:
    """Bytes and offsets of the column without the spans, and the number of pieces of each document, with those too
    short to keep."""
    rows = len(column)
    data = np.empty(
        int(column.offsets[-1] - column.offsets[0]) + 2 * len(spans[0]), np.uint8
    )  # an empty line for each at most
    offsets, pieces = np.zeros(rows + 1, np.int64), np.ones(rows, np.int64)
    _cut(*column, *spans, shortest_piece, data, offsets, pieces)
    return data, offsets, pieces


@kernel
def _cut(data, offsets, documents, begins, stops, shortest_piece, out, out_offsets, pieces):
    span, size = 0, 0
    for document in range(len(offsets) - 1):
        position, high = offsets[document], offsets[document + 1]
        if span == len(documents) or documents[span] != document:
            size = _copied(data, position, high, out, size)
            out_offsets[document + 1] = size
            continue
        piece_start, count, first, last = size, 0, True, False
        while not last:
            last = span == len(documents) or documents[span] != document
            begin = position
            end = high if last else begins[span]
            while not first and begin < end and data[begin] <= 32:
                begin += 1
            while not last and end > begin and data[end - 1] <= 32:
                end -= 1
            first = False
            if end > begin:
                count += 1
                if _characters(data, begin, end) >= shortest_piece:
                    if size > piece_start:
                        out[size], out[size + 1] = 10, 10
                        size += 2
                    size = _copied(data, begin, end, out, size)
            if not last:
                position = stops[span]
                span += 1
        pieces[document] = count
        out_offsets[document + 1] = size


@helper
def _copied(data, begin, end, out, size):
    for i in range(end - begin):
        out[size + i] = data[begin + i]
    return size + end - begin


@helper
def _characters(data, begin, end):
    count = 0
    for i in range(begin, end):
        count += data[i] & 0xC0 != 0x80
    return count
