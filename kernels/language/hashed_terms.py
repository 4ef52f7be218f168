"""Texts as hashed TF-IDF: each word, and each pair of neighbours, is a number below a power of two (Weinberger et al.
2009, without signs).

Words are those of `gristmill.kernels.words.token_rules` and terms are its shingles of one and two words, so there is no
dictionary. A term that occurs n times weighs (1 + ln n) idf, and each text is scaled to length 1. Sums are in double
precision and in text order.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import kernel
from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.types import Array, Offsets
from gristmill.kernels.words.token_rules import shingles_plain
from gristmill.kernels.words.tokens import shingle_column

MOST_REPEATS = 1024  # a term that stands more often weighs as one that stands so often
WIDEST = 2  # words of a term


class Terms(NamedTuple):
    """Text i has the distinct terms `numbers[first[i]:first[i + 1]]`, in the order of their first occurrence."""

    numbers: Array  # int32
    values: Array  # float32
    first: Offsets


def weights_of_counts() -> Array:
    return np.array([0.0, *(1 + math.log(n) for n in range(1, MOST_REPEATS + 1))])


def term_column(column: TextColumn, bits: int, widest: int, idf: Array) -> Terms:
    """Terms of up to `widest` words (1 or 2), numbered by the highest `bits` of their hashes; `idf` is float32, one for
    each number."""
    if not 1 <= widest <= WIDEST:
        raise ValueError(f"terms of {widest} words: 1 or {WIDEST} are possible")
    words, first_words = shingle_column(column, 1)
    pairs, first_pairs = shingle_column(column, 2) if widest == 2 else (words[:0], np.zeros_like(first_words))
    most = len(words) + len(pairs)
    terms = Terms(np.empty(most, np.int32), np.empty(most, np.float32), np.zeros_like(first_words))
    _terms(
        words,
        first_words,
        pairs,
        first_pairs,
        np.uint64(64 - bits),
        idf,
        weights_of_counts(),
        np.zeros(1 << bits, np.int32),
        *terms,
    )
    return Terms(terms.numbers[: terms.first[-1]], terms.values[: terms.first[-1]], terms.first)


def weighed(terms: Terms, weights: Array, bias: Array) -> Array:
    """float64_NC: for each text and class the sum of weights_FC (float32) times values, plus bias_C (float64)."""
    out = np.empty((len(terms.first) - 1, weights.shape[1]), np.float64)
    _weighed(*terms, weights, bias, out)
    return out


@kernel
def _terms(words, first_words, pairs, first_pairs, shift, idf, of_count, counts, numbers, values, first):
    """`counts` are zeros, one for each number, and are zeros again afterwards."""
    n = np.int64(0)
    for d in range(len(first) - 1):
        begin = n
        for side in range(2):
            hashes = words if side == 0 else pairs
            start, end = (first_words[d], first_words[d + 1]) if side == 0 else (first_pairs[d], first_pairs[d + 1])
            for k in range(start, end):
                number = np.int64(hashes[k] >> shift)
                if counts[number] == 0:
                    numbers[n] = number
                    n += 1
                counts[number] = min(counts[number] + 1, MOST_REPEATS)
        total = 0.0
        for k in range(begin, n):
            number = np.int64(numbers[k])
            value = of_count[counts[number]] * np.float64(idf[number])
            counts[number] = 0
            values[k] = np.float32(value)
            total += value * value
        if total > 0:
            scale = 1.0 / np.sqrt(total)
            for k in range(begin, n):
                values[k] = np.float32(np.float64(values[k]) * scale)
        first[d + 1] = n


@kernel
def _weighed(numbers, values, first, weights, bias, out):
    for d in range(len(first) - 1):
        for c in range(weights.shape[1]):
            out[d, c] = bias[c]
        for k in range(first[d], first[d + 1]):
            for c in range(weights.shape[1]):
                out[d, c] += np.float64(values[k]) * np.float64(weights[np.int64(numbers[k]), c])


def terms_plain(text: str, bits: int, widest: int, idf: Array) -> list[tuple[int, float]]:
    hashes = [h for width in range(1, widest + 1) for h in shingles_plain(text, width)]
    counts = Counter(h >> (64 - bits) for h in hashes)
    values = [(1 + math.log(min(n, MOST_REPEATS))) * float(idf[number]) for number, n in counts.items()]
    total = 0.0
    for value in values:
        total += value * value
    scale = 1 / math.sqrt(total) if total else 0.0
    return [
        (number, float(np.float32(float(np.float32(value)) * scale)))
        for number, value in zip(counts, values, strict=True)
    ]


def weighed_plain(terms: list[tuple[int, float]], weights: Array, bias: Array) -> list[float]:
    sums = [float(b) for b in bias]
    for number, value in terms:
        for c in range(len(sums)):
            sums[c] += value * float(weights[number, c])
    return sums
