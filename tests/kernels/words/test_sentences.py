"""Sentences are counted as a reader would, in any script, and the kernel equals its reference on anything."""

import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.unicode import properties
from gristmill.kernels.words.sentences import count_sentences_plain, sentences

BY_HAND = {
    "": 0,
    " \n\t": 0,
    "...": 0,
    "-- !": 0,
    "\0": 0,
    "\u0301": 0,
    "One sentence": 1,
    "One. Two! Three? Four": 4,
    "What?! No.": 2,
    'He said "Go." Then he went. (She stayed.) End.': 4,
    "See example.com for 3.14 of them. Good.": 2,
    "Mr. Smith of the U.S. met J. R. Doe, e.g. at noon. Yes.": 2,
    "Wait... what? Oh.": 2,
    "It ends.Next one begins here.": 2,
    "Is it node.js?yes": 1,
    "A headline\n\nThen text. More": 3,
    "A line\nthat goes on.": 1,
    "😀": 1,
    "Nice. 😀": 2,
    "你好。我很好！你呢？": 3,
    "今日は天気がいい。散歩に行こう": 2,
    "यह एक वाक्य है।यह दूसरा है।": 2,
    "هل أنت بخير؟ نعم.": 2,
    "А. Пушкин писал стихи. Да.": 2,
    "สวัสดีครับ": 1,
}

pieces = st.one_of(
    st.text(max_size=4),
    st.sampled_from(
        [
            ".",
            "!",
            "?",
            "...",
            " ",
            "\n",
            "\n\n",
            "a",
            "B",
            "Mr",
            "Corp",
            "é",
            "É",
            "。",
            "؟",
            '"',
            ")",
            "1",
            "Ж",
            "\u2028",
        ]
    ),
)


def counted(texts: list[str]) -> list[int]:
    return sentences_of(*text_column(pa.array(texts, pa.string()))).tolist()


def sentences_of(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    out = np.zeros(len(offsets) - 1, np.int64)
    sentences(data, offsets, properties(), out)
    return out


@pytest.mark.parametrize(("text", "count"), BY_HAND.items())
def test_sentences_by_hand(text, count):
    assert counted([text]) == [count] == [count_sentences_plain(text)]


@given(st.lists(st.lists(pieces, max_size=30).map("".join), max_size=5))
def test_the_kernel_equals_its_plain_twin(texts):
    assert counted(texts) == [count_sentences_plain(text) for text in texts]


@given(st.binary(max_size=60))
def test_any_bytes_are_counted_within_bounds(data):
    view = np.frombuffer(data + b"\xe2\x80", np.uint8)
    assert 0 <= sentences_of(view, np.array([0, len(data)], np.int64))[0] <= len(data)


def test_time_is_linear_in_anything():
    for text in ("." * 10_000_000, "!\n" * 3_000_000, "Mr." * 3_000_000, "a" * 10_000_000, "?)" * 4_000_000):
        counted([text[:10]])
        began = time.process_time()
        counted([text])
        assert time.process_time() - began < 2
