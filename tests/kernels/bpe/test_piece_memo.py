"""What a memo remembers changes no id: small or large, full, empty or of other texts."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from test_byte_pairs import OF_BYTES, learnt, table_of
from test_pieces import CLASSES, ODD

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.bpe.byte_pairs import desk_for, merged_plain
from gristmill.kernels.bpe.piece_memo import LONGEST, PROBES, Memo, Vocabulary, empty_memo, encode, remember_tokens
from gristmill.kernels.bpe.pieces import GPT4, pieces_plain

chance = random.Random(11)
RANKS = learnt([(chance.randrange(300), chance.randrange(300)) for _ in range(600)], b"aelpswz '\xe6\xb0\xb4")
VOCABULARY = Vocabulary(CLASSES, GPT4, table_of(RANKS), empty_memo(16))
WORDS = [
    "sea",
    "please",
    "well's",
    "p" * 15,
    "p" * 16,
    "a" * LONGEST,
    "z" * (LONGEST + 1),
    "水" * 50,
    "w\0",
    "w",
    "\0\0\0",
    "lapse" * 60,
]


def plain(text: str, ranks=RANKS) -> list[int]:
    return [number for piece in pieces_plain(text, GPT4) for number in merged_plain(piece.encode(), ranks, OF_BYTES)]


def ids_of(
    texts: list[str], memo: Memo, vocabulary: Vocabulary = VOCABULARY, wanted: list[bool] | None = None
) -> list[list[int]]:
    array = pa.array(["before", *texts, "behind"], pa.string())[1:-1]
    ids, ends = encode(
        vocabulary, memo, *text_column(array), np.array([True] * len(texts) if wanted is None else wanted, bool)
    )
    return [ids[a:b].tolist() for a, b in pairwise(ends)]


MEMOS = {slots: empty_memo(slots) for slots in (16, 64, 1 << 12)}
parts = st.one_of(st.sampled_from(ODD), st.sampled_from(WORDS), st.text("aelpswz ", max_size=30))
texts = st.lists(st.lists(parts, max_size=12).map("".join), max_size=4)


@pytest.mark.parametrize("slots", MEMOS)
@given(texts, st.randoms())
def test_ids_are_those_of_each_piece(slots, texts, order):
    """The memo of a size is that of all examples before: what it holds differs from one to the next."""
    wanted = [plain(text) for text in texts]
    for _ in range(2):
        assert ids_of(texts, MEMOS[slots]) == wanted
    some = [order.random() < 0.5 for _ in texts]
    assert ids_of(texts, MEMOS[slots], wanted=some) == [
        ids if taken else [] for ids, taken in zip(wanted, some, strict=True)
    ]


def test_a_memo_that_is_full_starts_anew():
    memo = empty_memo(64)
    for i in range(400):
        text = f"wease{'lap' * (i % 90)} {'sp' * (i % 17)}"
        assert ids_of([text], memo) == [plain(text)]
        assert memo.used[0] <= 32 and (memo.rows[:, 1] != 0).sum() == memo.used[0]
        assert memo.used[1] <= len(memo.bytes) and memo.used[2] <= len(memo.ids)


def test_a_memo_without_a_free_place_is_no_trouble():
    memo = empty_memo(PROBES)
    memo.rows[:, 1] = 1  # rows of a length that no piece has
    assert ids_of(["please sea", "lapse"], memo) == [plain("please sea"), plain("lapse")]


def test_a_piece_longer_than_the_desk_waits_for_a_longer_one():
    text = "sea " + "lapse" * 700 + " sea " + "p" * 8000 + "\n" + "lapse" * 300
    assert ids_of([text, "sea", text], empty_memo(64)) == [plain(text), plain("sea"), plain(text)]


def test_two_pieces_of_one_hash_are_told_apart():
    """A hash of all bytes stands for a long piece; here it is forged to be that of another."""
    memo, first, second = empty_memo(64), "sea" * 20, "ape" * 20
    assert ids_of([first], memo) == [plain(first)]
    row = np.flatnonzero(memo.rows[:, 1])[0]
    forged = empty_memo(64)
    assert ids_of([second], forged) == [plain(second)]
    other = np.flatnonzero(forged.rows[:, 1])[0]
    memo.rows[other, 0], memo.rows[other, 1:] = forged.rows[other, 0], memo.rows[row, 1:]
    assert ids_of([second, first], memo) == [plain(second), plain(first)]


def test_tokens_that_merging_does_not_give_are_whole_pieces():
    tokens = {b"please": 9000, b" sea": 9001, b"lapse" * 20: 9002, b"w": OF_BYTES[ord("w")]}
    column = text_column(pa.array(list(tokens), pa.large_binary()))
    vocabulary = VOCABULARY._replace(given=empty_memo(64))
    assert remember_tokens(*column, np.array([*tokens.values()], np.uint32), vocabulary, desk_for(1000)) == 0
    assert vocabulary.given.used[0] == 3, "of `w` merging gives the token"
    memo = empty_memo(64)
    for _ in range(2):
        assert ids_of(["please sea", "lapse" * 20, "w pleases"], memo, vocabulary) == [
            [9000, 9001],
            [9002],
            plain("w pleases"),
        ]
    long = text_column(pa.array([b"a" * (LONGEST + 1)], pa.large_binary()))
    assert remember_tokens(*long, np.array([7], np.uint32), vocabulary, desk_for(1000)) == 1


def test_nothing_and_nulls():
    assert ids_of([], empty_memo(16)) == []
    column = text_column(pa.array([None, "sea", ""], pa.string()))
    ids, ends = encode(VOCABULARY, empty_memo(16), *column, np.ones(3, bool))
    assert (np.diff(ends) > 0).tolist() == [False, True, False] and ids.tolist() == plain("sea")
