"""Buckets are opened by losses; which row is read hangs on seed, log and place alone; rows of a bucket take turns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gristmill.shards.format import BadShards
from gristmill.shards.loader import Loader
from gristmill.shards.orders import Shuffled
from gristmill.shards.reader import ShardSet, open_shards
from gristmill.shards.weighted import Together, Weighted
from gristmill.trainer.run.unlocking import PERIOD, BucketsOpened, Unlocked, Unlocking, buckets_of, log_from_facts
from tests.shards.shard_sets import documents_of, meta_of, small_set, write_set


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    return open_shards(small_set(tmp_path_factory.mktemp("set") / "shards", shards=3, documents=150).folder)


def buckets_read(shards: ShardSet, rows: np.ndarray) -> np.ndarray:
    return np.maximum(shards.take(rows).bucket, 0)


def test_every_row_is_in_one_bucket(shards: ShardSet) -> None:
    found = buckets_of(shards)
    rows = [found.rows(b, np.arange(size)) for b, size in enumerate(found.sizes)]
    assert found.numbers == (0, 1, 2, 3) and min(found.sizes) > 2
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(shards)))
    for number, mine in zip(found.numbers, rows, strict=True):
        assert set(buckets_read(shards, mine).tolist()) == {number}
        assert (np.diff(mine) > 0).all()


def test_only_what_is_open_is_read_and_rows_take_turns(shards: ShardSet) -> None:
    buckets = buckets_of(shards)
    log = (BucketsOpened(0, 1), BucketsOpened(700, 2), BucketsOpened(1333, 4))
    order = Unlocked(buckets, log)
    loader = Loader(shards, 1, order, seed=5)
    rows = loader.rows_at(np.arange(6000))
    of = buckets_read(shards, rows)
    assert set(of[:700]) == {0} and set(of[700:1333]) == {0, 1} and set(of[1333:2000]) == {0, 1, 2, 3}
    for b, size in enumerate(buckets.sizes):
        read = rows[of == b]
        times = Counter(read.tolist())
        assert len(times) == size < len(read) and max(times.values()) - min(times.values()) <= 1
        for start in range(0, len(read) - size, size):  # whatever opened meanwhile
            assert len(set(read[start : start + size].tolist())) == size
    whole = of[1333 : 1333 + 4 * PERIOD]
    for b, size in enumerate(buckets.sizes):
        assert abs((whole == b).mean() - size / len(shards)) < 0.005


def test_a_row_is_read_again_when_its_bucket_is_through(shards: ShardSet) -> None:
    """One bucket open: whole passes, each in another order."""
    buckets = buckets_of(shards)
    size = buckets.sizes[0]
    first, second = Loader(shards, 1, Unlocked(buckets), seed=5).rows_at(np.arange(2 * size)).reshape(2, size).tolist()
    assert sorted(first) == sorted(second) == buckets.rows(0, np.arange(size)).tolist()
    assert first != second


def test_a_log_replays_whatever_the_batches(shards: ShardSet) -> None:
    buckets = buckets_of(shards)
    order = (
        Unlocked(buckets).opened(BucketsOpened(48, 2, 3, "below", 1.5)).opened(BucketsOpened(96, 3, 6, "stalled", 1.2))
    )
    again = Unlocked(buckets_of(shards), log_from_facts([opened.facts() for opened in order.log]))
    assert again.log == order.log and again.facts() == order.facts()
    places = np.arange(500)
    whole = Loader(shards, 16, order, seed=1).rows_at(places)
    assert whole.tolist() == [int(Loader(shards, 16, again, seed=1).rows_at(np.array([p]))[0]) for p in places]
    assert whole.tolist() != Loader(shards, 16, order, seed=2).rows_at(places).tolist()
    short = Loader(shards, 16, Unlocked(buckets), seed=1).rows_at(places)
    assert short[:48].tolist() == whole[:48].tolist() and short.tolist() != whole.tolist()
    ranks = [Loader(shards, 16, order, seed=1, rank=r, world=4) for r in range(4)]
    assert np.concatenate([rank.next_batch().numbers for rank in ranks]).tolist() == whole[:16].tolist()


def test_a_log_that_makes_no_sense_is_refused(shards: ShardSet) -> None:
    buckets = buckets_of(shards)
    for log in (
        (),
        (BucketsOpened(5, 1),),
        (BucketsOpened(0, 2), BucketsOpened(5, 2)),
        (BucketsOpened(0, 1), BucketsOpened(9, 2), BucketsOpened(5, 3)),
        (BucketsOpened(0, 1), BucketsOpened(1, 9)),
    ):
        with pytest.raises(BadShards, match="log of buckets"):
            Unlocked(buckets, log)


def test_rows_without_buckets_are_refused(tmp_path: Path) -> None:
    documents = documents_of(20, 9, 1000, 1)
    made = write_set(tmp_path / "s", meta_of(), [documents._replace(bucket=np.full(20, -1, np.int16))])
    with pytest.raises(BadShards, match="no row has a bucket; put an `order` stage"):
        buckets_of(open_shards(made.folder))


def test_reasons() -> None:
    rule = Unlocking(below=2.0, stalled=0.1, at_most=30, at_least=4, smooth=3)
    assert rule.reason([1.0] * 3, 3) is None  # too soon
    assert rule.reason([9.0, 1.0, 1.0, 1.0], 4) == "below"
    assert rule.reason([1.0, 1.0], 4) is None  # too few to say
    assert rule.reason([5.0, 5.0, 5.0, 4.0, 4.0, 4.0], 6) is None  # still falling
    assert rule.reason([5.0, 5.0, 5.0, 4.6, 4.6, 4.6], 6) == "stalled"
    assert rule.reason([9.0, 5.0, 5.0, 5.0, 4.0, 4.0, 4.0], 30) == "at_most"
    assert Unlocking(stalled=None, at_most=5).reason([], 5) == "at_most"


def test_tasks_are_sets_read_together(tmp_path: Path) -> None:
    """Several tasks in turn: a set of shards each, weights as they should come; equal ones give each the same number of
    rows in every 1,000."""
    sets = Together(
        [open_shards(small_set(tmp_path / str(i), shards=1, documents=100 + 50 * i).folder) for i in range(3)]
    )
    loader = Loader(sets, 10, Weighted.of(sets, [1, 1, 2], [Shuffled()] * 3), seed=4)
    owners = np.searchsorted(sets.first_rows, loader.rows_at(np.arange(3000)), "right") - 1
    assert [np.bincount(part, minlength=3).tolist() for part in owners.reshape(3, 1000)] == [[250, 250, 500]] * 3
