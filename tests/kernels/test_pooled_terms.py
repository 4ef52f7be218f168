"""Rows of terms are those of the reference, and so are poolings and what the hidden layer makes of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.language.pooled_terms import (
    CODES,
    EDGE,
    Embeddings,
    beginnings,
    feature_count,
    perceptron,
    pooled,
    pooled_plain,
    term_rows,
    term_rows_plain,
)

BITS, WIDTH = 8, 8
DRAWN = np.random.default_rng(3)
GATES = np.exp(np.linspace(-3, 3, CODES)).astype(np.float32)
INT8 = Embeddings(DRAWN.integers(-128, 128, (1 << BITS, WIDTH)).astype(np.int8), GATES)
FLOAT32 = Embeddings(np.abs(DRAWN.normal(size=(1 << BITS, WIDTH))).astype(np.float32), GATES)
SIGNS = ["a", "B", "wörd", "水は", "7", "\u0301", "!", "\n", "\0", "  ", " - ", "........", ".........", "…\n\n\n\n"]
TEXTS = st.text() | st.lists(st.sampled_from(SIGNS), max_size=60).map(" ".join)
LONG = "the mill grinds grain, and the stone turns.\n" * (3 * EDGE)


@given(st.lists(TEXTS, max_size=6), st.integers(0, 2))
def test_rows_of_terms(texts, start):
    terms = term_rows(text_column(pa.array(texts, pa.string()).slice(start)), BITS)
    found = [terms.rows[a:b].tolist() for a, b in zip(terms.first[:-1], terms.first[1:], strict=True)]
    assert found == [term_rows_plain(text, BITS) for text in texts[start:]]


def test_separators_are_terms_but_for_a_single_space():
    assert [len(term_rows_plain(text, 60)) for text in ("a b", "a, b", "a  b", "a", " a ", ".a.", "")] == [
        3, 4, 4, 1, 1, 3, 0,
    ]  # fmt: skip
    assert term_rows_plain("." * 9, 60) == term_rows_plain("." * 30, 60) != term_rows_plain("." * 8, 60)


@pytest.mark.parametrize("embeddings", [INT8, FLOAT32], ids=["int8", "float32"])
@settings(deadline=None)
@given(st.lists(TEXTS | st.just(LONG), max_size=4))
def test_poolings(embeddings, texts):
    terms = term_rows(text_column(pa.array(texts, pa.string())), BITS)
    found = pooled(terms, embeddings)
    assert found.shape == (len(texts), feature_count(WIDTH)) and found.dtype == np.float32
    for row, text in zip(found, texts, strict=True):
        expected = pooled_plain(term_rows_plain(text, BITS), embeddings)
        assert row == pytest.approx(expected, rel=1e-5, abs=1e-3)
        alone = pooled(term_rows(text_column(pa.array([text], pa.string())), BITS), embeddings)
        assert row.tolist() == alone[0].tolist()


def test_all_gates_shut_leave_the_gated_mean_at_zero():
    shut = Embeddings(np.where(np.arange(WIDTH) == 0, 0, FLOAT32.table).astype(np.float32), GATES)
    row = pooled(term_rows(text_column(pa.array(["a b c"])), BITS), shut)[0]
    assert row[: WIDTH - 1].tolist() == [0.0] * (WIDTH - 1) and (row[WIDTH - 1 :] > 0).all()


@given(st.lists(st.text(), max_size=5), st.integers(1, 9), st.integers(0, 2))
def test_beginnings(texts, most, start):
    column = beginnings(text_column(pa.array(texts, pa.string()).slice(start)), most)
    found = [bytes(column.data[a:b]).decode() for a, b in zip(column.offsets[:-1], column.offsets[1:], strict=True)]
    assert found == [text.encode()[:most].decode(errors="ignore") for text in texts[start:]]


def test_the_hidden_layer():
    features, weights = DRAWN.normal(size=(7, 5)).astype(np.float32), DRAWN.normal(size=(5, 6)).astype(np.float32)
    bias, last, last_bias = DRAWN.normal(size=6).astype(np.float32), DRAWN.normal(size=(6, 3)), DRAWN.normal(size=3)
    expected = np.maximum(features.astype(np.float64) @ weights + bias, 0) @ last + last_bias
    assert perceptron(features, weights, bias, last, last_bias) == pytest.approx(expected, abs=1e-5)
    assert (expected != last_bias).any()
