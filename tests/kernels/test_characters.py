"""Characters are counted as a plain reading counts them: any text, any bytes, across the edges of blocks."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
import regex
from hypothesis import example, given, settings, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.language.characters import BLOCK, COMPOSABLE, SHOUTED, characters

DENSE = regex.compile(r"[\p{Line_Break=SA}\p{Han}\p{Hiragana}\p{Katakana}]")
SYMBOLS, JOINTS = "{}[]<>=;_\\|&$*+~^#@`%", '()/:".,'
ALPHABET = 'ab1A \n{;.:/,()"é\u0085\ufffd\ue000ж天ไท\u0e34\u0301\u0323\u0316😀\0\x7f-'
INDIC = "\u09c7\u09be\u09d7\u0bc6\u0bbe\u0d3e\u0d46\u0928\u093c\u0958가\u1100\u1161\u11a8\u11a7"


def letters_plain(text: str, dense: int) -> int:
    return sum((dense if DENSE.match(c) else 1) for c in text if regex.match(r"\p{L}", c))


def shares_plain(text: str) -> tuple[float, float]:
    """Symbols of code, and wrong characters."""
    symbols = visible = 0
    for word in re.findall(r"[^\x00-\x20\x7f]+", text):
        visible += len(word)
        for place, character in enumerate(word):
            before, after = word[place - 1 : place], word[place + 1 : place + 2]
            digits = bool(before) and bool(after) and before in "0123456789" and after in "0123456789"
            symbols += character in SYMBOLS or (character in JOINTS and bool(before and after) and not digits)
    wrong = sum(0x80 <= ord(c) <= 0xFF or 0xE000 <= ord(c) <= 0xF8FF or ord(c) == 0xFFFD for c in text)
    return symbols / max(visible, 1), wrong / max(visible, 1)


@settings(max_examples=300)
@given(
    st.lists(
        st.text(max_size=200) | st.text(ALPHABET, max_size=200) | st.text("a.{ ж", min_size=60, max_size=140),
        max_size=5,
    ),
    st.integers(0, 3),
)
@example(["a" * (BLOCK - 1) + "ж.ж", "." * BLOCK + "a", "1" * (BLOCK - 1) + ".1", "天" * 43], 0)
def test_letters_symbols_and_wrong_characters(texts, start):
    found = characters(*text_column(pa.array(texts, pa.string()).slice(start)), 4)
    texts = texts[start:]
    assert found.letters.tolist() == [letters_plain(text, 4) for text in texts]
    expected = np.array([shares_plain(text) for text in texts], np.float32).reshape(-1, 2)
    assert np.stack([found.code, found.broken], axis=1).tolist() == expected.tolist()


@settings(max_examples=500)
@given(st.lists(st.text(max_size=80) | st.text(ALPHABET + INDIC, max_size=80), max_size=5))
def test_no_text_that_a_model_must_read_otherwise_is_missed(texts):
    changes = characters(*text_column(pa.array(texts, pa.string())), 1).changes
    for text, bits in zip(texts, changes.tolist(), strict=True):
        assert bits & COMPOSABLE or unicodedata.normalize("NFC", text) == text
        assert bits & SHOUTED or not text.isupper()


def test_letters_that_compose_with_nothing_before_them_are_no_change():
    bengali = "\u0995\u09be\u09b2 \u0986\u09ae\u09be\u09b0"
    assert characters(*text_column(pa.array([bengali, "오늘은 날씨가", "ĉiutage"])), 1).changes.tolist() == [0, 0, 0]


@given(st.lists(st.binary(max_size=150), min_size=1, max_size=4))
def test_any_bytes_are_read_within_their_bounds(texts):
    ends = np.cumsum([0, *map(len, texts)])
    data = np.frombuffer(b"".join(texts), np.uint8)
    together = characters(data, ends, 1)
    alone = [characters(np.frombuffer(text, np.uint8), np.array([0, len(text)]), 1) for text in texts]
    for whole, parts in zip(together, zip(*alone, strict=True), strict=True):
        assert whole.tolist() == [part.tolist()[0] for part in parts]
    assert (together.code <= 1).all() and (together.broken <= 1).all()


@pytest.mark.parametrize(("text", "bits"), [("ÉCOLE", SHOUTED), ("École", 0), ("e\u0301", COMPOSABLE), ("123 天", 0)])
def test_what_a_text_is_said_to_be(text, bits):
    assert characters(*text_column(pa.array([text])), 1).changes.tolist() == [bits]
