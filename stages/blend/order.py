"""The order of training: a place for each copy of each document, from its difficulty or quality and a schedule
(mixing/curriculum/curriculum.py).

Ranks come from a sample that is the same whatever parts the documents lie in: of each group those with the smallest
hashes, 65,536 of them (fewer of many groups). Where a group has no more documents its ranks are exact; else a rank errs
by 0.002 (one standard deviation), and what is easier still never has a higher rank. Nothing is sorted or moved here: a
place is a signal, and `pack` puts rows where places say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.base.types import Array
from gristmill.kernels.common.settings import Settings
from gristmill.mixing.curriculum.curriculum import (
    MOST_SEGMENTS,
    Anneal,
    Ascending,
    Interleaved,
    Random,
    Stages,
    WarmUp,
    buckets,
    segments,
    united_edges,
)
from gristmill.mixing.curriculum.pacing import Pacing, Steps
from gristmill.mixing.curriculum.ranks import Ranks
from gristmill.mixing.draw import copy_keys
from gristmill.stages.blend.copies import copies_of
from gristmill.stages.blend.figures import order_figures
from gristmill.stages.blend.groups import group_names, numbers_of
from gristmill.stages.figures import Report, StageFigures
from gristmill.stages.flow import Dataset, Flow
from gristmill.stages.one_of import OneOf, name_of
from gristmill.stages.stage import CannotRun, Global
from gristmill.stages.text.directions import EASY_WHEN_HIGH

SAMPLE = 1 << 16  # documents of a group by which ranks are told
WHOLE_SAMPLE = 1 << 20  # of all groups together
DOCUMENTS_OF_A_SEGMENT = 500
EDGES = "(edges)"
TIES = np.uint64(0xD1B54A32D192ED03)  # a second chance, which says nothing about the first


# A new schedule is a class in mixing/curriculum, and its name here.
AnySchedule = Random | Ascending | Stages | WarmUp | Interleaved | Pacing | Steps | Anneal


class Curriculum(Settings):
    """A schedule, and the signal whose ranks it goes by."""

    by: Annotated[str | None, Field(description="a signal; documents without it (null) are placed by chance")] = None
    descending: Annotated[
        bool | None,
        Field(description="the highest first, for a signal of which more is easier; null: as its own definition says"),
    ] = None
    schedule: Annotated[AnySchedule, OneOf("schedule")] = Field(
        default_factory=Random,
        description="when what is easy and what is hard is seen (chapter Curriculum); random unless given",
    )

    @model_validator(mode="after")
    def _goes_by_something(self) -> Self:
        if self.by is None and not isinstance(self.schedule, Random):
            raise ValueError(f"{name_of(self.schedule)} goes by a signal: name it with `by`, such as by: mtld")
        if self.by is None and self.descending is not None:
            raise ValueError("descending turns round what `by` names, and it names nothing")
        return self

    @property
    def turned(self) -> bool:
        """Is a high value easy?"""
        return self.by in EASY_WHEN_HIGH if self.descending is None else self.descending


class Order(Curriculum, Global):
    """Say when each document is trained on: at random, from easy to hard, or the best last; for all or for each source
    on its own.

    Documents get `places` and `segments` (one for each copy), `bucket` and `difficulty`; `pack` follows them.
    `difficulty` is the rank, the share of tokens that is easier (or worse), and so can be compared where sources go by
    other signals; buckets are of equal tokens, the highest the hardest (or best). Without the signal: null, and -1.
    """

    within: list[str] = Field(
        default=[], description="columns; documents that are alike in them are ranked among themselves"
    )
    sources: dict[str, Curriculum] = Field(
        default={}, description="sources with a curriculum of their own, ranked among themselves; joined by place"
    )
    buckets: Annotated[
        int, Field(description="levels of difficulty, for curricula that open them while training", ge=1, le=1 << 15)
    ] = 16
    resolution: Annotated[
        int,
        Field(
            description=(
                "stretches, at most, inside which a schedule without steps is shuffled and packed; each of 500 "
                "documents or more"
            ),
            ge=1,
            le=1 << 14,
        ),
    ] = 256
    seed: Annotated[int, Field(description="of all that is by chance", ge=0, lt=1 << 64)] = 0

    signal_types: ClassVar[Mapping[str, pa.DataType]] = {
        "places": pa.list_(pa.uint64()),
        "segments": pa.list_(pa.uint16()),
        "bucket": pa.int16(),
        "difficulty": pa.float32(),
    }
    groups_by: ClassVar[str] = "within"
    drops: ClassVar[bool] = False

    @property
    def wants(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c.by for c in [self, *self.sources.values()] if c.by is not None))

    @property
    def read(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("uid", "source", "tokens", "copies", *self.within, *self.wants)))

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        return StageFigures("Order of training", order_figures(report)) if "order" in report else None

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        sample = no_sample()
        if self.wants:
            bottom = flow.combine(self.bottom, flow.map(self.sampled, docs, columns=self.read, by="key"), by="key")
            drawn_documents = flow.gather(bottom)
            sample = drawn_documents if len(drawn_documents) else no_sample()
        edges = self.edges(docs.rows)
        curves = self.curves(sample)
        if not flow.run.partial:
            self.check_sources(curves, docs.rows)
        flow.report("order", self.account(sample, curves, edges))
        return flow.mark(self.placed, docs, columns=self.read, broadcast=table_of(curves, edges))

    def check_sources(self, curves: dict[str, Ranks], documents: int) -> None:
        """A source with a curriculum that has no document is a name that was mistyped."""
        for name, curriculum in self.sources.items():
            if (
                documents
                and curriculum.by is not None
                and not any(group.split(" ")[0] == f"source={name}" for group in curves)
            ):
                raise CannotRun(f"sources: {name!r} has a curriculum, and no document is of it")

    def curriculum_of(self, source: str) -> Curriculum:
        return self.sources.get(source, self)

    def groups(self, docs: pa.Table) -> list[tuple[str, Curriculum, Array]]:
        """Documents that are ranked among themselves: a name for them, their curriculum, and which they are."""
        source = docs["source"].cast(pa.string()) if self.sources else pa.nulls(len(docs), pa.string())
        own = pc.if_else(
            pc.is_in(source, value_set=pa.array([*self.sources], pa.string())), source, pa.scalar(None, pa.string())
        )
        prefix = pc.fill_null(pc.binary_join_element_wise("source", own, "="), "")
        names = (
            pc.binary_join_element_wise(prefix, group_names(docs, self.within, "to be ranked within"), " ")
            if self.within
            else prefix
        )
        names = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
        encoded = names.dictionary_encode()
        members = members_of(encoded.indices.to_numpy(), len(encoded.dictionary))
        owners = own.take(pa.array([int(rows[0]) for rows in members], pa.int64())).to_pylist()
        return [
            (name, self.curriculum_of(owner or ""), rows)
            for name, owner, rows in zip(encoded.dictionary.to_pylist(), owners, members, strict=True)
        ]

    def sampled(self, docs: pa.Table) -> pa.Table:
        """Of each group that goes by a signal, the documents with the smallest hashes."""
        uid = docs["uid"].to_numpy()
        key = mixed_all(uid ^ mixed_all(np.array([self.seed], np.uint64))[0])
        groups = self.groups(docs)
        signals = signals_of(docs, [curriculum for _, curriculum, _ in groups])
        names, chosen, values = [], [], []
        for name, curriculum, rows_of_group in groups:
            if curriculum.by is None:
                continue
            rows_of_group = rows_of_group[smallest(key[rows_of_group], uid[rows_of_group], SAMPLE)]
            names.append(name)
            chosen.append(rows_of_group)
            values.append(
                -signals[curriculum.by][rows_of_group] if curriculum.turned else signals[curriculum.by][rows_of_group]
            )
        if not names:
            return no_sample()
        rows = np.concatenate(chosen)
        return pa.table(
            {
                "key": key[rows],
                "uid": uid[rows],
                "group": pa.array(names).take(
                    pa.array(np.repeat(np.arange(len(names)), [len(rows_of_group) for rows_of_group in chosen]))
                ),
                "value": np.concatenate(values),
                "weight": weights_of(docs)[rows],
            }
        )

    def bottom(self, tables: list[pa.Table]) -> pa.Table:
        """Of several samples that of all; the more groups there are, the smaller the sample of each."""
        rows = pa.concat_tables(tables).combine_chunks()
        groups = rows_by_group(rows)
        share = min(SAMPLE, max(256, WHOLE_SAMPLE // max(1, len(groups))))
        key, uid = rows["key"].to_numpy(), rows["uid"].to_numpy()
        return rows.take(
            pa.array(
                np.concatenate(
                    [
                        rows_of_group[smallest(key[rows_of_group], uid[rows_of_group], share)]
                        for _, rows_of_group in sorted(groups.items())
                    ]
                )
            )
        )

    def curves(self, sample: pa.Table) -> dict[str, Ranks]:
        value, weight = sample["value"].to_numpy(), sample["weight"].to_numpy()
        return {name: Ranks.of(value[rows], weight[rows]) for name, rows in rows_by_group(sample).items()}

    def placed(self, docs: pa.Table, told: pa.Table) -> pa.Table:
        """Row by row: places and segments of all copies, bucket and difficulty."""
        copies, uid = copies_of(docs), docs["uid"].to_numpy()
        first = np.append(0, np.cumsum(copies))
        document = np.repeat(np.arange(len(docs)), copies)
        copy = np.arange(len(document)) - first[document]
        keys = copy_keys(uid[document], copy, self.seed)
        chance = shares(keys)
        ties = shares(
            mixed_all(copy_keys(uid, np.zeros(len(uid), np.int64), self.seed) ^ TIES)
        )  # of all copies: a document has one rank
        place, bucket, difficulty = (
            np.zeros(len(document)),
            np.full(len(docs), -1, np.int16),
            np.full(len(docs), np.nan),
        )
        ranks, groups = ranks_of(told), self.groups(docs)
        signals = signals_of(docs, [curriculum for _, curriculum, _ in groups])
        group, rank = np.empty(len(docs), np.int64), ties.copy()  # by chance where no signal says otherwise
        for number, (_, _, documents) in enumerate(groups):
            group[documents] = number
        for (name, curriculum, documents), chosen in zip(groups, members_of(group[document], len(groups)), strict=True):
            if curriculum.by is not None:
                values = signals[curriculum.by][documents]
                rank[documents] = ranks[name].rank(-values if curriculum.turned else values, ties[documents])
                measured = documents[np.isfinite(values)]
                bucket[measured] = buckets(rank[measured], self.buckets)
                difficulty[measured] = rank[measured]
            place[chosen] = curriculum.schedule.places(rank[document[chosen]], chance[chosen])
        segment = segments(
            place, told.filter(pc.equal(told["group"], EDGES))["values"].combine_chunks().flatten().to_numpy()
        )
        exact = (place * (1 << 53)).astype(np.uint64) << np.uint64(11) | keys & np.uint64(2047)
        return pa.table(
            {
                "uid": docs["uid"],
                "reason": pa.nulls(len(docs), pa.string()),
                "detail": pa.nulls(len(docs), pa.string()),
                "places": pa.ListArray.from_arrays(pa.array(first, pa.int32()), pa.array(exact)),
                "segments": pa.ListArray.from_arrays(pa.array(first, pa.int32()), pa.array(segment)),
                "bucket": bucket,
                "difficulty": pa.array(difficulty.astype(np.float32), mask=np.isnan(difficulty)),
            }
        )

    def edges(self, documents: int) -> Array:
        """Where segments begin. A stretch of few documents could not be packed well."""
        resolution = min(self.resolution, max(4, documents // DOCUMENTS_OF_A_SEGMENT))
        edges = united_edges([c.schedule.edges(resolution) for c in [self, *self.sources.values()]])
        if len(edges) > MOST_SEGMENTS:
            raise CannotRun(
                f"{len(edges):,} segments of all curricula together; there can be {MOST_SEGMENTS:,}: fewer "
                "stages or passes, or a lower resolution"
            )
        return edges

    def account(self, sample: pa.Table, curves: dict[str, Ranks], edges: Array) -> dict[str, Any]:
        """What the report says: each curriculum with its promise and its advice, and how difficulty lies in the
        sample."""
        curricula = []
        for source, curriculum in [("", self), *sorted(self.sources.items())]:
            curricula.append(
                {
                    "source": source,
                    "schedule": name_of(curriculum.schedule),
                    "by": curriculum.by,
                    "descending": curriculum.turned,
                    "promise": curriculum.schedule.promise,
                    "advice": curriculum.schedule.advice,
                    "correlation": round(curriculum.schedule.correlation, 4),
                }
            )
        levels = {name: level_values(ranks) for name, ranks in curves.items() if len(ranks.values)}
        return {
            "curricula": curricula,
            "segments": len(edges),
            "deciles": levels,
            "sampled": len(sample),
            "sampled_without_signal": int((~np.isfinite(sample["value"].to_numpy())).sum()),
        }


def no_sample() -> pa.Table:
    return pa.table(
        {
            "key": pa.array([], pa.uint64()),
            "uid": pa.array([], pa.uint64()),
            "group": pa.array([], pa.string()),
            "value": pa.array([], pa.float64()),
            "weight": pa.array([], pa.float64()),
        }
    )


def smallest(keys: Array, uids: Array, most: int) -> Array:
    """Where the smallest hashes are; of equal ones (there are none but by a billionth) the smallest uid."""
    return np.arange(len(keys)) if len(keys) <= most else np.lexsort((uids, keys))[:most]


def rows_by_group(rows: pa.Table) -> dict[str, Array]:
    """Which rows are of each group, in order of its first."""
    encoded = rows["group"].combine_chunks().dictionary_encode()
    return dict(
        zip(
            encoded.dictionary.to_pylist(), members_of(encoded.indices.to_numpy(), len(encoded.dictionary)), strict=True
        )
    )


def members_of(group: Array, groups: int) -> list[Array]:
    """Who is in each group, by their numbers, which rise."""
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(groups + 1))
    return [order[first:last] for first, last in pairwise(bounds.tolist())]


def signals_of(docs: pa.Table, curricula: Sequence[Curriculum]) -> dict[str, Array]:
    """The signals that any of the curricula goes by, as numbers; NaN where there is none."""
    names = dict.fromkeys(curriculum.by for curriculum in curricula)
    return {name: numbers_of(docs, name).to_numpy(zero_copy_only=False) for name in names if name is not None}


def weights_of(docs: pa.Table) -> Array:
    """Ranks are shares of tokens; of documents where tokens were not counted yet."""
    tokens = docs["tokens"].to_numpy() if "tokens" in docs.column_names else np.ones(len(docs))
    weights: Array = tokens.astype(np.float64) * copies_of(docs)
    return weights


def shares(hashes: Array) -> Array:
    """Hashes as numbers in [0, 1)."""
    return (hashes >> np.uint64(11)) / float(1 << 53)


def table_of(curves: dict[str, Ranks], edges: Array) -> pa.Table:
    """What workers are told: the ranks of each group, and the edges of segments."""
    rows: list[tuple[Any, ...]] = [(name, ranks.values, ranks.below, ranks.upto) for name, ranks in curves.items()] + [
        (EDGES, edges, [], [])
    ]
    lists = {
        name: pa.array([list(row[i + 1]) for row in rows], pa.list_(pa.float64()))
        for i, name in enumerate(("values", "below", "upto"))
    }
    return pa.table({"group": pa.array([row[0] for row in rows], pa.string()), **lists})


def ranks_of(told: pa.Table) -> dict[str, Ranks]:
    columns = ("values", "below", "upto")
    return {
        row["group"]: Ranks(*(np.array(row[name], np.float64) for name in columns))
        for row in told.to_pylist()
        if row["group"] != EDGES
    }


def level_values(ranks: Ranks) -> list[float]:
    """The signal at each tenth of the tokens."""
    places = np.searchsorted(ranks.upto, np.arange(11) / 10, side="left")
    return [round(float(v), 6) for v in ranks.values[np.minimum(places, len(ranks.values) - 1)]]
