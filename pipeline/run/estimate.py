"""Extrapolate from a run on a part of the input: documents, time, memory, disk and money of the whole.

`gristmill run --sample` prints an `Estimate` for workers like its own; `gristmill estimate` builds a `Forecast` for a
cluster of any shape on it (`run/forecast.py`). Seconds and bytes are those in run.json of the part, scaled by documents
or bytes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import as_bytes, as_money
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.recipe.recipe import Recipe
from gristmill.pipeline.store.counts import Counts
from gristmill.pipeline.store.records import MapTask
from gristmill.pipeline.store.run_records import RunRecord, WholeRecord
from gristmill.stages.judge.cost import Asks, Cost

SURE = "right in 9 of 10 cases"
# Two-sided 95 % points of Student's t. Few parts of uneven inputs seldom include the largest, so they show too little
# spread: WIDER makes up for it. The interval then held the truth in 93 to 99 % of made-up inputs, even and uneven, of
# which 6 to 30 parts were read (tests/pipeline/run/test_estimate.py).
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
WIDER = 1.4
WIDEST = 100.0  # times the estimate
ENOUGH = 5  # parts of a half, to estimate the halves apart

START = 3.0  # seconds until workers are ready, at most: what a sample took above them compiled kernels, once


def share_of(text: str) -> float:
    """A share as a person writes it: 1%, 0.01."""
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise RecipeError(f"--sample {text}: a share was expected, such as 1% or 0.01") from None
    if not 0 < share <= 1:
        raise RecipeError(f"--sample {text}: a share between 0 and 100% was expected")
    return share


# --- documents --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartRead:
    """A part of which documents were read, from its start on: perhaps not all."""

    size: int
    read: int  # bytes
    documents: int
    whole: bool

    @classmethod
    def of(cls, task: MapTask, count: Counts) -> PartRead:
        whole = task.limit is None or count.kept < task.limit
        return cls(task.cost, count.bytes_in, count.kept, whole)

    @property
    def in_all(self) -> float:
        """Documents of the whole part."""
        return self.documents * (1.0 if self.whole or not self.read else max(1.0, self.size / self.read))

    @property
    def variance(self) -> float:
        """Of `in_all`, as if documents differed in size by their mean."""
        if self.whole or not self.documents:
            return 0.0
        return self.in_all**2 * max(0.0, 1 - self.read / max(1, self.size)) / self.documents


def documents_in_all(parts: Sequence[PartRead], sizes: Sequence[int]) -> WholeRecord:
    """How many documents a source has in all, and between which numbers that lies; None where too little was read to
    say. From some parts to all, whose sizes are given: documents per byte, in the smaller and the larger half apart
    where enough of both were read, for documents are seldom as dense in both. The spread is that of the estimates which
    leave one part out (the jackknife), the interval is taken on the logarithm, for a total is never below zero.
    """
    seen = sum(part.documents for part in parts)
    middle = sorted(sizes)[(len(sizes) - 1) // 2] if sizes else 0
    strata = [
        ([part for part in parts if part.size <= middle], [size for size in sizes if size <= middle]),
        ([part for part in parts if part.size > middle], [size for size in sizes if size > middle]),
    ]
    if min(len(read) for read, _ in strata) < ENOUGH:
        strata = [(list(parts), list(sizes))]
    estimates = [in_stratum(read, len(every), sum(every)) for read, every in strata]
    total, variance, free = (sum(numbers) for numbers in zip(*estimates, strict=True))
    if not total or not math.isfinite(variance):
        exact = seen if len(parts) == len(sizes) and all(part.whole for part in parts) else None
        return WholeRecord(parts=len(parts), of=len(sizes), documents=round(total), low=exact, high=exact)
    factor = min(WIDEST, math.exp(min(9.0, student(free) * WIDER * math.sqrt(variance) / total)))
    low, high = (max(seen, round(bound)) for bound in (total / factor, total * factor))
    return WholeRecord(parts=len(parts), of=len(sizes), documents=round(total), low=low, high=high)


def in_stratum(parts: Sequence[PartRead], of: int, size: int) -> tuple[float, float, float]:
    """Documents in `of` parts of `size` bytes, the variance of that number, and its degrees of freedom: of parts that
    were not read, and of the rest of those that were begun."""
    if not parts:
        return 0.0, math.inf if size else 0.0, 0.0
    sizes, documents = [max(1, part.size) for part in parts], [part.in_all for part in parts]
    share = min(1.0, sum(sizes) / max(1, size))
    total = sum(documents) / share
    within = sum(part.variance for part in parts) / share**2 * len(parts) / of
    if len(parts) == of:
        return total, within, sum(part.documents for part in parts)
    if len(parts) == 1:
        return total, math.inf, 0.0
    without = [(sum(documents) - n) / (sum(sizes) - x) * size for n, x in zip(documents, sizes, strict=True)]
    between = (1 - len(parts) / of) * (len(parts) - 1) / len(parts) * sum((other - total) ** 2 for other in without)
    alike = sum(sizes) ** 2 / sum(x * x for x in sizes)  # how many parts of one size would tell as much
    return total, within + between, max(1.0, alike - 1)


def student(free: float) -> float:
    return STUDENT[int(free) - 1] if 1 <= free < len(STUDENT) + 1 else 1.96 + 2.6 / max(1.0, free)


# --- what a run measured ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rates:
    """Measurements of a run on a part, and how many times more the whole is."""

    share: float  # of the bytes of the inputs
    sources: Mapping[str, WholeRecord]  # documents of the whole
    growth: Mapping[str, float]  # by source, times as many documents
    worked: float  # seconds in which workers were at stages
    overhead: float  # seconds that do not grow: start, driver, report

    @classmethod
    def of(cls, record: RunRecord, workers: int) -> Rates:
        read, size = bytes_read(record), sum(entry["bytes"] for entry in record.inputs.values())
        sources: dict[str, WholeRecord] = {}
        growth = {}
        for reader in record.readers:
            name, kept = reader.name, reader.count.kept
            whole = record.inputs[name].get("estimate")  # none of a source that was read to its end
            sources[name] = whole or {"parts": 0, "of": 0, "documents": kept, "low": kept, "high": kept}
            growth[name] = whole["documents"] / max(1, kept) if whole else 1.0
        worked = sum(stage.count.seconds for stage in record.stages) / workers
        compiling = max(0.0, record.start["seconds"] - START)  # the next run finds compiled kernels
        overhead = max(0.0, (record.seconds or 0.0) - compiling - worked)
        return cls(min(1.0, read / size) if size and read else 1.0, sources, growth, worked, overhead)


def bytes_read(record: RunRecord) -> int:
    return sum(reader.count.bytes_in for reader in record.readers)


# --- on workers like the sample's -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """Time, disk, memory and money for the whole."""

    share: float
    documents: int
    low: int | None  # documents, at least and at most; None where too little was read to say
    high: int | None
    kept: int
    drawn_by: str | None  # a `mix` with a budget, which does not grow with the input: `kept` then come to it
    seconds: float
    disk_bytes: int
    memory_bytes: int
    cost: float | None  # at the recipe's prices
    currency: str | None

    @property
    def spread(self) -> tuple[float, float]:
        """By what the truth may be lower and higher, as far as documents tell."""
        if self.low is None or self.high is None or not self.documents:
            return 1.0, 1.0
        return self.low / self.documents, self.high / self.documents

    @property
    def kept_in_words(self) -> str:
        if self.drawn_by is None:
            return f"{self.kept:,} kept"
        return f"{self.kept:,} come to {self.drawn_by}, whose budget says how many are kept"

    def as_json(self) -> JSONObject:
        return asdict(self)

    @property
    def sure_in_words(self) -> str:
        known = self.low is not None and self.high is not None
        return f"{self.low:,} to {self.high:,}, {SURE}" if known else "too little was read to say how sure"

    def in_words(self) -> str:
        money = "" if self.cost is None else f", {as_money(self.cost, self.currency)}"
        return (
            f"this read {self.share:.2%} of the bytes of the input. The whole: about {self.documents:,} documents "
            f"({self.sure_in_words}), {self.kept_in_words}, {for_people(self.seconds)} on as many workers, "
            f"{as_bytes(self.disk_bytes)} of disk, {as_bytes(self.memory_bytes)} of memory a worker{money} "
            "(duplicates grow with size: fewer may be kept)"
        )


def estimate(record: RunRecord, workers: int) -> Estimate:
    """Scale a partial run up: documents by the parts that each source gave them from, all else by bytes read."""
    rates = Rates.of(record, workers)
    budgeted = next((each for each in record.stages if each.stage == "mix" and each.settings["budget"]), None)
    last = budgeted or record.stages[-1]
    kept = sum((count.docs_in if budgeted else count.kept) * rates.growth[name] for name, count in last.sources.items())
    price = record.cost
    sources = rates.sources.values()
    low, high = interval_of(sources)
    return Estimate(
        share=rates.share,
        documents=sum(source["documents"] for source in sources),
        low=low,
        high=high,
        kept=round(kept),
        drawn_by=budgeted.name if budgeted else None,
        seconds=rates.overhead + rates.worked / rates.share,
        disk_bytes=round((record.disk_bytes or 0) / rates.share),
        memory_bytes=max((stage.peak_memory or 0 for stage in record.stages), default=0),
        cost=None if price is None else price.amount / rates.share,
        currency=None if price is None else price.currency,
    )


def interval_of(sources: Collection[WholeRecord]) -> tuple[int | None, int | None]:
    """At least and at most the documents of some sources, which err apart from each other; None where one says
    nothing."""
    documents = sum(source["documents"] for source in sources)
    below = [source["documents"] - source["low"] for source in sources if source["low"] is not None]
    above = [source["high"] - source["documents"] for source in sources if source["high"] is not None]
    if not len(below) == len(above) == len(sources):
        return None, None
    return round(documents - math.hypot(*below)), round(documents + math.hypot(*above))


def for_people(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return "1 second" if round(seconds) == 1 else f"{seconds:,.0f} seconds"


def workers_of(record: RunRecord) -> int:
    return int(str(record.machine["workers"]))


# --- before a run -----------------------------------------------------------------------------------------------------


def asked_of_models(recipe: Recipe, record: RunRecord, share: float = 1.0) -> list[tuple[str, Cost, int]]:
    """What stages that ask a language model will cost, and for how many documents: by those that came to them in a run
    on this share of the input."""
    came = {entry.name: entry.count for entry in record.stages if entry.count.docs_in}
    return [
        (
            step.called,
            step.stage.cost_ahead(came[step.called].docs_in / share, (came[step.called].text_bytes or 0) / share),
            round(came[step.called].docs_in / share),
        )
        for step in recipe.all_steps
        if isinstance(step.stage, Asks) and step.called in came
    ]


def costs_of_models(recipe: Recipe, record: RunRecord | None, size: int) -> list[str]:
    """A line for each stage that asks a language model: by the documents that came to it in the run before, else at
    most, if all `size` bytes of the inputs were text that comes to it."""
    before = asked_of_models(recipe, record) if record and record.stages else []  # none while a run is at work
    lines = [f"{name}: {cost}, for the {documents:,} documents of the run before" for name, cost, documents in before]
    known = {name for name, _, _ in before}
    for step in recipe.all_steps:
        if isinstance(step.stage, Asks) and step.called not in known:
            cost = step.stage.cost_ahead(0, size)
            lines.append(f"{step.called}: {cost}, if all {as_bytes(size)} of inputs are text")
    return lines
