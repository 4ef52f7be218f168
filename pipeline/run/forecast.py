"""A forecast of the whole input, as `gristmill estimate` and `gristmill.estimate` are asked for it: a run on a part of
the input, what a cluster would take for all of it, and smaller and larger clusters beside it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

from dask.utils import parse_bytes
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import as_bytes, as_money, plain
from gristmill.pipeline.inputs.notes import facts_of, fetches_of
from gristmill.pipeline.inputs.portion import Portion, find_inputs, part_sizes
from gristmill.pipeline.processes import cores_here
from gristmill.pipeline.progress.progress import UI
from gristmill.pipeline.recipe.memory_limit import check_memory
from gristmill.pipeline.recipe.recipe import Recipe
from gristmill.pipeline.run.estimate import SURE, Forecast, Shape, asked_of_models, for_people, forecast, share_of
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.run_records import FetchRecord, RunRecord, read_record
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.tables import TerminalTable

OTHERS = (0.25, 0.5, 1, 2, 4)  # times as many workers
MEASURED = 2_000  # workers of one scheduler (docs/scale.md)
WIDEST = 100  # characters of a line


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
            record = sampled(recipe, folder, sample, ui)
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


def sampled(recipe: Recipe, folder: str, sample: str | float, ui: UI) -> RunRecord:
    """The record of a run on a share of the input, in a folder that goes."""
    return run(recipe, folder, Where(None, recipe.head.memory), ui, Portion(share=share_of(str(sample)))).record


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
    """What is known, what is extrapolated, and where more machines stop to help."""

    guess, shape = found.sample, found.shape
    sure = "too little was read to say how sure" if guess.low is None else f"{guess.low:,} to {guess.high:,}, {SURE}"
    requests = "not known: the sample's folder was not on an object store (run --sample --out s3://..., then --from)"
    if found.puts is not None and found.gets is not None:
        requests = f"{found.puts:,} to write, {found.gets:,} to read"
    if found.requests_cost is not None:
        requests += f", {as_money(found.requests_cost, found.currency)}"
    longest = max(found.steps, key=lambda step: step.longest)
    narrow = min(found.steps, key=lambda step: step.width)
    lines = [
        ("documents", f"about {guess.documents:,} ({sure}), {guess.kept_in_words}"),
        (
            "work",
            f"{found.core_seconds / 3600:,.2f} core hours"
            + ("" if found.work is None else f", {as_money(found.work, found.currency)} if idle cores cost nothing"),
        ),
        (
            "memory",
            f"{as_bytes(found.memory_bytes)} a worker"
            + {True: "", False: f", more than the {as_bytes(shape.memory or 0)} it has", None: ""}[found.fits],
        ),
        (
            "disk",
            f"{as_bytes(found.disk_bytes)} at the end, at most {as_bytes(found.scratch_bytes)} on the way",
        ),
        ("requests", requests),
        (
            "scaling",
            f"up to about {_number(found.useful_workers, 'worker')} worth it: beyond, twice as many save less than a "
            f"quarter of the time. Longest task: {for_people(longest.longest)} ({longest.name}). At most "
            f"{narrow.width:,} at once in {narrow.name}. {for_people(found.overhead)} of start, driver and report",
        ),
        (
            "how",
            f"extrapolated from {guess.share:.2%} of the bytes of the input: seconds and bytes by documents, on cores "
            "like the sample's. Duplicates grow with size: fewer may be kept, and their stages may take longer",
        ),
    ]
    if shape.workers > MEASURED:
        too_many = (
            f"{shape.workers:,} workers are more than the {MEASURED:,} that one scheduler was measured with "
            "(chapter Scale): start several runs, each on a part of the input"
        )
        lines.insert(-1, ("warning", too_many))
    return [line for line in lines if line[0] != "requests" or shape.object_store]


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}s are" if count != 1 else f"one {what} is"
