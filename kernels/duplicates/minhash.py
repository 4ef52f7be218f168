"""Candidates for near duplicates: text to MinHash signatures and to hashes of their bands in one pass (Leskovec et al.,
ch. 3).

Signatures are those of `gristmill.kernels.duplicates.minhash_rules` (Dahlgaard, Knudsen, Thorup 2017). A document's
shingles are kept only while a place of its signature is empty, and without repeats where they are many: a document of
two million equal words costs a few passes over it, not 256.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gristmill.kernels.base.bare import helper, inlined, kernel
from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.splitmix import mixed
from gristmill.kernels.base.types import Hashes, Offsets
from gristmill.kernels.duplicates.minhash_rules import HALF, ROUND_STEP
from gristmill.kernels.words.tokens import begin_document, chunk_mixed, cutter, next_shingles, shingle_numbers

Signatures = np.ndarray[Any, np.dtype[np.uint32]]

MOST_PLACES = 1 << 16
MOST_SLOTS = 1 << 14  # of the table that makes shingles unique
PROBES = 8
BLOCK = 512  # shingles that are mixed at a time in a later round
MANY = 16  # shingles a place: with so many that are distinct, no place is empty after round 0 (1e-7 each)
PATIENCE = 3  # rounds before a document's shingles are deduplicated

_HALF, _ROUND_STEP, _UPPER = np.uint64(HALF), np.uint64(ROUND_STEP), np.uint64(32)
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_SLOT_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Signer(NamedTuple):
    """Scratch memory for signing one document after another."""

    held: Hashes  # of each place: the round that filled it, and its value; so a later round never moves it
    kept: Hashes  # shingles of the document
    fresh: Hashes  # uint64[BLOCK]
    table: Hashes


def signatures(column: TextColumn, *, width: int = 5, places: int = 128, seed: int = 0) -> Signatures:
    """uint32[documents, places]; all zero for a document without tokens."""
    out = np.empty((len(column), places), np.uint32)
    signer = _signer(places, _longest(column.offsets) // 2 + 2)
    _sign_column(column.data, column.offsets, cutter(column, width), *shingle_numbers(width, seed), signer, out)
    return out


def band_hashes(
    column: TextColumn, *, width: int = 5, bands: int, rows: int, seed: int = 0, places: int | None = None
) -> tuple[Hashes, Offsets]:
    """uint64[documents, bands], and the number of shingles of each document, with repeats. The bands of a document
    without shingles are undefined."""
    places = bands * rows if places is None else places
    if not 0 < bands * rows <= places:
        raise ValueError(f"{bands} bands of {rows} rows do not fit in {places} places")
    out, counts = np.empty((len(column), bands), np.uint64), np.empty(len(column), np.int64)
    signer = _signer(places, _longest(column.offsets) // 2 + 2)
    _band_column(
        column.data, column.offsets, cutter(column, width), *shingle_numbers(width, seed), signer, rows, out, counts
    )
    return out, counts


def signatures_of_shingles(hashes: Hashes, first: Offsets, places: int = 128) -> Signatures:
    """Signatures of given, well-mixed shingles in any order: document i has `hashes[first[i]:first[i + 1]]`."""
    out = np.empty((len(first) - 1, places), np.uint32)
    _sign_shingles(
        np.ascontiguousarray(hashes, np.uint64),
        np.ascontiguousarray(first, np.int64),
        _signer(places, _longest(first)),
        out,
    )
    return out


def chance_of_meeting(similarity: float, bands: int, rows: int) -> float:
    """The chance that two documents of this Jaccard similarity share at least one band."""
    return 1 - (1 - similarity**rows) ** bands


def bands_for(threshold: float, hashes: int = 128, recall: float = 0.97) -> tuple[int, int]:
    """Bands and rows: the most rows, and so the fewest needless candidates, that give a pair at the threshold this
    chance to become a candidate."""
    for rows in range(hashes, 0, -1):
        if chance_of_meeting(threshold, hashes // rows, rows) >= recall:
            return hashes // rows, rows
    raise ValueError(
        f"{hashes} hashes cannot nominate {recall:.0%} of the pairs at similarity {threshold}: take more hashes or a "
        "higher threshold"
    )


def _longest(offsets: Offsets) -> int:
    return int(np.diff(offsets).max(initial=0))


def _signer(places: int, shingles: int) -> Signer:
    if not 0 < places <= MOST_PLACES:
        raise ValueError(f"a signature of {places} places: between 1 and {MOST_PLACES} are possible")
    return Signer(*(np.empty(size, np.uint64) for size in (places, shingles, BLOCK, MOST_SLOTS)))


@inlined
def place_of(h, places):
    return np.int64((h >> _UPPER) * places >> _UPPER)


@inlined
def any_empty(held):
    empties = np.int64(0)
    for place in range(len(held)):
        empties += held[place] == _EMPTY
    return empties


@inlined
def first_round(shingles, held):
    places = np.uint64(len(held))
    for k in range(len(shingles)):
        h = shingles[k]
        place = place_of(h, places)
        held[place] = min(held[place], h & _HALF)


@helper
def later_rounds(signer, count):
    """Fills the places that round 0 left empty with the document's shingles, `signer.kept[:count]`."""
    held, fresh = signer.held, signer.fresh
    places = len(held)
    unique_at = 1 if count > MANY * places else PATIENCE
    round_ = 1
    empty = any_empty(held)
    while empty and round_ < 2 * places:
        if round_ == unique_at:
            count = each_once(signer.kept, count, signer.table)
        step, mark = np.uint64(round_) * _ROUND_STEP, np.uint64(round_) << _UPPER
        for begin in range(0, count, BLOCK):
            shingles = signer.kept[begin : min(begin + BLOCK, count)]
            for k in range(len(shingles)):
                fresh[k] = mixed(shingles[k] + step)
            if round_ < places:
                for k in range(len(shingles)):
                    place = place_of(fresh[k], np.uint64(places))
                    before = held[place]
                    held[place] = min(before, mark | fresh[k] & _HALF)
                    empty -= before == _EMPTY
            else:
                place = round_ - places
                empty -= held[place] == _EMPTY
                for k in range(len(shingles)):
                    held[place] = min(held[place], mark | fresh[k] & _HALF)
        round_ += 1


