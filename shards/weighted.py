"""Several sets of shards read as one by weights (an anneal on 30 % new and 70 % old data): also a pure function of the
place.

Every 1,000 rows have exactly the share of each set, in an order that is shuffled anew for each thousand. Each set is
read in its own order, and starts over at its end. Weights are of rows; sets of one row length have about equally many
tokens in each.

    sets = Together([open_shards(old), open_shards(new)])
    loader = Loader(sets, batch_rows=512, order=Weighted.of(sets, [0.7, 0.3], [Shuffled(), AsWritten()]))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xxhash

from gristmill.kernels.base.feistel import permuted
from gristmill.kernels.base.splitmix import mixed_plain
from gristmill.kernels.base.types import Array, Offsets
from gristmill.shards.format import BadShards
from gristmill.shards.orders import RowOrder, key_of
from gristmill.shards.reader import ShardSet
from gristmill.shards.rows import Rows, concatenate

PERIOD = 1000


class Together:
    """Sets end to end, as one. Rows count the sources of all."""

    def __init__(self, sets: Sequence[ShardSet]) -> None:
        if not sets:
            raise ValueError("no sets of shards")
        for other in sets[1:]:
            for name in ("tokenizer_hash", "vocab_size", "row_length", "pad_id"):
                ours, theirs = getattr(sets[0].meta, name), getattr(other.meta, name)
                if ours != theirs:
                    raise BadShards(
                        f"{other.folder}: {name} {theirs!r}, but {sets[0].folder} has {ours!r}; they cannot be read "
                        "together"
                    )
        self.sets = tuple(sets)
        self.meta = sets[0].meta
        self.folder = sets[0].folder
        self.first_rows = np.cumsum([0, *map(len, sets)])
        self.sources = tuple(dict.fromkeys(name for each in sets for name in each.sources))
        self._source_of = [np.array([self.sources.index(name) for name in each.sources], np.int32) for each in sets]

    def __len__(self) -> int:
        return int(self.first_rows[-1])

    @property
    def fingerprint(self) -> str:
        return str(xxhash.xxh3_128_hexdigest(" ".join(each.fingerprint for each in self.sets).encode()))

    def take(self, rows: Sequence[int] | Array, out: Array | None = None) -> Rows:
        """These rows, in this order, into `out` (rows, row length) or a new array."""
        rows = np.asarray(rows, np.int64)
        owners = np.searchsorted(self.first_rows, rows, "right") - 1
        if len(rows) and (rows.min() < 0 or owners.max() >= len(self.sets)):
            raise IndexError(f"row {int(rows.min() if rows.min() < 0 else rows.max()):,}: there are {len(self):,}")
        parts = []
        for owner, row in zip(owners.tolist(), (rows - self.first_rows[owners]).tolist(), strict=True):
            part = self.sets[owner].take([row])
            parts.append(part._replace(source=self._source_of[owner][part.source]))
        return concatenate(parts, np.empty((len(rows), self.meta.row_length), self.meta.dtype) if out is None else out)


@dataclass(frozen=True)
class Weighted:
    """Which rows of combined sets are read. `counts` are rows of each set in 1,000."""

    counts: tuple[int, ...]
    sizes: tuple[int, ...]
    orders: tuple[RowOrder, ...]
    endless: ClassVar[bool] = True  # each set has its own epochs

    @classmethod
    def of(cls, sets: Together, weights: Sequence[float], orders: Sequence[RowOrder]) -> Weighted:
        """Weights need not add up to 1."""
        if not len(weights) == len(orders) == len(sets.sets):
            raise ValueError(f"{len(weights)} weights and {len(orders)} orders for {len(sets.sets)} sets")
        shares = np.asarray(weights, np.float64)
        if not (np.isfinite(shares).all() and (shares > 0).all()):
            raise ValueError(f"weights {list(weights)}: each must be above 0")
        exact = shares / shares.sum() * PERIOD
        counts = np.floor(exact).astype(int)
        largest_rests = np.argsort(counts - exact, kind="stable")[: PERIOD - counts.sum()]
        counts[largest_rests] += 1
        if counts.min() == 0:
            raise ValueError(f"weights {list(weights)}: the smallest is less than one row in {PERIOD:,}")
        return cls(tuple(counts.tolist()), tuple(map(len, sets.sets)), tuple(orders))

    def rows_at(self, places: Offsets, rows: int, seed: int, epoch: int) -> Offsets:
        periods, slots = np.divmod(places + epoch * rows, PERIOD)
        rows_out = np.empty(len(places), np.int64)
        firsts = np.cumsum([0, *self.sizes])
        for period in np.unique(periods).tolist():
            owners, ranks = self._pattern(seed, period)
            for number, (count, size, order) in enumerate(zip(self.counts, self.sizes, self.orders, strict=True)):
                of_set = np.flatnonzero((periods == period) & (owners[slots] == number))
                epochs, within = np.divmod(period * count + ranks[slots[of_set]], size)
                for own_epoch in np.unique(epochs).tolist():
                    here = epochs == own_epoch
                    rows_out[of_set[here]] = firsts[number] + order.rows_at(
                        within[here], size, seed ^ mixed_plain(number), own_epoch
                    )
        return rows_out

    def owners(self, places: Offsets, seed: int) -> Array:
        """The sets that the rows at these places are of."""
        periods, slots = np.divmod(places, PERIOD)
        found = np.empty(len(places), np.int64)
        for period in np.unique(periods).tolist():
            here = periods == period
            found[here] = self._pattern(seed, period)[0][slots[here]]
        return found

    def facts(self) -> dict[str, Any]:
        return {"name": "weighted", "counts": list(self.counts), "orders": [order.facts() for order in self.orders]}

    def _pattern(self, seed: int, period: int) -> tuple[Array, Array]:
        """The set of each slot of a period, and its row's rank within the period."""
        key = np.full(PERIOD, key_of(seed, period), np.uint64)
        shuffled = permuted(np.arange(PERIOD), np.full(PERIOD, PERIOD), key)
        owners = np.repeat(np.arange(len(self.counts)), self.counts)[shuffled]
        ranks = np.empty(PERIOD, np.int64)
        ranks[np.argsort(owners, kind="stable")] = np.concatenate([np.arange(count) for count in self.counts])
        return owners, ranks
