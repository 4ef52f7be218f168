"""A line of rows cut over the ranks of a context: every token is on one rank, and ranks have equal work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.shards.batch import NO_LABEL
from gristmill.trainer.model.packed import pack_documents
from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.parallel.context import STEP, UNEVEN, owners, split, way_of

SHAPE = DecoderShape(97, 32, 1, 4, 2, 48)
ODD = DecoderShape(97, 24, 1, 3, 3, 48)


def test_the_way_is_chosen_by_heads() -> None:
    ways = {(heads, kv, ranks): way_of(DecoderShape(97, 8 * heads, 1, heads, kv, 48), ranks)
            for heads, kv, ranks in ((4, 4, 2), (4, 2, 4), (4, 1, 4), (3, 3, 2), (4, 2, 8), (6, 6, 4))}  # fmt: skip
    assert ways == {
        (4, 4, 2): "heads", (4, 2, 4): "heads", (4, 1, 4): "heads", (3, 3, 2): "keys", (4, 2, 8): "keys",
        (6, 6, 4): "keys",
    }  # fmt: skip
    assert way_of(SHAPE, 2) == "heads" and way_of(SHAPE, 2, tensor=2) == "heads"
    assert way_of(DecoderShape(97, 24, 1, 6, 2, 48), 2, tensor=2) == "keys"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=40), st.integers(2, 5), st.sampled_from([SHAPE, ODD]))
def test_every_token_is_on_one_rank(lengths: list[int], count: int, shape: DecoderShape) -> None:
    documents = [[*range(1 + 1000 * i, 1 + 1000 * i + length)] for i, length in enumerate(lengths)]
    packed = pack_documents(documents)
    parts = [split(packed, rank, count, shape) for rank in range(count)]
    assert len({len(part.ids_T) for part in parts}) == 1
    assert len({part.shared.tokens if part.shared else 0 for part in parts}) == 1
    assert sum(part.counted for part in parts) == packed.counted
    found = [
        triple
        for part in parts
        for triple in zip(part.ids_T.tolist(), part.targets_T.tolist(), part.positions_T.tolist(), strict=True)
        if triple[0]  # the rest is padding
    ]
    wanted = zip(packed.ids_T.tolist(), packed.targets_T.tolist(), packed.positions_T.tolist(), strict=True)
    assert sorted(found) == sorted(wanted)
    padding = [t for part in parts for i, t in zip(part.ids_T.tolist(), part.targets_T.tolist(), strict=True) if not i]
    assert all(target == NO_LABEL for target in padding)
    for part in parts:
        own = len(part.ids_T) - (part.shared.tokens if part.shared else 0)
        assert part.cuts[0] == 0 and part.cuts[-1] == own and (part.cuts.diff() > 0).all()
        if part.shared and part.shared.stretches:
            held = part.ids_T[: part.shared.tokens].split(part.shared.tokens // 2)
            for stretch, tokens in zip(part.shared.stretches, held, strict=True):
                assert stretch.cuts_q[-1] == len(tokens) and stretch.cuts_k[-1] == stretch.end - stretch.first_key
                behind = stretch.cuts_k.diff() - stretch.cuts_q.diff()
                assert behind[0] >= 0 and not behind[1:].any()  # keys before the queries are of the first document


def test_documents_that_fit_cost_no_exchange_and_work_is_even() -> None:
    random = np.random.default_rng(0)
    lengths = np.minimum(random.lognormal(6, 1, 200).astype(np.int64) + 1, 4000)
    room = -(-int(lengths.sum() / 4 * (1 + UNEVEN)) // STEP) * STEP
    owner = owners(lengths, 4, room, 12 * 768)
    assert (owner >= 0).mean() > 0.9
    work = np.bincount(owner[owner >= 0], weights=(lengths * (12 * 768 + lengths))[owner >= 0], minlength=4)
    assert work.max() / work.mean() < 1.02
    assert (owners(np.array([9000]), 4, 2304, 12 * 768) == -1).all()  # one long document is everyone's


@pytest.mark.parametrize("count", [2, 4])
def test_one_long_document_is_cut_evenly(count: int) -> None:
    parts = [split(pack_documents([[5] * 6400]), rank, count, SHAPE) for rank in range(count)]
    assert [part.shared and part.shared.tokens for part in parts] == [6400 // count] * count
    assert all(len(part.ids_T) < 1.02 * 6400 / count + STEP for part in parts)
