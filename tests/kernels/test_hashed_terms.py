"""Hashed terms are those of the reference, number by number and bit by bit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.language.hashed_terms import MOST_REPEATS, term_column, terms_plain, weighed, weighed_plain

BITS = 8
IDF = (1 + np.arange(1 << BITS) / 100).astype(np.float32)
WEIGHTS = np.sin(np.arange(3 << BITS)).astype(np.float32).reshape(-1, 3)
BIAS = np.array([0.5, -1.0, 0.0])
TEXTS = st.text() | st.lists(st.sampled_from(["a", "B", "wörd", "水は", "7", "\u0301", "!", "\n", "\0"])).map(" ".join)


@given(st.lists(TEXTS, max_size=6), st.integers(0, 2), st.integers(1, 2))
def test_terms(texts, start, widest):
    terms = term_column(text_column(pa.array(texts, pa.string()).slice(start)), BITS, widest, IDF)
    plain = [terms_plain(text, BITS, widest, IDF) for text in texts[start:]]
    found = [
        list(zip(terms.numbers[a:b].tolist(), terms.values[a:b].tolist(), strict=True))
        for a, b in zip(terms.first[:-1], terms.first[1:], strict=True)
    ]
    assert found == plain
    assert weighed(terms, WEIGHTS, BIAS).tolist() == [weighed_plain(one, WEIGHTS, BIAS) for one in plain]


def test_a_word_repeated_a_million_times_weighs_as_one_repeated_a_thousand():
    many = term_column(
        text_column(pa.array(["spam " * 1_000_000 + "egg", "spam " * MOST_REPEATS + "egg"])),
        20,
        1,
        np.ones(1 << 20, np.float32),
    )
    assert many.first.tolist() == [0, 2, 4]
    assert many.values[:2].tolist() == many.values[2:].tolist()
    assert np.isclose((many.values[:2].astype(float) ** 2).sum(), 1)
