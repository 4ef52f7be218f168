"""Sets read together by weights: exact shares, every set in its own order, and all that the loader promises."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gristmill.shards.format import BadShards
from gristmill.shards.loader import Loader
from gristmill.shards.orders import AsWritten, Shuffled
from gristmill.shards.reader import open_shards
from gristmill.shards.weighted import PERIOD, Together, Weighted
from tests.shards.shard_sets import small_set


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> Together:
    folder = tmp_path_factory.mktemp("sets")
    return Together(
        [open_shards(small_set(folder / "old", 3).folder), open_shards(small_set(folder / "new", 1).folder)]
    )


def test_every_thousand_rows_hold_the_exact_shares_in_the_sets_own_orders(sets):
    order = Weighted.of(sets, [0.7, 0.3], [AsWritten(), Shuffled()])
    old, new = map(len, sets.sets)
    rows = Loader(sets, 1, order, seed=4).rows_at(np.arange(5 * PERIOD))
    assert [(part < old).sum() for part in rows.reshape(5, PERIOD)] == [700] * 5
    from_old, from_new = rows[rows < old], rows[rows >= old] - old
    assert from_old.tolist() == [i % old for i in range(3500)]
    epochs = [from_new[i : i + new].tolist() for i in range(0, 1500 - new, new)]
    assert len(epochs) >= 20 and all(sorted(epoch) == list(range(new)) for epoch in epochs) and epochs[0] != epochs[1]
    patterns = (rows < old).reshape(5, PERIOD)
    assert (
        not np.array_equal(patterns[0], patterns[1])
        and abs(np.corrcoef(patterns[0][:-1], patterns[0][1:])[0, 1]) < 0.15
    )


@given(st.integers(0, 2**64 - 1), st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 4)), max_size=4))
def test_ranks_may_change_at_any_stop(sets, seed, segments):
    order = Weighted.of(sets, [2, 1], [Shuffled(), Shuffled()])
    state, found = Loader(sets, 60, order, seed=seed).state_dict(), []
    for world, steps in segments:
        loaders = [Loader(sets, 60, order, seed=seed, rank=rank, world=world) for rank in range(world)]
        for loader in loaders:
            loader.load_state_dict(state)
        found += [np.concatenate([loader.next_batch().numbers for loader in loaders]).tolist() for _ in range(steps)]
        state = loaders[0].state_dict()
    whole = Loader(sets, 60, order, seed=seed)
    assert found == [whole.next_batch().numbers.tolist() for _ in found]


def test_rows_are_those_of_their_sets_and_sources_have_their_names(sets, tmp_path):
    first, second = sets.sets
    taken = sets.take([3, len(first) + 5, 3])
    for i, (of, number) in enumerate([(first, 3), (second, 5), (first, 3)]):
        row, wanted = taken.row(i), of.row(number)
        assert row.input_ids.tolist() == wanted.input_ids.tolist() and row.doc_uids.tolist() == wanted.doc_uids.tolist()
        assert [sets.sources[s] for s in row.source] == [of.sources[s] for s in wanted.source]
    with pytest.raises(IndexError):
        sets.take([len(sets)])
    assert sets.take([]).input_ids.shape == (0, 16)


def test_weights_that_cannot_be_are_refused(sets):
    for weights, wrong in (
        ([1], "1 weights and 2 orders for 2 sets"),
        ([1, 0], "each must be above 0"),
        ([1, 1e-5], "less than one row in 1,000"),
    ):
        with pytest.raises(ValueError, match=wrong):
            Weighted.of(sets, weights, [AsWritten(), AsWritten()])
    assert Weighted.of(sets, [1, 2], [AsWritten(), AsWritten()]).counts == (333, 667)


def test_sets_of_other_tokens_are_refused(sets, tmp_path):
    other = open_shards(small_set(tmp_path, row_length=17).folder)
    with pytest.raises(BadShards, match=r"row_length 17, but .* has 16; they cannot be read together"):
        Together([sets.sets[0], other])


def test_the_first_thousand_rows_are_those_they_always_were():
    """As for the other orders: what a run goes on with must never change."""
    order = Weighted((700, 300), (500, 80), (AsWritten(), Shuffled()))
    rows = order.rows_at(np.arange(PERIOD), 580, 17, 3)
    assert (
        hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
        == "24371eb6261c639fd9f11d805f0757c950cd7e381208f1d7896b91b762eeea61"
    )


def test_rows_left_out_of_epochs_are_left_out_of_no_sets_order(sets):
    order = Weighted.of(sets, [1, 1], [AsWritten(), AsWritten()])
    batch = len(sets) // 2 + 1
    assert len(sets) % batch
    places = np.arange(3 * PERIOD)
    whole, cut = (Loader(sets, batch, order, seed=4, whole_epochs_only=only).rows_at(places) for only in (False, True))
    assert whole.tolist() == cut.tolist()
