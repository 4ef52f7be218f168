"""Extrapolate from a run on a part of the input: documents, time, memory, disk, money and requests of the whole.

`gristmill run --sample` prints an `Estimate` for workers like its own, `gristmill estimate` a `Forecast` for a cluster
of any shape. Seconds, bytes and requests are those in run.json of the part, scaled by documents or bytes. Computed from
the files of the whole as they are: its parts, the longest of them, and how many tasks of a global stage can run at
once. So the time of a forecast is that of a schedule, and says which of them binds. Cores are taken to be like the
sample's.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import cast

from gristmill.pipeline.engine.budget import Budget
from gristmill.pipeline.errors import OverBudget, RecipeError
from gristmill.pipeline.formatting import as_bytes, as_money
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.plan.plan import GlobalNode, Node, Plan
from gristmill.pipeline.recipe.recipe import Prices, Recipe
from gristmill.pipeline.shuffle.shuffle import buckets_of_rows
from gristmill.pipeline.store.counts import Counts
from gristmill.pipeline.store.records import MapTask
from gristmill.pipeline.store.run_records import RunRecord, StageRecord, WholeRecord, read_if_whole
from gristmill.pipeline.store.storage import Store
from gristmill.stages.judge.cost import Asks, Cost
from gristmill.stages.stage import Stage

SURE = "right in 9 of 10 cases"
# Two-sided 95 % points of Student's t. Few parts of uneven inputs seldom include the largest, so they show too little
# spread: WIDER makes up for it. The interval then held the truth in 93 to 99 % of made-up inputs, even and uneven, of
# which 6 to 30 parts were read (tests/pipeline/run/test_estimate.py).
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
WIDER = 1.4
WIDEST = 100.0  # times the estimate
ENOUGH = 5  # parts of a half, to estimate the halves apart

START = 3.0  # seconds until workers are ready, at most: what a sample took above them compiled kernels, once
TASK_SECONDS, TASK_SECONDS_A_WORKER = 1.1e-3, 4.5e-7  # of driver and scheduler for a task (docs/scale.md)
ROUND_SECONDS = 0.1  # until the last task of a round has let the first of the next begin
# What a stage takes for a byte differs between parts beyond what documents tell, and cores are never quite as fast
# again: times lie within this factor of the estimate, either way, beside the interval of documents.
UNSURE = 1.25
SPARE_MEMORY = 2  # times the largest process of the sample, whose parts are smaller


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


@dataclass(frozen=True)
class Whole:
    """How many documents a source has in all, and between which numbers that lies; None where too little was read to
    say. `inputs.SOURCE.estimate` of run.json."""

    parts: int
    of: int
    documents: int
    low: int | None
    high: int | None

    def as_json(self) -> WholeRecord:
        return cast(WholeRecord, asdict(self))


def documents_in_all(parts: Sequence[PartRead], sizes: Sequence[int]) -> Whole:
    """From some parts of a source to all, whose sizes are given: documents per byte, in the smaller and the larger half
    apart where enough of both were read, for documents are seldom as dense in both. The spread is that of the estimates
    which leave one part out (the jackknife), the interval is taken on the logarithm, for a total is never below zero.
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
    total = sum(documents for documents, _ in estimates)
    spreads = [spread for _, stratum_spreads in estimates for spread in stratum_spreads]
    variance = sum(spread.variance for spread in spreads)
    if not total or not math.isfinite(variance):
        exact = seen if len(parts) == len(sizes) and all(part.whole for part in parts) else None
        return Whole(len(parts), len(sizes), round(total), exact, exact)
    free = (
        variance**2 / sum(spread.variance**2 / spread.free for spread in spreads) if variance else 1.0
    )  # Welch and Satterthwaite
    factor = min(WIDEST, math.exp(min(9.0, student(free) * WIDER * math.sqrt(variance) / total)))
    low, high = (max(seen, round(bound)) for bound in (total / factor, total * factor))
    return Whole(len(parts), len(sizes), round(total), low, high)


@dataclass(frozen=True)
class Spread:
    """A variance of an estimate and its degrees of freedom."""

    variance: float
    free: float


UNKNOWN = Spread(math.inf, 1.0)


