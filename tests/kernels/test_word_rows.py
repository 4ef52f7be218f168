"""Rows that are fetched ahead make the same means, bit for bit, as rows that are read one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.classifiers.fasttext.model import load
from gristmill.kernels.base.columns import text_column
from gristmill.kernels.language.language import _by_subwords, _by_words, only_words
from tests.classifiers.fasttext_files import small

WORDS = st.sampled_from(
    ["a", "b", "ab", "</s>", "__label__x", "__label__", "né", "水", "\n", "\0", "unknown", "x" * 90]
)
TEXTS = st.text() | st.lists(WORDS, max_size=80).map(" ".join)


@pytest.mark.parametrize("word_ngrams", [1, 2, 3, 5])
@settings(deadline=None, max_examples=50)
@given(texts=st.lists(TEXTS, max_size=6), start=st.integers(0, 2), seed=st.integers(0, 3))
def test_means_are_those_of_the_plain_way(word_ngrams, texts, start, seed, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.bin"
    small(seed=seed, word_ngrams=word_ngrams, minn=0, maxn=0).write(path)
    model = load(path).model
    assert only_words(model)
    data, offsets = text_column(pa.array(texts, pa.string()).slice(start))
    wanted = np.arange(len(offsets) - 1) % 4 != 3
    found = []
    for average in (_by_words(model, data), _by_subwords(model, data, len(data))):
        hidden, rows = np.zeros((len(wanted), model.dim), np.float32), np.zeros(len(wanted), np.int64)
        average(offsets, wanted, hidden, rows)
        found.append((hidden.tolist(), rows.tolist()))
    assert found[0] == found[1]
