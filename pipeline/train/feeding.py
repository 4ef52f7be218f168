"""Which rows of which sets a run reads, and in which order: a pure function of the sets, the mix and the seed.

Runs of one seed read a set that both have (the control's mix) in the same order: a set is shuffled by the seed and its
own contents, whatever it is mixed with. The second stage of a run goes on with each set where the first one left it, so
that no row comes again before all have come. Weights are of tokens. Simulated epoching keeps of every set the same
share of its rows, by hash of the document that a row begins with, so that a small run repeats as the large one would; a
larger share keeps what a smaller one kept.
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
from gristmill.kernels.base.types import Offsets
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.train.records import MixStage
from gristmill.shards.format import ShardMeta
from gristmill.shards.orders import RowOrder, Shuffled
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


def rows_and_order(stages: Sequence[MixStage], share: float, seed: int) -> tuple[Together, RowOrder]:
    """What a loader reads. A stage has `weights` {folder: share of tokens}, and `rows` if another one follows it."""
    folders = list(dict.fromkeys(folder for stage in stages for folder in stage["weights"]))
    whole = [open_shards(folder) for folder in folders]
    sets = [cast(ShardSet, Thinned(each, share)) if share < 1 else each for each in whole]
    together = Together(sets)
    sizes = {folder: size_of(each, share) for folder, each in zip(folders, whole, strict=True)}
    orders: list[RowOrder] = []
    read = dict.fromkeys(folders, 0)
    for stage in stages:
        rows = shares_of_rows(stage["weights"], sizes)
        of_stage = [folder for folder in folders if folder in rows]
        own: list[RowOrder] = [
            GoneOn(SeededBy(Shuffled(), seed_of(seed, sets[folders.index(folder)].fingerprint)), read[folder])
            for folder in of_stage
        ]
        picked = Together([sets[folders.index(folder)] for folder in of_stage])
        order = Weighted.of(picked, [rows[folder] for folder in of_stage], own)
        for folder, count in zip(of_stage, rows_read(order, stage.get("rows", 0), seed), strict=True):
            read[folder] += count
        orders.append(Among.of(together, [folders.index(folder) for folder in of_stage], order, len(picked)))
    if len(orders) == 1:
        return together, orders[0]
    return together, OneThenOther(orders[0], orders[1], stages[0]["rows"])


def rows_read(order: Weighted, rows: int, seed: int) -> list[int]:
    """Of each set, by the first so many rows of an order: whole periods hold the same, the last one is looked at."""
    periods = rows // PERIOD
    last = order.rows_at(np.arange(periods * PERIOD, rows), sum(order.sizes), seed, 0)
    of_last = np.bincount(np.searchsorted(np.cumsum(order.sizes), last, "right"), minlength=len(order.sizes))
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
