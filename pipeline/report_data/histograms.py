"""How documents are distributed over each signal, and what every threshold of a rule drops: counts, which add up.

A rule is decomposed: it drops a document because of one of its declared limits that can drop it (within reach), or for
another reason (fixed). Each document is checked: one beyond a limit must be dropped. A rule that fails this check (odd)
is not decomposed. So the count of a moved threshold is exact: of the documents that all else keeps, those within its
reach and on the near side of it stay.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.types import Array, Bytes, Floats, Integers, Mask
from gristmill.kernels.common.settings import Settings
from gristmill.pipeline.report_data.documents import SampleEntry
from gristmill.pipeline.store.partitions import read_part
from gristmill.pipeline.store.records import Partition
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.tasks.bound_rule import BROKE, KEPT, BoundRule, outcome_of
from gristmill.stages.contract import Limit, setting_at
from gristmill.stages.stage import Rule, Signals

# --- what a survey leaves: `partitions/SEGMENT/survey.json` -----------------------------------------------------------


@dataclass(frozen=True)
class CutCounts:
    """A threshold of a rule, and how many documents it takes. Lists by bin are over the edges of its signal; lists by
    group are over the sources of the survey, each of documents and of what they weigh."""

    stage: str
    field: str
    signal: str
    side: Literal["low", "high"]  # low: documents below it go; high: those above
    value: float
    at: int  # its place among the edges
    takes: int
    reached: list[int]  # by bin
    free: list[list[int]]  # by group
    documents: list[list[int]]  # by group and bin
    weights: list[list[int]]


@dataclass(frozen=True)
class SignalCounts:
    """The histogram of a signal: documents below the first edge, between two, and from the last on."""

    edges: list[float]
    counts: list[int]
    whole: bool  # are its values whole numbers?
    low: float
    high: float

    def place(self, at: int, side: Literal["low", "high"]) -> int:
        """Behind how many bars a threshold at an edge is drawn. Documents at an upper limit stay: of whole numbers the
        line goes behind the bar that begins with the limit."""
        return at + 2 if self.whole and side == "high" else at + 1


@dataclass(frozen=True)
class RuleLines:
    """A rule as a recipe has it."""

    stage: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class SurveySample:
    """Some documents of each group; what is packed is base64 of a byte a document."""

    sizes: list[int]
    groups: list[int]
    weights: list[int]
    gone: str
    bins: list[str]


@dataclass(frozen=True)
class SurveyRecord:
    """The survey of a segment."""

    segment: str
    weight: str | None
    sources: list[str]
    reach: list[list[int]]  # by group: documents that came to the rules, and what they weigh
    stay: list[list[int]]
    rules: dict[str, RuleLines]
    cuts: list[CutCounts]
    signals: dict[str, SignalCounts]
    languages: list[tuple[str, int, int]]  # name, documents that came, documents that stay
    kept: list[SampleEntry]
    sample: SurveySample


# --- the limits of a rule that a slider can move ----------------------------------------------------------------------


LARGEST = np.finfo(np.float64).max  # a limit that a recipe sets to mean none may be a whole number that no array holds


@dataclass(frozen=True)
class RuleThreshold:
    """One limit and its value: documents with the signal below (`low`) or above (`high`) it are dropped."""

    stage: str
    limit: Limit
    value: float
    narrow: bool  # is the value rounded to float32 before it is compared?

    @property
    def field(self) -> str:
        return str(self.limit.setting)

    @property
    def signal(self) -> str:
        return self.limit.signal

    @property
    def side(self) -> Literal["low", "high"]:
        return self.limit.side

    def beyond(self, values: Array, threshold: float) -> Mask:
        """Which values go."""
        limit = np.float64(np.float32(threshold)) if self.narrow else np.float64(threshold)
        return self.limit.beyond(values.astype(np.float64), limit)

    def bins(self, values: Array, edges: Floats) -> Bytes:
        """How many edges each value has passed. Moved to edge k, the cut takes bins up to k (`low`) or those after k
        (`high`)."""
        limits = edges.astype(np.float32).astype(np.float64) if self.narrow else edges
        side: Literal["left", "right"] = "right" if self.side == "low" else "left"
        return np.searchsorted(limits, values.astype(np.float64), side=side).astype(np.uint8)


def thresholds_of(rule: Rule, view: pa.RecordBatch) -> list[RuleThreshold]:
    """The limits of a rule that a slider can move: each a setting by itself (no entry of a list or table), on one
    signal that some documents have."""
    settings = Counter(limit.setting for limit in rule.limits)
    signals = Signals(view)
    thresholds = []
    for limit in rule.limits:
        value = setting_at(rule, limit.setting)
        if (
            value is None
            or not abs(value) <= LARGEST
            or settings[limit.setting] > 1
            or not is_field(rule, limit.setting)
        ):
            continue
        if limit.signal not in view.schema.names or not is_number(view.schema.field(limit.signal).type):
            continue
        if len(view) and view.column(limit.signal).null_count < len(view):
            narrow = rule.values([limit], signals)[0].dtype == np.float32
            thresholds.append(RuleThreshold(rule.called, limit, float(value), narrow))
    return thresholds


def is_field(settings: Settings, path: str | float) -> bool:
    """Is a path one of fields alone?"""
    if not isinstance(path, str):
        return False
    place: object = settings
    for step in path.split("."):
        if not isinstance(place, Settings):
            return False
        place = getattr(place, step)
    return True


def goes(rule: Rule, view: pa.RecordBatch) -> Mask:
    """Which documents a rule does not keep."""
    gone: Mask = outcome_of(rule, view).first != KEPT
    return gone


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


# --- bars of a histogram, steps of a slider ---------------------------------------------------------------------------


STEPS = 200  # of the even grid; with what is added never more than 254
WHOLE_STEPS = 250  # where the signal is a count: up to here each is a step of its own
TAIL = 24  # steps between where most documents are and the highest, at most
MOST = 254
SHARES = 2.0  # what never comes so far is a share or a score, in even steps
LADDERS = (  # the numbers that a decade is stepped through, finest first: from, up to, by
    ((100, 500, 5), (500, 1000, 10)),
    ((100, 1000, 10),),
    ((100, 500, 10), (500, 1000, 50)),
    ((100, 300, 10), (300, 1000, 50)),
    ((100, 200, 10), (200, 500, 50), (500, 1000, 100)),
    ((100, 200, 50), (200, 1000, 100)),
    ((100, 200, 100), (200, 500, 300), (500, 1000, 500)),
)


def edges_of(values: Floats, thresholds: Sequence[float], whole: bool) -> list[float]:
    """Steps from the lowest to the highest of some values."""
    low, high = min([float(values.min()), *thresholds]), max([float(values.max()), *thresholds])
    low = min([low, *(t / 4 for t in thresholds if t > 0)])
    low = float(math.floor(low)) if whole else low
    most = max([float(np.quantile(values, 0.99)), *(1.5 * t for t in thresholds if t > 0), low]) if not whole else high
    decades = (low >= 0 and high > WHOLE_STEPS and whole) or (low > 0 and high / low > 1000 and high > SHARES)
    if whole and not decades:
        most = high = high + 1  # so that documents at the highest have a bar as wide as the others
    grid = by_decades(low, high, whole) if decades else evenly(low, min(most, high), high, whole)
    edges = sorted({*grid, *thresholds})
    spare = [edge for edge in edges if edge not in thresholds]
    while len(edges) > MOST:
        spare = spare[::2]
        edges = sorted({*spare, *thresholds})
    return edges


def evenly(low: float, most: float, high: float, whole: bool) -> list[float]:
    """Even steps of a round size as far as most documents are, larger ones for the few beyond."""
    step = size_of_step(max(most - low, 1e-12) / (WHOLE_STEPS + 1 if whole else STEPS), whole)
    grid = steps(low, most, step)
    if high > grid[-1]:
        wider = max(step, size_of_step((high - grid[-1]) / TAIL, whole))
        grid += [edge for edge in steps(grid[-1], high, wider) if edge > grid[-1]]
    return grid


def steps(low: float, high: float, step: float) -> list[float]:
    first, last = math.floor(low / step + 1e-9), max(math.ceil(high / step - 1e-9), math.floor(low / step + 1e-9) + 1)
    return [rounded(step * k, step) for k in range(first, last + 1)]


def rounded(value: float, step: float) -> float:
    return round(value, max(0, 2 - math.floor(math.log10(step)))) + 0.0


def size_of_step(least: float, whole: bool) -> float:
    """The next of 1, 5, 10 times a power of ten: steps of 2 would pass over the numbers that people write."""
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 5, 10) if factor * power >= least * (1 - 1e-9))
    return max(1.0, step) if whole else step


def by_decades(low: float, high: float, whole: bool) -> list[float]:
    """Numbers that a person would write (10, 11, 12, ... 50, 55, 60), as many in each decade as there is room for."""
    first = max(low, 1.0) if whole else low
    for ladder in LADDERS:
        grid = climbed(ladder, first, high, whole)
        if len(grid) <= STEPS + 40:
            break
    return grid


def climbed(ladder: Sequence[tuple[int, int, int]], first: float, high: float, whole: bool) -> list[float]:
    """The numbers of a ladder, from the last that is not above `first` to the first that is not below `high`."""
    rungs = [rung for begin, end, by in ladder for rung in range(begin, end, by)]
    decades = range(math.floor(math.log10(first)), math.ceil(math.log10(high)) + 1)
    numbers = [
        float(f"{rung}e{decade - 2}")
        for decade in decades
        for rung in rungs
        if not whole or decade >= 2 or rung % 10 ** (2 - decade) == 0
    ]
    inside = [number for number in numbers if first < number < high]
    return [max(n for n in numbers if n <= first), *inside, min(n for n in numbers if n >= high)]


# --- rules split into what each threshold drops -----------------------------------------------------------------------


NOT_SIGNALS = {"uid", "text", "url", "id", "date", "meta", "source"}


@dataclass
class SurveyPlan:
    """What is counted in every part."""

    rules: list[BoundRule]
    cuts: list[list[RuleThreshold]]  # by rule
    edges: dict[str, Floats]  # by signal
    whole: set[str]  # signals that are whole numbers
    columns: list[str]
    weight: str | None
    groups: dict[str, int]  # by source


def plan_survey(
    rules: list[BoundRule],
    cuts: list[list[RuleThreshold]],
    sample: pa.RecordBatch,
    columns: list[str],
    weight: str | None,
    groups: dict[str, int],
) -> SurveyPlan:
    thresholds: dict[str, list[float]] = {}
    for cut in (cut for of_rule in cuts for cut in of_rule):
        thresholds.setdefault(cut.signal, []).append(cut.value)
    names = [
        name
        for name in sample.schema.names
        if name not in NOT_SIGNALS and "@" not in name and is_number(sample.schema.field(name).type)
    ]
    views = {cut.signal: d.view(sample) for d, of_rule in zip(rules, cuts, strict=True) for cut in of_rule}
    edges: dict[str, Floats] = {}
    whole: set[str] = set()
    for name in dict.fromkeys([*thresholds, *names]):
        column = views[name].column(name) if name in views else sample.column(name)
        values = finite(column)
        if len(values):
            whole |= {name} if pa.types.is_integer(column.type) else set()
            edges[name] = np.array(edges_of(values, thresholds.get(name, []), name in whole))
    return SurveyPlan(rules, cuts, edges, whole, columns, weight, groups)


def finite(column: pa.Array) -> Floats:
    values: Floats = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    numbers: Floats = values[np.isfinite(values)]
    return numbers


@dataclass(frozen=True)
class Decomposition:
    """The rules of a segment taken apart, for a batch of documents."""

    gone: Mask  # by what no threshold governs
    touched: list[Mask]  # by cut: within its reach
    beyond: list[Mask]  # by cut: within its reach, and taken
    bins: list[Bytes]
    columns: dict[str, pa.Array]  # signals that have a threshold, as the rules saw them
    odd: set[int]

    @classmethod
    def of(cls, plan: SurveyPlan, batch: pa.RecordBatch) -> Decomposition:
        gone = np.zeros(len(batch), bool)
        touched, beyond, bins, columns, odd = [], [], [], {}, set()
        for number, (deciding, cuts) in enumerate(zip(plan.rules, plan.cuts, strict=True)):
            rule, view = deciding.rule, deciding.view(batch)
            outcome = outcome_of(rule, view)
            if not cuts:
                gone |= outcome.first != KEPT
                continue
            signals, verdict = Signals(view), outcome.verdict
            fixed = outcome.first == BROKE
            held = {reason: verdict.held(bit) for bit, reason in enumerate(verdict.reasons)}
            explained = {reason: np.zeros(len(batch), bool) for reason in held}
            reaches = []
            for cut in cuts:
                values, reason = rule.values([cut.limit], signals)[0], cut.limit.reason
                reached = rule.governed(cut.limit, signals) & (values == values)
                taken = reached & cut.beyond(values, cut.value)
                if (taken & ~held.get(reason, np.zeros(len(batch), bool)) & ~fixed).any():
                    odd.add(number)  # the rule's own verdict differs from its limit
                    break
                explained[reason] |= taken
                columns[cut.signal] = view.column(cut.signal)
                reaches.append((reached, taken))
                bins.append(cut.bins(values, plan.edges[cut.signal]))
            for reason, rows in held.items():
                fixed |= rows & ~explained[reason]
            touched += [reached & ~fixed for reached, _ in reaches]
            beyond += [taken & ~fixed for _, taken in reaches]
            gone |= fixed
        return cls(gone, touched, beyond, bins, columns, odd)


# --- counts of the documents of some parts ----------------------------------------------------------------------------


LANGUAGE = "language"


class PlainCounts(TypedDict):
    """`SurveyCounts` as plain data."""

    counts: list[int]  # its arrays, one after the other
    spans: dict[str, list[float]]
    languages: dict[str, list[int]]
    odd: list[int]


@dataclass
class SurveyCounts:
    """Counts of the documents of some parts. Arrays are stretches of one vector, `numbers`; those that begin with a
    group count documents and what they weigh."""

    numbers: Integers
    reach: Integers  # by group
    stay: Integers
    free: list[Integers]  # by cut: kept by all else and out of its reach; by group
    bins: list[Integers]  # by cut: kept by all else and within its reach; by group and bin
    reached: list[Integers]  # by cut: within its reach, whatever else takes them; by bin
    histograms: dict[str, Integers]
    spans: dict[str, list[float]]  # by signal: the lowest and the highest
    languages: dict[str, list[int]]  # documents that came, and those that stay
    odd: set[int]  # rules that thresholds do not explain

    @classmethod
    def of(cls, plan: SurveyPlan, plain: PlainCounts | None = None) -> SurveyCounts:
        """The counts by a plan; zeros where there are none yet."""
        groups = len(set(plan.groups.values()))
        lengths = [len(plan.edges[cut.signal]) + 1 for of_rule in plan.cuts for cut in of_rule]
        shapes: list[tuple[int, ...]] = [(groups, 2)] * (2 + len(lengths))
        shapes += [*((groups, 2, length) for length in lengths), *((length,) for length in lengths)]
        shapes += [(len(edges) + 1,) for edges in plan.edges.values()]
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        numbers = np.zeros(ends[-1], np.int64) if plain is None else np.array(plain["counts"], np.int64)
        arrays = [piece.reshape(shape) for piece, shape in zip(np.split(numbers, ends[:-1]), shapes, strict=True)]
        reach, stay, *by_cut = arrays
        free, bins, reached = (by_cut[k * len(lengths) : (k + 1) * len(lengths)] for k in range(3))
        histograms = dict(zip(plan.edges, by_cut[3 * len(lengths) :], strict=True))
        spans, languages, odd = ({}, {}, []) if plain is None else (plain["spans"], plain["languages"], plain["odd"])
        return cls(numbers, reach, stay, free, bins, reached, histograms, spans, languages, set(odd))

    def plain(self) -> PlainCounts:
        return {
            "counts": self.numbers.tolist(),
            "spans": self.spans,
            "languages": self.languages,
            "odd": sorted(self.odd),
        }


def widen(spans: dict[str, list[float]], name: str, low: float, high: float) -> None:
    before = spans.get(name, [low, high])
    spans[name] = [min(low, before[0]), max(high, before[1])]


def add_language(languages: dict[str, list[int]], name: str, came: int, stayed: int) -> None:
    before = languages.get(name, [0, 0])
    languages[name] = [before[0] + came, before[1] + stayed]


def merge_counts(some: Sequence[PlainCounts]) -> PlainCounts:
    """Of counts by the same plan."""
    merged: PlainCounts = {
        "counts": np.sum([np.array(counts["counts"], np.int64) for counts in some], axis=0).tolist(),
        "spans": {},
        "languages": {},
        "odd": sorted({rule for counts in some for rule in counts["odd"]}),
    }
    for counts in some:
        for name, (low, high) in counts["spans"].items():
            widen(merged["spans"], name, low, high)
        for name, (came, stayed) in counts["languages"].items():
            add_language(merged["languages"], name, came, stayed)
    return merged


def count_part(store: Store, plan: SurveyPlan, part: Partition, counted: SurveyCounts) -> None:
    """Add the documents of a part."""
    group = plan.groups[part.source]
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
                widen(counted.spans, name, float(values.min()), float(values.max()))
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
            add_language(counted.languages, name or "unknown", int(came[k]), int(stayed[k]))


def side_by_side(surveys: Sequence[SurveyRecord]) -> list[SurveyRecord]:
    """The first segment and those with other sources. A segment behind one of them has the same documents again."""
    chosen: list[SurveyRecord] = []
    for survey in surveys:
        if all(set(survey.sources).isdisjoint(other.sources) for other in chosen):
            chosen.append(survey)
    return chosen
