"""Repeated n-grams are counted as the reference counts them, and in linear time."""

import time

import numpy as np
import pyarrow as pa
from hypothesis import given, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.words.repetition import repeated_characters, repeated_characters_plain, repetition_scratch
from gristmill.kernels.words.words import whitespace_words, word_marks, word_scratch

WORDS = st.lists(st.sampled_from(["a", "b", "cc", "ddd", "é"]), max_size=60)
REPEATED = st.builds(
    lambda unit, times, rest: unit * times + rest,
    st.lists(st.sampled_from(["a", "b", "cc"]), max_size=7),
    st.integers(0, 9),
    WORDS,
)


def measured(texts):
    column = text_column(pa.array(texts, pa.string()))
    rows, ends = word_scratch(len(column.data)), np.zeros(len(texts) + 1, np.int64)
    whitespace_words(column.data, column.offsets, word_marks(), rows, ends)
    out = np.full((len(texts), 9), -1, np.int64)
    repeated_characters(rows, ends, *repetition_scratch(int(np.diff(ends).max(initial=0))), out)
    return out.tolist()


@given(st.lists(st.one_of(WORDS, REPEATED), max_size=6))
def test_kernel_equals_plain(documents):
    assert measured([" ".join(words) for words in documents]) == [
        repeated_characters_plain(words) for words in documents
    ]


def test_a_gram_seen_once_is_no_repetition():
    assert measured(["four words, all new", "", "one"]) == [[0] * 9] * 3


def test_one_word_repeated_two_million_times_is_linear():
    measured(["w " * 1000])
    start = time.perf_counter()
    (found,) = measured(["w " * 2_000_000])
    assert time.perf_counter() - start < 10
    assert found[0] == 3 * 1_999_999 and found[3] > 1_900_000
