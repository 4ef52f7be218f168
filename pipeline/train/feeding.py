"""Which rows of which sets a run reads, and in which order: a pure function of the sets, the mix, the orders and the
seed.

Runs of one seed read a set that both have (the control's mix) in the same order: a set is shuffled by the seed and its
own contents, whatever it is mixed with. The second stage of a run goes on with each set where the first one left it, so
that no row comes again before all have come. Weights are of tokens. Simulated epoching keeps of every set the same
share of its rows, by hash of the document that a row begins with, so that a small run repeats as the large one would; a
larger share keeps what a smaller one kept.

Another order than `shuffled` reads the rows that the shuffled order would read, epoch by epoch, in an order of its own
(`Ordered`): a run that is shorter than its set goes through a whole curriculum on a sample of the rows, and arms that
differ in order alone read the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import xxhash

from gristmill.kernels.base.splitmix import mixed_all, mixed_plain
from gristmill.kernels.base.types import Array, Offsets
from gristmill.mixing.curriculum.curriculum import Schedule
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.train.plan import schedule_in
from gristmill.pipeline.train.records import MixStage, OrderSpec
from gristmill.shards.format import BadShards, ShardMeta
from gristmill.shards.loader import RowSet
from gristmill.shards.orders import AsWritten, RowOrder, Shuffled, ShuffledInStretches
from gristmill.shards.reader import ShardSet, open_shards
from gristmill.shards.rows import Rows
from gristmill.shards.weighted import PERIOD, Together, Weighted

RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SetSize:
    """Of a set, or of what simulated epoching leaves of it."""

    rows: int
    tokens: int

    @property
    def tokens_a_row(self) -> float:
        return self.tokens / max(1, self.rows)


class Thinned:
    """Some rows of a set, as a set."""

    def __init__(self, shards: ShardSet, share: float) -> None:
        self.shards = shards
        self.share = share
        self.meta: ShardMeta = shards.meta
        self.folder: Path = shards.folder
        self.sources = shards.sources
        self.index = shards.index
        self.kept = kept_rows(shards, share)

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def fingerprint(self) -> str:
        return str(xxhash.xxh3_128_hexdigest(f"{self.shards.fingerprint} {self.share!r}".encode()))

    def take(self, rows: RowNumbers, out: RowNumbers | None = None) -> Rows:
        return self.shards.take(self.kept[np.asarray(rows, np.int64)], out)


@dataclass(frozen=True)
class SeededBy:
    """An order with a seed of its own, so that a set stands in it alike in all mixes."""

    order: RowOrder
    seed: int

    def rows_at(self, places: Offsets, rows: int, seed: int, epoch: int) -> Offsets:
        return self.order.rows_at(places, rows, self.seed, epoch)

    def facts(self) -> JSONObject:
        return {"name": "seeded", "seed": self.seed, "order": self.order.facts()}


@dataclass(frozen=True)
class Ordered:
    """A set in an order of its own, epoch by epoch; of the last epoch, of which a run reads `rest` rows, those that
    `sample` reads first."""

    by: SetOrder
    sample: SeededBy
    whole: int  # epochs
    rest: int

    def rows_at(self, places: Offsets, rows: int, seed: int, epoch: int) -> Offsets:
        count = rows if epoch < self.whole else self.rest if epoch == self.whole else 0
        found = np.zeros(len(places), np.int64)  # a feed that is ahead of the run's end asks for what is never read
        inside = np.flatnonzero(places < count)
        if len(inside):
            kept, order = self.by.of_epoch(self.sample, rows, count, epoch)
            own = order.rows_at(places[inside], count, self.sample.seed, epoch)
            found[inside] = own if kept is None else kept[own]
        return found

    def facts(self) -> JSONObject:
        return {
            "name": "ordered",
            "by": self.by.order,
            "whole": self.whole,
            "rest": self.rest,
            "of": self.sample.facts(),
        }


class SetOrder:
    """An order of a set's rows, or of some of them."""

    def __init__(self, shards: ShardSet | Thinned, order: OrderSpec, seed: int) -> None:
        self.shards, self.order, self.seed = shards, order, seed
        self.schedule: Schedule | None = schedule_in(order)
        self._columns: dict[str, Array] = {}
        self._last: tuple[int, RowNumbers | None, RowOrder] | None = None

    def of_epoch(self, sample: SeededBy, rows: int, count: int, epoch: int) -> tuple[RowNumbers | None, RowOrder]:
        """The rows that an epoch reads, in rising order (None: all), and their order. The last epoch is remembered: a
        run asks for batch after batch."""
        if self._last is None or self._last[0] != epoch:
            kept = None if count == rows else np.sort(sample.rows_at(np.arange(count), rows, 0, epoch))
            self._last = (epoch, kept, self._of_rows(kept, epoch))
        return self._last[1:]

    def _of_rows(self, kept: RowNumbers | None, epoch: int) -> RowOrder:
        if self.order == "as_written":
            return AsWritten()
        if self.schedule is not None:
            return Listed(self._scheduled(kept, epoch, self.schedule))
        if self.order == "segments":
            first_rows = np.asarray(self.shards.index.segments, np.int64)
            if isinstance(self.shards, Thinned):
                first_rows = np.searchsorted(self.shards.kept, first_rows)
            stretch = np.searchsorted(first_rows, np.arange(len(self.shards)), "right")
        else:
            stretch = self._column("bucket")
        stretch = stretch if kept is None else stretch[kept]
        changes = np.flatnonzero(np.diff(stretch)) + 1
        return ShuffledInStretches((0, *changes.tolist()))

    def _scheduled(self, kept: RowNumbers | None, epoch: int, schedule: Schedule) -> RowNumbers:
        """Rows by their places in the schedule; one without a difficulty has a random rank."""
        rows = np.arange(len(self.shards)) if kept is None else kept
        chances = (mixed_all(rows.astype(np.uint64) ^ np.uint64(seed_of(self.seed, f"{part} {epoch}"))) >> np.uint64(11)
                   for part in ("rank", "place"))  # fmt: skip
        tie, chance = (chance.astype(np.float64) / (1 << 53) for chance in chances)
        difficulty = self._column("difficulty")[rows]
        if np.isnan(difficulty).all():
            bucket = self._column("bucket")[rows]
            difficulty = np.where(bucket < 0, np.nan, bucket).astype(np.float64)
        known = np.flatnonzero(~np.isnan(difficulty))
        rank = tie.copy()
        rank[known[np.lexsort((tie[known], difficulty[known]))]] = (np.arange(len(known)) + 0.5) / max(1, len(known))
        return np.argsort(schedule.places(rank, chance), kind="stable").astype(np.int64)

    def _column(self, name: str) -> Array:
        if name not in self._columns:
            self._columns[name] = rows_column(self.shards, name)
        return self._columns[name]


