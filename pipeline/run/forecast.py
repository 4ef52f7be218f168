"""What a cluster would take for the whole input, as `gristmill estimate` and `gristmill.estimate` tell it.

Extrapolated from a run on a part of the input, on cores like that run's. Time is that of a schedule: the parts of the
whole as the files are now, of which the longest may bind, then the global stages, evenly spread. Smaller and larger
clusters stand beside the one that was asked for.
"""

from __future__ import annotations

import heapq
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from textwrap import wrap
from typing import Any

from dask.utils import parse_bytes
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import as_bytes, as_money, as_requests, plain
from gristmill.pipeline.inputs.notes import facts_of, fetches_of
from gristmill.pipeline.inputs.portion import Portion, find_inputs, part_sizes
from gristmill.pipeline.processes import cores_here
from gristmill.pipeline.progress.progress import UI
from gristmill.pipeline.recipe.memory_limit import check_memory
from gristmill.pipeline.recipe.recipe import Prices, Recipe
from gristmill.pipeline.run.estimate import (
    Estimate,
    Rates,
    asked_of_models,
    estimate,
    for_people,
    share_of,
    workers_of,
)
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.run_records import FetchRecord, RunRecord, read_record
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.tables import TerminalTable

OTHERS = (0.25, 0.5, 1, 2, 4)  # times as many workers
MEASURED = 2_000  # workers of one scheduler (docs/scale.md)
WIDEST = 100  # characters of a line
# What a stage takes for a byte differs between parts beyond what documents tell, and cores are never quite as fast
# again: times lie within this factor of the estimate, either way, beside the interval of documents.
UNSURE = 1.25
SPARE_MEMORY = 2  # times the largest process of the sample, whose parts are smaller


@dataclass(frozen=True)
class Shape:
    """A cluster. A worker is one process; stages use one core of it."""

    workers: int
    cores: int = 1  # paid for, a worker
    memory: int | None = None  # bytes a worker
    core_hour: float | None = None  # None: the recipe's price
    object_store: bool = False


@dataclass(frozen=True)
class Forecast:
    """The whole on a cluster; `low` and `high` are of seconds."""

    sample: Estimate
    shape: Shape
    core_seconds: float
    parts: int
    longest: float  # seconds of the longest part
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
    requests: Mapping[str, int] | None  # by kind; None: the sample's folder was not on an object store
    requests_cost: float | None

    @property
    def total(self) -> float | None:
        return None if self.rent is None else self.rent + (self.requests_cost or 0.0)

    @property
    def fits(self) -> bool | None:
        """None if the memory of a worker is not known."""
        return None if self.shape.memory is None else self.shape.memory >= self.memory_bytes

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "total": self.total, "fits": self.fits}


def forecast(recipe: Recipe, record: RunRecord, parts: Mapping[str, Sequence[int]], shape: Shape) -> Forecast:
    """From the record of a run on a part, and the bytes of the parts of the whole, by source."""
    guess, rates = estimate(record, workers_of(record)), Rates.of(record, workers_of(record))
    of_parts, of_globals = dict.fromkeys(rates.sources, 0.0), 0.0  # core seconds
    for stage in record.stages:
        for source, count in stage.sources.items():
            seconds = count.seconds * rates.growth[source]
            if stage.kind == "global":
                of_globals += seconds
            else:
                of_parts[source] += seconds
    costs = [size * of_parts[name] / max(1, sum(sizes)) for name, sizes in parts.items() for size in sizes]
    core_seconds = sum(costs) + of_globals
    seconds = rates.overhead + makespan(costs, shape.workers) + of_globals / shape.workers
    low, high = guess.spread
    prices = recipe.head.prices or (Prices() if shape.core_hour is not None else None)
    rent = working = None
    if prices is not None:
        hour = prices.core_hour if shape.core_hour is None else shape.core_hour
        rent = seconds / 3600 * shape.workers * shape.cores * hour
        working = core_seconds / 3600 * hour + gpu_part(record, guess, prices)
    requests = asked = None
    if shape.object_store and record.requests:
        requests = {kind: math.ceil(number / guess.share) for kind, number in record.requests.items()}
        priced = prices is not None and (prices.thousand_puts or prices.thousand_gets)
        asked = prices.of_requests(requests) if prices is not None and priced else None
    return Forecast(
        sample=guess,
        shape=shape,
        core_seconds=core_seconds,
        parts=len(costs),
        longest=max(costs, default=0.0),
        overhead=rates.overhead,
        seconds=seconds,
        low=seconds * low / UNSURE,
        high=seconds * high * UNSURE,
        rent=rent,
        work=working,
        currency=None if prices is None else prices.currency,
        disk_bytes=guess.disk_bytes,
        scratch_bytes=max(guess.disk_bytes, round(sum(record.bytes_written.values()) / guess.share)),
        memory_bytes=round(guess.memory_bytes * SPARE_MEMORY),
        requests=requests,
        requests_cost=asked,
    )


def makespan(costs: Sequence[float], workers: int) -> float:
    """When the last part ends, where each free worker takes the next."""
    ends = [0.0] * max(1, min(workers, len(costs)))
    for cost in costs:
        heapq.heapreplace(ends, ends[0] + cost)
    return max(ends, default=0.0)


def gpu_part(record: RunRecord, guess: Estimate, prices: Prices) -> float:
    """What a GPU costs more than a core, of stages that use one."""
    on_gpus = sum(each.count.seconds for each in record.stages if each.settings.get("device") in ("gpu", "auto"))
    return on_gpus / guess.share / 3600 * prices.gpu_hour


