"""Texts as sums of rows of a table, each row with a weight, and the transpose of that product.

A static embedding is the mean of its tokens' rows (model2vec; Tulkens and van Dongen 2024), a projection of TF-IDF is
the sum of its terms' rows. Both are one product of a sparse matrix with the table. Sums are in the order of the text.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.bare import kernel
from gristmill.kernels.base.types import Array, Offsets


def pooled(numbers: Array, values: Array, first: Offsets, table_FW: Array) -> Array:
    """float32_NW: of text i the sum of `values[k]` times row `numbers[k]` of the table, k from `first[i]` to
    `first[i + 1]`."""
    out_NW = np.zeros((len(first) - 1, table_FW.shape[1]), np.float32)
    _pooled(
        numbers.astype(np.int64, copy=False),
        values.astype(np.float32, copy=False),
        np.ascontiguousarray(first, np.int64),
        np.ascontiguousarray(table_FW, np.float32),
        out_NW,
    )
    return out_NW


def spread(numbers: Array, values: Array, first: Offsets, rows_NW: Array, size: int) -> Array:
    """float32_FW, F of `size`: the transpose of the same product, on rows of texts."""
    out_FW = np.zeros((size, rows_NW.shape[1]), np.float32)
    _spread(
        numbers.astype(np.int64, copy=False),
        values.astype(np.float32, copy=False),
        np.ascontiguousarray(first, np.int64),
        np.ascontiguousarray(rows_NW, np.float32),
        out_FW,
    )
    return out_FW


@kernel
def _pooled(numbers, values, first, table, out):
    for d in range(len(first) - 1):
        row = out[d]
        for k in range(first[d], first[d + 1]):
            value, source = values[k], table[numbers[k]]
            for w in range(len(row)):
                row[w] += value * source[w]


@kernel
def _spread(numbers, values, first, rows, out):
    for d in range(len(first) - 1):
        source = rows[d]
        for k in range(first[d], first[d + 1]):
            value, row = values[k], out[numbers[k]]
            for w in range(len(row)):
                row[w] += value * source[w]


def pooled_plain(numbers: list[int], values: list[float], table: list[list[float]]) -> list[float]:
    """Of one text."""
    return [
        sum(value * table[number][w] for number, value in zip(numbers, values, strict=True))
        for w in range(len(table[0]))
    ]
