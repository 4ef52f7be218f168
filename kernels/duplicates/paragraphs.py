"""Units of a text that may repeat (lines, paragraphs between blank lines, the whole text), their hashes, and text
without some of them.

A line is what CCNet (Wenzek et al. 2020), Dolma and DCLM call a paragraph. A unit is identified by its tokens
(`gristmill.kernels.words.tokens`): case, punctuation and white space do not matter, numbers do. Each of its two hashes
is a polynomial of its tokens' hashes.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import inlined, kernel
from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.splitmix import mixed, mixed_plain
from gristmill.kernels.base.types import Array, Hashes, Offsets
from gristmill.kernels.base.unicode import SPACE, properties
from gristmill.kernels.base.wide import bytes_before
from gristmill.kernels.lines.lines import (
    NEWLINE,
    copy_bytes,
    copy_kept,
    find_newline,
    skip_space,
    skip_space_back,
    trimmed,
)
from gristmill.kernels.words.token_rules import (
    ALL,
    SHINGLE_STEP,
    SHORT,
    shingles_plain,
    token_hash_plain,
    tokens_plain,
)
from gristmill.kernels.words.tokens import token_column

HIGH_STEP, LOW_STEP = 0xD1B54A32D192ED03, 0x8CB92BA72F3D8DD7
_HIGH_STEP, _LOW_STEP = np.uint64(HIGH_STEP), np.uint64(LOW_STEP)
VECTOR = 32
_before_newline = bytes_before(VECTOR, (NEWLINE, NEWLINE))
_STEP, _SHORT = np.uint64(SHINGLE_STEP), np.uint64(SHORT)


class Units(NamedTuple):
    """Unit u is bytes `starts[u]:ends[u]` of the column's data; units `first[i]` to `first[i + 1]` are those of
    document i."""

    starts: Offsets
    ends: Offsets
    first: Offsets


class UnitHashes(NamedTuple):
    high: Hashes
    low: Hashes
    words: Offsets


class Grams(NamedTuple):
    """Those of unit u are `first[u]` to `first[u + 1]`; it has `words[u]` tokens."""

    hashes: Hashes
    first: Offsets
    words: Offsets


def lines(column: TextColumn) -> Units:
    """Text between line feeds; empty lines are no units."""
    first = np.zeros(len(column) + 1, np.int64)
    nothing = np.zeros(0, np.int64)
    _lines(*column, first, nothing, nothing)
    starts, ends = np.empty(first[-1], np.int64), np.empty(first[-1], np.int64)
    _lines(*column, first, starts, ends)
    return Units(starts, ends, first)


def paragraphs(column: TextColumn) -> Units:
    """Text between blank lines; a line of white space is blank."""
    first = np.zeros(len(column) + 1, np.int64)
    nothing = np.zeros(0, np.int64)
    _paragraphs(*column, properties(), first, nothing, nothing)
    starts, ends = np.empty(first[-1], np.int64), np.empty(first[-1], np.int64)
    _paragraphs(*column, properties(), first, starts, ends)
    return Units(starts, ends, first)


def whole_texts(column: TextColumn) -> Units:
    return Units(column.offsets[:-1], column.offsets[1:], np.arange(len(column) + 1, dtype=np.int64))


def hashes_of_units(column: TextColumn, units: Units) -> UnitHashes:
    """128 bits for each unit, and its number of tokens."""
    tokens, count = token_column(column), len(units.starts)
    unit_hashes = UnitHashes(np.zeros(count, np.uint64), np.zeros(count, np.uint64), np.zeros(count, np.int64))
    _hash_units(tokens.hashes, tokens.starts, tokens.first, *units, *unit_hashes)
    return unit_hashes


def grams_of_units(column: TextColumn, units: Units, width: int, least: int, seed: int) -> Grams:
    """A hash for each run of `width` tokens of a unit. A shorter unit is a single run; a unit of fewer than `least`
    tokens has none."""
    tokens = token_column(column)
    leaving, salt = np.uint64(pow(SHINGLE_STEP, width, 1 << 64)), np.uint64(mixed_plain(seed % (1 << 64)))
    hashes, first = np.empty(len(tokens.hashes), np.uint64), np.zeros(len(units.starts) + 1, np.int64)
    words = np.zeros(len(units.starts), np.int64)
    _hash_grams(tokens.hashes, tokens.starts, tokens.first, *units, width, least, leaving, salt, hashes, first, words)
    return Grams(hashes[: first[-1]], first, words)


def without_units(column: TextColumn, units: Units, goes: Array) -> tuple[Array, Offsets]:
    """Bytes and offsets of the column without the units that go, each with the text up to the next unit. A text that
    lost a unit has no white space at its ends."""
    data = np.empty(int(column.offsets[-1] - column.offsets[0]), np.uint8)
    offsets = np.zeros(len(column.offsets), np.int64)
    _without(*column, *units, np.ascontiguousarray(goes, np.uint8), properties(), data, offsets)
    return data, offsets


@inlined
def _line_end(data, i, end):
    while i + VECTOR <= end:
        before = _before_newline(data, i)
        i += before
        if before < VECTOR:
            return i
    return find_newline(data, i, end)


@kernel
def _lines(data, offsets, first, starts, ends):
    """Only counts if there is no room to write."""
    n = 0
    for d in range(len(offsets) - 1):
        i, end = offsets[d], offsets[d + 1]
        while i < end:
            stop = _line_end(data, i, end)
            if stop > i:
                if n < len(starts):
                    starts[n], ends[n] = i, stop
                n += 1
            i = stop + 1
        first[d + 1] = n


@kernel
def _paragraphs(data, offsets, properties, first, starts, ends):
    """Only counts if there is no room to write."""
    n = 0
    for d in range(len(offsets) - 1):
        i, end = offsets[d], offsets[d + 1]
        within = False
        while i < end:
            stop = _line_end(data, i, end)
            blank = skip_space(data, i, stop, properties) == stop
            if not blank:
                n += not within
                if n <= len(starts):
                    if not within:
                        starts[n - 1] = i
                    ends[n - 1] = stop
            within = not blank
            i = stop + 1
        first[d + 1] = n


@inlined
def _tokens_until(starts, token, last, end):
    while token < last and starts[token] < end:
        token += 1
    return token


@kernel
def _hash_units(hashes, token_starts, token_first, starts, ends, first, high, low, words):
    for d in range(len(first) - 1):
        token, last = token_first[d], token_first[d + 1]
        for u in range(first[d], first[d + 1]):
            begin = token
            token = _tokens_until(token_starts, token, last, ends[u])
            a, b = np.uint64(token - begin), np.uint64(0)
            for t in range(begin, token):
                a = (a ^ hashes[t]) * _HIGH_STEP
                a ^= a >> np.uint64(32)
                b = (b + hashes[t]) * _LOW_STEP
                b ^= b >> np.uint64(29)
            high[u], low[u], words[u] = mixed(a), mixed(b), token - begin


@kernel
def _hash_grams(
    hashes, token_starts, token_first, starts, ends, first, width, least, leaving, salt, out, out_first, words
):
    n = 0
    for d in range(len(first) - 1):
        token, last = token_first[d], token_first[d + 1]
        for u in range(first[d], first[d + 1]):
            begin = token
            token = _tokens_until(token_starts, token, last, ends[u])
            count = words[u] = token - begin
            if count >= least and count > 0:
                rolling = np.uint64(0)
                for t in range(begin, begin + min(width - 1, count)):
                    rolling = rolling * _STEP + hashes[t]
                if count < width:
                    out[n] = mixed(rolling + np.uint64(count) * _SHORT + salt)
                    n += 1
                else:
                    outgoing = np.uint64(0)
                    for t in range(begin + width - 1, token):
                        rolling = rolling * _STEP + (hashes[t] - outgoing * leaving)
                        outgoing = hashes[t - width + 1]
                        out[n] = mixed(rolling + salt)
                        n += 1
            out_first[u + 1] = n


@kernel
def _without(data, offsets, starts, ends, first, goes, properties, out, out_offsets):
    size = np.int64(0)
    for d in range(len(offsets) - 1):
        copied, end = offsets[d], offsets[d + 1]  # all before it is in `out`, or dropped
        begin, lost = size, False
        for u in range(first[d], first[d + 1]):
            if goes[u]:
                size = copy_kept(data, copied, starts[u], out, begin, size, properties)
                copied = starts[u + 1] if u + 1 < first[d + 1] else end
                lost = True
        if lost:
            size = skip_space_back(out, begin, copy_kept(data, copied, end, out, begin, size, properties), properties)
        else:
            size = copy_bytes(data, copied, end, out, size)
        out_offsets[d + 1] = size


# --- the references --------------------------------------------------------------------------------------------------


def lines_plain(text: str) -> list[tuple[int, int]]:
    """In bytes, as all below."""
    spans, position = [], 0
    for line in text.encode().split(b"\n"):
        if line:
            spans.append((position, position + len(line)))
        position += len(line) + 1
    return spans


def paragraphs_plain(text: str) -> list[tuple[int, int]]:
    bits = properties()
    spans: list[tuple[int, int]] = []
    position, within = 0, False
    for line in text.split("\n"):
        size = len(line.encode())
        if all(bits[ord(character)] & SPACE for character in line):
            within = False
        else:
            spans.append((spans.pop()[0] if within else position, position + size))
            within = True
        position += size + 1
    return spans


def hash_of_unit_plain(unit: str) -> tuple[int, int, int]:
    hashes = [token_hash_plain(token) for _, _, token in tokens_plain(unit)]
    a, b = len(hashes), 0
    for h in hashes:
        a = (a ^ h) * HIGH_STEP & ALL
        a ^= a >> 32
        b = (b + h) * LOW_STEP & ALL
        b ^= b >> 29
    return mixed_plain(a), mixed_plain(b), len(hashes)


def grams_of_unit_plain(unit: str, width: int, least: int, seed: int) -> list[int]:
    return shingles_plain(unit, width, seed) if len(list(tokens_plain(unit))) >= least else []


def without_units_plain(text: str, units: list[tuple[int, int]], goes: list[bool]) -> str:
    if not any(goes):
        return text
    data = text.encode()
    starts = [start for start, _ in units] + [len(data)]
    kept = [data[: starts[0]], *(data[starts[u] : starts[u + 1]] for u in range(len(units)) if not goes[u])]
    return trimmed(b"".join(kept).decode())


__all__ = [
    "Grams", "UnitHashes", "Units", "grams_of_unit_plain", "grams_of_units", "hash_of_unit_plain", "hashes_of_units",
    "lines", "lines_plain",
    "paragraphs", "paragraphs_plain", "whole_texts", "without_units", "without_units_plain",
]  # fmt: skip
