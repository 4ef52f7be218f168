"""Hashes of stretches are those of the plain reference, whatever lies around a text in its column."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis.strategies import binary, integers, lists

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.duplicates.windows import window_hashes, window_hashes_plain


@given(lists(binary(max_size=60), min_size=1, max_size=6), integers(1, 40), integers(0, 5))
def test_every_stretch_of_every_text(texts: list[bytes], width: int, skipped: int) -> None:
    column = text_column(pa.array(texts, pa.binary()).slice(min(skipped, len(texts) - 1)))
    hashes, first = window_hashes(column, width)
    texts = texts[min(skipped, len(texts) - 1) :]
    assert len(first) == len(texts) + 1
    for row, text in enumerate(texts):
        assert hashes[first[row] : first[row + 1]].tolist() == window_hashes_plain(text, width)


def test_equal_stretches_have_equal_hashes_and_others_do_not() -> None:
    text = bytes(range(256)) * 2
    hashes, _ = window_hashes(text_column(pa.array([text], pa.binary())), 32)
    assert len(hashes) == 481 and len(set(hashes.tolist())) == 256
