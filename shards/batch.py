"""A batch of training rows, and what trainers derive from the bounds of its documents.

Shapes: N rows, L tokens a row, S sequences: the documents' pieces in order, each row's padding after them as a sequence
of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.shards.rows import Rows

NO_LABEL = -100  # what losses of the field leave out


class Batch(NamedTuple):
    """`numbers` are the rows of the set that were read; `state` is that of the loader after this batch."""

    rows: Rows
    numbers: Array
    state: dict[str, Any]

    @property
    def input_ids(self) -> Array:
        """(N, L), in the type of the shards."""
        return self.rows.input_ids


def sequence_lengths(rows: Rows) -> tuple[Array, Array]:
    """Length of each of the S sequences (int32), and whether it is padding. They add up to N x L."""
    row_length = rows.input_ids.shape[1]
    pieces = np.diff(rows.first_piece)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows.seq_lens, dtype=np.int64)])
    rest = row_length - np.diff(ends[rows.first_piece])
    lengths = np.insert(rows.seq_lens.astype(np.int32), rows.first_piece[1:], rest)
    padding = np.zeros(len(lengths), bool)
    padding[np.cumsum(pieces + 1) - 1] = True
    some = lengths > 0
    return lengths[some], padding[some]


def cumulative_lengths(rows: Rows) -> Array:
    """`cu_seqlens` of attention over N x L tokens end to end: int32, S + 1, from 0; padding only attends to itself."""
    lengths, _ = sequence_lengths(rows)
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])


def positions(rows: Rows) -> Array:
    """Position of each token in its piece (N, L), int32; padding counts from 0 too."""
    lengths, _ = sequence_lengths(rows)
    starts = np.cumsum(lengths, dtype=np.int32) - lengths
    return (np.arange(rows.input_ids.size, dtype=np.int32) - np.repeat(starts, lengths)).reshape(rows.input_ids.shape)


def document_numbers(rows: Rows) -> Array:
    """Which of its row's documents each token belongs to (N, L), int32, from 0; padding -1. Tokens may attend where
    they are equal."""
    lengths, padding = sequence_lengths(rows)
    pieces = np.diff(rows.first_piece)
    numbers = np.full(len(lengths), -1, np.int32)
    numbers[~padding] = np.arange(pieces.sum()) - np.repeat(rows.first_piece[:-1] - rows.first_piece[0], pieces)
    return np.repeat(numbers, lengths).reshape(rows.input_ids.shape)


def labels(rows: Rows) -> Array:
    """`input_ids` as int64 with -100 on padding and on the first token of each piece, for models that shift by
    themselves: no token is predicted from another document, nor from a piece that is not in the row."""
    lengths, padding = sequence_lengths(rows)
    labels_NL = rows.input_ids.astype(np.int64).reshape(-1)
    labels_NL[np.repeat(padding, lengths)] = NO_LABEL
    labels_NL[np.cumsum(lengths, dtype=np.int64) - lengths] = NO_LABEL
    return labels_NL.reshape(rows.input_ids.shape)
