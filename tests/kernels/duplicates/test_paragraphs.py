"""Units and their hashes are those of the references, whatever the text and however the column is sliced."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.base.columns import text_array, text_column
from gristmill.kernels.duplicates import paragraphs as kernels

PIECE = st.sampled_from(
    [
        "\n",
        "\n\n",
        "\n \n",
        "\r\n",
        " ",
        "\u2003",
        "mill",
        "Mill",
        "stone 42",
        "wheel, ",
        "\u6c34\u8eca",
        "e\u0301",
        "\0",
        "\u0301",
    ]
)
TEXT = st.one_of(st.text(max_size=40), st.lists(PIECE, max_size=25).map("".join))
TEXT_TYPE = pa.string()
TEXTS = st.lists(st.one_of(st.none(), TEXT), max_size=6)


def sliced(texts: list[str | None], kind: pa.DataType = TEXT_TYPE) -> pa.Array:
    return pa.array(["before\n\nit", *texts, "after"], kind).slice(1, len(texts))


def spans(units: kernels.Units, column: kernels.TextColumn, document: int) -> list[tuple[int, int]]:
    low, high = units.first[document], units.first[document + 1]
    begin = column.offsets[document]
    return [(int(a - begin), int(b - begin)) for a, b in zip(units.starts[low:high], units.ends[low:high], strict=True)]


@pytest.mark.parametrize(
    ("cut", "plain"),
    [
        (kernels.lines, kernels.lines_plain),
        (kernels.paragraphs, kernels.paragraphs_plain),
    ],
)
@given(texts=TEXTS)
def test_units_are_those_of_the_plain_twin(cut, plain, texts):
    column = text_column(sliced(texts))
    units = cut(column)
    assert [spans(units, column, i) for i in range(len(texts))] == [plain(text or "") for text in texts]


@given(TEXTS)
def test_hashes_of_units_are_those_of_the_plain_twin(texts):
    column = text_column(sliced(texts, pa.large_string()))
    found = kernels.hashes_of_units(column, kernels.lines(column))
    wanted = [kernels.hash_of_unit_plain(line) for text in texts for line in (text or "").split("\n") if line]
    assert list(zip(found.high.tolist(), found.low.tolist(), found.words.tolist(), strict=True)) == wanted


@given(TEXTS, st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**70), st.booleans())
def test_grams_of_units_are_those_of_the_plain_twin(texts, width, least, seed, whole):
    column = text_column(sliced(texts))
    grams, first, words = kernels.grams_of_units(
        column, (kernels.whole_texts if whole else kernels.lines)(column), width, least, seed
    )
    units = (
        [text or "" for text in texts]
        if whole
        else [line for text in texts for line in (text or "").split("\n") if line]
    )
    found = [grams[a:b].tolist() for a, b in pairwise(first.tolist())]
    assert found == [kernels.grams_of_unit_plain(unit, width, least, seed % 2**64) for unit in units]
    assert words.tolist() == [kernels.hash_of_unit_plain(unit)[2] for unit in units]


@given(TEXTS, st.randoms(use_true_random=False), st.sampled_from(["lines", "paragraphs"]))
def test_text_without_units_is_that_of_the_plain_twin(texts, chance, unit):
    array = sliced(texts)
    column = text_column(array)
    units = getattr(kernels, unit)(column)
    goes = np.array([chance.random() < 0.4 for _ in units.starts], np.bool_)
    made = text_array(*kernels.without_units(column, units, goes), array).to_pylist()
    plain = getattr(kernels, f"{unit}_plain")
    wanted = [
        None
        if text is None
        else kernels.without_units_plain(text, plain(text), goes[units.first[i] : units.first[i + 1]].tolist())
        for i, text in enumerate(texts)
    ]
    assert made == wanted


def test_what_a_unit_is():
    text = "One line,\nand its second.\n \t\nAnother.\n\n\n"
    assert [text[a:b] for a, b in kernels.lines_plain(text)] == ["One line,", "and its second.", " \t", "Another."]
    assert [text[a:b] for a, b in kernels.paragraphs_plain(text)] == ["One line,\nand its second.", "Another."]


def test_words_count_and_numbers_too_but_not_how_they_are_set():
    same = {
        kernels.hash_of_unit_plain(unit)[:2] for unit in ("The mill, at 9.", "the  MILL at 9", " The mill \u2013 at 9!")
    }
    assert len(same) == 1 and kernels.hash_of_unit_plain("The mill, at 8.")[:2] not in same


@pytest.mark.parametrize(
    "text", ["\n" * 5_000_000, "mill " * 2_000_000, "a\n" * 2_000_000, "\n\nx" * 1_000_000, " \n" * 2_000_000]
)
def test_long_texts_take_time_in_proportion(text):
    column = text_column(pa.array([text, "mill stone"]))
    for units in (
        kernels.lines(column),
        kernels.paragraphs(column),
        kernels.whole_texts(column),
    ):
        assert units.first[-1] == len(units.starts) and kernels.hashes_of_units(column, units).words.sum() >= 2
        grams, first, _ = kernels.grams_of_units(column, units, 13, 1, 0)
        assert len(grams) == first[-1]
        _, offsets = kernels.without_units(column, units, np.ones(len(units.starts), bool))
        assert offsets[-1] == (0 if units.first[1] else len(text))
