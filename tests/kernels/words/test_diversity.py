"""MTLD, diversity in windows and rare words: the kernels equal their references, and values are those of the
definitions."""

import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.measures.diversity import (
    DIVERSITY,
    MTLD,
    RARE,
    WINDOW,
    Scratch,
    common_table,
    diversity_plain,
    word_hash_plain,
    words_of,
    words_plain,
)

pieces = st.one_of(
    st.sampled_from(
        [
            "a",
            "the",
            "The",
            "don't",
            "don’t",
            "o'",
            "appli\xadcants",
            "\xad",
            "'",
            "’",
            "''",
            " ",
            " ",
            "\n",
            "7",
            "x7",
            "日本",
            "é",
            "É",
            "İ",
            "สวัสดี",
            ".",
        ]
    ),
    st.text(max_size=3),
)
texts = st.lists(st.lists(pieces, max_size=40).map("".join), max_size=5)
COMMON = ["the", "a", "don't", "é"]


def measured(column: TextColumn, common: list[str] = COMMON):
    table = common_table(np.array([word_hash_plain(words_plain(word)[0]) for word in common], np.uint64))
    return Scratch().diversity_of(column, words_of(column), table)


@given(texts)
def test_words_equal_their_plain_twin(texts):
    column = text_column(pa.array(texts, pa.string()))
    words = words_of(column)
    for i, text in enumerate(texts):
        mine = slice(words.first[i], words.first[i + 1])
        plain = words_plain(text)
        assert words.hashes[mine].tolist() == [word_hash_plain(word) for word in plain]
        ends = [0, *(words.ends[mine] - column.offsets[i]).tolist()]
        begins = (words.starts[mine] - column.offsets[i]).tolist()
        assert all(
            begin < end <= (begins[k + 1] if k + 1 < len(begins) else end)
            for k, (begin, end) in enumerate(zip(begins, ends[1:], strict=True))
        )


@given(texts)
def test_measures_equal_their_plain_twins(texts):
    common = {words_plain(word)[0] for word in COMMON}
    assert measured(text_column(pa.array(texts, pa.string()))).tolist() == [
        diversity_plain(words_plain(text), common) for text in texts
    ]


@given(st.lists(st.integers(0, 30), max_size=700))
def test_long_texts_too(numbers):
    text = " ".join(f"w{number}" for number in numbers)
    assert measured(text_column(pa.array([text]))).tolist() == [diversity_plain(words_plain(text), set())]


def test_words_are_joined_at_apostrophes_and_in_lower_case():
    assert len(words_plain("Don't don’t DON'T")) == 3 and len(set(words_plain("Don't don’t DON'T"))) == 1
    assert len(words_plain("appli\xadcants")) == 1
    assert len(words_plain("rock 'n' roll, the cats' O''Neill")) == 7
    assert measured(text_column(pa.array(["Don't don’t"])))[0, DIVERSITY] == 0.5


def test_mtld_by_hand():
    def mtld(text: str) -> float:
        return measured(text_column(pa.array([text])))[0, MTLD]

    assert mtld("") == 0
    assert mtld("a") == 1 and mtld("a b c d") == 4  # no factor is done: as many as there are
    assert mtld("a a " * 50) == 2  # each second word ends a factor
    # forward: a b c a is 3/4, then b makes 3/5 and a factor; 20 times. Backward: c b a c is 3/4, then b: the same
    assert mtld("a b c a b " * 20) == 5
    level = " ".join(f"w{i % 18}" for i in range(25)) + " "  # 18 of 25 is 0.72 to the bit, and ends a factor both ways
    assert mtld(level * 2) == 25
    assert (
        mtld("a b c d a b c") == 7
    )  # d a b c after it: 4/6 at the sixth word is a factor, and one word is left that is new


def test_diversity_does_not_fall_with_length():
    window = [f"w{i}" for i in range(WINDOW // 2)] * 2
    for times in (1, 3, 50):
        assert measured(text_column(pa.array([" ".join(window * times)])))[0, DIVERSITY] == 0.5
    assert (
        measured(text_column(pa.array([" ".join(window) + " new" * 99])))[0, DIVERSITY] == 0.5
    )  # a window that is not full is left out


def test_rare_words_by_hand():
    assert measured(text_column(pa.array(["The zebra don't 1984 7th run"])), ["the", "don't", "run"])[0, RARE] == 1 / 4
    assert measured(text_column(pa.array(["1984 7"])))[0, RARE] == 0
    big = [f"word{i}" for i in range(5000)]
    assert measured(text_column(pa.array([" ".join(big), " ".join(f"other{i}" for i in range(5000))])), big)[
        :, RARE
    ].tolist() == [0, 1]


@pytest.mark.parametrize("start", [0, 1, 2])
def test_neighbours_and_slices_do_not_matter(start):
    array = pa.array(["'tis a", "b c b c b", None, "'", "a'"])
    alone = [measured(text_column(array.slice(i, 1)))[0].tolist() for i in range(start, 5)]
    assert measured(text_column(array.slice(start))).tolist() == alone


def test_time_and_memory_are_linear_in_anything():
    for text in (
        "a'" * 2_000_000,
        "word " * 1_000_000,
        " ".join(f"{i:x}" for i in range(700_000)),
        "日" * 1_000_000,
        "x" * 10_000_000,
    ):
        measured(text_column(pa.array([text[:20]])))
        began = time.process_time()
        measured(text_column(pa.array([text])))
        assert time.process_time() - began < 5
