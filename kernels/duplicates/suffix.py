"""Suffix arrays over tokens, and the repeats that they show: exact, in linear time times log2(depth) on any text.

Two suffixes that agree in their first `depth` tokens are a repeat, so suffixes are sorted to that depth and no deeper:
prefix doubling (Manber and Myers 1993) with one counting sort a round, six rounds for 50 tokens, the last with a
shorter step. Suffixes that agree stay in text order. Periodic text costs as much as any other. Only tokens of windows
whose hash may occur twice are sorted: windows of different hashes differ, and the suffix array tells windows of one
hash apart. Measured: benchmarks/dedup/substring.py. Twin: `tests/reference/suffix_plain.py`.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import kernel
from gristmill.kernels.base.splitmix import mixed
from gristmill.kernels.base.types import Array, Hashes, Offsets
from gristmill.kernels.duplicates.anchors import Stretches
from gristmill.kernels.words.token_rules import SHINGLE_STEP, TOKEN_CHUNK

MOST = 2**31 - 1  # places that 32 bits can name

_ONE_STEP, _OTHER_STEP = np.uint64(SHINGLE_STEP), np.uint64(TOKEN_CHUNK)


def suffix_array(values: Hashes, depth: int) -> tuple[Array, Array]:
    """Places sorted by their next `depth` values (values are ordered by first occurrence, the end first), then by
    place; and the rank of each place, equal for places that agree. Both int32."""
    if len(values) > MOST:
        raise OverflowError(f"{len(values):,} tokens in one suffix array; {MOST:,} can be told apart")
    ranks, order, spare, places = (np.empty(len(values), np.int32) for _ in range(4))
    begins = np.empty(len(values), np.uint8)
    table = np.zeros((1 << 14, 2), np.uint64)
    while not number(values, table, ranks):
        table = np.zeros((4 * len(table), 2), np.uint64)
    _begin(ranks, places, order, begins)
    length, distinct = 1, 0
    while length < depth and distinct < len(values):
        step = min(length, depth - length)
        distinct = _refine(ranks, order, places, begins, step, spare)
        ranks, spare, length = spare, ranks, length + step
    return order, ranks


@kernel
def number(values, table, numbers):
    """Numbers values from 0 by first occurrence, in a table of (value, number + 1); false where the table is too
    small."""
    room, count = len(table), 0
    for i in range(len(values)):
        if 2 * count >= room:
            return False
        value = values[i]
        slot = np.int64(mixed(value) & np.uint64(room - 1))
        while table[slot, 1] != 0 and table[slot, 0] != value:
            slot = slot + 1 if slot + 1 < room else 0
        if table[slot, 1] == 0:
            count += 1
            table[slot, 0], table[slot, 1] = value, count
        numbers[i] = np.int64(table[slot, 1]) - 1
    return True


@kernel
def _begin(ranks, places, order, begins):
    """Places sorted by rank; `begins` marks where a new rank begins."""
    for i in range(len(ranks)):
        places[i] = begins[i] = 0
    for p in range(len(ranks)):
        places[ranks[p]] += 1
    before = 0
    for rank in range(len(places)):
        if places[rank]:
            begins[before] = 1
        before, places[rank] = before + places[rank], before
    for p in range(len(ranks)):
        order[places[ranks[p]]] = p
        places[ranks[p]] += 1


@kernel
def _refine(ranks, order, places, begins, step, spare):
    """Extends the order by `step` more values. Writes the new ranks to `spare`; returns how many there are."""
    n, k, rank = len(ranks), 0, 0
    for p in range(max(n - step, 0), n):  # nothing follows these: they come first
        spare[k] = p
        k += 1
    for i in range(n):
        if begins[i]:
            places[rank] = i
            rank += 1
        if order[i] >= step:
            spare[k] = order[i] - step
            k += 1
    for i in range(n):
        p = spare[i]
        place = places[ranks[p]]
        places[ranks[p]] = place + 1
        order[place] = p
    rank, before = -1, -2
    for i in range(n):
        p = order[i]
        after = ranks[p + step] if p + step < n else -1
        if begins[i] or after != before:
            begins[i] = 1
            rank += 1
        spare[p] = rank
        before = after
    return rank + 1


class Repeats(NamedTuple):
    """`removed`: for each place the first token (counted in its document) to remove, up to the end of the window that
    begins there; -1 where nothing goes. `leads`: the places of windows that are the first of their kind, with 128 bits
    of hash of each."""

    removed: Array
    leads: Array
    high: Hashes
    low: Hashes


def repeats(given: Stretches, window: int, keep_first: bool) -> Repeats:
    """Documents are numbered in order of preference. A window that repeats, overlapping, in its own document is removed
    only behind the first occurrence, which stays whole."""
    where = np.flatnonzero(given.windows)
    high, low = window_hashes(given.hashes, where, window)
    removed, leads = np.full(len(given.hashes), -1, np.int32), given.windows.copy()
    twice = met_twice(high)
    again = np.zeros(len(given.hashes), np.uint8)
    again[where[twice]] = 1
    leads[where[twice]] = 0
    places = np.empty(len(again), np.int32)
    places = places[: _reach(again, window, places)]
    order, ranks = suffix_array(given.hashes[places], window)
    (_repeats if keep_first else _all_repeats)(
        order, ranks, places, given.documents, given.places, again, window, removed, leads
    )
    first = leads[where] != 0
    return Repeats(removed, where[first], high[first], low[first])


def met_twice(hashes: Hashes) -> Array:
    """Which hashes occur twice, and about one in sixteen of the others: only a bit of each is remembered."""
    room = 1 << max(6, (16 * len(hashes)).bit_length())
    twice = np.zeros(len(hashes), bool)
    _met_twice(hashes, np.uint64(room - 1), np.zeros((room >> 6, 2), np.uint64), twice.view(np.uint8))
    return twice


@kernel
def _met_twice(hashes, mask, seen, twice):
    """`seen` has a word of bits met once, then one of bits met again."""
    for i in range(len(hashes)):
        place = hashes[i] & mask
        word, bit = np.int64(place >> np.uint64(6)), np.uint64(1) << (place & np.uint64(63))
        seen[word, 1] |= seen[word, 0] & bit
        seen[word, 0] |= bit
    for i in range(len(hashes)):
        place = hashes[i] & mask
        twice[i] = seen[np.int64(place >> np.uint64(6)), 1] >> (place & np.uint64(63)) & np.uint64(1)


@kernel
def _reach(begins, window, places):
    """The places inside a window."""
    n, reach = 0, 0
    for i in range(len(begins)):
        if begins[i]:
            reach = i + window
        if i < reach:
            places[n] = i
            n += 1
    return n


@kernel
def _repeats(order, ranks, text_places, documents, places, windows, window, removed, leads):
    held, first_here = -1, 0  # the rank, and the first window of it in the document
    for i in range(len(order)):
        p = text_places[order[i]]
        if windows[p] == 0:
            continue
        if ranks[order[i]] != held:
            held, first_here, leads[p] = ranks[order[i]], p, 1
        elif documents[p] != documents[first_here]:
            first_here, removed[p] = p, places[p]
        else:
            removed[p] = max(places[p], places[first_here] + window)


@kernel
def _all_repeats(order, ranks, text_places, documents, places, windows, window, removed, leads):
    held, first = -1, 0
    for i in range(len(order)):
        p = text_places[order[i]]
        if windows[p] == 0:
            continue
        if ranks[order[i]] != held:
            held, first, leads[p] = ranks[order[i]], p, 1
        else:
            removed[p], removed[first] = places[p], places[first]


def merged(given: Stretches, removed: Array, window: int) -> tuple[Array, Array, Array]:
    """Document, first token and end of what is removed. Adjacent windows become one span, but spans may still
    overlap."""
    most = int((removed >= 0).sum())
    spans = tuple(np.empty(most, np.int32) for _ in range(3))
    count = _merge(given.documents, given.places, removed, window, *spans)
    return spans[0][:count], spans[1][:count], spans[2][:count]


@kernel
def _merge(documents, places, removed, window, span_documents, begins, ends):
    n = 0
    for p in range(len(removed)):
        if removed[p] < 0:
            continue
        if n and span_documents[n - 1] == documents[p] and begins[n - 1] <= removed[p] <= ends[n - 1]:
            ends[n - 1] = places[p] + window
        else:
            span_documents[n], begins[n], ends[n] = documents[p], removed[p], places[p] + window
            n += 1
    return n


def window_hashes(hashes: Hashes, where: Offsets, window: int) -> tuple[Hashes, Hashes]:
    """128 bits, in two halves, of each window that begins at one of the ascending places."""
    high, low = np.empty(len(where), np.uint64), np.empty(len(where), np.uint64)
    leaving = (np.uint64(pow(step, window, 1 << 64)) for step in (SHINGLE_STEP, TOKEN_CHUNK))
    _window_hashes(hashes, where, window, *leaving, high, low)
    return high, low


@kernel
def _window_hashes(hashes, where, window, high_leaving, low_leaving, high, low):
    a, b, k = np.uint64(0), np.uint64(0), 0
    for i in range(len(hashes)):
        if k == len(where):
            break
        a, b = a * _ONE_STEP + hashes[i], b * _OTHER_STEP + hashes[i]
        if i >= window:
            a -= hashes[i - window] * high_leaving
            b -= hashes[i - window] * low_leaving
        if i - window + 1 == where[k]:
            high[k], low[k] = mixed(a), mixed(b)
            k += 1
