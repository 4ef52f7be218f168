"""Runs of benchmark texts in documents: kernels and references say the same of anything, whatever lies around the
column."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.duplicates.cuts import cut, widened
from gristmill.kernels.duplicates.ngrams import NgramIndex, hits_of, index_of, overlaps_of, scratch_for, spans_of
from gristmill.kernels.words.token_rules import tokens_plain
from gristmill.kernels.words.tokens import token_column
from tests.reference.ngrams_plain import Overlap, cut_plain, overlap_plain, sought_plain, spans_plain, widened_plain

# few words, so that runs repeat and overlap; separators of one and of several bytes, letters without spaces, marks
WORDS = st.sampled_from(["a", "B", "b", "cc", "Éa", "我", "你", "1", "x\u0301", "\u0e01\u0e34", "longer_than", "אב"])
GAPS = st.sampled_from([" ", " ", "  ", "\n\n", ", ", "—", "", "😀 ", "\t"])
TEXTS = st.lists(st.tuples(WORDS, GAPS), max_size=24).map(lambda parts: "".join(word + gap for word, gap in parts))
ANY = st.one_of(TEXTS, st.text(max_size=20))


def made_index(
    texts: list[str], width: int, shortest: int, most_texts: int, ignored: list[str] | tuple[()] = ()
) -> NgramIndex:
    words = [tuple(token for *_, token in tokens_plain(text)) for text in texts]
    repeated = np.array([words[i] in words[:i] for i in range(len(words))], np.bool_)
    tokens = [token_column(text_column(pa.array(some, pa.string()))) for some in (texts, list(ignored))]
    return index_of(tokens[0], repeated, width, shortest, most_texts, tokens[1])


def overlaps(documents: pa.Array, index: NgramIndex) -> list[Overlap]:
    column = text_column(documents)
    tokens = token_column(column)
    found = overlaps_of(tokens, column.offsets, hits_of(tokens, index), index, scratch_for(index), 0)
    return [Overlap(*row) for row in zip(*(values.tolist() for values in found), strict=True)]


def cut_texts(
    documents: pa.Array, index: NgramIndex, at_least: float, margin: int, shortest_piece: int
) -> list[tuple[str, int]]:
    column = text_column(documents)
    tokens = token_column(column)
    spans = widened(
        column, tokens, spans_of(tokens, hits_of(tokens, index), index, at_least, scratch_for(index), 0), margin
    )
    data, offsets, pieces = cut(column, spans, shortest_piece)
    return [(bytes(data[a:b]).decode(), n) for a, b, n in zip(offsets[:-1], offsets[1:], pieces.tolist(), strict=True)]


SETTINGS = {
    "texts": st.lists(ANY, max_size=5),
    "documents": st.lists(ANY, max_size=4),
    "width": st.integers(1, 6),
    "shortest": st.integers(1, 6),
    "most_texts": st.sampled_from([1, 2, 50]),
    "ignored": st.lists(TEXTS, max_size=1),
}


@given(**SETTINGS)
@settings(max_examples=300)
def test_overlaps(texts, documents, width, shortest, most_texts, ignored):
    documents = documents + texts[:2] + [" ".join(texts)]
    sought = sought_plain(texts, width, shortest, most_texts, ignored)
    wanted = [overlap_plain(document, sought) for document in documents]
    index = made_index(texts, width, shortest, most_texts, ignored)
    assert index.text_runs.tolist() == [len(grams) for grams in sought]
    assert overlaps(pa.array(documents), index) == wanted
    around = pa.array(["a b cc", None, *documents, "a"], pa.large_string()).slice(1, len(documents) + 1)
    assert overlaps(around, index) == [Overlap(), *wanted]


@given(
    **SETTINGS, at_least=st.sampled_from([0.0, 0.5, 1.0]), margin=st.integers(0, 9), shortest_piece=st.integers(0, 6)
)
@settings(max_examples=300)
def test_cuts(texts, documents, width, shortest, most_texts, ignored, at_least, margin, shortest_piece):
    documents = documents + texts[:2] + [" ".join(texts)]
    sought = sought_plain(texts, width, shortest, most_texts, ignored)
    wanted = [
        cut_plain(document, widened_plain(document, spans_plain(document, sought, at_least), margin), shortest_piece)
        for document in documents
    ]
    index = made_index(texts, width, shortest, most_texts, ignored)
    assert cut_texts(pa.array(documents), index, at_least, margin, shortest_piece) == wanted
    around = pa.array(["a b cc", *documents, "a"], pa.large_string()).slice(1, len(documents))
    assert cut_texts(around, index, at_least, margin, shortest_piece) == wanted


def test_a_key_that_meets_by_chance_is_no_match():
    index = made_index(["one two three four five"], 3, 3, 50)
    document = pa.array(["say one two three four five six"])
    assert overlaps(document, index)[0].runs == 3
    other = index.tokens.copy()
    other[1] ^= np.uint64(1)  # as if the runs with `two` in them were of another word with the same key
    assert overlaps(document, index._replace(tokens=other))[0].runs == 1


def test_nothing_is_sought_or_read():
    empty = made_index([], 13, 8, 50)
    assert overlaps(pa.array(["one two three four five six seven eight"]), empty) == [Overlap()]
    assert overlaps(pa.array([], pa.string()), made_index(["one two"], 2, 2, 50)) == []
    odd = pa.array(["", " \n ", None, "a", "\0" * 50, "😀" * 50, "\u0301" * 50, "שלום עולם " * 3])
    assert overlaps(odd, made_index(["b c"], 2, 2, 50)) == [Overlap()] * 8


@pytest.mark.parametrize("word", ["a ", "我"])
def test_one_word_repeated_is_done_in_time_and_found_once(word):
    texts = [word * length for length in range(8, 14)]  # a run of each width, at every place
    document = word * (2_000_000 // len(word.encode()))
    column = text_column(pa.array([document]))
    tokens, index = token_column(column), made_index(texts, 13, 8, 50)
    hits_of(tokens, index)
    start = time.process_time()
    hits = hits_of(tokens, index)
    found = overlaps_of(tokens, column.offsets, hits, index, scratch_for(index), 0)
    assert time.process_time() - start < 2
    assert len(hits.runs) == sum(len(tokens.starts) - length + 1 for length in range(8, 14))
    assert (found.text[0], found.runs[0], found.start[0], found.end[0]) == (0, 1, 0, len(document.rstrip().encode()))
