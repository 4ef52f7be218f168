"""`gristmill run`: run a recipe, or resume it."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline import processes
from gristmill.pipeline.cli.command import RUN, Command
from gristmill.pipeline.cli.options import CheckInputs, EventsAsJson, OutOption, RecipePath, Workers
from gristmill.pipeline.errors import Alarmed, RunFailed, of_storage
from gristmill.pipeline.screen import address, console, escape, say

Memory = Annotated[str | None, typer.Option("--memory", help="memory limit of a worker, such as 4GB")]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        help="an existing Dask scheduler, tcp://host:port. Its protocol is unauthenticated pickle: use TLS beyond this"
        " machine",
    ),
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", help="a YAML file that describes a cluster for dask-jobqueue")
]
ASIDE = "into OUT-sample, with an estimate for the whole input"
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help=f"at most this many documents of each source, {ASIDE}")
]
Sample = Annotated[str | None, typer.Option("--sample", help=f"only this share of the input, such as 1%, {ASIDE}")]
BudgetOption = Annotated[
    float | None,
    typer.Option(
        "--budget",
        min=0,
        help="stop before the cost of all work in the folder exceeds this, in the currency of the recipe's `prices`"
        " (exit code 4); a higher one resumes",
    ),
]
MetricsFile = Annotated[
    Path | None,
    typer.Option("--metrics", help="keep progress in this file, FILE.prom, for Prometheus (textfile collector)"),
]
Strict = Annotated[bool, typer.Option("--strict", help="treat alarms as errors (exit code 3)")]


def run_command(
    recipe: RecipePath,
    out: OutOption = None,
    workers: Workers = None,
    memory: Memory = None,
    scheduler: Scheduler = None,
    cluster: Cluster = None,
    limit: Limit = None,
    sample: Sample = None,
    check_inputs: CheckInputs = False,
    budget: BudgetOption = None,
    metrics: MetricsFile = None,
    strict: Strict = False,
    as_json: EventsAsJson = False,
) -> None:
    """Run a recipe, or resume it; only what changed is recomputed."""
    if not (scheduler or cluster) and out and is_new(out, recipe):
        processes.start_fork_server(recipe)  # loads stages while we read the recipe
    from gristmill.pipeline.inputs.notes import notes_beside
    from gristmill.pipeline.progress.prometheus import metrics_to
    from gristmill.pipeline.progress.terminal import final_table, ui_for
    from gristmill.pipeline.recipe import recipe as recipes
    from gristmill.pipeline.run.launch import Launch
    from gristmill.stages.stage import Global

    loaded = recipes.load(recipe)
    launch = Launch.of(
        loaded, out, workers=workers, memory=memory, scheduler=scheduler, cluster=cluster, limit=limit, sample=sample,
        check_inputs=check_inputs, budget=budget,
    )  # fmt: skip
    folder, screen = launch.out, console(stderr=True)
    try:
        watcher = metrics_to(metrics)
        with ui_for(as_json, screen) as ui:
            summary = launch.carry_out(ui, watcher)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        say(
            screen,
            f"interrupted; finished work is kept in {folder}."
            f" Run the same command to resume: gristmill {shlex.join(sys.argv[1:])}",
        )
        raise SystemExit(130) from None
    except RunFailed as error:
        if error.__cause__ is None or not of_storage(
            error.__cause__
        ):  # a store that does not answer has no record either
            show_so_far(folder)
        raise
    guess = launch.guess(summary.record)
    if as_json:
        print(json.dumps(summary.record.to_json() | ({"estimate": guess.as_json()} if guess else {})))
    else:
        show = console()
        show.print(final_table(summary.record))
        for alarm in summary.alarms:
            say(show, alarm, "yellow", "alarm")
        for note in notes_beside(summary.alarms, summary.record.inputs):
            say(show, note, "dim", "note")
        if guess:
            show.print(escape(guess.in_words()))
            for name in (
                step.called for step in loaded.all_steps if isinstance(step.stage, Global) and step.stage.saves
            ):
                show.print(
                    escape(
                        f"{name}: the index of this part is in {folder}/index/{name};"
                        " that of the whole input is unchanged"
                    )
                )
        if summary.worked == 0:
            show.print("everything was up to date; nothing was done")
        show.print(f"report: {escape(address(folder))}")
    if strict and summary.alarms:
        raise Alarmed(f"{len(summary.alarms)} alarms, and --strict was given")


def show_so_far(folder: str) -> None:
    """The stages that a failed run finished, and its alarms, which often say why."""
    from gristmill.pipeline.progress.terminal import final_table
    from gristmill.pipeline.store.run_records import read_record
    from gristmill.pipeline.store.storage import Store

    try:
        record = read_record(Store(folder))
    except OSError:  # a folder that cannot be read is why it failed
        return
    if record and record.status == "failed" and record.stages:
        screen = console(stderr=True)
        screen.print(final_table(record))
        for alarm in record.alarms:
            say(screen, alarm, "yellow", "alarm")
        if Store(folder).exists("report.html"):
            screen.print(f"report so far: {escape(address(folder))}", soft_wrap=True)


def is_new(out: str, recipe: Path) -> bool:
    """Is this a recipe to run in a local folder that holds no run yet?"""
    try:
        return "://" not in out and recipe.is_file() and not Path(out, "run.json").exists()
    except OSError:  # a run says why it cannot be
        return False


COMMAND = Command(
    run_command,
    RUN,
    ("run recipe.yaml --limit 1000", "run recipe.yaml --workers 8", "run recipe.yaml --cluster slurm.yaml"),
)