@dataclass(frozen=True, eq=False)
class Listed:
    """An order of which every place is known."""

    rows: RowNumbers

    def rows_at(self, places: Offsets, rows: int, seed: int, epoch: int) -> Offsets:
        return self.rows[places]

    def facts(self) -> JSONObject:
        return {"name": "listed", "rows": len(self.rows)}


def rows_column(shards: ShardSet | Thinned, name: str) -> Array:
    """`bucket` or `difficulty` of every row; unknown: -1 or NaN."""
    whole = shards.shards if isinstance(shards, Thinned) else shards
    parts = [np.asarray(getattr(block, name)) for block in whole.blocks()]
    column = np.concatenate(parts) if parts else np.zeros(0)
    return column[shards.kept] if isinstance(shards, Thinned) else column


def order_problem(shards: ShardSet, order: OrderSpec) -> str | None:
    """Why a set cannot be read in an order."""
    if order in ("shuffled", "as_written"):
        return None
    if order == "segments":
        return None if shards.index.segments else f"{shards.folder}: has no segments: no `order` stage wrote it"
    if any((block.bucket >= 0).any() for block in shards.blocks()):
        return None
    return f"{shards.folder}: no row has a bucket; put an `order` stage with steps before `pack`"


@dataclass(frozen=True)
class GoneOn:
    """An order of which the first rows were read already."""

    order: RowOrder
    read: int

    def rows_at(self, places: Offsets, rows: int, seed: int, epoch: int) -> Offsets:
        epochs, within = np.divmod(places + epoch * rows + self.read, rows)
        rows_found = np.empty(len(places), np.int64)
        for own_epoch in np.unique(epochs).tolist():
            here = epochs == own_epoch
            rows_found[here] = self.order.rows_at(within[here], rows, seed, own_epoch)
        return rows_found

    def facts(self) -> JSONObject:
        return {"name": "gone_on", "read": self.read, "order": self.order.facts()}


