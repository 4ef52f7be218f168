"""Documents reassembled from their pieces in the rows of a shard (see `gristmill.shards.pieces`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.shards.pieces import join_pieces, piece_starts
from gristmill.shards.rows import Rows


class Document(NamedTuple):
    """A whole document. It appears as often as in the shards."""

    uid: int
    source: int
    tokens: Array


def documents_of(batches: Sequence[Rows]) -> Iterator[Document]:
    """The documents of one shard, in the order of their first pieces. Tokens of a document that was not cut are a
    view."""
    if not batches:
        return
    columns = ("doc_uids", "chunk", "seq_lens", "source")
    uids, chunks, lengths, sources = (np.concatenate([getattr(batch, name) for batch in batches]) for name in columns)
    order, begins = join_pieces(uids, chunks, lengths)
    pieces = [piece for batch in batches for piece in _pieces(batch)]
    for begin, end in pairwise([*begins.tolist(), len(order)]):
        first = order[begin]
        tokens = pieces[first] if end - begin == 1 else np.concatenate([pieces[i] for i in order[begin:end]])
        yield Document(int(uids[first]), int(sources[first]), tokens)


def _pieces(rows: Rows) -> Iterator[Array]:
    flat = rows.input_ids.reshape(-1)
    starts = piece_starts(rows.seq_lens, rows.first_piece, rows.input_ids.shape[1])
    for start, end in zip(starts.tolist(), (starts + rows.seq_lens).tolist(), strict=True):
        yield flat[start:end]
