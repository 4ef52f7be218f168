"""Tokens and shingles of a column of text, the view that every deduplicating stage has of a document.
`gristmill.kernels.words.token_rules` defines tokens.

A document is processed in runs of some five hundred tokens, so that their data stay in the L1 cache. Each step is a
loop of its own that the compiler vectorises: hashes are computed four or eight at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import helper, inlined, kernel
from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.splitmix import mixed, mixed_plain
from gristmill.kernels.base.types import Array, Floats, Hashes, Offsets
from gristmill.kernels.base.wide import eight_bytes, how_many, lowest
from gristmill.kernels.words.token_marks import BLOCK, ONE, character_tables, mark_block
from gristmill.kernels.words.token_rules import SHINGLE_STEP, SHORT, TOKEN_CHUNK, TOKEN_LENGTH

RUN = 512  # tokens after which a run ends with its block
WIDEST = 1024  # tokens of a shingle
UNROLLED = 12  # places read out of 64 bits without asking how many there are

FEW = 48  # hashes that are sorted faster by insertion
SPARSE = 32  # times as many hashes on one side: steps over those between are then cheaper than a merge

_DIGIT = np.uint64(0xFF)
_LENGTH, _CHUNK, _STEP, _SHORT = (
    np.uint64(TOKEN_LENGTH),
    np.uint64(TOKEN_CHUNK),
    np.uint64(SHINGLE_STEP),
    np.uint64(SHORT),
)


class Tokens(NamedTuple):
    """Tokens `first[i]` to `first[i + 1]` are those of document i."""

    hashes: Hashes
    starts: Offsets  # bytes of the column's data
    ends: Offsets
    first: Offsets


class Cutter(NamedTuple):
    """Tables, scratch memory and progress of cutting one document after another."""

    places: Array  # of code points
    entries: Array
    lower: Array  # uint8: the document in lower case, and 64 bytes more
    tail: Array  # uint8[64]: the last bytes of the column
    starts: Array  # int64: tokens of the run
    ends: Array
    eights: Array  # uint64: of each token of the run its first eight bytes, later what becomes its shingles
    seconds: Array  # the eight bytes after these
    window: Array  # uint64: hashes of the tokens before the run that a shingle of it may hold, then of the run
    progress: Array  # int64: the columns below


NEXT_BYTE, ORIGIN, BEGUN, INSIDE_BEFORE, DENSE_BEFORE, KEPT, MADE = range(
    7
)  # the last two: hashes in the window, shingles made


def cutter(column: TextColumn, width: int = 1) -> Cutter:
    if not 0 < width <= WIDEST:
        raise ValueError(f"a shingle of {width} tokens: between 1 and {WIDEST} are possible")
    longest = int(np.diff(column.offsets).max(initial=0))
    run = RUN + 2 * BLOCK
    return Cutter(
        *character_tables(),
        np.empty(longest + 2 * BLOCK, np.uint8),
        np.zeros(BLOCK, np.uint8),
        np.zeros(run, np.int64),
        np.zeros(run, np.int64),
        *(np.zeros(width + run, np.uint64) for _ in range(3)),
        np.zeros(7, np.int64),
    )


def most_tokens(column: TextColumn) -> int:
    """No document has more tokens than half its bytes, rounded up: two adjacent tokens have three bytes in one of
    them."""
    return int(column.offsets[-1] - column.offsets[0] + len(column)) // 2 + 1


def token_column(column: TextColumn) -> Tokens:
    most = most_tokens(column)
    hashes, starts, ends = np.empty(most, np.uint64), np.empty(most, np.int64), np.empty(most, np.int64)
    first = np.zeros(len(column) + 1, np.int64)
    count = _token_column(column.data, column.offsets, cutter(column), hashes, starts, ends, first)
    return Tokens(hashes[:count], starts[:count], ends[:count], first)


def shingle_column(column: TextColumn, width: int, seed: int = 0) -> tuple[Hashes, Offsets]:
    """A hash for each run of `width` tokens, in order, with repeats; shingles `first[i]` to `first[i + 1]` are those of
    document i."""
    hashes, first = np.empty(most_tokens(column), np.uint64), np.zeros(len(column) + 1, np.int64)
    _shingle_column(column.data, column.offsets, cutter(column, width), *shingle_numbers(width, seed), hashes, first)
    return hashes[: first[-1]], first


def shingle_sets(column: TextColumn, width: int, seed: int = 0) -> tuple[Hashes, Offsets]:
    """The same, sorted and without repeats in each document."""
    hashes, first = shingle_column(column, width, seed)
    sets = np.zeros_like(first)
    longest = int(np.diff(first).max(initial=0))
    _make_sets(hashes, first, np.empty(longest, np.uint64), np.empty((8, 256), np.int64), sets)
    return hashes[: sets[-1]], sets


def shingle_numbers(width: int, seed: int) -> tuple[Hashes, np.uint64]:
    """The powers that shift a polynomial of half the width, a quarter and so on, the shortest first; and the seed,
    mixed."""
    halves = [width >> bit for bit in range(width.bit_length() - 1, 0, -1)]
    return np.array([pow(SHINGLE_STEP, half, 1 << 64) for half in halves], np.uint64), np.uint64(
        mixed_plain(seed % (1 << 64))
    )


@inlined
def chunk_mixed(h, eight):
    h = (h ^ eight) * _CHUNK
    return h ^ h >> np.uint64(32)


@inlined
def first_bytes(eight, count):
    """The first `count` of eight bytes, one to eight, and zeros."""
    lacking = np.uint64(64 - 8 * count)
    return eight << lacking >> lacking


@helper
def hash_run(cut, count, out, at):
    """Writes the hashes of the run's tokens to `out` from `at` on."""
    starts, ends, lower, eights, seconds = cut.starts, cut.ends, cut.lower, cut.eights, cut.seconds
    longest = np.int64(0)
    for k in range(count):
        eights[k] = eight_bytes(lower, starts[k])
        seconds[k] = eight_bytes(lower, starts[k] + 8)
    for k in range(count):
        length = ends[k] - starts[k]
        longest = max(longest, length)
        short = chunk_mixed(np.uint64(length) * _LENGTH, first_bytes(eights[k], min(length, 8)))
        long = chunk_mixed(short, first_bytes(seconds[k], min(max(length - 8, 1), 8)))
        out[at + k] = long if length > 8 else short
    if longest > 16:
        for k in range(count):
            if ends[k] - starts[k] > 16:
                out[at + k] = hash_from(lower, starts[k] + 16, ends[k], out[at + k])