@dataclass(frozen=True)
class OneThenOther:
    """The first `rows_before` rows of a run by one order, all after them by another, which counts from there."""

    before: RowOrder
    after: RowOrder
    rows_before: int

    def rows_at(self, places: Offsets, rows: int, seed: int, epoch: int) -> Offsets:
        places = places + epoch * rows
        early = places < self.rows_before
        rows_found = np.empty(len(places), np.int64)
        for order, here, first in ((self.before, early, 0), (self.after, ~early, self.rows_before)):
            if here.any():
                rows_found[here] = order.rows_at(places[here] - first, rows, seed, 0)
        return rows_found

    def facts(self) -> JSONObject:
        return {
            "name": "one_then_other",
            "rows_before": self.rows_before,
            "before": self.before.facts(),
            "after": self.after.facts(),
        }


def kept_rows(shards: ShardSet, share: float) -> RowNumbers:
    """The rows of the smallest hashes, in the order in which they stand; at least one."""
    if share >= 1:
        return np.arange(len(shards))
    parts = [np.zeros(0, np.uint64)]
    for block in shards.blocks():
        first = block.first_piece[:-1]
        parts.append(
            mixed_all(block.doc_uids[first].astype(np.uint64) ^ mixed_all(block.chunk[first].astype(np.uint64)))
        )
    order = np.argsort(np.concatenate(parts), kind="stable")
    return np.sort(order[: max(1, round(share * len(shards)))]).astype(np.int64)


def size_of(shards: ShardSet, share: float = 1.0) -> SetSize:
    """Tokens of a thinned set as the share says, near enough: rows are packed to about one fill."""
    rows, tokens = len(shards), shards.index.total("tokens")
    if share >= 1:
        return SetSize(rows, tokens)
    kept = max(1, round(share * rows)) if rows else 0
    return SetSize(kept, round(tokens * kept / max(1, rows)))


def blended(control: Mapping[str, float], arm: Mapping[str, float], new: float) -> dict[str, float]:
    """Shares of tokens: what is not new is the control's mix. In sum 1."""
    parts = ((control, 1 - new), (arm, new))
    shares: dict[str, float] = {}
    for mix, share in parts:
        total = sum(mix.values())
        for name, weight in mix.items():
            if share > 0:
                shares[name] = shares.get(name, 0.0) + share * weight / total
    return shares


def shares_of_rows(weights: Mapping[str, float], sizes: Mapping[str, SetSize]) -> dict[str, float]:
    """Weights are of tokens; rows of one set may be filled better than another's. In sum 1."""
    rows = {name: weight / sizes[name].tokens_a_row for name, weight in weights.items()}
    return {name: count / sum(rows.values()) for name, count in rows.items()}


def epochs_of(stages: Iterable[tuple[Mapping[str, float], int]], sizes: Mapping[str, SetSize]) -> dict[str, float]:
    """How often each set is gone through by stages of these weights and so many rows."""
    epochs: dict[str, float] = {}
    for weights, rows in stages:
        for name, share in shares_of_rows(weights, sizes).items():
            epochs[name] = epochs.get(name, 0.0) + share * rows / max(1, sizes[name].rows)
    return epochs


