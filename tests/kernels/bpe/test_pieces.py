"""Pieces are those of the regular expression, on any text; on any bytes they hold everything once."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import regex
from hypothesis import example, given, settings, strategies as st

from gristmill.kernels.base import unicode
from gristmill.kernels.base.columns import text_column
from gristmill.kernels.bpe.pieces import (
    BLOCK,
    BREAK,
    ENDLESS,
    GPT2,
    GPT4,
    LETTER,
    MARK,
    NUMBER,
    QWEN2,
    QWEN3_5,
    SPACE,
    Rules,
    ascii_is_as_masks_have_it,
    cut_pieces,
    pattern_of,
    pieces_plain,
)

OURS = Rules(LETTER | MARK, 1, 0, 2, 1, 64)
FAMILIES = {
    "gpt2": GPT2,
    "gpt4": GPT4,
    "qwen2": QWEN2,
    "qwen3.5": QWEN3_5,
    "ours": OURS,
    "ours, digits alone": OURS._replace(digits=1),
    "ours, short": OURS._replace(longest=2, digits=3),
    "short, with endings": GPT4._replace(longest=3),
}

ODD = [
    *"aAzZſKéßŉ水한я\u0301\u0e34\u093f\u200d🙂①²٣7 \t\n\r\x0b\x0c\x1c\x85\u00a0\u2003\u2028\u3000\u200b\x00'’-.!_\ue000\U000e0041\U0010ffff",
    *[
        "'s",
        "'S",
        "'ll",
        "'Re",
        "'vE",
        "'ſ",
        "'d",
        "'m",
        "'T",
        "\r\n",
        "  ",
        " \n",
        " '",
        "''",
        "x" * 16,
        "word",
        " the",
        "0" * 3,
        " \r\n ",
        "…\n\n",
    ],
]
texts = st.lists(st.one_of(st.lists(st.sampled_from(ODD), max_size=60).map("".join), st.text(max_size=40)), max_size=4)


def classes() -> np.ndarray:
    """As the package `regex` has them."""
    known, table = unicode.properties(), np.zeros(unicode.POINTS, np.uint8)
    for theirs, ours in (
        (unicode.LETTER, LETTER),
        (unicode.MARK, MARK),
        (unicode.NUMBER, NUMBER),
        (unicode.SPACE, SPACE),
    ):
        table[(known & theirs) != 0] |= ours
    table[[10, 13]] |= BREAK
    table.flags.writeable = False
    return table


CLASSES = classes()


def pieces_of(array: pa.Array, rules: Rules) -> list[list[bytes]]:
    data, offsets = text_column(array)
    ends, counts = np.empty(offsets[-1] - offsets[0] + BLOCK, np.int64), np.empty(len(array), np.int64)
    total = cut_pieces(data, offsets, CLASSES, rules, ends, counts)
    assert total == counts.sum()
    found, k = [], 0
    for start, count in zip(offsets[:-1].tolist(), counts.tolist(), strict=True):
        places = [start, *ends[k : k + count].tolist()]
        found.append([bytes(data[a:b]) for a, b in pairwise(places)])
        k += count
    return found


@pytest.mark.parametrize("family", FAMILIES)
@given(texts)
@example(["it's  a\r\n\r\n  b", "x" * 200 + " " * 200 + "\n" * 200 + "-" * 200 + "7" * 200])
@example(["'ſong 'Song 'sOng 'LLama 'lLama 'REd 'vex 'Vex 'dan 'Kelvin 'ſ 'r\u0301e"])
@example([" 7 ٣", "\n \n x", "  \r", "'", "'l", "'ll", " 's", "e\u0301\u0301"])
def test_pieces_are_those_of_the_pattern(family, texts):
    rules = FAMILIES[family]
    wanted = [[piece.encode() for piece in pieces_plain(text, rules)] for text in texts]
    array = pa.array(["before", *texts], pa.string())
    assert pieces_of(array[1:], rules) == wanted
    assert pieces_of(array.cast(pa.large_string())[1:], rules) == wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_every_character_is_in_its_class(family):
    rules = FAMILIES[family]
    points = [chr(point) for point in range(unicode.POINTS) if not 0xD800 <= point < 0xE000]
    texts = [
        f"{before}{''.join(f'{c}{after}' for c in points[i : i + 4096])}"
        for i in range(0, len(points), 4096)
        for before, after in (("", "a "), (" ", ""))
    ]
    assert len(texts) > 500
    for text, found in zip(texts, pieces_of(pa.array(texts, pa.large_string()), rules), strict=True):
        assert b"|".join(found).decode() == "|".join(pieces_plain(text, rules))


@pytest.mark.parametrize("family", FAMILIES)
@given(
    st.lists(
        st.one_of(st.binary(max_size=40), st.sampled_from([b"\xe6\xb0", b"\xf0\x9f", b"\xc3", b" \xff\n", b"'\xc5"])),
        max_size=5,
    )
)
def test_bytes_that_are_no_text_are_cut_too(family, contents):
    found = pieces_of(pa.array(contents, pa.large_binary()), FAMILIES[family])
    assert [b"".join(pieces) for pieces in found] == contents
    assert all(piece for pieces in found for piece in pieces)


SIGNS = [
    "a",
    "B",
    "foo",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "-",
    "--",
    "'",
    "'s",
    "'LL",
    "'re",
    "7",
    "345",
    " the",
    "!\n",
    "\x0b",
]
long_texts = st.lists(
    st.one_of(st.sampled_from(SIGNS), st.sampled_from([*SIGNS, "é", "水", "\u0301"])), min_size=40, max_size=300
).map("".join)


@pytest.mark.parametrize("family", FAMILIES)
@given(st.lists(long_texts, max_size=3))
@settings(deadline=None)
def test_blocks_of_ascii_are_cut_as_single_characters_are(family, texts):
    """A text behind these, for a block must not reach beyond the column."""
    wanted = [[piece.encode() for piece in pieces_plain(text, FAMILIES[family])] for text in texts]
    assert pieces_of(pa.array([*texts, "x" * BLOCK], pa.string()), FAMILIES[family])[:-1] == wanted


def test_ascii_that_masks_do_not_have_is_found():
    assert ascii_is_as_masks_have_it(CLASSES)
    other = CLASSES.copy()
    other[ord("i")] = 0
    assert not ascii_is_as_masks_have_it(other)


def test_patterns_are_written_as_tokenizers_have_them():
    assert pattern_of(GPT2) == r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    behind = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    assert pattern_of(GPT4) == r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + behind
    assert pattern_of(QWEN2) == r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + behind
    assert pattern_of(QWEN3_5) == (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    assert pattern_of(OURS) == (
        r"[^\r\n\p{L}\p{M}\p{N}]?[\p{L}\p{M}]{1,64}|\p{N}{1,2}| ?[^\s\p{L}\p{M}\p{N}]{1,64}[\r\n]{0,64}"
        r"|\s{0,64}[\r\n]{1,64}|\s{1,64}(?!\S)|\s{1,64}"
    )
    assert all(regex.compile(pattern_of(rules)) for rules in FAMILIES.values())


@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", " ", "\n", "-", "7", "水", "\r\n ", "'", "e\u0301", "\u00a0"]), min_size=1, max_size=3
    ).map("".join)
)
@example("\n" + " " * 10_000)
def test_time_grows_with_the_text(family, unit):
    text = pa.array([unit * (2_000_000 // len(unit.encode()))], pa.large_string())
    pieces_of(pa.array(["warm"], pa.large_string()), FAMILIES[family])
    data, offsets = text_column(text)
    ends = np.empty(len(data) + BLOCK, np.int64)
    start = time.process_time()
    assert cut_pieces(data, offsets, CLASSES, FAMILIES[family], ends, np.empty(1, np.int64)) > 0
    assert time.process_time() - start < 1
    assert len(data) < ENDLESS
