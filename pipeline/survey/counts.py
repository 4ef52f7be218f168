"""How the documents of some parts lie by each signal, and what every threshold takes: counts, which add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.types import Floats, Integers, Mask
from gristmill.pipeline.store.partitions import read_part
from gristmill.pipeline.store.records import Part
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.survey.decomposition import Decomposition, SurveyPlan, finite

LANGUAGE = "language"


class PlainCounts(TypedDict):
    """`SurveyCounts` as plain data; its arrays one after the other."""

    counts: list[int]
    spans: dict[str, list[float]]
    languages: dict[str, list[int]]
    odd: list[int]


@dataclass
class SurveyCounts:
    """What one part, or all of them, came to: counts by group of sources."""

    reach: Integers
    stay: Integers
    free: list[Integers]  # by cut: kept by all else and out of its reach
    bins: list[Integers]  # by cut: kept by all else and within its reach, by bin
    reached: list[Integers]  # by cut: within its reach, whatever else takes them, by bin
    histograms: dict[str, Integers]
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)  # by signal: the lowest and the highest
    languages: dict[str, Integers] = field(default_factory=dict)
    odd: set[int] = field(default_factory=set)  # rules that thresholds do not explain

    @classmethod
    def of(cls, plan: SurveyPlan) -> SurveyCounts:
        groups = len(set(plan.groups.values()))
        cuts = [cut for of_rule in plan.cuts for cut in of_rule]
        bins = [np.zeros((groups, 2, len(plan.edges[cut.signal]) + 1), np.int64) for cut in cuts]
        histograms = {name: np.zeros(len(edges) + 1, np.int64) for name, edges in plan.edges.items()}
        two = (groups, 2)
        free = [np.zeros(two, np.int64) for _ in cuts]
        reached = [np.zeros(len(plan.edges[cut.signal]) + 1, np.int64) for cut in cuts]
        return cls(np.zeros(two, np.int64), np.zeros(two, np.int64), free, bins, reached, histograms)

    def arrays(self) -> list[Integers]:
        return [self.reach, self.stay, *self.free, *self.bins, *self.reached, *self.histograms.values()]

    def plain(self) -> PlainCounts:
        return {
            "counts": np.concatenate([counts.ravel() for counts in self.arrays()]).tolist(),
            "spans": {name: list(span) for name, span in self.spans.items()},
            "languages": {name: counts.tolist() for name, counts in self.languages.items()},
            "odd": sorted(self.odd),
        }

    @classmethod
    def from_plain(cls, plan: SurveyPlan, plain: PlainCounts) -> SurveyCounts:
        counts, begin = cls.of(plan), 0
        for array in counts.arrays():
            array[...] = np.array(plain["counts"][begin : begin + array.size], np.int64).reshape(array.shape)
            begin += array.size
        counts.spans = {name: (low, high) for name, (low, high) in plain["spans"].items()}
        counts.languages = {name: np.array(both, np.int64) for name, both in plain["languages"].items()}
        counts.odd = set(plain["odd"])
        return counts

    def spanned(self, name: str, low: float, high: float) -> None:
        before = self.spans.get(name, (low, high))
        self.spans[name] = (min(low, before[0]), max(high, before[1]))


def count_part(store: Store, plan: SurveyPlan, part: Part, counted: SurveyCounts) -> None:
    """Add the documents of a part."""
    group = plan.groups[part["source"]]
    for batch in read_part(store, part, plan.columns):
        apart = Decomposition.of(plan, batch)
        counted.odd |= apart.odd
        if apart.odd:
            continue
        weights = weights_of(batch, plan.weight)
        against = apart.gone.astype(np.int16)
        for taken in apart.beyond:
            against += taken
        stays = against == 0
        counted.reach[group] += (len(batch), weights.sum())
        counted.stay[group] += (stays.sum(), weights[stays].sum())
        for k, (reached, taken, bins) in enumerate(zip(apart.touched, apart.beyond, apart.bins, strict=True)):
            else_kept = against == taken
            free, held = else_kept & ~reached, else_kept & reached
            counted.free[k][group] += (free.sum(), weights[free].sum())
            length = counted.bins[k].shape[2]
            counted.reached[k] += np.bincount(bins[reached], minlength=length)
            counted.bins[k][group, 0] += np.bincount(bins[held], minlength=length)
            counted.bins[k][group, 1] += np.bincount(bins[held], weights[held], length).astype(np.int64)
        for name, counts in counted.histograms.items():
            values = signal_values(apart.columns.get(name), batch, name)
            if len(values):
                counts += np.bincount(np.searchsorted(plan.edges[name], values, side="right"), minlength=len(counts))
                counted.spanned(name, float(values.min()), float(values.max()))
        if LANGUAGE in batch.schema.names:
            count_languages(counted, batch.column(LANGUAGE), stays)


def signal_values(seen: pa.Array | None, batch: pa.RecordBatch, name: str) -> Floats:
    """The signal of each document that has it, as a rule saw it where one did."""
    if seen is None and name not in batch.schema.names:
        return np.zeros(0, np.float64)
    return finite(batch.column(name) if seen is None else seen)


def weights_of(batch: pa.RecordBatch, weight: str | None) -> Integers:
    if weight is None or weight not in batch.schema.names:
        return np.zeros(len(batch), np.int64)
    values: Integers = pc.fill_null(batch.column(weight), 0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return values


def count_languages(counted: SurveyCounts, column: pa.Array, stays: Mask) -> None:
    coded = pc.dictionary_encode(column.cast(pa.string()))
    names = [*coded.dictionary.to_pylist(), None]
    which = pc.fill_null(coded.indices, len(names) - 1).to_numpy(zero_copy_only=False)
    came, stayed = (np.bincount(rows, minlength=len(names)) for rows in (which, which[stays]))
    for k, name in enumerate(names):
        if came[k]:
            label = name or "unknown"
            counted.languages[label] = counted.languages.get(label, np.zeros(2, np.int64)) + np.array(
                [came[k], stayed[k]]
            )


def sum_of(some: Sequence[PlainCounts]) -> PlainCounts:
    """Of counts by the same plan."""
    spans: dict[str, list[float]] = {}
    languages: dict[str, list[int]] = {}
    for counts in some:
        for name, (low, high) in counts["spans"].items():
            before = spans.get(name, [low, high])
            spans[name] = [min(low, before[0]), max(high, before[1])]
        for name, (came, stayed) in counts["languages"].items():
            before_it = languages.get(name, [0, 0])
            languages[name] = [before_it[0] + came, before_it[1] + stayed]
    total = np.sum([np.array(counts["counts"], np.int64) for counts in some], axis=0)
    return {
        "counts": total.tolist(),
        "spans": spans,
        "languages": languages,
        "odd": sorted({rule for counts in some for rule in counts["odd"]}),
    }