def in_stratum(parts: Sequence[PartRead], of: int, size: int) -> tuple[float, list[Spread]]:
    """Documents in `of` parts of `size` bytes, and what that number may be off by: parts that were not read, and the
    rest of those that were begun."""
    if not parts:
        return 0.0, [UNKNOWN] if size else []
    sizes, documents = [max(1, part.size) for part in parts], [part.in_all for part in parts]
    share = min(1.0, sum(sizes) / max(1, size))
    total = sum(documents) / share
    within = sum(part.variance for part in parts) / share**2 * len(parts) / of
    spreads = [Spread(within, sum(part.documents for part in parts))] if within else []
    if len(parts) == 1 < of:
        spreads.append(UNKNOWN)
    elif len(parts) < of:
        without = [(sum(documents) - n) / (sum(sizes) - x) * size for n, x in zip(documents, sizes, strict=True)]
        between = (1 - len(parts) / of) * (len(parts) - 1) / len(parts) * sum((other - total) ** 2 for other in without)
        alike = sum(sizes) ** 2 / sum(x * x for x in sizes)  # how many parts of one size would tell as much
        spreads.append(Spread(between, max(1.0, alike - 1)))
    return total, spreads


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
    kept_low: int | None  # None too where stages move documents to other parts
    kept_high: int | None
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
            is_between = self.kept_low is not None and self.kept_high is not None and self.kept_low < self.kept_high
            return f"{self.kept:,} kept" + (f" ({self.kept_low:,} to {self.kept_high:,})" if is_between else "")
        return f"{self.kept:,} come to {self.drawn_by}, whose budget says how many are kept"

    def as_json(self) -> JSONObject:
        return asdict(self)

    def in_words(self) -> str:
        money = "" if self.cost is None else f", {as_money(self.cost, self.currency)}"
        sure = (
            f"{self.low:,} to {self.high:,}, {SURE}"
            if self.low is not None and self.high is not None
            else "too little was read to say how sure"
        )
        return (
            f"this read {self.share:.2%} of the bytes of the input. The whole: about {self.documents:,} documents ({sure}), "
            f"{self.kept_in_words}, {for_people(self.seconds)} on as many workers, "
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
    documents = sum(source["documents"] for source in sources)
    low, high = between(documents, [(it["documents"], it["low"], it["high"]) for it in sources])
    kept_low, kept_high = between(kept, [kept_of(last, name, rates) for name in rates.sources if name in last.sources])
    return Estimate(
        share=rates.share,
        documents=documents,
        low=low,
        high=high,
        kept=round(kept),
        kept_low=None if budgeted else kept_low,
        kept_high=None if budgeted or kept_high is None or high is None else min(kept_high, high),
        drawn_by=budgeted.name if budgeted else None,
        seconds=rates.overhead + rates.worked / rates.share,
        disk_bytes=round((record.disk_bytes or 0) / rates.share),
        memory_bytes=max((stage.peak_memory or 0 for stage in record.stages), default=0),
        cost=None if price is None else price.amount / rates.share,
        currency=None if price is None else price.currency,
    )


def kept_of(last: StageRecord, source: str, rates: Rates) -> tuple[float, int | None, int | None]:
    """Documents of a source that the whole keeps: about, at least and at most."""
    kept, whole = last.sources[source].kept, rates.sources[source]
    if rates.growth[source] == 1 and whole["low"] == whole["high"] == whole["documents"]:  # all of it was read
        return kept, kept, kept
    return kept * rates.growth[source], whole.get("kept_low"), whole.get("kept_high")


def between(
    sum_of_all: float, estimates: Sequence[tuple[float, int | None, int | None]]
) -> tuple[int | None, int | None]:
    """At least and at most the sum of some estimates, that err apart from each other; None where one says nothing."""
    lows = [about - low for about, low, _ in estimates if low is not None]
    highs = [high - about for about, _, high in estimates if high is not None]
    if not len(lows) == len(highs) == len(estimates):
        return None, None
    return round(sum_of_all - math.hypot(*lows)), round(sum_of_all + math.hypot(*highs))


def for_people(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return "1 second" if round(seconds) == 1 else f"{seconds:,.0f} seconds"


# --- on a cluster -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A cluster. A worker is one process; stages use one core of it."""

    workers: int
    cores: int = 1  # paid for, a worker
    memory: int | None = None  # bytes a worker
    core_hour: float | None = None  # None: the recipe's price
    object_store: bool = False


@dataclass(frozen=True)
class Step:
    """One step: seconds of all workers, how many can work at once, and its longest task."""

    name: str
    core_seconds: float
    width: int
    longest: float
    seconds: float  # on this cluster


@dataclass(frozen=True)
class Forecast:
    """The whole on a cluster; `low` and `high` are of seconds."""

    sample: Estimate
    shape: Shape
    steps: tuple[Step, ...]
    overhead: float  # start, driver, report: seconds in which workers wait
    seconds: float
    low: float
    high: float
    rent: float | None  # the cluster, from start to end
    work: float | None  # workers at work only
    currency: str | None
    disk_bytes: int  # left at the end
    scratch_bytes: int  # at most at once, beside the inputs
    memory_bytes: int
    puts: int | None  # requests that write, and that read; None: the sample's folder was not on an object store
    gets: int | None
    requests_cost: float | None
    useful_workers: int  # more of them save less than half of what they cost

    @property
    def core_seconds(self) -> float:
        return sum(step.core_seconds for step in self.steps)

    @property
    def total(self) -> float | None:
        return None if self.rent is None else self.rent + (self.requests_cost or 0.0)

    @property
    def fits(self) -> bool | None:
        """None if the memory of a worker is not known."""
        return None if self.shape.memory is None else self.shape.memory >= self.memory_bytes

    def as_json(self) -> JSONObject:
        return {**asdict(self), "total": self.total, "fits": self.fits}


@dataclass(frozen=True)
class Work:
    """The work of the whole, whatever the cluster."""

    local: Mapping[str, float]  # core seconds of segments, by source
    parts: Mapping[str, Sequence[int]]  # bytes of the parts of the whole, by source
    globals: Mapping[str, float]  # core seconds of global stages
    documents: Mapping[str, int]  # that come to them
    overhead: float

    @classmethod
    def of(cls, record: RunRecord, parts: Mapping[str, Sequence[int]]) -> Work:
        """Seconds of the sample's stages for the whole: by source, by the documents that each has in all."""
        rates = Rates.of(record, workers_of(record))
        local = dict.fromkeys(rates.sources, 0.0)
        of_globals: dict[str, float] = defaultdict(float)
        documents: dict[str, int] = defaultdict(int)
        for stage in record.stages:
            for source, count in stage.sources.items():
                seconds = count.seconds * rates.growth.get(source, 1 / rates.share)
                if stage.kind == "global":
                    of_globals[stage.name] += seconds
                    documents[stage.name] += round(count.docs_in * rates.growth[source])
                else:
                    local[source] += seconds
        return cls(local, parts, of_globals, documents, rates.overhead)

    @property
    def costs(self) -> list[float]:
        """Core seconds of each part."""
        return [size * self.local[name] / max(1, sum(sizes)) for name, sizes in self.parts.items() for size in sizes]

    def steps(self, workers: int) -> list[Step]:
        costs = self.costs
        wall = max(makespan(costs, workers), steering(len(costs), workers))
        steps = [Step("parts", sum(costs), len(costs), max(costs, default=0.0), wall)]
        size = sum(map(sum, self.parts.values()))
        for name, seconds in self.globals.items():
            width = buckets_of_rows(self.documents[name], "home", len(costs), size)
            wall = max(seconds / min(workers, width), steering(width, workers)) + ROUND_SECONDS
            steps.append(Step(name, seconds, width, seconds / width, wall))
        return steps

    def wall(self, workers: int) -> float:
        return self.overhead + sum(step.seconds for step in self.steps(workers))

    def useful(self) -> int:
        """The most workers of which twice as many would still take less than three quarters of the time."""
        workers = 1
        while workers < 1 << 14 and self.wall(2 * workers) < 0.75 * self.wall(workers):
            workers *= 2
        return workers


def makespan(costs: Sequence[float], workers: int) -> float:
    """When the last part ends, where each free worker takes the next."""
    ends = [0.0] * max(1, min(workers, len(costs)))
    for cost in costs:
        heapq.heapreplace(ends, ends[0] + cost)
    return max(ends, default=0.0)


def steering(tasks: int, workers: int) -> float:
    """Seconds that driver and scheduler take for some tasks, however short these are."""
    return tasks * (TASK_SECONDS + min(workers, tasks) * TASK_SECONDS_A_WORKER)


def forecast(recipe: Recipe, record: RunRecord, parts: Mapping[str, Sequence[int]], shape: Shape) -> Forecast:
    """From the record of a run on a part, and the sizes of the parts of the whole."""
    guess = estimate(record, workers_of(record))
    work = Work.of(record, parts)
    steps = work.steps(shape.workers)
    seconds = work.wall(shape.workers)
    low, high = guess.spread
    prices = recipe.head.prices or (Prices() if shape.core_hour is not None else None)
    rent = working = None
    if prices is not None:
        hour = prices.core_hour if shape.core_hour is None else shape.core_hour
        rent = seconds / 3600 * shape.workers * shape.cores * hour
        working = sum(step.core_seconds for step in steps) / 3600 * hour + gpu_part(record, guess, prices)
    puts = gets = asked = None
    if shape.object_store and record.requests:
        puts, gets = (math.ceil(number / guess.share) for number in puts_and_gets(record.requests))
        priced = prices is not None and (prices.thousand_puts or prices.thousand_gets)
        asked = prices.of_requests(puts, gets) if prices is not None and priced else None
    return Forecast(
        sample=guess,
        shape=shape,
        steps=tuple(steps),
        overhead=work.overhead,
        seconds=seconds,
        low=seconds * low / UNSURE,
        high=seconds * high * UNSURE,
        rent=rent,
        work=working,
        currency=None if prices is None else prices.currency,
        disk_bytes=guess.disk_bytes,
        scratch_bytes=max(guess.disk_bytes, round(sum(record.bytes_written.values()) / guess.share)),
        memory_bytes=round(guess.memory_bytes * SPARE_MEMORY),
        puts=puts,
        gets=gets,
        requests_cost=asked,
        useful_workers=work.useful(),
    )


def workers_of(record: RunRecord) -> int:
    return int(str(record.machine["workers"]))


def gpu_part(record: RunRecord, guess: Estimate, prices: Prices) -> float:
    """What a GPU costs more than a core, of stages that use one."""
    on_gpus = sum(each.count.seconds for each in record.stages if each.settings.get("device") in ("gpu", "auto"))
    return on_gpus / guess.share / 3600 * prices.gpu_hour


def puts_and_gets(requests: Mapping[str, int]) -> tuple[int, int]:
    """Requests to an object store by what they cost: those that write or list, and those that read."""
    sent = Counter(requests)
    return sent["PUT"] + sent["LIST"], sent["GET"] + sent["HEAD"]


# --- before and during a run ------------------------------------------------------------------------------------------


def check_budget(budget: Budget, guess: Estimate | None) -> str | None:
    """Before any work: OverBudget if what is known says that it cannot be enough, else a warning where it may not be or
    nothing is known."""
    amount = as_money(budget.amount, budget.prices.currency)
    if guess is None or guess.cost is None:
        return (
            f"nothing is known of what this run will cost: it stops before it exceeds {amount}; "
            "`gristmill estimate` or a run with --sample tells"
        )
    low, high = (guess.cost * bound for bound in guess.spread)
    words = f"the whole will cost {as_money(low, guess.currency)} to {as_money(high, guess.currency)}"
    if low > budget.amount:
        raise OverBudget(f"{words} by the sample run, more than the budget of {amount}; nothing was begun")
    return f"{words} by the sample run: the budget of {amount} may not be enough" if high > budget.amount else None


def seconds_of_nodes(plan: Plan, store: Store, size: int) -> dict[str, float]:
    """By node, the seconds of workers that it takes on `size` bytes of inputs: as many for a byte as in the last run in
    the folder, or on a part of the inputs. Nodes with a stage that is new, or had other settings, are left out."""
    found: dict[str, float] = {}
    for folder in (store.sample, store):
        record = read_if_whole(folder, "run.json", RunRecord)
        if record is None or not record.done or not bytes_read(record):
            continue
        before = {entry.name: entry for entry in record.stages}
        for node in plan.nodes:
            stages = stages_of(node)
            entries = [before[name] for name in stages if name in before]
            settings = [stage.model_dump(mode="json", exclude_none=True) for stage in stages.values()]
            if [entry.settings for entry in entries] == settings:
                source = None if isinstance(node, GlobalNode) else node.source
                counts = [entry.count if source is None else entry.sources.get(source.name) for entry in entries]
                seconds = sum(count.seconds for count in counts if count is not None)
                found[node.name] = seconds * size / bytes_read(record)
    return found


def stages_of(node: Node) -> dict[str, Stage]:
    """As run.json names them."""
    if isinstance(node, GlobalNode):
        return {node.name: node.step.stage}
    reader = {} if node.source is None else {node.source.name: node.source.reader.stage}
    return reader | {step.called: step.stage for step in node.in_order_of_work}


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
