"""Tokens stand where the packer says, and padding everywhere else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.rows.lay_rows import lay_rows, lay_rows_plain
from gristmill.kernels.rows.pack import Packed, best_fit, concatenate, one_each, windows

DOCUMENTS = st.lists(st.lists(st.integers(0, 2**16 - 1), max_size=30), max_size=20)


def flat(documents: list[list[int]], dtype: type) -> tuple[np.ndarray, np.ndarray]:
    return np.array([token for document in documents for token in document], dtype), np.cumsum(
        [0, *map(len, documents)]
    )


@given(
    DOCUMENTS,
    st.integers(1, 12),
    st.sampled_from(["fit", "concatenate", "alone"]),
    st.sampled_from([np.uint16, np.uint32]),
    st.integers(0, 9),
)
def test_rows_are_what_the_plain_function_lays(documents, row_length, packer, dtype, padding):
    tokens, offsets = flat(documents, dtype)
    lengths = np.diff(offsets)
    packed = {
        "fit": lambda: best_fit(lengths, row_length, windows(len(lengths), 7)),
        "concatenate": lambda: concatenate(lengths, row_length),
        "alone": lambda: one_each(lengths, row_length),
    }[packer]()
    pieces = list(zip(*(column.tolist() for column in packed[:-1]), strict=True))
    rows = lay_rows(tokens, offsets, packed, row_length, padding)
    assert rows.dtype == dtype and rows.shape == (packed.rows, row_length)
    assert rows.tolist() == lay_rows_plain(documents, pieces, row_length, padding)


def test_tokens_that_do_not_begin_at_the_first():
    """The documents of one window are a part of a larger array."""
    tokens, offsets = np.arange(10, dtype=np.uint32), np.array([4, 7, 10])
    assert lay_rows(tokens, offsets, concatenate(np.diff(offsets), 4), 4, 99).tolist() == [
        [4, 5, 6, 7],
        [8, 9, 99, 99],
    ]


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"document": [2]}, "a piece of document 2: there are 2"),
        ({"document": [-1]}, "a piece of document"),
        ({"start": [1]}, "a piece reaches beyond its document"),
        ({"length": [0]}, "a piece reaches beyond its document"),
        ({"offset": [2]}, "a piece stands outside of the 1 rows of 4"),
        ({"row": [1]}, "a piece stands outside of the 1 rows of 4"),
        ({"offset": [-1]}, "a piece stands outside of the 1 rows of 4"),
    ],
)
def test_a_piece_that_is_not_there_is_refused(change, wrong):
    given_piece = {"row": [0], "offset": [0], "document": [0], "start": [0], "length": [3], **change}
    with pytest.raises(ValueError, match=wrong):
        lay_rows(
            np.arange(5, dtype=np.uint16),
            np.array([0, 3, 5]),
            Packed(*(np.array(v) for v in given_piece.values()), 1),
            4,
            0,
        )


def test_pieces_out_of_order_are_refused():
    packed = Packed(np.array([0, 0]), np.array([2, 0]), np.array([0, 1]), np.array([0, 0]), np.array([2, 2]), 1)
    with pytest.raises(ValueError, match="in order of row and offset"):
        lay_rows(np.arange(4, dtype=np.uint16), np.array([0, 2, 4]), packed, 4, 0)