@inlined
def hash_from(lower, start, end, h):
    """The hash of a token whose hash up to `start` is given."""
    while start + 8 < end:
        h = chunk_mixed(h, eight_bytes(lower, start))
        start += 8
    return chunk_mixed(h, first_bytes(eight_bytes(lower, start), end - start))


@inlined
def write_places(bits, base, out, n):
    """Writes the places of the bits that are set to `out` from n on; returns their number. `out` has room for 64
    more."""
    count = how_many(bits)
    for k in range(UNROLLED):
        out[n + k] = base + lowest(bits)
        bits &= bits - ONE
    if count > UNROLLED:
        for k in range(UNROLLED, count):
            out[n + k] = base + lowest(bits)
            bits &= bits - ONE
    return count


@inlined
def begin_document(cut, start):
    cut.progress[:] = 0
    cut.progress[NEXT_BYTE] = cut.progress[ORIGIN] = start


@helper
def next_run(data, stop, cut):
    """Goes on to the end of the run or of the document; returns the number of whole tokens, which are in `cut.starts`
    and `cut.ends`."""
    progress, starts, ends = cut.progress, cut.starts, cut.ends
    i, origin, begun, ended = progress[NEXT_BYTE], progress[ORIGIN], progress[BEGUN], 0
    inside_before, dense_before = np.uint64(progress[INSIDE_BEFORE]), np.uint64(progress[DENSE_BEFORE])
    while i < stop and ended < RUN:
        size, start_bits, end_bits, inside_before, dense_before = mark_block(
            data, i, stop, cut.places, cut.entries, cut.lower, i - origin, cut.tail, inside_before, dense_before
        )
        begun += write_places(start_bits, i - origin, starts, begun)
        ended += write_places(end_bits, i - origin, ends, ended)
        i += size
    if i == stop and begun > ended:
        ends[ended] = stop - origin
        ended += 1
    progress[NEXT_BYTE], progress[BEGUN] = i, begun
    progress[INSIDE_BEFORE], progress[DENSE_BEFORE] = np.int64(inside_before), np.int64(dense_before)
    return ended


@inlined
def end_run(cut, count):
    """A token that is not complete becomes the first of the next run."""
    cut.starts[0] = cut.starts[count]
    cut.progress[BEGUN] -= count


@kernel
def _token_column(data, offsets, cut, hashes, starts, ends, first):
    n = 0
    for d in range(len(offsets) - 1):
        origin, stop = offsets[d], offsets[d + 1]
        begin_document(cut, origin)
        while cut.progress[NEXT_BYTE] < stop:
            count = next_run(data, stop, cut)
            hash_run(cut, count, hashes, n)
            for k in range(count):
                starts[n + k], ends[n + k] = origin + cut.starts[k], origin + cut.ends[k]
            end_run(cut, count)
            n += count
        first[d + 1] = n
    return n


@helper
def next_shingles(data, stop, cut, powers, salt, out, n):
    """Cuts a run and writes the shingles that end in it to `out` from n on; returns their end. `out` has room for a
    run."""
    window, progress = cut.window, cut.progress
    width = len(window) - len(cut.starts)
    kept = progress[KEPT]  # tokens of the run before, fewer than `width`
    count = next_run(data, stop, cut)
    hash_run(cut, count, window, kept)
    end_run(cut, count)
    count += kept
    ready = max(count - width + 1, 0)
    if ready:
        write_shingles(cut, width, count, powers, salt, out, n)
        progress[KEPT] = width - 1
        for k in range(width - 1):
            window[k] = window[ready + k]
    else:
        progress[KEPT] = count
        if progress[NEXT_BYTE] == stop and count > 0 and progress[MADE] == 0:
            value = np.uint64(0)
            for k in range(count):
                value = value * _STEP + window[k]
            out[n] = mixed(value + np.uint64(count) * _SHORT + salt)
            ready = 1
    progress[MADE] += ready
    return n + ready


