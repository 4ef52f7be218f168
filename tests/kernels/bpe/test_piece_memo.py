"""What a memo remembers changes no id: small or large, full, empty or of other texts."""

from __future__ import annotations

import mmap
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
from gristmill.kernels.bpe.piece_memo import (
    BYTES,
    HUGE_PAGE,
    LONGEST,
    MOST,
    PIECES,
    PieceMemo,
    Vocabulary,
    encode,
    generation_of,
    remember_tokens,
)
from gristmill.kernels.bpe.pieces import GPT4, pieces_plain

chance = random.Random(11)
RANKS = learnt([(chance.randrange(300), chance.randrange(300)) for _ in range(600)], b"aelpswz '\xe6\xb0\xb4")
VOCABULARY = Vocabulary(CLASSES, GPT4, table_of(RANKS), 2, generation_of(4))
WIDE = VOCABULARY._replace(width=4)
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
    texts: list[str], memo: PieceMemo, vocabulary: Vocabulary = VOCABULARY, wanted: list[bool] | None = None
) -> list[list[int]]:
    array = pa.array(["before", *texts, "behind"], pa.string())[1:-1]
    ids, ends = encode(
        vocabulary, memo, *text_column(array), np.array([True] * len(texts) if wanted is None else wanted, bool)
    )
    return [ids[a:b].tolist() for a, b in pairwise(ends)]


MEMOS = {
    (least, most, width): PieceMemo(least, most)
    for least, most in ((4, 16), (16, 64), (4, 1 << 12))
    for width in (2, 4)
}
parts = st.one_of(st.sampled_from(ODD), st.sampled_from(WORDS), st.text("aelpswz ", max_size=30))
texts = st.lists(st.lists(parts, max_size=12).map("".join), max_size=4)


@pytest.mark.parametrize("kind", MEMOS, ids=str)
@given(texts, st.randoms())
def test_ids_are_those_of_each_piece(kind, texts, order):
    """The memo of a size is that of all examples before: what it holds differs from one to the next."""
    vocabulary = VOCABULARY if kind[2] == 2 else WIDE
    wanted = [plain(text) for text in texts]
    for _ in range(2):
        assert ids_of(texts, MEMOS[kind], vocabulary) == wanted
    some = [order.random() < 0.5 for _ in texts]
    assert ids_of(texts, MEMOS[kind], vocabulary, wanted=some) == [
        ids if taken else [] for ids, taken in zip(wanted, some, strict=True)
    ]


def held(memo: PieceMemo) -> int:
    return int((memo.young.slots.reshape(-1, 4)[:, 1] != 0).sum())


