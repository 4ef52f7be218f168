"""Which runs of tokens may occur twice: a few n-grams of each document, chosen so that equal runs choose equal n-grams.

The anchor of a window of tokens is its n-gram of smallest hash, the leftmost of several (winnowing: Schleimer,
Wilkerson and Aiken 2003; minimizers: Roberts et al. 2004). The choice depends on the window's own tokens alone, so a
window that occurs twice has the same anchor both times: windows with an anchor that occurs once need no closer look,
and nothing is missed. Where a window has n n-grams, about one token in n / 2 is an anchor. Twin: `anchors_plain` in
`tests/reference/suffix_plain.py`.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import kernel
from gristmill.kernels.base.splitmix import mixed
from gristmill.kernels.base.types import Array, Hashes, Offsets
from gristmill.kernels.words.token_rules import SHINGLE_STEP
from gristmill.kernels.words.tokens import Tokens, sort

_STEP = np.uint64(SHINGLE_STEP)


class Anchors(NamedTuple):
    """Windows that begin at tokens `low` to `high` of the column have the n-gram of hash `keys`, at one place, as
    anchor. Where more than two in a row have one hash, as in periodic text, the second reaches to the last."""

    keys: Hashes
    low: Offsets
    high: Offsets
    first: Offsets  # anchors first[i] to first[i + 1] are those of document i


def gram_of(window: int) -> int:
    """Long enough to be rare, short enough that a window has many to choose from."""
    return max(1, window // 3)


def anchors(tokens: Tokens, window: int) -> Anchors:
    """The anchors of every window of this many tokens; a shorter document has none."""
    most, gram = len(tokens.hashes), gram_of(window)
    keys, low, high = np.empty(most, np.uint64), np.empty(most, np.int64), np.empty(most, np.int64)
    first = np.zeros(len(tokens.first), np.int64)
    leaving = np.uint64(pow(SHINGLE_STEP, gram, 1 << 64))
    count = _anchors(
        tokens.hashes,
        tokens.first,
        window,
        gram,
        leaving,
        np.zeros(window - gram + 1, np.uint64),
        keys,
        low,
        high,
        first,
    )
    return Anchors(keys[:count], low[:count], high[:count], first)


@kernel
def _anchors(hashes, first, window, gram, leaving, ring, keys, low, high, anchor_first):
    n, choice = 0, len(ring)
    for document in range(len(first) - 1):
        begin, end = first[document], first[document + 1]
        anchor_first[document] = n
        if end - begin < window:
            continue
        value, best, anchor, last, slot = np.uint64(0), np.uint64(0), np.int64(-1), np.int64(-1), 0
        for i in range(begin, end):
            value = value * _STEP + hashes[i]
            if i - begin >= gram:
                value -= hashes[i - gram] * leaving
            here, start = i - gram + 1, i - window + 1  # of the newest n-gram, and of the window that ends with it
            if here < begin:
                continue
            key = mixed(value)
            ring[slot] = key
            slot = slot + 1 if slot + 1 < choice else 0
            if anchor < 0 or key < best:
                best, anchor = key, here
            elif anchor < start:
                best, anchor, place = ring[slot], start, slot
                for k in range(1, choice):
                    place = place + 1 if place + 1 < choice else 0
                    if ring[place] < best:
                        best, anchor = ring[place], start + k
            if start >= begin:
                if anchor != last:
                    last = anchor
                    if n < anchor_first[document] + 2 or keys[n - 1] != best or keys[n - 2] != best:
                        keys[n], low[n] = best, start
                        n += 1
                high[n - 1] = start
    anchor_first[len(first) - 1] = n
    return n


def twice_at_most(anchors: Anchors) -> tuple[Hashes, Offsets]:
    """The sorted keys of each document, at most two of each: two already show that there is a repeat."""
    keys, first = anchors.keys.copy(), np.zeros_like(anchors.first)
    longest = int(np.diff(anchors.first).max(initial=0))
    _twice_at_most(keys, anchors.first, np.empty(longest, np.uint64), np.empty((8, 256), np.int64), first)
    return keys[: first[-1]], first


@kernel
def _twice_at_most(keys, first, other, counts, kept):
    n = 0
    for document in range(len(first) - 1):
        document_keys = keys[first[document] : first[document + 1]]
        sort(document_keys, other, counts)
        begin = n
        for k in range(len(document_keys)):
            key = document_keys[k]
            if n - begin < 2 or keys[n - 2] != key:
                keys[n] = key
                n += 1
        kept[document + 1] = n


class Stretches(NamedTuple):
    """The tokens of the windows that need a closer look, end to end, each token once."""

    hashes: Hashes
    documents: Array  # int32
    places: Array  # int32: of the token in its document
    windows: Array  # uint8: does a window begin here that deserves a look?


def stretches(tokens: Tokens, anchors: Anchors, shared: Hashes, window: int) -> Stretches:
    """The windows whose anchor is among `shared`, which is sorted."""
    if len(shared) == 0 or len(anchors.keys) == 0:
        hit = np.zeros(len(anchors.keys), bool)
    else:
        hit = shared[np.minimum(np.searchsorted(shared, anchors.keys), len(shared) - 1)] == anchors.keys
    most = len(tokens.hashes)
    begins = np.zeros(most, np.uint8)
    columns = np.empty(most, np.uint64), np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.uint8)
    count = _stretches(
        tokens.hashes, tokens.first, anchors.low, anchors.high, hit.view(np.uint8), window, begins, *columns
    )
    return Stretches(*(values[:count].copy() for values in columns))


@kernel
def _stretches(hashes, first, low, high, hit, window, begins, out, documents, places, windows):
    for k in range(len(hit)):
        if hit[k]:
            for i in range(low[k], high[k] + 1):
                begins[i] = 1
    n = 0
    for document in range(len(first) - 1):
        reach = np.int64(0)
        for i in range(first[document], first[document + 1]):
            if begins[i]:
                reach = i + window
            if i < reach:
                out[n], documents[n], places[n], windows[n] = hashes[i], document, i - first[document], begins[i]
                n += 1
    return n
