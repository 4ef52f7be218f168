"""Every order reads every row once in an epoch, and moves rows only where it says that it does."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.base.feistel import permuted_plain
from gristmill.kernels.base.splitmix import ALL, mixed_plain
from gristmill.shards.format import BadShards
from gristmill.shards.orders import (
    AsWritten,
    Shuffled,
    ShuffledInStretches,
    ShuffledInWindows,
    bucket_stretches,
    key_of,
    segment_stretches,
)
from gristmill.shards.reader import open_shards
from tests.shards.shard_sets import small_set

SEEDS = st.integers(0, 2**64 - 1)
ROWS = st.integers(1, 2000)


@st.composite
def orders(draw, rows: int):
    starts = draw(st.sets(st.integers(1, max(rows - 1, 1)), max_size=10)) if rows > 1 else set()
    choices = [
        AsWritten(),
        Shuffled(),
        ShuffledInWindows(draw(st.integers(1, 300))),
        ShuffledInStretches((0, *sorted(starts))),
    ]
    return draw(st.sampled_from(choices))


@given(st.data(), ROWS, SEEDS, st.integers(0, 1000))
def test_every_row_is_read_once(data, rows, seed, epoch):
    order = data.draw(orders(rows))
    found = order.rows_at(np.arange(rows), rows, seed, epoch)
    assert np.array_equal(np.sort(found), np.arange(rows))


@given(st.data(), ROWS, SEEDS, st.integers(0, 1000))
def test_a_place_is_the_same_asked_alone(data, rows, seed, epoch):
    order = data.draw(orders(rows))
    places = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=10)), np.int64)
    assert (
        order.rows_at(places, rows, seed, epoch).tolist()
        == order.rows_at(np.arange(rows), rows, seed, epoch)[places].tolist()
    )


@given(ROWS, SEEDS, st.integers(0, 1000), st.integers(1, 300))
def test_the_plain_order(rows, seed, epoch, window):
    """Of windows, from which the others follow: a key for each of (seed, epoch, first row)."""
    step = 0x9E3779B97F4A7C15
    expected = []
    for place in range(rows):
        first = place - place % window
        key = mixed_plain((key_of(seed, epoch) ^ first) + step & ALL)
        expected.append(first + permuted_plain(place - first, min(window, rows - first), key))
    assert ShuffledInWindows(window).rows_at(np.arange(rows), rows, seed, epoch).tolist() == expected
    stretches = ShuffledInStretches(tuple(range(0, rows, window)))
    assert stretches.rows_at(np.arange(rows), rows, seed, epoch).tolist() == expected
    if window >= rows:
        assert Shuffled().rows_at(np.arange(rows), rows, seed, epoch).tolist() == expected


def test_rows_stay_in_their_window_and_stretch():
    found = ShuffledInWindows(100).rows_at(np.arange(1050), 1050, 5, 0)
    assert np.array_equal(found // 100, np.arange(1050) // 100) and not np.array_equal(found, np.arange(1050))
    bounds = [0, 3, 500, 501, 1050]
    found = ShuffledInStretches(tuple(bounds[:-1])).rows_at(np.arange(1050), 1050, 5, 0)
    for low, high in pairwise(bounds):
        assert set(found[low:high].tolist()) == set(range(low, high))
    assert np.array_equal(AsWritten().rows_at(np.arange(1050), 1050, 5, 3), np.arange(1050))


@pytest.mark.parametrize("order", [Shuffled(), ShuffledInWindows(500), ShuffledInStretches((0, 400))])
def test_seeds_epochs_and_stretches_are_shuffled_apart(order):
    """Chance leaves about one row of a stretch where it was."""
    one, other_epoch, other_seed = (
        order.rows_at(np.arange(1000), 1000, seed, epoch) for seed, epoch in ((5, 0), (5, 1), (6, 0))
    )
    assert (one == other_epoch).sum() < 12 and (one == other_seed).sum() < 12 and (other_epoch == other_seed).sum() < 12
    windows = ShuffledInWindows(500).rows_at(np.arange(1000), 1000, 5, 0)
    assert (windows[:500] == windows[500:] - 500).sum() < 12


def test_stretches_of_a_set(tmp_path):
    made = small_set(tmp_path / "a", segments=(0, 9, 40))
    shards = open_shards(made.folder)
    assert segment_stretches(shards).first_rows == (0, 9, 40)
    buckets = np.concatenate([block.bucket for block in shards.blocks()])
    first_rows = bucket_stretches(shards).first_rows
    assert (
        first_rows == tuple(i for i in range(len(buckets)) if i == 0 or buckets[i] != buckets[i - 1])
        and len(first_rows) > 5
    )
    with pytest.raises(ValueError, match="no stretches: the shards were written without segments"):
        segment_stretches(open_shards(small_set(tmp_path / "b").folder))


@pytest.mark.parametrize("first_rows", [(1, 2), (0, 5, 5), (0, 7, 6)])
def test_stretches_that_do_not_rise_are_refused(first_rows):
    with pytest.raises(BadShards, match="must rise from 0"):
        ShuffledInStretches(first_rows)


def test_other_orders_have_other_facts():
    made = [
        AsWritten(),
        Shuffled(),
        ShuffledInWindows(5),
        ShuffledInWindows(6),
        ShuffledInStretches((0, 5)),
        ShuffledInStretches((0, 6)),
    ]
    assert len({str(order.facts()) for order in made}) == len(made)
    with pytest.raises(ValueError, match="windows of 0 rows"):
        ShuffledInWindows(0)
