"""Numbers and names of a text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.words.facts import shared, shared_plain, words_and_facts, words_and_facts_plain
from gristmill.kernels.words.token_rules import token_hash_plain

WORDS = st.sampled_from(["rain", "Rain", "Bonn", "12", "v2", "iPhone", "NATO", "été", "Été", "Ålesund", "雨", "x"])
TEXTS = st.one_of(
    st.text(max_size=40),
    st.lists(st.tuples(WORDS, st.sampled_from([" ", ". ", "\n", ", ", "! ", "_"])), max_size=12).map(
        lambda parts: "".join(word + gap for word, gap in parts)
    ),
)


def facts_of(text: str) -> set[str]:
    """Of a text of words that stand apart, those that are facts."""
    names = {token_hash_plain(word.lower().encode()) & ~1: word.lower() for word in text.replace(".", "").split()}
    words, _ = words_and_facts(text_column(pa.array([text])))
    return {names[int(word) & ~1] for word in words if int(word) & 1}


def test_numbers_and_names_are_facts_and_the_first_word_of_a_sentence_is_none() -> None:
    assert facts_of("Rain fell in Bonn. Winds of 12 knots\nMoved the NATO fleet") == {"bonn", "12", "nato"}
    assert facts_of("NATO met. iPhone") == {"nato", "iphone"}
    assert facts_of("nothing here. Nothing there") == set()


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_equal_to_the_plain_definition(texts: list[str]) -> None:
    words, first = words_and_facts(text_column(pa.array(texts, pa.string())))
    plain = [words_and_facts_plain(text) for text in texts]
    for place, wanted in enumerate(plain):
        found = words[first[place] : first[place + 1]].tolist()
        assert found == sorted(name | int(fact) for name, fact in wanted.items())
    left = [i for i in range(len(texts)) for _ in texts]
    right = [j for _ in texts for j in range(len(texts))]
    jaccard, facts = shared(words, first[:-1], first[1:], np.array(left), np.array(right))
    for p, (i, j) in enumerate(zip(left, right, strict=True)):
        assert (jaccard[p], facts[p]) == pytest.approx(shared_plain(plain[i], plain[j]))
