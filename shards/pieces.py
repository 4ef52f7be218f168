"""Where the pieces of documents are in rows, and how the pieces of cut documents are joined. Arrays in, arrays out.

A piece is the part of one document in a row: the whole document, or one cut of a long one. P pieces, N rows; those of
row i are first_piece_N1[i] up to first_piece_N1[i + 1], which begins at 0.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.shards.format import BadShards


def filled(lengths_P: Array, first_piece_N1: Array) -> Array:
    """Tokens of each row that are not padding."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths_P, dtype=np.int64)])
    return np.asarray(ends[first_piece_N1[1:]] - ends[first_piece_N1[:-1]])


def piece_starts(lengths_P: Array, first_piece_N1: Array, row_length: int) -> Array:
    """Where each piece begins in the tokens of all rows end to end."""
    row_P = np.repeat(np.arange(len(first_piece_N1) - 1, dtype=np.int64), np.diff(first_piece_N1))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths_P, dtype=np.int64)])
    return np.asarray(row_P * row_length + ends[:-1] - ends[first_piece_N1[:-1]][row_P])


def join_pieces(uids_P: Array, chunks_P: Array, lengths_P: Array) -> tuple[Array, Array]:
    """Pieces in the order of whole documents, and where each document begins among them. Documents are in the order of
    their first pieces. Copies of a document with the same cuts have equal pieces, so it does not matter which piece
    goes to which copy; copies with different cuts cannot be joined and are an error."""
    places = np.arange(len(uids_P))
    if not chunks_P.any():
        return places, places
    order = np.lexsort((places, chunks_P, uids_P))
    copy_P = np.empty_like(places)
    copy_P[order] = _within_runs(uids_P[order], chunks_P[order])
    order = np.lexsort((chunks_P, copy_P, uids_P))
    uids, copies = uids_P[order], copy_P[order]
    expected = _within_runs(uids, copies)
    wrong = np.flatnonzero(chunks_P[order] != expected)
    if wrong.size:
        raise BadShards(
            f"document {uids[wrong[0]]}: some of its pieces are missing from the shard, so it cannot be put together"
        )
    starts = np.flatnonzero(expected == 0)
    sizes = np.diff(np.append(starts, len(order)))
    later = np.flatnonzero(copies > 0)
    before = later - np.repeat(sizes, sizes)[later]  # the same piece of the copy before, if that has as many
    alike = (before >= 0) & (uids[before] == uids[later]) & (expected[before] == expected[later])
    alike &= lengths_P[order[before]] == lengths_P[order[later]]
    if not alike.all():
        raise BadShards(
            f"document {uids[later[np.argmin(alike)]]}: its copies are cut at different places, so they cannot be put "
            "together"
        )
    ranks = np.argsort(order[starts])
    sizes = sizes[ranks]
    begins = np.cumsum(sizes) - sizes
    return order[np.repeat(starts[ranks] - begins, sizes) + places], begins


def _within_runs(*keys: Array) -> Array:
    """0, 1, 2, … within each run of equal keys."""
    places = np.arange(len(keys[0]))
    fresh = np.ones(len(places), bool)
    fresh[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return places - np.maximum.accumulate(np.where(fresh, places, 0))
