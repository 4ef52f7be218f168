"""Plain pages among the WARC records of a block of bytes: one pass finds the records, reads their headers and appends
the pages to columns.

A page is plain if a reader in Python would do nothing but copy: an HTTP answer of status 2xx whose type is HTML, in no
encoding, with headers of ASCII characters, all fields that the columns need, and nothing said of a cut. Everything else
is odd, and the kernel stops at it. It takes less than it could, and never guesses: of what it takes,
`stages/read/warc.py` would make the same row (tests/stages/read/test_warc_blocks.py).
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import helper, inlined, kernel
from gristmill.kernels.base.types import Bytes, Offsets
from gristmill.kernels.lines.lines import copy_bytes

# Fields of a record, fields of an HTTP answer, and values, in lower case.
TEXTS = (
    "warc-record-id", "warc-target-uri", "warc-date", "warc-ip-address", "warc-type", "content-length",
    "warc-truncated", "warc-segment-number", "warc-identified-content-language",
    "content-type", "content-encoding", "transfer-encoding",
    "x-robots-tag", "tdm-reservation", "tdm-policy", "content-usage",
    "response", "revisit", "conversion", "resource", "warcinfo",
    "text/html", "application/xhtml+xml", "http/",
)  # fmt: skip
ID, URL, DATE, IP, TYPE, LENGTH, CUT, ANSWER, ENCODED, TERMS, RESPONSE, HTML, HTTP = (
    0, 1, 2, 3, 4, 5, 6, 9, 10, 12, 16, 21, 23,
)  # fmt: skip
COLUMNS = ("id", "url", "date", "ip", "type")  # of text; `type` is the answer's Content-Type

# What a byte may be.
BAD, BLANK, DIGIT, TYPE_CHARACTER, SPACE, MARK = (1 << bit for bit in range(6))
MARK_LENGTH = 5  # of "WARC/"
MOST_DIGITS = 18  # of a length
LONGEST_HEADER = 1 << 15
MARK_BYTES = 1 << 10  # in which a page's first mark stands

# Places in `state`. Of the block: the place and the number of the next record, the place from which on no record may
# begin, and whether the file ends with the block.
AT, NUMBER, STOP, LAST = range(4)
# Of the reader: the largest record, the rows and the bytes of payloads after which to stop, whether pages are wanted,
# and behind the last field that makes an answer odd.
MOST, ROWS, BYTES, PAGES, ODD_FIELDS = range(4, 9)
# Counted on: all rows, the bytes of their payloads, plain rows, records that are no pages.
TAKEN, HELD, PLAIN, OTHERS = range(9, 13)
# Of an odd record: where its header and its body end, and where the next begins.
BODY, BODY_END, NEXT = range(13, 16)
STATE = 16

# Why the kernel stopped. ROOM: a column is full. BROKEN: no whole record is here, or the block does not hold all of it.
END, FULL, ROOM, ODD, BROKEN = range(5)

_NEWLINE, _RETURN, _DOT, _COLON, _TWO = 10, 13, 46, 58, 50
# Of one type: numba would compile a helper for each literal.
_NONE, _ZERO, _ANSWER, _RESPONSE, _HTTP = np.int64([-1, 0, ANSWER, RESPONSE, HTTP])


class Tables(NamedTuple):
    names: Bytes  # TEXTS, end to end
    ends: Offsets
    kinds: Bytes  # of each byte: what it may be
    lower: Bytes


@cache
def tables() -> Tables:
    kinds, lower = np.zeros(256, np.uint8), np.arange(256, dtype=np.uint8)
    lower[65:91] += 32
    for bit, members in (
        (BAD, [*range(9), 11, 12, *range(14, 32), *range(128, 256)]),
        (BLANK, b" \t"),
        (DIGIT, b"0123456789"),
        (TYPE_CHARACTER, b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.+*-"),
        (SPACE, b"\xef\xbb\xbf\0\t\n\x0b\x0c\r "),
        (MARK, b"\x89G\xffP\x1f%"),  # what pictures, archives and PDF files begin with
    ):
        kinds[list(members)] |= bit
    return Tables(np.frombuffer("".join(TEXTS).encode(), np.uint8), np.cumsum([0, *map(len, TEXTS)]), kinds, lower)


@helper
def _begins(block, at, end, n, names, ends, kinds, lower):
    """Whether block[at:end] begins with a name, in any case."""
    low, size = ends[n], ends[n + 1] - ends[n]
    if end - at < size:
        return False
    k = 0
    while k < size and lower[block[at + k]] == names[low + k]:
        k += 1
    return k == size


@helper
def _fields(block, at, end, low, high, names, ends, kinds, lower, starts, stops):
    """Finds the values of the fields `low` to `high` of a header, the first of each, behind its first line; where the
    header ends, -1 if it is odd. Lines of an answer may end in a newline alone."""
    for n in range(low, high):
        starts[n] = stops[n] = 0
    begin = at
    while at < end:
        line, colon, bad = at, _NONE, np.uint8(0)
        while at < end and block[at] != _NEWLINE and block[at] != _RETURN:
            bad |= kinds[block[at]]
            if block[at] == _COLON and colon < 0:
                colon = at
            at += 1
        stop = at
        if at < end and block[at] == _RETURN:
            at += 1
        elif low != ANSWER:
            return _NONE
        if at >= end or block[at] != _NEWLINE or bad & BAD:
            return _NONE
        at += 1
        if stop == line:
            return at
        if kinds[block[line]] & BLANK:  # goes on with the line before it
            return _NONE
        if colon >= 0 and line > begin:
            name_end, colon = colon, colon + 1
            while kinds[block[name_end - 1]] & BLANK and name_end > line:
                name_end -= 1
            for n in range(low, high):
                if ends[n + 1] - ends[n] == name_end - line and _begins(
                    block, line, name_end, n, names, ends, kinds, lower
                ):
                    if starts[n] == 0:
                        while colon < stop and kinds[block[colon]] & BLANK:
                            colon += 1
                        while stop > colon and kinds[block[stop - 1]] & BLANK:
                            stop -= 1
                        starts[n], stops[n] = colon, stop
                    break
    return _NONE


@helper
def _plain(block, body, end, names, ends, kinds, lower, state, starts, stops):
    """Where the payload of a plain page begins, whose values are then found; -1 if it is odd."""
    # the status line: HTTP/1.1 200
    at = body + 7
    if end - body < 14 or not state[PAGES] or not _begins(block, body, end, _HTTP, names, ends, kinds, lower):
        return _NONE
    at += 2 * (block[at - 1] == _DOT)
    if not (
        kinds[block[body + 5]] & kinds[block[at - 2]] & kinds[block[at + 1]] & kinds[block[at + 2]]
    ) & DIGIT or not (kinds[block[at - 1]] & BLANK and block[at] == _TWO):
        return _NONE
    payload = _fields(block, body, end, _ANSWER, _RESPONSE, names, ends, kinds, lower, starts, stops)
    if payload < 0:
        return _NONE
    for n in range(CUT, state[ODD_FIELDS]):
        if starts[n] and n != ANSWER:
            return _NONE
    # its type
    low, high = starts[ANSWER], stops[ANSWER]
    n = np.int64(HTML)
    while n < HTTP and not _begins(block, low, high, n, names, ends, kinds, lower):
        n += 1
    low += ends[n + 1] - ends[n]
    if starts[ANSWER] == 0 or n == HTTP or (low < high and kinds[block[low]] & TYPE_CHARACTER):
        return _NONE
    # its first bytes
    at = payload
    while at < min(end, payload + MARK_BYTES) and kinds[block[at]] & SPACE:
        at += 1
    if at >= min(end, payload + MARK_BYTES) or kinds[block[at]] & MARK:
        return _NONE
    starts[TYPE], stops[TYPE] = starts[ANSWER], stops[ANSWER]
    return payload


@inlined
def _is_record(block, at):
    return (
        block[at] == 87 and block[at + 1] == 65 and block[at + 2] == 82 and block[at + 3] == 67 and block[at + 4] == 47
    )


@kernel
def take_pages(
    block, bounds, names, ends, kinds, lower, state, starts, stops, pages, page_ends, texts, text_ends, places
):
    """Appends plain pages to columns, from the record at `state[AT]` on; why it stopped. Record i lies between
    bounds[i] and bounds[i + 1]; where there are no bounds, records follow each other.

    `pages` and `page_ends` are the payloads of all rows. `texts` and `text_ends` are the columns of plain rows, and
    `places` the record of each: its number, or its place if there are no bounds."""
    size, bounded = len(block), len(bounds) > 0
    while True:
        at, number = state[AT], state[NUMBER]
        if at >= min(size, state[STOP]):
            return END
        if state[TAKEN] >= state[ROWS] or state[HELD] >= state[BYTES]:
            return FULL
        end = bounds[number + 1] if bounded else size
        if end - at < MARK_LENGTH or not _is_record(block, at):
            return BROKEN
        body = _fields(
            block, at, min(end, at + LONGEST_HEADER), _ZERO, _ANSWER, names, ends, kinds, lower, starts, stops
        )
        if body < 0:
            return BROKEN
        length, odd = np.int64(0), starts[LENGTH] == 0 or not 0 < stops[LENGTH] - starts[LENGTH] <= MOST_DIGITS
        for k in range(starts[LENGTH], stops[LENGTH]):
            length = length * 10 + block[k] - 48
            odd |= not kinds[block[k]] & DIGIT
        if odd or length > min(state[MOST], end - body):
            return BROKEN
        body_end = body + length
        after = body_end
        while after < end and (block[after] == _NEWLINE or block[after] == _RETURN):
            after += 1
        if bounded or after + MARK_LENGTH > size:
            whole = after == end and (bounded or state[LAST])
        else:
            whole = _is_record(block, after)
        if not whole:
            return BROKEN
        state[BODY], state[BODY_END], state[NEXT] = body, body_end, after
        kind = np.int64(RESPONSE)
        low, high = starts[TYPE], stops[TYPE]
        while kind < HTML and not (
            ends[kind + 1] - ends[kind] == high - low and _begins(block, low, high, kind, names, ends, kinds, lower)
        ):
            kind += 1
        if kind == RESPONSE:
            payload = _plain(block, body, body_end, names, ends, kinds, lower, state, starts, stops)
            if payload < 0:
                return ODD
            taken, held, plain = state[TAKEN], state[HELD], state[PLAIN]
            if held + body_end - payload > len(pages):
                return ROOM
            for k in range(len(texts)):
                if text_ends[k, plain] + stops[k] - starts[k] > texts.shape[1]:
                    return ROOM
            page_ends[taken + 1] = copy_bytes(block, payload, body_end, pages, held)
            for k in range(len(texts)):
                text_ends[k, plain + 1] = copy_bytes(
                    block, starts[k], stops[k], texts[k], np.int64(text_ends[k, plain])
                )
            places[plain] = number if bounded else at
            state[TAKEN], state[HELD], state[PLAIN] = taken + 1, page_ends[taken + 1], plain + 1
        elif kind < HTML:
            return ODD
        else:
            state[OTHERS] += 1
        state[AT], state[NUMBER] = after, number + 1
