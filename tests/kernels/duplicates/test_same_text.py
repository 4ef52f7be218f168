"""Signatures are equal where a plain normalisation makes the same text, on any Unicode and wherever Arrow holds it."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Hashable, Iterable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.kernels.base.types import Hashes
from gristmill.kernels.duplicates.same_text import BLOCK, FLUSH, characters, pieces, signatures

KINDS = [pa.string(), pa.large_string(), pa.string_view()]
SPECIAL = "aA sS\t\n\x1c\x85\u2003\u3000ſßẞıİiIςσΣéÉ\u0301\u0323\u0327\u0345ᾳᾼΐὖΰ\u1100\u1161\u11a8각가漢ｱ\u0344\u212b\U0001d15e"
TEXTS = st.lists(
    st.one_of(
        st.text(SPECIAL, max_size=12),
        st.text(SPECIAL, max_size=100),
        st.text(max_size=40),
        st.text("aB \n", max_size=200),
        st.text(st.characters(categories=["Mn", "Mc"]), max_size=12),
    ),
    max_size=12,
)


def normalised_plain(text: str) -> str:
    """A canonical caseless match (Unicode, D145), white space collapsed."""
    folded = unicodedata.normalize("NFD", unicodedata.normalize("NFD", text).casefold())
    return " ".join(folded.split())


def groups(keys: Iterable[Hashable]) -> list[int]:
    """The number of each key, in the order in which they first come."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def keys(texts: pa.Array, normalise: bool = True) -> list[tuple[int, int] | None]:
    high, low, with_text = signatures(texts, normalise)
    return [
        (a, b) if there else None for a, b, there in zip(high.tolist(), low.tolist(), with_text.tolist(), strict=True)
    ]


@given(TEXTS, st.sampled_from(KINDS))
def test_normalised_texts_are_those_of_the_plain_reference(texts, kind):
    changed = [
        way(text)
        for text in texts
        for way in (
            str.upper,
            str.lower,
            str.swapcase,
            lambda text: unicodedata.normalize("NFC", text),
            lambda text: unicodedata.normalize("NFD", text),
            lambda text: "\n " + text.replace(" ", " \t") + "\u2003",
        )
    ]
    every = [*texts, *changed]
    found = keys(pa.array(every, kind))
    assert groups(found) == groups(normalised_plain(text) or None for text in every)


@given(TEXTS, st.sampled_from(KINDS))
def test_bytes_are_compared_as_they_are(texts, kind):
    every = [*texts, *texts, *(f"{text} " for text in texts)]
    assert groups(keys(pa.array(every, kind), normalise=False)) == groups(
        text if text.strip() else None for text in every
    )


def test_every_character_alone_and_between_letters():
    """Those that change or are marks or white space, and some of the others."""
    table = characters()
    points = [
        chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000 and (table[point] or point % 101 == 0)
    ]
    assert len(points) > 25_000
    for texts in (points, [f"B{point}A " for point in points]):
        assert groups(keys(pa.array(texts))) == groups(normalised_plain(text) or None for text in texts)


def test_words_that_only_unicode_calls_the_same():
    same = [
        ["Straße", "STRASSE", "strasse ", "straſſe"],
        ["café", "CAFÉ", "cafe\u0301", "CAFE\u0301"],
        ["ΣΊΣΥΦΟΣ", "Σίσυφος", "σίσυφοσ"],
        ["한글", unicodedata.normalize("NFD", "한글")],
        ["q\u0323\u0307", "q\u0307\u0323", "Q\u0307\u0323"],
        ["ᾷ", "α\u0345\u0342", "Α\u0342\u0345", "\u1fb6ι"],
        ["İ", "i\u0307"],
        ["K", "\u212a", "k"],
        ["a b", "A\u3000\n\x1cB", "\x85a\u2028b\u00a0"],
    ]
    texts = [text for group in same for text in group]
    expected = [number for number, group in enumerate(same) for _ in group]
    assert groups(keys(pa.array(texts))) == expected
    assert groups(keys(pa.array(["ı", "i", "ss", "s s", "e", "é", "\u200b"]))) == list(range(7))


def test_slices_chunks_and_nulls():
    texts = [
        "one",
        None,
        "ONE ",
        "",
        " \n",
        "a longer text than a view holds inside",
        "A longer TEXT than a view holds  inside",
    ]
    for kind in KINDS:
        chunks = pa.chunked_array([pa.array(["x", *texts], kind).slice(1), pa.array([], kind), pa.array(texts, kind)])
        for normalise in (True, False):
            high, low, with_text = signatures(chunks, normalise)
            assert with_text.tolist() == [True, False, True, False, False, True, True] * 2
            assert (high[:7] == high[7:]).all() and (low[:7] == low[7:]).all()
            assert (high[0] == high[2]) == normalise and (high[5] == high[6]) == normalise
    assert all(len(part) == 0 for part in signatures(pa.chunked_array([], pa.string()), True))
    assert signatures(pa.nulls(2, pa.string()), True).with_text.tolist() == [False, False]


