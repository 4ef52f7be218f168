"""`gristmill estimate`: how many machines, how long, what it costs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import RUN, Command
from gristmill.pipeline.cli.options import EventsAsJson, RecipePath
from gristmill.pipeline.screen import console


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
    from gristmill.pipeline.progress.progress import Quiet
    from gristmill.pipeline.progress.terminal import ui_for
    from gristmill.pipeline.recipe import recipe as recipes
    from gristmill.pipeline.run.forecast import forecast_of

    with ui_for(as_json, console(stderr=True)) if sample_of is None else Quiet() as ui:
        found = forecast_of(
            recipes.load(recipe), ui, workers=workers, cores=cores, memory=memory, core_hour=core_hour,
            object_store=object_store, sample=sample, sample_of=sample_of,
        )  # fmt: skip
    if as_json:
        print(json.dumps(found.as_json()))
    else:
        console().print(found)


COMMAND = Command(
    estimate, RUN, ("run recipe.yaml --sample 1%", "estimate recipe.yaml --workers 64 --memory 4GB --core-hour 0.04")
)
