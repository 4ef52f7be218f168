"""Pieces of documents go together again as they were cut, whatever the order of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gristmill.shards.format import BadShards
from gristmill.shards.pieces import filled, join_pieces, piece_starts


def joined_plain(uids: list[int], chunks: list[int]) -> list[list[int]]:
    """Documents as lists of pieces: each piece goes to the first copy that lacks it."""
    documents: dict[int, list[dict[int, int]]] = {}
    for place, (uid, chunk) in enumerate(zip(uids, chunks, strict=True)):
        copies = documents.setdefault(uid, [])
        lacking = next((copy for copy in copies if chunk not in copy), None)
        if lacking is None:
            copies.append({chunk: place})
        else:
            lacking[chunk] = place
    whole = [[copy[chunk] for chunk in sorted(copy)] for copies in documents.values() for copy in copies]
    return sorted(whole, key=lambda pieces: pieces[0])


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=8), st.randoms(use_true_random=False))
def test_pieces_in_any_order(documents: list[tuple[int, int]], random: object) -> None:
    pieces = [
        (uid, chunk) for uid, (cuts, copies) in enumerate(documents) for _ in range(copies) for chunk in range(cuts)
    ]
    random.shuffle(pieces)  # type: ignore[attr-defined]
    uids, chunks = [uid for uid, _ in pieces], [chunk for _, chunk in pieces]
    lengths = [uid * 10 + chunk + 1 for uid, chunk in pieces]
    order, begins = join_pieces(np.array(uids, np.uint64), np.array(chunks, np.int32), np.array(lengths, np.int32))
    found = [part.tolist() for part in np.split(order, begins[1:])] if len(begins) else []
    assert found == joined_plain(uids, chunks)
    assert len(found) == sum(copies for _, copies in documents)


@pytest.mark.parametrize(
    ("uids", "chunks", "lengths", "says"),
    [
        ([1, 1], [0, 2], [4, 4], "document 1: some of its pieces are missing"),
        ([5, 7], [0, 1], [4, 4], "document 7: some of its pieces are missing"),
        ([3, 3, 3], [0, 1, 0], [4, 4, 8], "document 3: its copies are cut at different places"),
        ([3, 3, 3], [0, 1, 0], [4, 4, 4], "document 3: its copies are cut at different places"),
        ([3, 3, 3, 3], [0, 1, 0, 1], [4, 4, 5, 3], "document 3: its copies are cut at different places"),
    ],
)
def test_what_cannot_be_put_together_says_so(uids: list[int], chunks: list[int], lengths: list[int], says: str) -> None:
    with pytest.raises(BadShards, match=says):
        join_pieces(np.array(uids, np.uint64), np.array(chunks, np.int32), np.array(lengths, np.int32))


@given(st.lists(st.lists(st.integers(1, 5), max_size=4), max_size=6))
def test_where_pieces_begin(rows: list[list[int]]) -> None:
    flat = np.array([length for row in rows for length in row], np.int32)
    first = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
    starts = [i * 20 + sum(row[:p]) for i, row in enumerate(rows) for p in range(len(row))]
    assert piece_starts(flat, first, 20).tolist() == starts
    assert filled(flat, first).tolist() == [sum(row) for row in rows]
