"""Words are cut the same by kernel and by reference implementation, on any text."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, strategies as st

from gristmill.kernels.base.bare import kernel
from gristmill.kernels.base.columns import text_column
from gristmill.kernels.words.english import english_words
from gristmill.kernels.words.english_rules import english_tables, english_words_plain
from gristmill.kernels.words.words import (
    HOLDS_LETTER,
    HOLDS_LETTER_OR_NUMBER,
    boundary_marks,
    boundary_words,
    boundary_words_plain,
    put_word,
    whitespace_words,
    whitespace_words_plain,
    word_hash_plain,
    word_marks,
    word_scratch,
)

# Letters, marks and signs at which the rules turn; text made of these alone meets every branch.
TRICKY = st.text(
    alphabet="ab sSDUCA'’.,:;!?()-–—…$€+*^%²°km3 08\t\n\0_/@#<>=~|&\"“é你ひカｶﾞไทยกำ\u200d\u0301\u00adא\u05f4👍🏽½〥한\u2028\x1c",
    max_size=30,
)
PIECES = st.lists(
    st.sampled_from(
        [
            "don't",
            "Mr.",
            "U.S.",
            "5km",
            "US$",
            "C++",
            ":)",
            "a.b@c.org",
            "http://x.co/a-b",
            "well-known",
            "'s",
            "...",
            "—",
            "10am",
            "(",
            ")",
            " ",
            "e.g.",
        ]
    ),
    max_size=8,
).map("".join)
ANY = st.lists(st.one_of(st.text(max_size=40), TRICKY, PIECES), max_size=5)


def words_of(texts, cut, tables):
    column = text_column(pa.array(["left out", *texts, "left out too"]).slice(1, len(texts)))
    rows, ends = word_scratch(len(column.data)), np.zeros(len(texts) + 1, np.int64)
    count = cut(column.data, column.offsets, *tables, rows, ends)
    assert count == ends[-1]
    return [[(int(h), int(meta)) for h, meta in rows[a:b]] for a, b in pairwise(ends)]


def as_rows(words):
    kinds = {True: HOLDS_LETTER, False: 0}
    return [
        (
            word_hash_plain(word.encode()),
            len(word) | kinds[holds(word, "L")] | (HOLDS_LETTER_OR_NUMBER if holds(word, "LN") else 0),
        )
        for word in words
    ]


def holds(word, categories):
    import regex

    return any(regex.search(rf"\p{{{category}}}", word) for category in categories)


CUTS = {
    "whitespace": (whitespace_words, whitespace_words_plain, lambda: (word_marks(),)),
    "uax29": (boundary_words, boundary_words_plain, lambda: (boundary_marks(),)),
    "english": (english_words, english_words_plain, english_tables),
}


@pytest.mark.parametrize("units", CUTS)
@given(texts=ANY)
@example(
    texts=[
        "x.",
        "..",
        "a..b",
        "1-2",
        "US$5",
        "5US$",
        "-a-b-",
        "a--b",
        "((a.b.com))",
        "(Mr.",
        "(e.g.)",
        "Mr.)",
        "x(10am)",
        ':)"',
        "('cause,",
        "don't.",
        "Mr.,",
        "...a...",
        "a…",
        "°F.",
        "5 km.",
        "\u200da",
        "_a_",
        "ﾞ",
        "ﾞa",
    ]
)
def test_kernel_equals_plain(units, texts):
    cut, plain, tables = CUTS[units]
    assert words_of(texts, cut, tables()) == [as_rows(plain(text)) for text in texts]


@given(st.binary(max_size=70), st.integers(0, 40))
def test_a_hash_is_that_of_its_plain_twin_whatever_lies_behind(word, behind):
    data = np.frombuffer(b"a" + word + b"x" * behind, np.uint8)
    rows = word_scratch(1)
    assert put(data, 1, 1 + len(word), word_marks(), rows) == 1
    assert int(rows[0, 0]) == word_hash_plain(word)


@kernel
def put(data, start, end, marks, rows):
    return put_word(data, start, end, marks, rows, 0)


def test_default_words():
    for text, expected in {
        "The quick (“brown”) fox can’t jump 32.3 feet, right?": [
            "The",
            "quick",
            "brown",
            "fox",
            "can’t",
            "jump",
            "32.3",
            "feet",
            "right",
        ],
        "日本語": ["日", "本", "語"],
        "コンピューターサイエンス": ["コンピューターサ", "イエンス"],
        "ภาษาไทย": ["ภาษ", "าไท", "ย"],
        "😀 👍🏽 !!": [],
        "foo_bar ש״ס e.g. a1": ["foo_bar", "ש״ס", "e.g", "a1"],
    }.items():
        assert boundary_words_plain(text) == expected


def test_english_words():
    for text, expected in {
        "Mr. O'Neill doesn't like well-known cats.": [
            "Mr.",
            "O'Neill",
            "does",
            "n't",
            "like",
            "well",
            "-",
            "known",
            "cats",
            ".",
        ],
        '("Hello"), he said...': ["(", '"', "Hello", '"', ")", ",", "he", "said", "..."],
        "US$5 and 10km at www.a-b.com/x": ["US$", "5", "and", "10", "km", "at", "www.a-b.com/x"],
        "cannot it's its": ["can", "not", "it", "'s", "its"],
    }.items():
        assert english_words_plain(text) == expected
