"""Tokens, shingles and their sets are the same by kernel and by reference, on any text and on bytes that are none."""

import codecs
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, strategies as st

from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.base.unicode import DENSE, properties
from gristmill.kernels.words.token_rules import jaccard_plain, shingles_plain, token_hash_plain, tokens_plain
from gristmill.kernels.words.tokens import jaccard_of_pairs, most_tokens, shingle_column, shingle_sets, token_column

# Letters, marks and signs at which the rules turn: scripts with and without spaces, marks of both, capitals of one to
# four bytes, some whose lower case is longer or shorter, digits, what only separates.
TRICKY = "aZ09 .-_\n\0éÉßẞİıǅſKÅΣςЖжאبّ\u0301\u0e31\u0e33กไທခា漢字かカー々가한𠀀𐐀𐐨𞤀𝒜½²Ⅷ\u200b\u200d\ufffd\ud7ff\ue000😀👍🏽\U0010ffff"
TEXT = st.one_of(
    st.text(max_size=40),
    st.text(alphabet=TRICKY, max_size=200),
    st.lists(
        st.sampled_from(["a", "Word", "counterrevolutionaries", "x" * 63, "É", "漢", "ไทย", " ", "  ", ", ", "\u0301"]),
        max_size=60,
    ).map("".join),
)
TEXTS = st.lists(TEXT, max_size=5)
PREFIX = "left out É漢"


def column_of(texts: list[str]) -> TextColumn:
    return text_column(pa.array([PREFIX, *texts, "left out too"], pa.string()).slice(1, len(texts)))


def tokens_of(column: TextColumn) -> list[list[tuple[int, int, int]]]:
    found = token_column(column)
    assert len(found.hashes) == len(found.starts) == len(found.ends) == found.first[-1]
    rows = list(zip(found.starts.tolist(), found.ends.tolist(), found.hashes.tolist(), strict=True))
    return [
        [(start - origin, end - origin, h) for start, end, h in rows[a:b]]
        for (a, b), origin in zip(pairwise(found.first.tolist()), column.offsets.tolist(), strict=False)
    ]


def tokens_wanted(text: str) -> list[tuple[int, int, int]]:
    return [(start, end, token_hash_plain(token)) for start, end, token in tokens_plain(text)]


def lists_of(hashes: np.ndarray, first: np.ndarray) -> list[list[int]]:
    assert len(hashes) == first[-1]
    return [hashes[a:b].tolist() for a, b in pairwise(first)]


@given(TEXTS)
@example(
    [
        "x" * 62 + "漢",
        "x" * 63 + "漢a",
        "漢" * 70,
        "a" * 200,
        "ab " * 70,
        "É" * 100,
        "é" * 31 + "a\u0301" * 40,
        "\u0301a",
        "กa\u0301a漢\u0301a",
    ]
)
@example(["x" * 60 + "漢é", "x" * 59 + "กa\u0301é", "x" * 58 + "漢𐐀", "x" * 60 + "\u0e33é"])
@example(["𐐀" * 40, " " * 61 + "𐐀", "a" * 64, "a" * 63 + " ", "a" * 64 + " b", "", "\0", "a\0b"])
def test_tokens_equal_the_plain_twin(texts):
    assert tokens_of(column_of(texts)) == [tokens_wanted(text) for text in texts]


@given(TEXTS, st.integers(1, 70), st.integers(0, 2**64 - 1))
@example(["a b c", "a b c d e", "a b c d e f a b c d e f", ""], 5, 0)
def test_shingles_and_their_sets_equal_the_plain_twin(texts, width, seed):
    wanted = [shingles_plain(text, width, seed) for text in texts]
    assert lists_of(*shingle_column(column_of(texts), width, seed)) == wanted
    assert lists_of(*shingle_sets(column_of(texts), width, seed)) == [sorted(set(found)) for found in wanted]


def bytes_separate(error: UnicodeError) -> tuple[str, int]:
    return "\0" * (error.end - error.start), error.end


codecs.register_error("bytes separate", bytes_separate)


