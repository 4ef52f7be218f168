"""Which row is read at which place of an epoch: pure functions of the seed, the epoch and the place, without an array
of all rows.

Every order reads every row of the set once in an epoch. Shuffles differ from epoch to epoch
(`gristmill.kernels.base.feistel`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import xxhash

from gristmill.kernels.base.feistel import permuted
from gristmill.kernels.base.splitmix import ALL, mixed_all, mixed_plain
from gristmill.kernels.base.types import Offsets
from gristmill.shards.index import check_segments
from gristmill.shards.reader import ShardSet

_STEP = 0x9E3779B97F4A7C15


class RowOrder(Protocol):
    """`facts` identifies it in a saved state: an order with other facts is another order."""

    def rows_at(self, places: Offsets, rows: int, seed: int, epoch: int) -> Offsets:
        """The rows, of this many, at these places (from 0) of an epoch."""

    def facts(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class AsWritten:
    """The order of the shards: that of the curriculum, if there was one. Every epoch is the same."""

    def rows_at(self, places: Offsets, rows: int, seed: int, epoch: int) -> Offsets:
        return places

    def facts(self) -> dict[str, Any]:
        return {"name": "as_written"}


@dataclass(frozen=True)
class Shuffled:
    """All rows."""

    def rows_at(self, places: Offsets, rows: int, seed: int, epoch: int) -> Offsets:
        return _within(places, np.zeros(len(places), np.int64), np.full(len(places), rows), seed, epoch)

    def facts(self) -> dict[str, Any]:
        return {"name": "shuffled"}


@dataclass(frozen=True)
class ShuffledInWindows:
    """Rows only move inside their window of this size: a curriculum survives, and so does sequential reading."""

    window: int

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"windows of {self.window:,} rows: at least 1 is needed")

    def rows_at(self, places: Offsets, rows: int, seed: int, epoch: int) -> Offsets:
        first = places - places % self.window
        return _within(places, first, np.minimum(self.window, rows - first), seed, epoch)

    def facts(self) -> dict[str, Any]:
        return {"name": "shuffled_in_windows", "window": self.window}


@dataclass(frozen=True)
class ShuffledInStretches:
    """Stretches keep their order, and each is shuffled inside. They begin at these rows; the first at 0."""

    first_rows: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.first_rows:
            raise ValueError(
                "no stretches: the shards were written without segments; use ShuffledInWindows, or "
                "bucket_stretches(shards)"
            )
        check_segments(self.first_rows, self.first_rows[-1] + 1, "stretches")

    def rows_at(self, places: Offsets, rows: int, seed: int, epoch: int) -> Offsets:
        bounds = np.array([*self.first_rows, rows], np.int64)
        stretch = np.searchsorted(bounds, places, "right") - 1
        return _within(places, bounds[stretch], bounds[stretch + 1] - bounds[stretch], seed, epoch)

    def facts(self) -> dict[str, Any]:
        first_rows = np.array(self.first_rows, "<i8")
        return {
            "name": "shuffled_in_stretches",
            "stretches": len(first_rows),
            "hash": xxhash.xxh3_64_hexdigest(first_rows.tobytes()),
        }


def segment_stretches(shards: ShardSet) -> ShuffledInStretches:
    """The segments of the schedule that the shards were written by."""
    return ShuffledInStretches(shards.index.segments)


def bucket_stretches(shards: ShardSet) -> ShuffledInStretches:
    """Stretches of equal difficulty bucket. Reads every row's bucket once."""
    first_rows: list[int] = []
    first_row, last = 0, None
    for block in shards.blocks():
        if len(block.bucket) == 0:
            continue
        if block.bucket[0] != last:
            first_rows.append(first_row)
        first_rows += (first_row + 1 + np.flatnonzero(block.bucket[1:] != block.bucket[:-1])).tolist()
        first_row, last = first_row + len(block.bucket), block.bucket[-1]
    return ShuffledInStretches(tuple(first_rows))


def key_of(seed: int, epoch: int) -> int:
    return mixed_plain((mixed_plain(seed + _STEP & ALL) ^ epoch) + _STEP & ALL)


def _within(places: Offsets, first: Offsets, sizes: Offsets, seed: int, epoch: int) -> Offsets:
    """Shuffles inside stretches that begin at `first` and have `sizes` rows."""
    keys = mixed_all((np.uint64(key_of(seed, epoch)) ^ first.astype(np.uint64)) + np.uint64(_STEP))
    return first + permuted(places - first, sizes, keys)
