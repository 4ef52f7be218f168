"""Where quantiles lie, exactly: of a score as float32, by documents or by tokens, in each group, over any number of
parts.

A document's key is its score as 32 bits that sort as the score does, and below them 32 bits of a hash; so documents of
one score have an order of their own, and a share can be met even where most scores are equal. Keys are narrowed down 16
bits at a time: sums by the next 16 bits of those documents that may be the one at a cut, until they are few enough to
look at one by one. Four passes over numbers at most, and nothing larger than 65,536 sums for each cut is ever held.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.base.types import Array
from gristmill.stages.blend.copies import copies_of
from gristmill.stages.blend.groups import group_names, numbers_of
from gristmill.stages.figures import Report, StageFigures
from gristmill.stages.flow import Dataset, Flow
from gristmill.stages.judge.figures import score_figures
from gristmill.stages.stage import Global

DIGIT = 16
LOWEST_SCORE = np.uint64(1 << 32)  # keys of documents without one lie below
FEW = 200_000  # documents that are looked at one by one


class QuantileCut(NamedTuple):
    """The first key, in rising order, that lies above a cut; weights of what lies below it and of all."""

    key: int
    below: float
    total: float


class Quantiles(Global):
    """What stages that cut by quantiles have in common."""

    weigh: Annotated[
        Literal["tokens", "documents"],
        Field(description="shares are of tokens (`tokenize` before it), or of documents"),
    ] = "documents"
    within: list[str] = Field(
        default=[],
        description="columns; shares are met in each group of documents that are alike in them, such as [language]",
    )
    seed: Annotated[int, Field(description="of the order among documents of one score", ge=0, lt=1 << 64)] = 0

    groups_by: ClassVar[str] = "within"

    @property
    def weights(self) -> tuple[str, ...]:
        return ("tokens",) if self.weigh == "tokens" else ()

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        return StageFigures("Scores", score_figures(report)) if "scores" in report else None

    def columns_for(self, signal: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("uid", signal, "tokens", "copies", *self.within)))

    def groups(self, docs: pa.Table) -> pa.Array:
        return group_names(docs, self.within, "to make groups of")

    def weight_of(self, docs: pa.Table) -> Array:
        tokens = docs["tokens"].to_numpy() if self.weigh == "tokens" else np.ones(len(docs), np.int64)
        weights: Array = tokens.astype(np.int64) * copies_of(docs)
        return weights

    def keys(self, docs: pa.Table, signal: str) -> Array:
        scores = numbers_of(docs, signal).to_numpy(zero_copy_only=False).astype(np.float32)
        return sorted_keys(scores, docs["uid"].to_numpy(), self.seed)

    def cuts(self, docs: Dataset, flow: Flow, signal: str, shares: list[float]) -> dict[str, list[QuantileCut]]:
        """For each group, where the lowest documents end that together have each of the shares of all weight."""
        by_group: dict[str, list[_Search]] = {}
        for level in range(64 // DIGIT):
            beside_table = told_of(by_group, signal, level)
            sums = flow.gather(
                flow.combine(
                    self.summed,
                    flow.map(self.digits, docs, columns=self.columns_for(signal), by="key", broadcast=beside_table),
                    by="key",
                )
            )
            if not len(sums):
                return {}
            if level == 0:
                by_group = searches(sums, shares)
            for name, group_searches in by_group.items():
                for search in group_searches:
                    search.narrow(sums, name, level)
            documents_left = {
                (name, search.prefix): search.documents
                for name, group_searches in by_group.items()
                for search in group_searches
            }
            if sum(documents_left.values()) <= FEW:
                break
        else:
            return {name: [search.ended() for search in group_searches] for name, group_searches in by_group.items()}
        rows = flow.gather(
            flow.map(
                self.candidates,
                docs,
                columns=self.columns_for(signal),
                by="key",
                broadcast=told_of(by_group, signal, level + 1),
            )
        )
        return {
            name: [search.among(rows, name) for search in group_searches] for name, group_searches in by_group.items()
        }

    def digits(self, docs: pa.Table, told: pa.Table) -> pa.Table:
        """Weights and documents by group and by the next 16 bits of the key, of the documents that may be at a cut."""
        level = told["level"][0].as_py()
        key, group, here = self.found(docs, told)
        rows = {
            "group": group.filter(pa.array(here)),
            "prefix": key[here] >> np.uint64(64 - DIGIT * (level + 1)),
            "weight": self.weight_of(docs)[here],
            "documents": np.ones(int(here.sum()), np.int64),
            "key": np.zeros(int(here.sum()), np.uint64),
        }
        return self.summed([pa.table(rows)])

    def found(self, docs: pa.Table, told: pa.Table) -> tuple[Array, pa.Array, Array]:
        """Keys, groups, and who may be at a cut."""
        level, signal = told["level"][0].as_py(), told["signal"][0].as_py()
        key, group = self.keys(docs, signal), self.groups(docs)
        if level == 0:
            return key, group, np.ones(len(docs), bool)
        prefix = key >> np.uint64(64 - DIGIT * level)
        here = np.zeros(len(docs), bool)
        for name, wanted in zip(told["group"].to_pylist(), told["prefixes"].to_pylist(), strict=True):
            here |= np.isin(prefix, np.array(wanted, np.uint64)) & pc.equal(group, name).to_numpy(zero_copy_only=False)
        return key, group, here

    def candidates(self, docs: pa.Table, told: pa.Table) -> pa.Table:
        key, group, here = self.found(docs, told)
        return pa.table({"key": key[here], "group": group.filter(pa.array(here)), "weight": self.weight_of(docs)[here]})

    def summed(self, tables: list[pa.Table]) -> pa.Table:
        rows = pa.concat_tables([table.select(["group", "prefix", "weight", "documents", "key"]) for table in tables])
        rows = rows.group_by(["group", "prefix"]).aggregate([("weight", "sum"), ("documents", "sum"), ("key", "min")])
        return rows.rename_columns({"weight_sum": "weight", "documents_sum": "documents", "key_min": "key"})


class _Search:
    """One cut on its way: the prefix of the key that it is at, and what lies below."""

    def __init__(self, share: float, total: int) -> None:
        self.wanted = share * total
        self.total = total
        self.below = 0
        self.prefix = 0
        self.documents = 0
        self.weight = 0
        self.bits = 0

    def narrow(self, sums: pa.Table, group: str, level: int) -> None:
        rows = sums.filter(pc.equal(sums["group"], group)).sort_by("prefix")
        prefix, weight, documents = (rows[name].to_numpy() for name in ("prefix", "weight", "documents"))
        if level:
            here = prefix >> np.uint64(DIGIT) == np.uint64(self.prefix)
            prefix, weight, documents = prefix[here], weight[here], documents[here]
        upto = self.below + np.cumsum(weight)
        place = min(int(np.searchsorted(upto, self.wanted, side="left")), len(prefix) - 1)
        self.below = int(upto[place] - weight[place])
        self.prefix, self.weight, self.documents, self.bits = (
            int(prefix[place]),
            int(weight[place]),
            int(documents[place]),
            DIGIT * (level + 1),
        )

    def ended(self) -> QuantileCut:
        """All bits are known: documents of one key (there is more than one only by a chance of 2**-32 among equals)
        stay together."""
        if self.wanted - self.below > self.below + self.weight - self.wanted:
            return QuantileCut(self.prefix + 1, self.below + self.weight, self.total)
        return QuantileCut(self.prefix, self.below, self.total)

    def among(self, rows: pa.Table, group: str) -> QuantileCut:
        members = rows.filter(pc.equal(rows["group"], group))
        key, weight = members["key"].to_numpy(), members["weight"].to_numpy()
        here = key >> np.uint64(64 - self.bits) == np.uint64(self.prefix)
        key, weight = key[here], weight[here]
        order = np.argsort(key, kind="stable")
        key, upto = key[order], self.below + np.cumsum(weight[order])
        taken = int(np.searchsorted(upto, self.wanted, side="left"))
        before = float(upto[taken - 1]) if taken else float(self.below)
        if taken < len(upto) and upto[taken] - self.wanted < self.wanted - before:
            taken, before = taken + 1, float(upto[taken])
        return QuantileCut(
            int(key[taken]) if taken < len(key) else (self.prefix + 1) << (64 - self.bits), before, self.total
        )


def searches(sums: pa.Table, shares: list[float]) -> dict[str, list[_Search]]:
    totals = sums.group_by("group").aggregate([("weight", "sum")]).to_pylist()
    return {
        row["group"]: [_Search(share, row["weight_sum"]) for share in shares]
        for row in sorted(totals, key=lambda row: str(row["group"]))
    }


def told_of(by_group: dict[str, list[_Search]], signal: str, level: int) -> pa.Table:
    """What workers are told of cuts that are being looked for."""
    rows = [
        (name, sorted({search.prefix for search in group_searches})) for name, group_searches in by_group.items()
    ] or [("", [])]
    return pa.table(
        {
            "group": pa.array([name for name, _ in rows], pa.string()),
            "prefixes": pa.array([prefixes for _, prefixes in rows], pa.list_(pa.uint64())),
            "level": [level] * len(rows),
            "signal": [signal] * len(rows),
        }
    )


def sorted_keys(scores: Array, uids: Array, seed: int) -> Array:
    """64 bits that sort by score and, where scores are equal, by hash. Without a score (null, NaN): the lowest of
    all."""
    scored = ~np.isnan(scores)
    bits = (np.where(scored, scores, 0).astype(np.float32) + np.float32(0)).view(np.uint32)  # -0.0 is 0.0
    high = np.where(bits >> np.uint32(31) == 1, ~bits, bits | np.uint32(1 << 31))
    high = np.where(scored, high, np.uint32(0))
    low = mixed_all(uids ^ mixed_all(np.array([(seed + 0x7175616E) % 2**64], np.uint64))[0]) >> np.uint64(32)
    keys: Array = high.astype(np.uint64) << np.uint64(32) | low
    return keys


def score_of(key: int) -> float | None:
    """The score that a key begins with; None of documents without one."""
    high = key >> 32
    if high >= 1 << 32 or high == 0:
        return None
    bits = high & 0x7FFFFFFF if high >> 31 else ~high & 0xFFFFFFFF
    return float(np.array([bits], np.uint32).view(np.float32)[0])
