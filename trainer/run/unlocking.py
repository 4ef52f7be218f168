"""A curriculum that follows the loss: the buckets of the shards are opened one after another as the loss falls, and
a log records when.

Rows carry the bucket that `order` gave them (docs/curriculum.md); those without one are open from the beginning. The
next bucket is opened when the mean of the last losses is below a bound, when it has stopped falling, or when the
stage has lasted long enough. Of what is open every 1,000 rows hold each bucket's share by rows, shuffled; each
bucket is read in a shuffled order of its own, and continues where it was when another opens, so no row is read twice
before every row of its bucket was. Which row is read is a pure function of (seed, log, place): a log replays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import xxhash
from pydantic.dataclasses import dataclass as checked_dataclass

from gristmill.kernels.base.feistel import permuted
from gristmill.kernels.base.splitmix import mixed_plain
from gristmill.kernels.base.types import Array, Offsets
from gristmill.shards.format import BadShards
from gristmill.shards.orders import key_of
from gristmill.shards.reader import ShardSet
from gristmill.trainer.checked import CHECKED, Count

PERIOD = 1000


@checked_dataclass(frozen=True, config=CHECKED)
class Unlocking:
    """When the next bucket is opened; looked at every `every` updates.

    `below`: the mean loss of the last `smooth` updates is under it. `stalled`: that mean is not lower by this share
    than the mean of the `smooth` before. `at_most`: the stage has lasted so many updates. Never before `at_least`. None
    leaves a reason out.
    """

    below: float | None = None  # the mean loss is under it
    stalled: float | None = 0.005  # the mean loss is not lower by this share
    at_most: Count | None = 2000  # updates that a stage lasts
    at_least: Count = 1  # updates before anything is opened
    smooth: Count = 20  # updates in a mean
    every: Count = 10  # looked at after so many updates

    def __post_init__(self) -> None:
        if self.below is None and self.stalled is None and self.at_most is None:
            raise ValueError("below, stalled and at_most are all None, so nothing would ever be opened")
        if self.at_most is not None and self.at_most < self.at_least:
            raise ValueError(f"at_most {self.at_most} is less than at_least {self.at_least}")

    def reason(self, losses: Sequence[float], lasted: int) -> str | None:
        """Why the next bucket is opened now, or None. `losses` are those since the last was opened (the last 2 x
        `smooth` are enough), of a stage that lasted `lasted` updates."""
        if lasted < self.at_least:
            return None
        recent, before = losses[-self.smooth :], losses[-2 * self.smooth : -self.smooth]
        if self.below is not None and len(recent) == self.smooth and _mean(recent) < self.below:
            return "below"
        if (
            self.stalled is not None
            and len(before) == self.smooth
            and _mean(recent) > (1 - self.stalled) * _mean(before)
        ):
            return "stalled"
        return "at_most" if self.at_most is not None and lasted >= self.at_most else None


@dataclass(frozen=True)
class BucketsOpened:
    """From row `place` of training on, the first `count` buckets are read. Update, reason and mean loss say why."""

    place: int
    count: int
    update: int = 0
    reason: str = "beginning"
    loss: float | None = None

    def facts(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Buckets:
    """Where the rows of each bucket stand: runs of rows, by their first rows and how many of the bucket are before
    each."""

    numbers: tuple[int, ...]
    sizes: tuple[int, ...]
    first_rows: tuple[Array, ...] = field(repr=False)
    before: tuple[Array, ...] = field(repr=False)

    def rows(self, bucket: int, ranks: Array) -> Array:
        """The rows that are the ranks-th of the bucket."""
        run = np.searchsorted(self.before[bucket], ranks, "right") - 1
        return np.asarray(self.first_rows[bucket][run] + ranks - self.before[bucket][run])

    def facts(self) -> dict[str, Any]:
        runs = b"".join(array.astype("<i8").tobytes() for array in (*self.first_rows, *self.before))
        return {"buckets": list(self.numbers), "rows": list(self.sizes), "hash": xxhash.xxh3_64_hexdigest(runs)}


def buckets_of(shards: ShardSet) -> Buckets:
    """Looks at every row's bucket once. Rows of an unknown bucket are taken for those of the first."""
    columns = [block.bucket for block in shards.blocks()]
    bucket = np.concatenate(columns) if columns else np.zeros(0, np.int16)
    numbered = bucket[bucket >= 0]
    if len(numbered) == 0:
        raise BadShards(
            f"{shards.folder}: no row has a bucket; put an `order` stage with steps before `pack`: the book's chapter Curriculum"
        )
    bucket = np.where(bucket < 0, numbered.min(), bucket)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(bucket)) + 1]).astype(np.int64)
    lengths = np.diff(np.append(starts, len(bucket)))
    numbers = np.unique(bucket)
    if len(numbers) > PERIOD // 10:
        raise BadShards(
            f"{shards.folder}: {len(numbers):,} buckets; at most {PERIOD // 10} can be opened one after another"
        )
    runs = [bucket[starts] == number for number in numbers]
    return Buckets(
        tuple(numbers.tolist()),
        tuple(int(lengths[in_bucket].sum()) for in_bucket in runs),
        tuple(starts[in_bucket] for in_bucket in runs),
        tuple(np.cumsum(lengths[in_bucket]) - lengths[in_bucket] for in_bucket in runs),
    )


