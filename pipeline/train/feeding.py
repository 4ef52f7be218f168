"""Which rows of which sets a run reads, and in which order: a pure function of the sets, the mix, the orders and the
seed, as a list of all its rows.

Runs of one seed read a set that both have (the control's mix) in the same order: a set is shuffled by the seed and its
own contents, whatever it is mixed with. The second stage of a run goes on with each set where the first one left it, so
that no row comes again before all have come. Weights are of tokens. Simulated epoching keeps of every set the same
share of its rows, by hash of the document that a row begins with, so that a small run repeats as the large one would; a
larger share keeps what a smaller one kept.

Another order than `shuffled` reads the rows that the shuffled order would read, epoch by epoch, in an order of its own:
a run that is shorter than its set goes through a whole curriculum on a sample of the rows, and arms that differ in
order alone read the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

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
from gristmill.shards.weighted import Together, Weighted

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


@dataclass(frozen=True, eq=False)
class Listed:
    """The rows of a run, one after another."""

    rows: RowNumbers
    endless: ClassVar[bool] = True

    def rows_at(self, places: Offsets, rows: int, seed: int, epoch: int) -> Offsets:
        """A feed that is ahead of the run's end asks for what is never read."""
        return self.rows[np.minimum(places, len(self.rows) - 1)]

    def facts(self) -> JSONObject:
        return {
            "name": "listed",
            "rows": len(self.rows),
            "hash": xxhash.xxh3_64_hexdigest(self.rows.astype("<i8").tobytes()),
        }


def rows_of_set(shards: ShardSet | Thinned, order: OrderSpec, seed: int, read: int, count: int) -> RowNumbers:
    """The next `count` rows of a set, of which `read` were read in the shuffled order."""
    size = len(shards)
    parts: list[RowNumbers] = [np.zeros(0, np.int64)]
    if order == "shuffled":
        for epoch in range(read // size, -(-(read + count) // size)):
            places = np.arange(max(read, epoch * size), min(read + count, (epoch + 1) * size)) - epoch * size
            parts.append(Shuffled().rows_at(places, size, seed, epoch))
        return np.concatenate(parts)
    for epoch in range(-(-count // size)):
        some = min(size, count - epoch * size)
        kept = np.sort(Shuffled().rows_at(np.arange(some), size, seed, epoch)) if some < size else np.arange(size)
        parts.append(kept[_in_order(shards, order, kept, seed, epoch)])
    return np.concatenate(parts)


def _in_order(shards: ShardSet | Thinned, order: OrderSpec, kept: RowNumbers, seed: int, epoch: int) -> RowNumbers:
    """Places among the `kept` rows of an epoch, which rise."""
    if order == "as_written":
        return np.arange(len(kept))
    if (schedule := schedule_in(order)) is not None:
        return _scheduled(shards, kept, seed, epoch, schedule)
    if order == "segments":
        first_rows = np.asarray(shards.index.segments, np.int64)
        if isinstance(shards, Thinned):
            first_rows = np.searchsorted(shards.kept, first_rows)
        stretch = np.searchsorted(first_rows, kept, "right")
    else:
        stretch = rows_column(shards, "bucket")[kept]
    changes = np.flatnonzero(np.diff(stretch)) + 1
    stretches = ShuffledInStretches((0, *changes.tolist()))
    return stretches.rows_at(np.arange(len(kept)), len(kept), seed, epoch)


def _scheduled(shards: ShardSet | Thinned, kept: RowNumbers, seed: int, epoch: int, schedule: Schedule) -> RowNumbers:
    """By the rows' places in the schedule; one without a difficulty has a random rank."""
    chances = (mixed_all(kept.astype(np.uint64) ^ np.uint64(seed_of(seed, f"{part} {epoch}"))) >> np.uint64(11)
               for part in ("rank", "place"))  # fmt: skip
    tie, chance = (chance.astype(np.float64) / (1 << 53) for chance in chances)
    difficulty = rows_column(shards, "difficulty")[kept]
    if np.isnan(difficulty).all():
        bucket = rows_column(shards, "bucket")[kept]
        difficulty = np.where(bucket < 0, np.nan, bucket).astype(np.float64)
    known = np.flatnonzero(~np.isnan(difficulty))
    rank = tie.copy()
    rank[known[np.lexsort((tie[known], difficulty[known]))]] = (np.arange(len(known)) + 0.5) / max(1, len(known))
    return np.argsort(schedule.places(rank, chance), kind="stable").astype(np.int64)


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
    stages: Sequence[MixStage], share: float, seed: int, rows: int, unlocking: bool = False
) -> tuple[RowSet, RowOrder]:
    """What a loader reads in a run of so many rows. A stage has `weights` {folder: share of tokens}, `orders` of those
    that are not shuffled, and `rows` if another one follows it."""
    folders = list(dict.fromkeys(folder for stage in stages for folder in stage["weights"]))
    whole = [open_shards(folder) for folder in folders]
    if unlocking:
        from gristmill.trainer.run.unlocking import Unlocked, buckets_of

        if len(whole) > 1 or share < 1:
            raise BadShards("unlocking opens the buckets of one whole set")
        return whole[0], Unlocked(buckets_of(whole[0]))
    sets = {folder: Thinned(each, share) if share < 1 else each for folder, each in zip(folders, whole, strict=True)}
    together = Together(cast(list[ShardSet], list(sets.values())))
    first_rows = dict(zip(folders, together.first_rows.tolist(), strict=False))
    sizes = {folder: size_of(each, share) for folder, each in zip(folders, whole, strict=True)}
    read = dict.fromkeys(folders, 0)
    found: list[Array] = []
    for stage in stages:
        shares = shares_of_rows(stage["weights"], sizes)
        of_stage = [folder for folder in folders if folder in shares]
        mine = Together(cast(list[ShardSet], [sets[folder] for folder in of_stage]))
        pattern = Weighted.of(mine, [shares[folder] for folder in of_stage], [AsWritten()] * len(of_stage))
        owners = pattern.owners(np.arange(stage.get("rows", rows - sum(map(len, found)))), seed)
        of_run = np.empty(len(owners), np.int64)
        for number, folder in enumerate(of_stage):
            here, each = np.flatnonzero(owners == number), sets[folder]
            order = stage.get("orders", {}).get(folder, "shuffled")
            own = rows_of_set(each, order, seed_of(seed, each.fingerprint), read[folder], len(here))
            of_run[here] = first_rows[folder] + own
            read[folder] += len(here)
        found.append(of_run)
    return next(iter(sets.values())) if len(sets) == 1 else together, Listed(np.concatenate(found))


def seed_of(seed: int, fingerprint: str) -> int:
    return mixed_plain(xxhash.xxh3_64_intdigest(fingerprint.encode()) ^ mixed_plain(seed))
