"""Lines, characters, words and compression are counted by kernels as by their references, on any text."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.unicode import SCRIPTS, properties, script
from gristmill.kernels.measures import text_counts as counted
from gristmill.kernels.measures.text_counts import compressed_size, compressed_size_plain, compression_scratch
from gristmill.kernels.words.repetition import repeats, sweep_table
from gristmill.kernels.words.words import (
    LONGEST_COUNTED,
    WORD_COLUMNS,
    stop_table,
    whitespace_words,
    word_counts,
    word_counts_plain,
    word_marks,
    word_scratch,
)

TRICKY = st.text(alphabet="ab Z9.…•-*1)\n\r\t\0\u00a0\u3000é你{}#:/wjJavscript\x1c\u0301!。😀", max_size=40)
LINES = st.lists(
    st.sampled_from(["same", "same ", " same", "", " ", "other...", "• x", "12) y", "3.", "end!", "\u3000", "\x1c"]),
    max_size=12,
).map("\n".join)
TEXTS = st.lists(st.one_of(st.text(max_size=40), TRICKY, LINES), max_size=6)
ODD = [
    "",
    " ",
    "\n",
    "\n\n",
    "a",
    "😀",
    "\0",
    "same\n\nsame\n\nsame",
    "a\nb\n\n\na\nb",
    "x\n",
    "www.a http://www.b",
    "JavaScript javascripT",
    "....",
    "1.",
    "شكرا",
]


def column_of(texts):
    return text_column(pa.array(["left out", *texts]).slice(1))


@given(texts=st.lists(st.text("ab1 é天かカไ가α.", max_size=30), max_size=5))
@example(texts=ODD)
def test_texts_are_syllabic_where_more_than_half_of_their_letters_are(texts):
    found = np.ones(len(texts), np.bool_)
    counted.syllabic(*column_of(texts), properties(), found)
    assert found.tolist() == [counted.syllabic_plain(text) for text in texts]


@given(texts=TEXTS)
@example(texts=ODD)
def test_lines_and_paragraphs(texts):
    data, offsets = column_of(texts)
    count, most = len(texts), len(data) + 1
    lines, paragraphs = np.zeros((most, 2), np.uint64), np.zeros((most, 2), np.uint64)
    line_ends, paragraph_ends = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    out = np.full((count, counted.LINE_COLUMNS), -1, np.int64)
    counted.cut_lines(data, offsets, counted.line_marks(), 5, lines, line_ends, paragraphs, paragraph_ends, out)
    assert out.tolist() == [counted.line_shape_plain(text, 5) for text in texts]
    table = sweep_table(most)
    for rows, ends, plain in (
        (lines, line_ends, counted.lines_plain),
        (paragraphs, paragraph_ends, counted.paragraphs_plain),
    ):
        found = np.full((count, 3), -1, np.int64)
        repeats(rows, ends, table, found)
        assert found.tolist() == [counted.repeats_plain(plain(text)) for text in texts]


@given(texts=TEXTS)
@example(texts=ODD)
def test_characters_mentions_and_scripts(texts):
    data, offsets = column_of(texts)
    out, entropy = np.full((len(texts), counted.CHARACTER_COLUMNS), -1, np.int64), np.full(len(texts), np.nan)
    counted.character_counts(data, offsets, properties(), np.zeros(256, np.int64), out, entropy)
    plain = [counted.character_counts_plain(text) for text in texts]
    assert out.tolist() == [counts for counts, _ in plain]
    assert entropy.tolist() == pytest.approx([bits for _, bits in plain], abs=1e-9)
    found = np.full((len(texts), counted.MENTION_COLUMNS), -1, np.int64)
    counted.mentions(data, offsets, found)
    assert found.tolist() == [counted.mentions_plain(text) for text in texts]
    scripts = np.full((len(texts), len(SCRIPTS)), -1, np.int64)
    counted.script_counts(data, offsets, properties(), script(), scripts)
    assert scripts.tolist() == [counted.script_counts_plain(text) for text in texts]


@given(texts=TEXTS, which=st.lists(st.integers(0, 1), min_size=6, max_size=6))
@example(texts=["x " + "y" * 2000, "a a be", "the the of", ".", ""], which=[0, 1, 0, 1, 0, 1])
def test_words(texts, which):
    lists = [["the", "of", "a"], ["be", "é"]]
    data, offsets = column_of(texts)
    rows, ends = word_scratch(len(data)), np.zeros(len(texts) + 1, np.int64)
    whitespace_words(data, offsets, word_marks(), rows, ends)
    table, out = stop_table(lists), np.full((len(texts), WORD_COLUMNS), -1, np.int64)
    word_counts(
        rows,
        ends,
        np.array(which[: len(texts)], np.int64),
        table,
        np.zeros(LONGEST_COUNTED + 1, np.int64),
        np.zeros(len(table), np.int64),
        out,
    )
    assert out.tolist() == [
        word_counts_plain(text.split(), lists[number]) for text, number in zip(texts, which, strict=False)
    ]


@given(
    texts=st.lists(
        st.one_of(TRICKY, st.builds(lambda a, n: a * n, st.text(max_size=8), st.integers(0, 400))), max_size=4
    )
)
@example(texts=["", "abc", "a" * 300, "abcd" * 5000])
def test_compression(texts):
    data, offsets = column_of(texts)
    out = np.full(len(texts), -1, np.int64)
    compressed_size(data, offsets, compression_scratch(), out)
    assert out.tolist() == [compressed_size_plain(bytes(data[a:b])) for a, b in pairwise(offsets)]
