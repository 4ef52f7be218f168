"""Training rows as the reader returns them: arrays that are views of the mapped files where possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.kernels.base.types import Array


class Row(NamedTuple):
    """One training row. Its documents are end to end from its beginning; the rest is padding."""

    input_ids: Array
    seq_lens: Array  # int32, tokens of each document in the row
    doc_uids: Array  # uint64
    chunk: Array  # int32, which piece of its document
    source: Array  # int16 or int32, a place in `sources`
    bucket: int  # the hardest of its documents; -1 unknown
    difficulty: float  # mean by tokens; NaN unknown


class Rows(NamedTuple):
    """Row i is input_ids[i]; its documents are first_piece[i] to first_piece[i + 1] of the flat columns."""

    input_ids: Array  # (rows, row length)
    first_piece: Array  # int32, one more than there are rows
    seq_lens: Array
    doc_uids: Array
    chunk: Array
    source: Array
    bucket: Array  # int16
    difficulty: Array  # float32

    def row(self, i: int) -> Row:
        pieces = slice(self.first_piece[i], self.first_piece[i + 1])
        lengths, uids, chunk, source = (
            self.seq_lens[pieces],
            self.doc_uids[pieces],
            self.chunk[pieces],
            self.source[pieces],
        )
        return Row(self.input_ids[i], lengths, uids, chunk, source, int(self.bucket[i]), float(self.difficulty[i]))

    def part(self, start: int, stop: int) -> Rows:
        """Some of the rows, as views; only `first_piece` is new."""
        first_piece = self.first_piece[start : stop + 1]
        pieces, rows = slice(first_piece[0], first_piece[-1]), slice(start, stop)
        lengths, uids, chunk, source = (
            self.seq_lens[pieces],
            self.doc_uids[pieces],
            self.chunk[pieces],
            self.source[pieces],
        )
        first_piece = first_piece - first_piece[0]
        return Rows(
            self.input_ids[rows], first_piece, lengths, uids, chunk, source, self.bucket[rows], self.difficulty[rows]
        )


def concatenate(parts: Sequence[Rows], out: Array) -> Rows:
    """Rows end to end, with their tokens copied into `out`."""
    filled = 0
    for part in parts:
        out[filled : filled + len(part.bucket)] = part.input_ids
        filled += len(part.bucket)
    first_piece = np.zeros(filled + 1, np.int32)
    np.cumsum(_column([part.first_piece[1:] - part.first_piece[:-1] for part in parts], np.int32), out=first_piece[1:])
    return Rows(
        out,
        first_piece,
        _column([part.seq_lens for part in parts], np.int32),
        _column([part.doc_uids for part in parts], np.uint64),
        _column([part.chunk for part in parts], np.int32),
        _column([part.source for part in parts], np.int16),
        _column([part.bucket for part in parts], np.int16),
        _column([part.difficulty for part in parts], np.float32),
    )


def _column(parts: list[Array], kind_if_none: Any) -> Array:
    return np.concatenate(parts) if parts else np.zeros(0, kind_if_none)