@pytest.mark.parametrize("size", [1, 15, 16, 31, 32, 63, 64, 65, 128, FLUSH - 1, FLUSH, FLUSH + 1, 3 * FLUSH + 7])
def test_lengths_about_blocks(size):
    """A text, the same in capitals and spread out, and others that differ in a byte or by a byte in length."""
    words = ("word " * size)[: size - 1] + "e"
    others = [words[:at] + "#" + words[at + 1 :] for at in {0, size // 2, max(0, size - BLOCK), size - 1}]
    same = [words, words.upper(), f"  {words.replace(' ', '   ')}\n"]
    found = keys(pa.array([*same, *others, words + "e", words[:-1] + "É"]))
    assert groups(found)[:3] == [0, 0, 0] and len(set(found)) == 1 + len(others) + 2
    assert len(set(keys(pa.array([*same, *others, words + "e"]), normalise=False))) == len(
        {*same, *others, words + "e"}
    )


def test_bytes_that_are_no_utf_8_stand_for_themselves():
    values = [
        b"a\xff",
        b"A\xff ",
        b"a\xfe",
        b"a",
        b"a\xc3",
        b"a\xc3\xa9",
        b"a\xed\xa0\x80",
        b"a\xed\xa0\x81",
        b"\xf4\x90\x80\x80",
        b"a\xe2\x82",
    ]
    texts = pa.array(values, pa.binary()).view(pa.string())
    assert groups(keys(texts)) == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert groups(keys(texts, normalise=False)) == list(range(10))


@settings(max_examples=20)
@given(st.lists(st.binary(max_size=80), min_size=2, max_size=20))
def test_any_bytes_have_a_signature(values):
    texts = pa.array(values, pa.binary()).view(pa.string())
    assert len(set(keys(texts, normalise=False)) - {None}) <= len(set(values))
    for value, key in zip(values, keys(texts), strict=True):
        assert keys(pa.array([value], pa.binary()).view(pa.string())) == [key]


HOSTILE = {
    "marks": "a" + "\u0301\u0323" * 250_000,
    "all classes of marks": "".join(chr(point) for point in range(0x300, 0x345)) * 7_000,
    "marks after every letter": "a\u0301\u0323" * 200_000,
    "iota": "\u0345\u0301" * 250_000,
    "white space": " \n" * 500_000,
    "pairs of spaces": "a  " * 330_000,
    "growing letters": "\u0390" * 500_000,
    "syllables": "각" * 330_000,
    "one letter of two bytes": "aé" * 330_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_takes_long(name):
    """A megabyte in less than two seconds; four times the text no more than about four times as long."""

    def seconds(text: str) -> float:
        column, before = pa.array([text]), time.process_time()
        assert signatures(column, True).with_text.tolist() == [bool(text.strip())]
        return time.process_time() - before

    text = HOSTILE[name]
    seconds("é")
    short, whole = min(seconds(text[: len(text) // 4]) for _ in range(3)), min(seconds(text) for _ in range(2))
    assert whole < 2 and whole < 12 * short + 0.05


def test_long_runs_of_marks_are_in_order():
    marks = [chr(point) for point in range(0x300, 0x345)] * 30
    dice = np.random.default_rng(7)
    texts = ["a" + "".join(dice.permutation(marks)) + "b" for _ in range(4)]
    texts += [unicodedata.normalize("NFC", text) for text in texts]
    assert groups(keys(pa.array(texts))) == groups(map(normalised_plain, texts))


def collisions(values: Hashes) -> int:
    return int((np.diff(np.sort(values)) == 0).sum())


def test_a_few_bits_of_a_hash_collide_as_often_as_chance_has_it():
    """Of texts that differ in one number alone, for 32 bits of each half, and for the halves together."""
    count = 1 << 17
    for form in ("{:06d}", "a page of a shop that differs from the others in its number, {:09d}, and in nothing else"):
        high, low, _ = signatures(pa.array([form.format(number) for number in range(count)]), False)
        expected = count * (count - 1) / 2 / (1 << 32)  # 2
        for bits in (
            high >> np.uint64(32),
            high & np.uint64(0xFFFFFFFF),
            low >> np.uint64(32),
            low & np.uint64(0xFFFFFFFF),
        ):
            assert collisions(bits) <= 6 * expected
        for a in (high >> np.uint64(48), high & np.uint64(0xFFFF)):
            for b in (low >> np.uint64(48), low & np.uint64(0xFFFF)):
                assert collisions(a << np.uint64(16) | b) <= 6 * expected
        flipped = np.unpackbits((high[1:] ^ high[:-1]).view(np.uint8)).mean()
        assert 0.49 < flipped < 0.51


def test_tables_say_what_characters_become():
    table, parts = characters(), pieces()
    assert len(table) == 0x110000 and (table > 1).sum() > 15_000
    place = int(table[ord("É")])
    assert bytes(parts[place : place + 8]) == bytes([2, 0, 1]) + b"e" + bytes([230, 2]) + "\u0301".encode()