@pytest.mark.parametrize("vocabulary", [VOCABULARY, WIDE], ids=["16 bits", "32 bits"])
def test_a_memo_grows_and_then_becomes_the_old_generation(vocabulary):
    memo, sizes, turns = PieceMemo(16, 256), set(), 0
    for i in range(400):
        text = " ".join(f"wease{'lap' * (i % 90)}{'sp' * (i % 17)}{'z' * j}" for j in range(4))
        old = memo.old
        assert ids_of([text], memo, vocabulary) == [plain(text)]
        sizes.add(len(memo.young.slots) // 4)
        turns += memo.old is not old
        assert held(memo) == memo.young.used[PIECES] <= len(memo.young.slots) // 4
        assert memo.young.used[BYTES] <= len(memo.young.arena)
    assert sizes == {16, 32, 64, 128, 256} and turns > 2


def test_pieces_that_come_again_move_to_the_young_generation():
    memo = PieceMemo(64, 64)
    ids_of(["please sea " + "lapse" * 20], memo)
    before = held(memo)
    memo.make_room()
    assert held(memo) == 0 and memo.old.used[PIECES] == before == 3
    merges = VOCABULARY._replace(merges=table_of({}))  # what is not in a generation comes out as bytes
    assert ids_of(["please sea " + "lapse" * 20], memo, merges) == [plain("please sea " + "lapse" * 20)]
    assert held(memo) == 3


def test_a_memo_that_doubles_forgets_nothing():
    memo, words = (
        PieceMemo(256, 1 << 14),
        [f"sea{'lap' * i}{'sp' * j}{'e' * k}" for i in range(9) for j in range(9) for k in range(9)],
    )
    ids_of([" ".join(words)], memo)
    before, slots = held(memo), len(memo.young.slots)
    while len(memo.young.slots) < 4 << 14:
        memo.make_room()
    assert held(memo) == memo.young.used[PIECES] == before > 700 and slots < len(memo.young.slots)
    merges = VOCABULARY._replace(merges=table_of({}))
    assert ids_of([" ".join(words)], memo, merges) == [plain(" ".join(words))]
    assert memo.old.used[PIECES] == 0


def test_a_memo_without_a_free_place_is_no_trouble():
    memo = PieceMemo(16, 16)
    memo.young.slots.reshape(-1, 4)[:, 1] = 1  # of a length that no piece has
    assert ids_of(["please sea", "lapse"], memo) == [plain("please sea"), plain("lapse")]


def test_a_piece_longer_than_the_desk_waits_for_a_longer_one():
    text = "sea " + "lapse" * 700 + " sea " + "p" * 8000 + "\n" + "lapse" * 300
    assert ids_of([text, "sea", text], PieceMemo(64, 64)) == [plain(text), plain("sea"), plain(text)]


def test_two_pieces_of_one_hash_are_told_apart():
    """A hash of all bytes stands for a long piece; here it is forged to be that of another."""
    memo, first, second = PieceMemo(64, 64), "sea" * 20, "ape" * 20
    assert ids_of([first], memo) == [plain(first)]
    rows = memo.young.slots.reshape(-1, 4)
    row = np.flatnonzero(rows[:, 1])[0]
    forged = PieceMemo(64, 64)
    assert ids_of([second], forged) == [plain(second)]
    others = forged.young.slots.reshape(-1, 4)
    other = np.flatnonzero(others[:, 1])[0]
    rows[other, 0], rows[other, 1:] = others[other, 0], rows[row, 1:]
    assert ids_of([second, first], memo) == [plain(second), plain(first)]


def test_tokens_that_merging_does_not_give_are_whole_pieces():
    tokens = {b"please": 9000, b" sea": 9001, b"lapse" * 20: 9002, b"w": OF_BYTES[ord("w")]}
    column = text_column(pa.array(list(tokens), pa.large_binary()))
    numbers, scratch = np.array([*tokens.values()], np.uint32), np.zeros(16, np.uint8)
    vocabulary, memo = VOCABULARY._replace(given=generation_of(64)), PieceMemo(64, 64)
    assert remember_tokens(*column, numbers, vocabulary, memo.young, True, desk_for(1000), scratch) == 0
    assert vocabulary.given.used[PIECES] == 3 and held(memo) == 1, "of `w` merging gives the token"
    for _ in range(2):
        assert ids_of(["please sea", "lapse" * 20, "w pleases"], memo, vocabulary) == [
            [9000, 9001],
            [9002],
            plain("w pleases"),
        ]
    memo = PieceMemo(64, 64)
    assert remember_tokens(*column, numbers, VOCABULARY, memo.young, False, desk_for(1000), scratch) == 0
    assert VOCABULARY.given.used[PIECES] == 0 and held(memo) == 1
    long = text_column(pa.array([b"a" * (LONGEST + 1)], pa.large_binary()))
    assert remember_tokens(*long, np.array([7], np.uint32), vocabulary, memo.young, True, desk_for(1000), scratch) == 1


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no huge pages")
def test_a_memo_takes_memory_when_it_is_used_and_no_more_than_it_says():
    memo = PieceMemo()
    assert memo.young.slots.ctypes.data % HUGE_PAGE == 0 and memo.young.arena.ctypes.data % HUGE_PAGE == 0
    for _ in range(20):
        memo.make_room()
    generations = [memo.young, memo.old]
    assert 2 * sum(array.nbytes for array in generations[1]) < 200 << 20
    assert len(memo.young.slots) < len(memo.old.slots) == 4 * MOST


def test_nothing_and_nulls():
    assert ids_of([], PieceMemo(16, 16)) == []
    column = text_column(pa.array([None, "sea", ""], pa.string()))
    ids, ends = encode(VOCABULARY, PieceMemo(16, 16), *column, np.ones(3, bool))
    assert (np.diff(ends) > 0).tolist() == [False, True, False] and ids.tolist() == plain("sea")