@dataclass(frozen=True)
class Unlocked:
    """The order of a log, for `gristmill.shards.loader.Loader`. It knows no epochs: places go on counting."""

    buckets: Buckets
    log: tuple[BucketsOpened, ...] = (BucketsOpened(0, 1),)

    def __post_init__(self) -> None:
        for before, after in zip(self.log, self.log[1:], strict=False):
            if not (before.place <= after.place and before.count < after.count <= len(self.buckets.numbers)):
                raise BadShards(
                    f"a log of buckets that goes from {before} to {after}; there are {len(self.buckets.numbers)} "
                    "buckets"
                )
        if not self.log or self.log[0].place != 0 or self.log[0].count < 1:
            raise BadShards("a log of buckets begins at place 0 with one bucket or more")

    @property
    def whole(self) -> bool:
        return self.log[-1].count == len(self.buckets.numbers)

    def opened(self, more: BucketsOpened) -> Unlocked:
        return replace(self, log=(*self.log, more))

    def rows_at(self, places: Offsets, rows: int, seed: int, epoch: int) -> Offsets:
        places_of_training = places + epoch * rows
        begins = np.array([opened.place for opened in self.log], np.int64)
        stages = np.searchsorted(begins, places_of_training, "right") - 1
        rows_read = np.empty(len(places_of_training), np.int64)
        read = np.zeros(len(self.buckets.numbers), np.int64)  # of each bucket, before the stage
        for stage, opened in enumerate(self.log[: int(stages.max(initial=0)) + 1]):
            counts = self._counts(opened.count)
            in_stage = np.flatnonzero(stages == stage)
            rows_read[in_stage] = self._rows(places_of_training[in_stage] - opened.place, counts, read, seed, stage)
            if stage + 1 < len(self.log):
                periods, rest = divmod(self.log[stage + 1].place - opened.place, PERIOD)
                owners, _ = _period_pattern(counts, seed, stage, periods)
                read[: len(counts)] += periods * counts + np.bincount(owners[:rest], minlength=len(counts))
        return rows_read

    def facts(self) -> dict[str, Any]:
        """Without the log, which grows: the loop keeps it in checkpoints."""
        return {"name": "unlocked", **self.buckets.facts()}

    def _counts(self, opened: int) -> Array:
        """Rows of each open bucket in a period: its share by rows, one at the least."""
        sizes = np.array(self.buckets.sizes[:opened], np.float64)
        exact = sizes / sizes.sum() * (PERIOD - opened)
        counts = np.floor(exact).astype(np.int64)
        counts[np.argsort(counts - exact, kind="stable")[: PERIOD - opened - counts.sum()]] += 1
        return np.asarray(counts + 1)

    def _rows(self, slots: Array, counts: Array, read: Array, seed: int, stage: int) -> Array:
        rows = np.empty(len(slots), np.int64)
        periods, slots = np.divmod(slots, PERIOD)
        for period in np.unique(periods).tolist():
            owners, ranks = _period_pattern(counts, seed, stage, period)
            for bucket, count in enumerate(counts.tolist()):
                selected = np.flatnonzero((periods == period) & (owners[slots] == bucket))
                passes, ranks_in = np.divmod(
                    read[bucket] + period * count + ranks[slots[selected]], self.buckets.sizes[bucket]
                )
                keys = np.array([key_of(seed ^ mixed_plain(bucket), int(each)) for each in passes], np.uint64)
                rows[selected] = self.buckets.rows(
                    bucket, permuted(ranks_in, np.full(len(selected), self.buckets.sizes[bucket]), keys)
                )
        return rows


def log_from_facts(facts: Sequence[Mapping[str, Any]]) -> tuple[BucketsOpened, ...]:
    return tuple(BucketsOpened(**opened) for opened in facts)


def _period_pattern(counts: Array, seed: int, stage: int, period: int) -> tuple[Array, Array]:
    """The bucket of each of a period's slots, and the slot's rank among those of its bucket within the period."""
    key = np.full(PERIOD, key_of(seed ^ mixed_plain(stage + PERIOD), period), np.uint64)
    owners = np.repeat(np.arange(len(counts)), counts)[permuted(np.arange(PERIOD), np.full(PERIOD, PERIOD), key)]
    ranks = np.empty(PERIOD, np.int64)
    ranks[np.argsort(owners, kind="stable")] = np.concatenate([np.arange(count) for count in counts])
    return owners, ranks


def _mean(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses)
