"""Rows and documents for the exporters: arrays, a block at a time, so that no set is ever in memory whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.shards.documents import documents_of
from gristmill.shards.format import BadShards
from gristmill.shards.pieces import filled
from gristmill.shards.rows import Rows

BLOCK_TOKENS = 1 << 20  # tokens that are worked on together: few enough to stay in cache


class ExportError(ValueError):
    """An export that is not possible; the message says why and what to do."""


class Sequences(NamedTuple):
    """Token sequences end to end, and their lengths."""

    tokens: Array
    lengths: Array


def blocks(batches: Iterable[Rows]) -> Iterator[Rows]:
    """The same rows in blocks of about BLOCK_TOKENS tokens."""
    for batch in batches:
        count, row_length = batch.input_ids.shape
        step = max(1, BLOCK_TOKENS // row_length)
        for start in range(0, count, step):
            yield _checked(batch.part(start, min(start + step, count)))


def padding_of(rows: Rows) -> Array:
    """Which tokens of each row are padding."""
    return np.arange(rows.input_ids.shape[1]) >= filled(rows.seq_lens, rows.first_piece)[:, None]


def documents(shards: Iterable[Sequence[Rows]]) -> Iterator[Sequences]:
    """All documents, whole, in blocks, in the order of their first pieces in each shard; a shard is the list of its
    batches."""
    for shard in shards:
        held: list[Array] = []
        size = 0
        for document in documents_of([_checked(batch) for batch in shard]):
            held.append(document.tokens)
            size += len(document.tokens)
            if size >= BLOCK_TOKENS:
                yield _joined(held)
                held, size = [], 0
        if held:
            yield _joined(held)


def _joined(held: Sequence[Array]) -> Sequences:
    return Sequences(np.concatenate(held), np.array([len(tokens) for tokens in held], np.int64))


def _checked(rows: Rows) -> Rows:
    if (rows.seq_lens < 1).any() or (filled(rows.seq_lens, rows.first_piece) > rows.input_ids.shape[1]).any():
        raise BadShards(
            f"lengths of documents that no row of {rows.input_ids.shape[1]:,} can have: `gristmill maintain verify` tells where"
        )
    return rows
