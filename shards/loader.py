"""Training batches as a pure function of (seed, epoch, place): any number of ranks and workers, stop and resume, the
same batches.

The places of an epoch are 0 to the number of rows; an order (`gristmill.shards.orders`) maps each to a row. Each batch
takes the next `batch_rows` places, across the end of an epoch into the next, so that no row is left out. A rank takes
an equal, contiguous share of every batch: the shares of ranks 0, 1, … end to end are the batch, whatever their number.
Only the place is saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gristmill.kernels.base.types import Array, Offsets
from gristmill.shards.batch import Batch
from gristmill.shards.format import BadShards, ShardMeta
from gristmill.shards.orders import AsWritten, RowOrder
from gristmill.shards.rows import Rows

STATE_VERSION = 1
LAST_PLACE = 1 << 62  # places are int64, and the batches that come next need room too


class RowSet(Protocol):
    """What is read: a `gristmill.shards.reader.ShardSet`, or several together (`gristmill.shards.weighted`)."""

    meta: ShardMeta
    folder: Path

    def __len__(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def take(self, rows: Array, out: Array | None = None) -> Rows: ...


class Loader:
    """`batch_rows` is that of the whole step, all ranks together. Iteration continues from the current place, without
    end if `epochs` is None. At the end of the last epoch fewer than `batch_rows` rows may be left; they make no batch.
    With `whole_epochs_only` such a rest is dropped at the end of every epoch (a different one each time, if the order
    shuffles), so that every epoch begins with a batch."""

    def __init__(
        self,
        shards: RowSet,
        batch_rows: int,
        order: RowOrder | None = None,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        epochs: int | None = None,
        whole_epochs_only: bool = False,
    ) -> None:
        if world < 1 or not 0 <= rank < world:
            raise ValueError(f"rank {rank} of {world}: ranks count from 0")
        if batch_rows < 1 or batch_rows % world:
            raise ValueError(
                f"batches of {batch_rows:,} rows cannot be shared equally by {world} ranks; take a multiple of {world}"
            )
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed {seed}: between 0 and 2**64 - 1")
        if epochs is not None and epochs < 0:
            raise ValueError(f"{epochs} epochs: at least 0, or None for no end")
        self.shards = shards
        self.batch_rows = batch_rows
        self.order = order or AsWritten()
        self.seed = seed
        self.rank = rank
        self.world = world
        self.epochs = epochs
        self.whole_epochs_only = whole_epochs_only
        self.epoch_rows = len(shards) - (len(shards) % batch_rows if whole_epochs_only else 0)
        if self.epoch_rows == 0:
            raise BadShards(f"{shards.folder}: {len(shards):,} rows, too few for one batch of {batch_rows:,}")
        if epochs and epochs * self.epoch_rows < batch_rows:
            raise BadShards(
                f"{shards.folder}: {epochs} epochs of {len(shards):,} rows are too few for one batch of {batch_rows:,}"
            )
        self.place = 0  # rows that all ranks have read together
        self._same = {
            "shards": shards.fingerprint,
            "order": self.order.facts(),
            "seed": seed,
            "epoch_rows": self.epoch_rows,
        }

    def __len__(self) -> int:
        """Batches still to come."""
        if self.epochs is None:
            raise TypeError("a loader without a number of epochs has no end")
        return max(0, (self.epochs * self.epoch_rows - self.place) // self.batch_rows)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, out: Array | None = None) -> Batch | None:
        """This rank's share of the next batch; None at the end. Tokens are copied into `out` (e.g. pinned memory) if it
        is given."""
        if self.epochs is not None and len(self) == 0:
            return None
        numbers = self.rows_of(self.place, self.rank, self.world)
        self.place += self.batch_rows
        return Batch(self.shards.take(numbers, out), numbers, self.state_dict())

    def standing_here(self) -> Loader:
        """Another loader that continues from the same place; this one does not move."""
        return copy(self)

    def skip(self, batches: int) -> None:
        """Skips batches without reading them."""
        self.place += batches * self.batch_rows

    def rows_of(self, place: int, rank: int, world: int) -> Offsets:
        """The rows of a rank's share of the batch that begins at a place."""
        share = self.batch_rows // world
        return self.rows_at(np.arange(place + rank * share, place + (rank + 1) * share))

    def rows_at(self, places: Offsets) -> Offsets:
        """The rows at these places, counted from the beginning of the first epoch."""
        if getattr(self.order, "endless", False):  # it has no epochs of its own, and drops no rests
            return self.order.rows_at(np.asarray(places, np.int64), len(self.shards), self.seed, 0)
        epochs, within = np.divmod(np.asarray(places, np.int64), self.epoch_rows)
        rows = np.empty(len(within), np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            rows[here] = self.order.rows_at(within[here], len(self.shards), self.seed, int(epoch))
        return rows

    def state_dict(self) -> dict[str, Any]:
        """The place of all ranks between two batches, as JSON; the same on each."""
        epoch, row = divmod(self.place, self.epoch_rows)
        return {"version": STATE_VERSION, **self._same, "epoch": epoch, "row": row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where a loader stopped. The number of ranks may differ, and, unless rests of epochs are dropped,
        the rows a batch."""
        if not isinstance(state, Mapping):
            raise TypeError(f"what state_dict() gave was expected, not {type(state).__name__}")
        if state.get("version") != STATE_VERSION:
            raise BadShards(f"a loader's state of version {state.get('version')!r}; this program knows {STATE_VERSION}")
        for name, ours in self._same.items():
            if state.get(name) != ours:
                saved = state.get(name)
                raise BadShards(
                    f"this state has {name} {saved!r}, here it is {ours!r}: what came next would not be what comes "
                    "next here"
                )
        epoch, row = state.get("epoch"), state.get("row")
        if type(epoch) is not int or type(row) is not int or epoch < 0 or not 0 <= row < self.epoch_rows:
            raise BadShards(f"a loader's state at row {row!r} of epoch {epoch!r}: there is no such place")
        if (place := epoch * self.epoch_rows + row) > LAST_PLACE:
            raise BadShards(
                f"a loader's state in epoch {epoch:,}: rows are counted up to 2**62, which no run can reach; was it "
                "damaged?"
            )
        self.place = place