def rows_and_order(
    stages: Sequence[MixStage], share: float, seed: int, rows: int = 0, unlocking: bool = False
) -> tuple[RowSet, RowOrder]:
    """What a loader reads. A stage has `weights` {folder: share of tokens}, `orders` of those that are not shuffled,
    and `rows` if another one follows it; the run reads `rows` in all."""
    folders = list(dict.fromkeys(folder for stage in stages for folder in stage["weights"]))
    whole = [open_shards(folder) for folder in folders]
    if unlocking:
        from gristmill.trainer.run.unlocking import Unlocked, buckets_of

        if len(whole) > 1 or share < 1:
            raise BadShards("unlocking opens the buckets of one whole set")
        return whole[0], Unlocked(buckets_of(whole[0]))
    sets = [Thinned(each, share) if share < 1 else each for each in whole]
    together = Together(cast(list[ShardSet], sets))
    sizes = {folder: size_of(each, share) for folder, each in zip(folders, whole, strict=True)}
    orders: list[RowOrder] = []
    read = dict.fromkeys(folders, 0)
    left = rows
    for stage in stages:
        shares = shares_of_rows(stage["weights"], sizes)
        of_stage = [folder for folder in folders if folder in shares]
        mine = [sets[folders.index(folder)] for folder in of_stage]
        shuffled = [SeededBy(Shuffled(), seed_of(seed, each.fingerprint)) for each in mine]
        own: list[RowOrder] = [GoneOn(by, read[folder]) for by, folder in zip(shuffled, of_stage, strict=True)]
        picked = Together(cast(list[ShardSet], mine))
        weights = [shares[folder] for folder in of_stage]
        order = Weighted.of(picked, weights, own)
        of_run = stage.get("rows", left)
        counts = rows_read(order, of_run, seed)
        for at, (folder, by) in enumerate(zip(of_stage, shuffled, strict=True)):
            asked = stage.get("orders", {}).get(folder, "shuffled")
            if asked != "shuffled":
                whole_epochs, rest = divmod(counts[at], len(mine[at]))
                own[at] = Ordered(SetOrder(mine[at], asked, by.seed), by, whole_epochs, rest)
        order = Weighted.of(picked, weights, own)
        for folder, count in zip(of_stage, counts, strict=True):
            read[folder] += count
        left -= of_run
        orders.append(Among.of(together, [folders.index(folder) for folder in of_stage], order, len(picked)))
    if len(orders) == 1:
        one = orders[0]
        return (sets[0], own[0]) if len(sets) == 1 and isinstance(sets[0], ShardSet) else (together, one)
    return together, OneThenOther(orders[0], orders[1], stages[0]["rows"])


def rows_read(order: Weighted, rows: int, seed: int) -> list[int]:
    """Of each set, by the first so many rows of an order: whole periods hold the same, the last one is looked at."""
    periods = rows // PERIOD
    last = order.owners(np.arange(periods * PERIOD, rows), seed)
    of_last = np.bincount(last, minlength=len(order.sizes))
    return [periods * count + more for count, more in zip(order.counts, of_last.tolist(), strict=True)]


@dataclass(frozen=True)
class Among:
    """An order of some sets of several, by the rows of all."""

    order: Weighted
    rows: int  # of the chosen sets
    chosen_firsts: tuple[int, ...]
    firsts: tuple[int, ...]  # where each of them begins among all

    @classmethod
    def of(cls, together: Together, chosen: list[int], order: Weighted, rows: int) -> Among:
        return cls(
            order,
            rows,
            tuple(np.cumsum([0, *order.sizes])[:-1].tolist()),
            tuple(int(together.first_rows[i]) for i in chosen),
        )

    def rows_at(self, places: Offsets, rows: int, seed: int, epoch: int) -> Offsets:
        rows_found = self.order.rows_at(places + epoch * rows, self.rows, seed, 0)
        owner = np.searchsorted(self.chosen_firsts, rows_found, "right") - 1
        moved: Offsets = rows_found + (np.array(self.firsts) - np.array(self.chosen_firsts))[owner]
        return moved

    def facts(self) -> JSONObject:
        return {"name": "among", "firsts": list(self.firsts), "order": self.order.facts()}


def seed_of(seed: int, fingerprint: str) -> int:
    return mixed_plain(xxhash.xxh3_64_intdigest(fingerprint.encode()) ^ mixed_plain(seed))
