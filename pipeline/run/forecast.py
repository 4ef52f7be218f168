"""`gristmill estimate`: what the whole takes on a cluster of a given shape, from a run on a part of it.

Extrapolated by bytes and documents: seconds of workers at each stage, bytes on disk, requests. Computed from the files
of the whole as they are: its parts, the longest of them, and how many tasks of a global stage can run at once. So the
time is that of a schedule, and says which of them binds. Seconds are those of the sample's cores.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import cast

from gristmill.pipeline.inputs.estimate import USUAL_START, Estimate, estimate
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.recipe.recipe import Prices, Recipe
from gristmill.pipeline.run.record import puts_and_gets
from gristmill.pipeline.shuffle.shuffle import BYTES_A_HOME, HOMES, MOST_BUCKETS, ROWS_A_BUCKET, first_cut
from gristmill.pipeline.store.partitions import buckets_for
from gristmill.pipeline.store.run_records import RunRecord, StageRecord
from gristmill.stages.judge.cost import Asks, Cost

TASK_SECONDS, TASK_SECONDS_A_WORKER = 1.1e-3, 4.5e-7  # of driver and scheduler for a task (docs/scale.md)
ROUND_SECONDS = 0.1  # until the last task of a round has let the first of the next begin
READ_AT_ONCE = 5 << 20  # bytes of an input that one request brings (fsspec's block)
FILES_A_PART = 3  # a leg writes documents, verdicts and signals; sinks and rejects are counted apart
# What a stage takes for a byte differs between parts beyond what documents tell, and cores are never quite as fast
# again: times lie within this factor of the estimate, either way, beside the interval of documents.
UNSURE = 1.25
SPARE_MEMORY = 2  # times the largest process of the sample, whose parts are smaller (docs/log.md)


def steering(tasks: int, workers: int) -> float:
    """Seconds that driver and scheduler take for some tasks, however short these are."""
    return tasks * (TASK_SECONDS + min(workers, tasks) * TASK_SECONDS_A_WORKER)


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
    """What binds where: seconds of all workers, how many can be at it, and its longest task."""

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
    puts: int
    gets: int
    requests_cost: float | None
    requests_measured: bool
    useful_workers: int  # more of them save less than half of what they cost

    @property
    def core_seconds(self) -> float:
        return sum(step.core_seconds for step in self.steps)

    @property
    def total(self) -> float | None:
        return None if self.rent is None else self.rent + (self.requests_cost or 0.0)

    @property
    def fits(self) -> bool | None:
        """None where nobody said how much memory a worker has."""
        return None if self.shape.memory is None else self.shape.memory >= self.memory_bytes

    def plain(self) -> JSONObject:
        data = cast(JSONObject, asdict(self))
        return {**data, "sample": cast(JSONObject, self.sample.plain()), "total": self.total, "fits": self.fits}


@dataclass(frozen=True)
class Work:
    """The work of the whole, whatever the cluster."""

    local: Mapping[str, float]  # core seconds of legs, by source
    parts: Mapping[str, Sequence[int]]  # bytes of the parts of the whole, by source
    globals: Mapping[str, float]  # core seconds of global stages
    documents: Mapping[str, int]  # that come to them
    width: int  # tasks of a round that can run at once
    overhead: float

    @property
    def longest_part(self) -> float:
        return max(
            (max(sizes, default=0) * self.local[name] / max(1, sum(sizes)) for name, sizes in self.parts.items()),
            default=0.0,
        )

    def steps(self, workers: int) -> list[Step]:
        costs = [size * self.local[name] / max(1, sum(sizes)) for name, sizes in self.parts.items() for size in sizes]
        wall = max(makespan(costs, workers), steering(len(costs), workers))
        steps = [Step("parts", sum(costs), len(costs), self.longest_part, wall)]
        for name, seconds in self.globals.items():
            buckets = buckets_for(self.documents[name], ROWS_A_BUCKET, MOST_BUCKETS)
            width = max(self.width, buckets)
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


def forecast(recipe: Recipe, record: RunRecord, parts: Mapping[str, Sequence[int]], shape: Shape) -> Forecast:
    """From the record of a run on a part, and the sizes of the parts of the whole."""
    guess = estimate(record, int(str(record["machine"]["workers"])))
    work = work_of(record, parts, guess)
    steps = work.steps(shape.workers)
    seconds = work.wall(shape.workers)
    low, high = guess.spread
    prices = recipe.head.prices or (Prices() if shape.core_hour is not None else None)
    rent = working = None
    if prices is not None:
        hour = prices.core_hour if shape.core_hour is None else shape.core_hour
        rent = seconds / 3600 * shape.workers * shape.cores * hour
        working = sum(step.core_seconds for step in steps) / 3600 * hour + gpu_part(record, guess, prices)
    puts, gets, measured = requests_of(record, work, guess)
    written = record.get("bytes_written", {})
    return Forecast(
        guess,
        shape,
        tuple(steps),
        work.overhead,
        seconds,
        seconds * low / UNSURE,
        seconds * high * UNSURE,
        rent,
        working,
        None if prices is None else prices.currency,
        guess.disk_bytes,
        max(guess.disk_bytes, round(sum(written.values()) / guess.share)),
        round(guess.memory_bytes * SPARE_MEMORY),
        puts if shape.object_store else 0,
        gets if shape.object_store else 0,
        price_of_requests(prices, puts, gets) if shape.object_store else None,
        measured,
        work.useful(),
    )


def work_of(record: RunRecord, parts: Mapping[str, Sequence[int]], guess: Estimate) -> Work:
    """Seconds of the sample's stages for the whole: by source, by the documents that each has in all."""
    readers = {e["name"]: e for e in record["stages"] if e["kind"] == "read"}
    grows = {name: grown(record, name, reader) for name, reader in readers.items()}
    local = dict.fromkeys(readers, 0.0)
    of_globals: dict[str, float] = {}
    documents: dict[str, int] = {}
    for stage in record["stages"]:
        for source, count in stage["sources"].items():
            more = count["seconds"] * grows.get(source, 1 / guess.share)
            if stage["kind"] == "global":
                of_globals[stage["name"]] = of_globals.get(stage["name"], 0.0) + more
                documents[stage["name"]] = documents.get(stage["name"], 0) + round(count["docs_in"] * grows[source])
            else:
                local[source] += more
    many, size = sum(map(len, parts.values())), sum(map(sum, parts.values()))
    workers = int(str(record["machine"]["workers"]))
    worked = sum(e["seconds"] for e in record["stages"]) / workers
    overhead = min(record["seconds"], USUAL_START) + max(
        0.0, record["seconds"] - record["start"]["seconds"] - worked - USUAL_START
    )
    return Work(local, parts, of_globals, documents, max(1, min(many, max(HOMES, size // BYTES_A_HOME))), overhead)


def asked_of_models(recipe: Recipe, record: RunRecord, share: float = 1.0) -> list[tuple[str, Cost, int]]:
    """What stages that ask a language model will cost, and for how many documents: by those that came to them in a run
    on this share of the input."""
    came = {entry["name"]: entry for entry in record["stages"]}
    asking = [(step.called, step.stage) for step in recipe.all_steps if isinstance(step.stage, Asks)]
    return [
        (
            name,
            stage.cost_ahead(came[name]["docs_in"] / share, came[name]["text_bytes"] / share),
            round(came[name]["docs_in"] / share),
        )
        for name, stage in asking
        if name in came and came[name]["docs_in"]
    ]


def grown(record: RunRecord, source: str, reader: StageRecord) -> float:
    """By how much the whole of a source is more than what was read of it."""
    whole = record["inputs"][source].get("estimate")
    return 1.0 if whole is None else whole["documents"] / max(1, reader["kept"])


def gpu_part(record: RunRecord, guess: Estimate, prices: Prices) -> float:
    """What a GPU costs more than a core, of stages that use one."""
    on_gpus = sum(e["seconds"] for e in record["stages"] if e["settings"].get("device") in ("gpu", "auto"))
    return on_gpus / guess.share / 3600 * prices.gpu_hour


def requests_of(record: RunRecord, work: Work, guess: Estimate) -> tuple[int, int, bool]:
    """Writing and reading requests to an object store; measured where the sample counted them, else from what the tasks
    of the whole open: an estimate that may be off by half."""
    if record["requests"]:
        puts, gets = puts_and_gets(record["requests"])
        return math.ceil(puts / guess.share), math.ceil(gets / guess.share), True
    many, size = sum(map(len, work.parts.values())), sum(map(sum, work.parts.values()))
    stages = len(record["stages"])
    puts, gets = many * (FILES_A_PART + stages), many * FILES_A_PART + math.ceil(size / READ_AT_ONCE)
    for name, documents in work.documents.items():
        buckets = buckets_for(documents, ROWS_A_BUCKET, MOST_BUCKETS)
        rounds = 30 if name.startswith(("minhash", "simhash")) else 4
        first = first_cut(many, buckets)
        slices = many * first if first == buckets else many * first + math.isqrt(many) * buckets
        puts += rounds * max(buckets, work.width) + many
        gets += 2 * slices + rounds * 2 * max(buckets, work.width) + many * FILES_A_PART
    return puts, gets, False


def price_of_requests(prices: Prices | None, puts: int, gets: int) -> float | None:
    """At the recipe's prices, where it has prices of requests."""
    if prices is None or not (prices.thousand_puts or prices.thousand_gets):
        return None
    return prices.of_requests(puts, gets)