@inlined
def write_shingles(cut, width, count, powers, salt, out, n):
    """For `count` hashes in the window. Polynomials are computed as powers are, by squaring: those of m hashes give
    those of 2 m and of 2 m + 1."""
    source, target, other = cut.window, cut.eights, cut.seconds
    m = 1
    for step in range(len(powers)):
        add_times(source[m : count - m + 1], powers[step], source, target)
        m *= 2
        if width >> (len(powers) - 1 - step) & 1:
            add_times(cut.window[m:count], _STEP, target, other)
            m += 1
            target, other = other, target
        source, target, other = target, other, target
    write_mixed(source[: count - width + 1], salt, out[n:])


@helper
def add_times(values, factor, others, out):
    for k in range(len(values)):
        out[k] = values[k] + others[k] * factor


@helper
def write_mixed(values, salt, out):
    for k in range(len(values)):
        out[k] = mixed(values[k] + salt)


@kernel
def _shingle_column(data, offsets, cut, powers, salt, hashes, first):
    n = 0
    for d in range(len(offsets) - 1):
        stop = offsets[d + 1]
        begin_document(cut, offsets[d])
        while cut.progress[NEXT_BYTE] < stop:
            n = next_shingles(data, stop, cut, powers, salt, hashes, n)
        first[d + 1] = n


def jaccard_of_pairs(hashes: Hashes, first: Offsets, left: Offsets, right: Offsets) -> Floats:
    """The Jaccard similarity of sets left[i] and right[i]; 0 for two empty sets. Sets are those of `shingle_sets`."""
    out = np.zeros(len(left), np.float64)
    _jaccard_of_pairs(hashes, first, np.ascontiguousarray(left, np.int64), np.ascontiguousarray(right, np.int64), out)
    return out


@inlined
def sort(values, other, counts):
    """Radix sort, eight bits at a time from the lowest: linear for any values. `other` has as much room, `counts` is
    int64[8, 256]."""
    size = len(values)
    if size <= FEW:
        for k in range(1, size):
            value, j = values[k], k
            while j > 0 and values[j - 1] > value:
                values[j] = values[j - 1]
                j -= 1
            values[j] = value
        return
    counts[:] = 0
    for k in range(size):
        for digit in range(8):
            counts[digit, values[k] >> np.uint64(8 * digit) & _DIGIT] += 1
    for digit in range(8):
        before = np.int64(0)
        for k in range(256):
            before, counts[digit, k] = before + counts[digit, k], before
    for digit in range(0, 8, 2):
        scatter(values, other, counts[digit], np.uint64(8 * digit), size)
        scatter(other, values, counts[digit + 1], np.uint64(8 * digit + 8), size)


@inlined
def scatter(values, out, places, shift, size):
    for k in range(size):
        digit = values[k] >> shift & _DIGIT
        out[places[digit]] = values[k]
        places[digit] += 1


@kernel
def _make_sets(hashes, first, other, counts, sets):
    """Sorts each document's hashes in place, drops repeats, and moves all together."""
    n = 0
    for d in range(len(first) - 1):
        values = hashes[first[d] : first[d + 1]]
        sort(values, other, counts)
        begin = n
        for k in range(len(values)):
            value = values[k]
            if n == begin or value != hashes[n - 1]:
                hashes[n] = value
                n += 1
        sets[d + 1] = n


@kernel
def _jaccard_of_pairs(hashes, first, left, right, out):
    for p in range(len(left)):
        a, a_end, b, b_end = first[left[p]], first[left[p] + 1], first[right[p]], first[right[p] + 1]
        if a_end - a > b_end - b:
            a, a_end, b, b_end = b, b_end, a, a_end
        both, together = np.int64(0), a_end - a + b_end - b
        if (b_end - b) // SPARSE > a_end - a:
            while a < a_end and b < b_end:
                b = gallop(hashes, hashes[a], b, b_end)
                both += b < b_end and hashes[b] == hashes[a]
                a += 1
        else:
            while a < a_end and b < b_end:
                x, y = hashes[a], hashes[b]
                both += x == y
                a += x <= y
                b += y <= x
        if together:
            out[p] = both / (together - both)


@inlined
def gallop(hashes, wanted, low, end):
    """The first place from `low` on that is not below `wanted`."""
    step = 1
    while low + step < end and hashes[low + step] < wanted:
        low += step
        step *= 2
    high = min(low + step, end)
    while low < high:
        middle = (low + high) // 2
        if hashes[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low