@inlined
def each_once(values, count, table):
    """Moves the first occurrences together, in place; returns their number. A shingle that finds no slot near its own
    is kept every time."""
    bits = np.uint64(4)
    while (1 << bits) < min(4 * count, len(table)):
        bits += np.uint64(1)
    slots = np.int64(1) << np.int64(bits)
    for k in range(slots):
        table[k] = 0
    n, nothing = 0, False
    for k in range(count):
        value = values[k]
        slot = np.int64(value * _SLOT_FACTOR >> (np.uint64(64) - bits))
        new = value != 0 or not nothing  # an empty slot holds zero
        nothing |= value == 0
        for probe in range(PROBES):
            held = table[(slot + probe) & (slots - 1)]
            if held == 0:
                table[(slot + probe) & (slots - 1)] = value
                break
            if held == value:
                new = False
                break
        if new:
            values[n] = value
            n += 1
    return n


@inlined
def sign_document(data, start, stop, cut, powers, salt, signer):
    """Signs into `signer.held`; returns the number of shingles."""
    held, kept = signer.held, signer.kept
    held[:] = _EMPTY
    begin_document(cut, start)
    count, total = 0, 0
    while cut.progress[0] < stop:
        end = next_shingles(data, stop, cut, powers, salt, kept, count)
        first_round(kept[count:end], held)
        total += end - count
        count = end if any_empty(held) else 0
    if count:
        later_rounds(signer, count)
    if total == 0:
        held[:] = 0
    return total


@kernel
def _sign_column(data, offsets, cut, powers, salt, signer, out):
    for d in range(len(offsets) - 1):
        sign_document(data, offsets[d], offsets[d + 1], cut, powers, salt, signer)
        for place in range(len(signer.held)):
            out[d, place] = np.uint32(signer.held[place])


@kernel
def _band_column(data, offsets, cut, powers, salt, signer, rows, out, counts):
    for d in range(len(offsets) - 1):
        counts[d] = sign_document(data, offsets[d], offsets[d + 1], cut, powers, salt, signer)
        for band in range(out.shape[1]):
            h = mixed(np.uint64(band + 1))
            for row in range(band * rows, (band + 1) * rows):
                h = chunk_mixed(h, signer.held[row] & _HALF)
            out[d, band] = mixed(h)


@kernel
def _sign_shingles(hashes, first, signer, out):
    held, kept = signer.held, signer.kept
    for d in range(len(first) - 1):
        begin, count = first[d], first[d + 1] - first[d]
        held[:] = _EMPTY
        first_round(hashes[begin : begin + count], held)
        if count == 0:
            held[:] = 0
        elif any_empty(held):
            for k in range(count):
                kept[k] = hashes[begin + k]
            later_rounds(signer, count)
        for place in range(len(held)):
            out[d, place] = np.uint32(held[place])