@given(
    st.lists(
        st.one_of(st.binary(max_size=20), st.text(alphabet=TRICKY, max_size=50).map(lambda text: text.encode()[1:-1])),
        max_size=6,
    )
)
@example(
    [
        b"a\xc3",
        b"\xa9b",
        b"\xe0\x81\x81a",
        b"\xed\xa0\x80a",
        b"\xf0\x80\x81\x81",
        b"\xf4\x90\x80\x80",
        b"x" * 63 + b"\xc3",
        b"x" * 62 + b"\xe6\xbc",
    ]
)
def test_bytes_that_are_no_character_separate(pieces):
    """Each by itself, at the end of a document and of the column too; nothing is read out of the next document."""
    column = text_column(pa.array(pieces, pa.binary()))
    assert tokens_of(column) == [tokens_wanted(piece.decode("utf-8", "bytes separate")) for piece in pieces]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_every_kind_of_column_and_nulls(kind):
    texts = ["One two", None, "", "drei 漢字"]
    array = pa.array(texts, pa.string()).cast(kind)
    assert tokens_of(text_column(pa.chunked_array([array]))) == [tokens_wanted(text or "") for text in texts]


def test_no_text_has_more_tokens_than_there_is_room_for():
    """Tokens that touch: one of them is of a script without spaces, three bytes at least; all others have a byte
    between them."""
    assert (np.flatnonzero(properties() & DENSE) >= 0x800).all()
    for text in ("a漢" * 4000 + "a", "a " * 8000 + "a", "กa" * 3000):
        column = column_of([text])
        assert len(token_column(column).hashes) == sum(1 for _ in tokens_plain(text)) <= most_tokens(column)


def test_a_column_without_documents():
    column = text_column(pa.array([], pa.string()))
    assert len(token_column(column).hashes) == len(shingle_column(column, 5)[0]) == len(shingle_sets(column, 5)[0]) == 0


def test_a_width_of_nothing_is_refused():
    with pytest.raises(ValueError, match="between 1 and"):
        shingle_column(column_of(["a"]), 0)


@pytest.mark.parametrize(
    "text",
    [
        "a b " * 3000,
        "Ünï cödé " * 1500,
        "漢字" * 3000,
        "x" * 100_000 + " y",
        " " * 100_000 + "y",
        "word, " * 1024,
        "0123456789 " * 2000 + "end",
    ],
    ids=["one letter", "accents", "dense", "one token", "blanks", "whole runs", "digits"],
)
def test_documents_of_many_runs(text):
    texts = ["before", text, "after", text[: len(text) // 2]]
    assert tokens_of(column_of(texts)) == [tokens_wanted(text) for text in texts]
    assert lists_of(*shingle_column(column_of(texts), 5)) == [shingles_plain(text, 5) for text in texts]
    assert lists_of(*shingle_sets(column_of(texts), 3)) == [sorted(set(shingles_plain(text, 3))) for text in texts]


def test_capitals_are_small_and_other_signs_separate():
    upper, lower = column_of(["ÉCOLE, Ångström-HAUS! ЖЁЛТЫЙ"]), column_of(["école ångström haus жёлтый"])
    assert (
        token_column(upper).hashes.tolist() == token_column(lower).hashes.tolist()
        and len(token_column(lower).hashes) == 4
    )


@given(
    st.lists(st.sets(st.integers(0, 2**64 - 1) | st.integers(0, 30), max_size=60), min_size=1, max_size=6),
    st.integers(0, 400),
)
def test_jaccard_of_sets(sets, more):
    sets = [*sets, set(range(more))]  # so large that small ones step over it
    first = np.cumsum([0, *map(len, sets)])
    hashes = np.array([value for found in sets for value in sorted(found)], np.uint64)
    left, right = (side.ravel() for side in np.meshgrid(np.arange(len(sets)), np.arange(len(sets))))
    wanted = [jaccard_plain(sets[a], sets[b]) for a, b in zip(left, right, strict=True)]
    assert jaccard_of_pairs(hashes, first, left, right).tolist() == wanted
