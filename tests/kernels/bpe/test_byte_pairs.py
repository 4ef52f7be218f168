"""Merging gives what the plain rule gives, for any merges, and any length is no trouble."""

from __future__ import annotations

import random
import time

import numpy as np
from hypothesis import given, strategies as st

from gristmill.kernels.base.bare import kernel
from gristmill.kernels.bpe.byte_pairs import Merges, desk_for, merge_bytes, merged_plain, merges_of

OF_BYTES = [(byte * 7 + 3) % 256 for byte in range(256)]  # ids of bytes need not be in their order
Ranks = dict[tuple[int, int], tuple[int, int]]


@kernel
def _merge_one(data, start, end, merges, desk):  # type: ignore[no-untyped-def]
    return merge_bytes(data, start, end, merges, desk)


def learnt(picks: list[tuple[int, int]], letters: bytes) -> Ranks:
    """A vocabulary over a few letters: each pick joins two tokens that are there."""
    known, ids = [bytes([letter]) for letter in letters], {bytes([letter]): OF_BYTES[letter] for letter in letters}
    ranks: Ranks = {}
    for rank, (left, right) in enumerate(picks):
        a, b = known[left % len(known)], known[right % len(known)]
        if (ids[a], ids[b]) in ranks or len(a + b) > 40:
            continue
        if a + b not in ids:
            ids[a + b] = 300 + rank
            known.append(a + b)
        ranks[ids[a], ids[b]] = (len(ranks), ids[a + b])
    return ranks


def table_of(ranks: Ranks) -> Merges:
    ordered = sorted(ranks.items(), key=lambda item: item[1][0])
    pairs = np.array([pair for pair, _ in ordered], np.uint32).reshape(-1, 2)
    return merges_of(pairs, np.array([made for _, (_, made) in ordered], np.uint32), np.array(OF_BYTES, np.uint32))


def merged(piece: bytes, merges: Merges, room: int = 0) -> list[int]:
    data, desk = np.frombuffer(b"?" + piece + b"?", np.uint8), desk_for(max(room, len(piece)))
    count = _merge_one(data, 1, 1 + len(piece), merges, desk)
    return desk.ids[:count].tolist()


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=120),
    st.lists(st.sampled_from(b"abc"), min_size=1, max_size=80).map(bytes),
    st.integers(0, 100),
)
def test_ids_are_those_of_the_plain_rule(picks, piece, room):
    ranks = learnt(picks, b"abc")
    assert merged(piece, table_of(ranks), room) == merged_plain(piece, ranks, OF_BYTES)


@given(st.binary(min_size=1, max_size=50))
def test_bytes_that_nothing_was_learnt_of_stay_bytes(piece):
    assert merged(piece, table_of({})) == [OF_BYTES[byte] for byte in piece]


def test_a_piece_of_a_megabyte_is_no_trouble():
    chance = random.Random(5)
    ranks = learnt([(chance.randrange(400), chance.randrange(400)) for _ in range(400)], b"ab")
    merges = table_of(ranks)
    assert len(ranks) > 100
    for piece in (b"a" * 1_000_000, b"ab" * 500_000, bytes(chance.choices(b"ab", k=1_000_000))):
        start = time.process_time()
        found = merged(piece, merges)
        assert time.process_time() - start < 10
        assert len(found) < len(piece)
        assert merged(piece[:2000], merges) == merged_plain(piece[:2000], ranks, OF_BYTES)
