"""`gristmill estimate`: how many machines, how long, what it costs."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.pipeline.cli.command import RUN, Command
from gristmill.pipeline.cli.options import EventsAsJson, RecipePath
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.screen import console, escape

if TYPE_CHECKING:
    from gristmill.pipeline.recipe.recipe import Recipe
    from gristmill.pipeline.run.estimate import Forecast
    from gristmill.pipeline.store.run_records import RunRecord
    from gristmill.pipeline.tables import TerminalTable

OTHERS = (0.25, 0.5, 1, 2, 4)  # times as many workers
MEASURED = 2_000  # workers of one scheduler (docs/scale.md)


def estimate(
    recipe: RecipePath,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="workers of the cluster; default: one per core of this machine"),
    ] = None,
    cores: Annotated[int, typer.Option("--cores", min=1, help="cores paid for, a worker; a worker works on one")] = 1,
    memory: Annotated[str | None, typer.Option("--memory", help="memory of a worker, such as 4GB")] = None,
    core_hour: Annotated[
        float | None, typer.Option("--core-hour", min=0, help="price of a core for an hour; default: the recipe's")
    ] = None,
    object_store: Annotated[
        bool, typer.Option("--object-store", help="the run's folder is on one: count requests")
    ] = False,
    sample_of: Annotated[
        str | None,
        typer.Option("--from", help="the folder of a finished run with --sample or --limit; default: make one now"),
    ] = None,
    sample: Annotated[str, typer.Option("--sample", help="the share of the input to run on")] = "1%",
    as_json: EventsAsJson = False,
) -> None:
    """Estimate time, cost, memory and disk of the whole input.

    For a cluster, from a run on a part of the input.
    """
    from dask.utils import parse_bytes

    from gristmill.pipeline.inputs.notes import facts_of, fetches_of
    from gristmill.pipeline.inputs.portion import Portion, find_inputs, part_sizes
    from gristmill.pipeline.processes import cores_here
    from gristmill.pipeline.recipe import recipe as recipes
    from gristmill.pipeline.recipe.memory_limit import check_memory
    from gristmill.pipeline.run.estimate import Shape, asked_of_models, forecast
    from gristmill.pipeline.store.storage import Store

    loaded = recipes.load(recipe)
    if memory is not None:
        try:
            check_memory(memory)
        except ValueError as error:
            raise RecipeError(f"--memory {memory}: {error}") from error
    limit = None if memory in (None, "auto") else int(parse_bytes(memory))
    workers = workers or cores_here()
    shape = Shape(workers, cores, limit, core_hour, object_store)
    if sample_of is not None:
        record = finished(sample_of, loaded)
        inputs = find_inputs(loaded, Store(sample_of), Portion(), contents=False)
    else:
        with tempfile.TemporaryDirectory(prefix="gristmill-estimate-") as folder:
            record = sampled(loaded, folder, sample, as_json)
            inputs = find_inputs(loaded, Store(folder), Portion(), contents=False)
    numbers = sorted({max(1, round(workers * times)) for times in OTHERS})
    parts, fetches = part_sizes(inputs), facts_of(inputs, {})
    answers = [forecast(loaded, record, parts, replace(shape, workers=number)) for number in numbers]
    found = answers[numbers.index(workers)]
    if as_json:
        others = [{"workers": a.shape.workers, "seconds": a.seconds, "total": a.total} for a in answers]
        fetch = {name: facts["fetch"] for name, facts in fetches.items() if "fetch" in facts}
        print(json.dumps(found.as_json() | {"other_sizes": others} | ({"fetch": fetch} if fetch else {})))
    else:
        show = console()
        show.print(sizes(answers, found))
        models = asked_of_models(loaded, record, found.sample.share)
        told = [
            *in_words(found),
            *(("models", f"{name}: {cost}, for {count:,} documents") for name, cost, count in models),
        ]
        for topic, line in [*told, *(("fetching", line) for line in fetches_of(fetches))]:
            words = wrap(line, min(show.width, 100), initial_indent=f"{topic:11}", subsequent_indent=" " * 11)
            show.print(escape("\n".join(words)), soft_wrap=True)


def finished(folder: str, recipe: Recipe) -> RunRecord:
    """The record of a run on a part of what this recipe reads."""
    from gristmill.pipeline.store.run_records import read_record
    from gristmill.pipeline.store.storage import Store

    record = read_record(Store(folder))
    if not record or not record.done:
        raise RecipeError(f"--from {folder}: it holds no finished run (run.json)")
    if record.name != recipe.name or record.recipe.get("stages") != recipe.resolved().get("stages"):
        raise RecipeError(f"--from {folder}: that run is of another recipe, or of other stages of {recipe.name}")
    return record


def sampled(recipe: Recipe, folder: str, sample: str, as_json: bool) -> RunRecord:
    """The record of a run on a share of the input, in a folder that goes."""
    from gristmill.pipeline.engine.cluster import Where
    from gristmill.pipeline.inputs.portion import Portion
    from gristmill.pipeline.progress.terminal import ui_for
    from gristmill.pipeline.run.estimate import share_of
    from gristmill.pipeline.run.run import run

    with ui_for(as_json, console(stderr=True)) as ui:
        return run(recipe, folder, Where(None, recipe.head.memory), ui, Portion(share=share_of(sample))).record


def sizes(answers: list[Forecast], asked: Forecast) -> TerminalTable:
    """The cluster that was asked for, and smaller and larger ones."""
    from rich.text import Text

    from gristmill.pipeline.formatting import as_money
    from gristmill.pipeline.run.estimate import for_people
    from gristmill.pipeline.tables import TerminalTable

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
    from gristmill.pipeline.formatting import as_money
    from gristmill.pipeline.run.estimate import SURE, for_people

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
            f"{found.memory_bytes / 1e9:,.2f} GB a worker"
            + {True: "", False: f", more than the {(shape.memory or 0) / 1e9:,.2f} GB it has", None: ""}[found.fits],
        ),
        (
            "disk",
            f"{found.disk_bytes / 1e9:,.2f} GB at the end, at most {found.scratch_bytes / 1e9:,.2f} GB on the way",
        ),
        ("requests", requests),
        (
            "scaling",
            f"up to about {_number(found.useful_workers, 'worker')} worth it: beyond, twice as many save less than a "
            f"quarter of the time. Longest task: {for_people(longest.longest)} ({longest.name}). At most "
            f"{narrow.width:,} at once in {narrow.name}. {for_people(found.overhead)} of start, driver and report",
        ),
        *(
            [
                (
                    "warning",
                    f"{shape.workers:,} workers are more than the {MEASURED:,} that one scheduler was measured with "
                    "(chapter Scale): start several runs, each on a part of the input",
                )
            ]
            if shape.workers > MEASURED
            else []
        ),
        (
            "how",
            f"extrapolated from {guess.share:.2%} of the input: seconds and bytes by documents, on cores like the "
            "sample's. Duplicates grow with size: fewer may be kept, and their stages may take longer",
        ),
    ]
    return [line for line in lines if line[0] != "requests" or shape.object_store]


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}s are" if count != 1 else f"one {what} is"


COMMAND = Command(
    estimate, RUN, ("run recipe.yaml --sample 1%", "estimate recipe.yaml --workers 64 --memory 4GB --core-hour 0.04")
)