# --- as it is asked for -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forecasts:
    """The cluster that was asked for, and others."""

    asked: Forecast
    sizes: Sequence[Forecast]
    lines: Sequence[tuple[str, str]]  # topic, and what is known of it
    fetch: Mapping[str, FetchRecord]

    def as_json(self) -> dict[str, Any]:
        others = [{"workers": each.shape.workers, "seconds": each.seconds, "total": each.total} for each in self.sizes]
        return {**self.asked.as_json(), "other_sizes": others, **({"fetch": dict(self.fetch)} if self.fetch else {})}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield sizes(self.sizes, self.asked)
        for topic, line in self.lines:
            width = min(options.max_width, WIDEST)
            words = wrap(plain(line), width, initial_indent=f"{topic:11}", subsequent_indent=" " * 11)
            yield Text("\n".join(words), no_wrap=True, overflow="ignore")


def forecast_of(
    recipe: Recipe,
    ui: UI,
    *,
    workers: int | None = None,
    cores: int = 1,
    memory: str | None = None,
    core_hour: float | None = None,
    object_store: bool = False,
    sample: str | float = "1%",
    sample_of: str | None = None,
) -> Forecasts:
    """From the finished run on a part of the input in the folder `sample_of`, else from one on the share `sample` that
    is made now."""
    if memory is not None:
        try:
            check_memory(memory)
        except ValueError as error:
            raise RecipeError(f"--memory {memory}: {error}") from error
    limit = None if memory in (None, "auto") else int(parse_bytes(memory))
    workers = workers or cores_here()
    shape = Shape(workers, cores, limit, core_hour, object_store)
    if sample_of is not None:
        record = finished(sample_of, recipe)
        inputs = find_inputs(recipe, Store(sample_of), Portion(), contents=False)
    else:
        with tempfile.TemporaryDirectory(prefix="gristmill-estimate-") as folder:
            portion = Portion(share=share_of(str(sample)))
            record = run(recipe, folder, Where(None, recipe.head.memory), ui, portion).record
            inputs = find_inputs(recipe, Store(folder), Portion(), contents=False)
    numbers = sorted({max(1, round(workers * times)) for times in OTHERS})
    parts, fetches = part_sizes(inputs), facts_of(inputs, {})
    answers = [forecast(recipe, record, parts, replace(shape, workers=number)) for number in numbers]
    found = answers[numbers.index(workers)]
    models = asked_of_models(recipe, record, found.sample.share)
    lines = [
        *in_words(found),
        *(("models", f"{name}: {cost}, for {count:,} documents") for name, cost, count in models),
        *(("fetching", line) for line in fetches_of(fetches)),
    ]
    fetch = {name: facts["fetch"] for name, facts in fetches.items() if "fetch" in facts}
    return Forecasts(found, answers, lines, fetch)


def finished(folder: str, recipe: Recipe) -> RunRecord:
    """The record of a run on a part of what this recipe reads."""
    record = read_record(Store(folder))
    if not record or not record.done:
        raise RecipeError(f"--from {folder}: it holds no finished run (run.json)")
    if record.name != recipe.name or record.recipe.get("stages") != recipe.resolved().get("stages"):
        raise RecipeError(f"--from {folder}: that run is of another recipe, or of other stages of {recipe.name}")
    return record


def sizes(answers: Sequence[Forecast], asked: Forecast) -> TerminalTable:
    """The cluster that was asked for, and smaller and larger ones."""
    heads = ("workers", "time", "at least", "at most", "cost", "busy")
    rows = []
    for answer in answers:
        busy = answer.core_seconds / max(1e-9, answer.seconds * answer.shape.workers)
        cells = [f"{answer.shape.workers:,}", *map(for_people, (answer.seconds, answer.low, answer.high))]
        cells += ["" if answer.total is None else as_money(answer.total, answer.currency), f"{min(1.0, busy):.0%}"]
        rows.append([Text(cell, style="bold" if answer is asked else "") for cell in cells])
    return TerminalTable.of("How many machines, how long, what cost", heads, rows, words=0)


def in_words(found: Forecast) -> list[tuple[str, str]]:
    """What is known, and what is extrapolated."""
    guess, shape = found.sample, found.shape
    requests = "not known: the sample's folder was not on an object store (run --sample --out s3://..., then --from)"
    if found.requests is not None:
        requests = as_requests(found.requests)
    if found.requests_cost is not None:
        requests += f", {as_money(found.requests_cost, found.currency)}"
    idle = "" if found.work is None else f", {as_money(found.work, found.currency)} if idle cores cost nothing"
    lacks = "" if found.fits is not False else f", more than the {as_bytes(shape.memory or 0)} it has"
    lines = [
        ("documents", f"about {guess.documents:,} ({guess.sure_in_words}), {guess.kept_in_words}"),
        ("work", f"{found.core_seconds / 3600:,.2f} core hours{idle}"),
        ("memory", f"{as_bytes(found.memory_bytes)} a worker{lacks}"),
        ("disk", f"{as_bytes(found.disk_bytes)} at the end, at most {as_bytes(found.scratch_bytes)} on the way"),
        (
            "scaling",
            f"{found.parts:,} parts, of which the longest takes {for_people(found.longest)}. "
            f"{for_people(found.overhead)} of start, driver and report",
        ),
        (
            "how",
            f"extrapolated from {guess.share:.2%} of the bytes of the input: seconds and bytes by documents, on cores "
            "like the sample's. Duplicates grow with size: fewer may be kept, and their stages may take longer",
        ),
    ]
    if shape.object_store:
        lines.insert(4, ("requests", requests))
    if shape.workers > MEASURED:
        too_many = (
            f"{shape.workers:,} workers are more than the {MEASURED:,} that one scheduler was measured with "
            "(chapter Scale): start several runs, each on a part of the input"
        )
        lines.insert(-1, ("warning", too_many))
    return lines
