"""Vectors of 8-bit numbers: the nearest centre of each, sums, and pairs above a cosine. All results are exact.

A vector is scaled so that its largest number is 127, which moves a cosine by 0.002 at most where it is 256 wide. The
products of such numbers are integers, and the sum of up to WIDEST of them is below 2**24. So matmuls in float32 are
exact in any order of additions, on any number of threads and on a GPU, and clusters never depend on either.
N vectors, K centres, W width.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import kernel
from gristmill.kernels.base.types import Array

LARGEST = 127
WIDEST = (1 << 24) // LARGEST**2  # 1,040
UNIT = 1 << 20  # the length of a vector in `sums`
BLOCK = 1024  # vectors of a matmul; with 4,096 centres it fills 16 MB
CENTRES = 4096


class Pairs(NamedTuple):
    left: Array  # int64, places
    right: Array
    cosine: Array  # float64


def rounded(vectors_NW: Array) -> Array:
    """int8_NW; zeros stay zeros, and what is no finite number makes its vector zero."""
    vectors = np.where(np.isfinite(vectors_NW).all(axis=1, keepdims=True), vectors_NW, 0)
    vectors = vectors.astype(np.float32 if vectors.itemsize <= 4 else np.float64)  # 1e300 is no float32
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    scaled = np.divide(vectors, largest, out=np.zeros_like(vectors), where=largest > 0)
    return np.rint(scaled * np.float32(LARGEST)).astype(np.int8)


def lengths(vectors_NW: Array) -> Array:
    """float64_N: Euclidean."""
    out = np.empty(len(vectors_NW))
    _lengths(vectors_NW, out)
    return out


def nearest(vectors_NW: Array, centres_KW: Array) -> tuple[Array, Array]:
    """int32_N: the centre of the largest cosine, the first of equals; float32_N: that cosine."""
    inverse = inverse_lengths(centres_KW)
    place = np.zeros(len(vectors_NW), np.int32)
    best = np.full(len(vectors_NW), -np.inf, np.float32)
    wide = centres_KW.astype(np.float32)
    for start in range(0, len(vectors_NW), BLOCK):
        rows = vectors_NW[start : start + BLOCK].astype(np.float32)
        for low in range(0, len(wide), CENTRES):
            scaled = rows @ wide[low : low + CENTRES].T
            scaled *= inverse[low : low + CENTRES]
            _take_best(scaled, scaled.argmax(axis=1), low, start, place, best)
    return place, (best * inverse_lengths(vectors_NW)).astype(np.float32)


def inverse_lengths(vectors_NW: Array) -> Array:
    """float32_N; 0 of a vector of zeros."""
    length = lengths(vectors_NW)
    return np.divide(1.0, length, out=np.zeros_like(length), where=length > 0).astype(np.float32)


def sums(vectors_NW: Array, groups: Array, count: int) -> Array:
    """int64_KW: of each group the sum of its vectors, each of the length UNIT, in whole numbers."""
    out = np.zeros((count, vectors_NW.shape[1]), np.int64)
    length = lengths(vectors_NW)
    scale = np.rint(np.divide(UNIT, length, out=np.zeros_like(length), where=length > 0)).astype(np.int64)
    _sums(vectors_NW, groups.astype(np.int64, copy=False), scale, out)
    return out


def centres_of(sums_KW: Array) -> Array:
    """int8_KW: the directions of sums."""
    largest = np.abs(sums_KW).max(axis=1, keepdims=True, initial=0).astype(np.float64)
    scaled = np.divide(sums_KW, largest, out=np.zeros(sums_KW.shape), where=largest > 0)
    return np.rint(scaled * LARGEST).astype(np.int8)


def near_pairs(vectors_NW: Array, at_least: float, most: int, window: int) -> Pairs:
    """Pairs of vectors whose cosine is at least this. Of each vector, with those before it: the `most` of the largest
    cosine, the first of equals, among the `window` before it."""
    length = lengths(vectors_NW)
    found: list[Pairs] = []
    wide = vectors_NW.astype(np.float32)
    block = min(BLOCK, max(window, 1))
    for start in range(0, len(wide), block):
        rows = wide[start : start + block]
        low = max(0, start - window)
        dots = rows @ wide[low : start + len(rows)].T
        places, cosines = np.empty((len(rows), most), np.int64), np.empty((len(rows), most))
        counts = np.zeros(len(rows), np.int64)
        _pick(dots, start - low, low, window, length, at_least, places, cosines, counts)
        chosen = np.arange(most) < counts[:, None]
        right = np.repeat(np.arange(start, start + len(rows)), counts)
        found.append(Pairs(places[chosen], right, cosines[chosen]))
    return Pairs(*(np.concatenate([part[n] for part in found]) for n in range(3))) if found else Pairs(*_no_pairs())


def _no_pairs() -> tuple[Array, Array, Array]:
    return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)


@kernel
def _lengths(vectors, out):
    for d in range(len(vectors)):
        total = np.int64(0)
        for w in range(vectors.shape[1]):
            total += np.int64(vectors[d, w]) * np.int64(vectors[d, w])
        out[d] = np.sqrt(np.float64(total))


@kernel
def _take_best(scaled, column, low, start, place, best):
    for d in range(len(scaled)):
        value = scaled[d, column[d]]
        if value > best[start + d]:
            best[start + d], place[start + d] = value, low + column[d]


@kernel
def _sums(vectors, groups, scale, out):
    for d in range(len(vectors)):
        row, by = out[groups[d]], scale[d]
        for w in range(len(row)):
            row[w] += np.int64(vectors[d, w]) * by


@kernel
def _pick(dots, ahead, low, window, length, at_least, places, cosines, counts):
    """Row d of the block stands at column `ahead` + d, which is place `low` + `ahead` + d of all."""
    most = places.shape[1]
    for d in range(len(dots)):
        own = ahead + d
        bound = at_least * length[low + own]
        count = 0
        for j in range(max(0, own - window), own):
            dot = np.float64(dots[d, j])
            if dot < bound * length[low + j] - 1e-6 or dot <= 0:
                continue
            cosine = dot / (length[low + own] * length[low + j])
            if cosine < at_least or (count == most and cosine <= cosines[d, most - 1]):
                continue
            k = count if count < most else most - 1
            while k > 0 and cosines[d, k - 1] < cosine:
                places[d, k], cosines[d, k] = places[d, k - 1], cosines[d, k - 1]
                k -= 1
            places[d, k], cosines[d, k] = low + j, cosine
            count = min(count + 1, most)
        counts[d] = count


def cosine_plain(left: list[int], right: list[int]) -> float:
    """Of two vectors; 0 where one has no length."""
    dot = sum(a * b for a, b in zip(left, right, strict=True))
    length = sum(a * a for a in left) ** 0.5 * sum(b * b for b in right) ** 0.5
    return dot / length if length else 0.0
