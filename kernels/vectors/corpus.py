"""A table of vectors for terms, fitted to a sample of texts without any model: truncated SVD of their TF-IDF, known as
latent semantic analysis (Deerwester et al. 1990), by subspace iteration from random signs (Halko et al. 2011).

Terms are words, numbered by the highest BITS of their hashes (`gristmill.kernels.language.hashed_terms`). Words that
stand in the same texts get rows that point the same way, so that a text keeps its direction when a word is replaced by
another of its company. All sums are in the order of texts, so the table is the same on any machine.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import kernel
from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.splitmix import mixed_all, mixed_plain
from gristmill.kernels.base.types import Array, Offsets
from gristmill.kernels.language.hashed_terms import Terms, term_column
from gristmill.kernels.vectors.pooling import pooled, spread

BITS = 16
ROUNDS = 3  # of the iteration
IN_TEXTS = 2  # a term of fewer texts says nothing of its company
MOST_TEXTS = 0.5  # a term of more than this share of texts is left out


class TermTable(NamedTuple):
    """The row of each known term, with its inverse document frequency in it."""

    numbers: Array  # int32, rising
    rows_FW: Array  # float32


def terms_of(column: TextColumn) -> Terms:
    """Each text's terms, with (1 + ln n) as the value of one that stands n times, scaled to length 1."""
    return term_column(column, BITS, 1, np.ones(1 << BITS, np.float32))


def fit_terms(terms: Terms, width: int, seed: int) -> TermTable:
    """The table for the terms of a sample of texts."""
    count = len(terms.first) - 1
    in_texts = np.bincount(terms.numbers, minlength=1 << BITS)
    known = np.flatnonzero((in_texts >= IN_TEXTS) & (in_texts <= max(MOST_TEXTS * count, IN_TEXTS)))
    idf = np.log((1 + count) / (1 + in_texts[known])).astype(np.float32) + np.float32(1)
    numbers, values, first = of_known(terms, known)
    values = scaled(values * idf[numbers], first)
    width_here = min(width, count, max(len(known), 1))
    signs = 1 - 2 * (mixed_all(np.arange(len(known) * width_here, dtype=np.uint64) ^ _salt(seed)) & np.uint64(1))
    table = signs.astype(np.int64).astype(np.float32).reshape(len(known), width_here)
    for _ in range(ROUNDS):
        basis = orthonormal(pooled(numbers, values, first, table))
        table = spread(numbers, values, first, basis, len(known))
    rows = np.zeros((len(known), width), np.float32)
    rows[:, :width_here] = orthonormal(table) * idf[:, None]
    return TermTable(known.astype(np.int32), rows)


def project(terms: Terms, table: TermTable) -> Array:
    """float32_NW: texts on the table. Zero for a text of which no term is known."""
    numbers, values, first = of_known(terms, table.numbers)
    return pooled(numbers, values, first, table.rows_FW)


def of_known(terms: Terms, known: Array) -> tuple[Array, Array, Offsets]:
    """Terms as places among the known ones; others are left out."""
    place = np.full(1 << BITS, -1, np.int64)
    place[known] = np.arange(len(known))
    numbers = place[terms.numbers]
    there = numbers >= 0
    first = np.concatenate([[0], np.cumsum(there)])[terms.first]
    return numbers[there], terms.values[there], first.astype(np.int64)


def scaled(values: Array, first: Offsets) -> Array:
    """Each text's values, divided by their length."""
    text = np.repeat(np.arange(len(first) - 1), np.diff(first))
    square = np.bincount(text, values.astype(np.float64) ** 2, minlength=len(first) - 1)
    length = np.sqrt(square)[text]
    return np.divide(values, length, out=np.zeros(len(values)), where=length > 0).astype(np.float32)


def orthonormal(rows_NW: Array) -> Array:
    """float32_NW whose columns span those given, by Gram and Schmidt, twice; a column that adds nothing is zero."""
    columns = np.ascontiguousarray(rows_NW.T, np.float64)
    _orthonormal(columns)
    return np.ascontiguousarray(columns.T, np.float32)


def _salt(seed: int) -> np.uint64:
    return np.uint64(mixed_plain((seed + 1) % (1 << 64)))


@kernel
def _orthonormal(columns):
    for n in range(len(columns)):
        own = columns[n]
        before = 0.0
        for k in range(len(own)):
            before += own[k] * own[k]
        for _ in range(2):
            for m in range(n):
                other = columns[m]
                dot = 0.0
                for k in range(len(own)):
                    dot += own[k] * other[k]
                for k in range(len(own)):
                    own[k] -= dot * other[k]
        square = 0.0
        for k in range(len(own)):
            square += own[k] * own[k]
        scale = 1.0 / np.sqrt(square) if square > 1e-12 * before and square > 0 else 0.0
        for k in range(len(own)):
            own[k] *= scale
