"""The command line: `gristmill`."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import shlex
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.pipeline import processes
from gristmill.pipeline.cli import (
    ablate as cli_ablate,
    compressing as cli_compressing,
    estimate as cli_estimate,
    explore as cli_explore,
    forget as cli_forget,
    judging as cli_judging,
    labelling as cli_labelling,
    menu,
    predictive as cli_predictive,
    push as cli_push,
    report as cli_report,
    shards as cli_shards,
    start as cli_start,
    summary as cli_summary,
    train as cli_train,
    warm as cli_warm,
)
from gristmill.pipeline.errors import Alarmed, GristmillError, RecipeError, RunFailed, in_words, of_storage
from gristmill.pipeline.help_pages import HelpfulGroup
from gristmill.pipeline.screen import console, escape, print_anything, say

if TYPE_CHECKING:
    from gristmill.pipeline.engine.cluster import Where
    from gristmill.pipeline.recipe.recipe import Recipe
    from gristmill.pipeline.run.estimate import Estimate

app = typer.Typer(name="gristmill", cls=HelpfulGroup, no_args_is_help=True, pretty_exceptions_enable=False)

RecipePath = Annotated[
    Path, typer.Argument(help="the recipe, a YAML file", show_default=False, readable=False)
]  # we say why it is not
OutPath = Annotated[str, typer.Argument(help="the output folder of a run", show_default=False)]
OutOption = Annotated[
    str | None, typer.Option("--out", help="output folder; default: the recipe's `out`, else out/NAME beside it")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, events on standard error")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="worker processes; default: one per core")]
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
WITHOUT_PARTITIONS = (
    "without them `tune` does not work, nor `inspect --url` and `--uid` of most documents, and a changed recipe starts"
    " from the source"
)
ASIDE = "into OUT-sample, with an estimate for the whole input"
Limit = Annotated[int | None, typer.Option("--limit", min=1, help=f"only this many documents of each source, {ASIDE}")]
Sample = Annotated[str | None, typer.Option("--sample", help=f"only this share of the input, such as 1%, {ASIDE}")]
CheckInputs = Annotated[
    bool,
    typer.Option(
        "--check-inputs",
        help="read every input file to detect changes, even if size and modification time are the same",
    ),
]
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
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", min=0, max=65535, help="answer Prometheus on 127.0.0.1, this port, /metrics"),
]
Strict = Annotated[bool, typer.Option("--strict", help="treat alarms as errors (exit code 3)")]


def print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"gristmill {version('gristmill')}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", help="print the version and exit", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Raw crawl dumps in, packed token shards out, and a GPU run that proves the data got better."""


@app.command("run")
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
    metrics_port: MetricsPort = None,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Run a recipe. Run it again to resume; only what changed is recomputed."""
    if not (scheduler or cluster) and out and is_new(out, recipe):
        processes.start_fork_server(recipe)  # loads stages while we read the recipe
    from gristmill.pipeline.engine.budget import Budget
    from gristmill.pipeline.engine.cluster import Where
    from gristmill.pipeline.inputs.notes import notes_beside
    from gristmill.pipeline.inputs.portion import Portion
    from gristmill.pipeline.progress.prometheus import metrics_to
    from gristmill.pipeline.progress.terminal import final_table, ui_for
    from gristmill.pipeline.recipe import recipe as recipes
    from gristmill.pipeline.run.estimate import check_budget, estimate, share_of
    from gristmill.pipeline.run.run import run
    from gristmill.stages.stage import Global

    if scheduler and cluster:
        raise RecipeError("--scheduler and --cluster exclude each other")
    if (scheduler or cluster) and (workers or memory):
        reason = (
            "a cluster file says how many `jobs` and with what memory" if cluster else "a scheduler has its own workers"
        )
        raise RecipeError(f"--workers and --memory are for workers on this machine; {reason}")
    if limit and sample:
        raise RecipeError("--limit and --sample exclude each other")
    loaded = recipes.load(recipe)
    portion = Portion(limit, share_of(sample) if sample else None)
    folder = out_of(loaded, out) + ("" if portion.whole else "-sample")
    asked = workers or (loaded.head.workers if isinstance(loaded.head.workers, int) else None)
    where = Where(asked, memory or loaded.head.memory, scheduler, cluster)
    screen = console(stderr=True)
    try:
        with ui_for(as_json, screen) as ui, metrics_to(metrics, metrics_port) as watcher:
            if budget is not None and (
                warning := check_budget(Budget(budget, loaded.head.prices), guess_of(folder, where))
            ):
                ui.note(warning)
            summary = run(loaded, folder, where, ui, portion, check_inputs, budget, watcher)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        say(
            screen,
            f"interrupted; finished work is kept in {folder}."
            f" Run the same command to resume: gristmill {shlex.join(sys.argv[1:])}",
        )
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise
    except RunFailed as error:
        if error.__cause__ is None or not of_storage(
            error.__cause__
        ):  # a store that does not answer has no record either
            show_so_far(folder)
        raise
    except OSError as error:
        raise RunFailed(in_words(error, folder)) from error
    guess = None if portion.whole else estimate(summary.record, where.count)
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
        show.print(f"report: {escape(cli_report.address(folder))}")
    if strict and summary.alarms:
        raise Alarmed(f"{len(summary.alarms)} alarms, and --strict was given")


def guess_of(folder: str, where: Where) -> Estimate | None:
    """From the run on a part of the input that lies beside a run's folder, if there is one."""
    from gristmill.pipeline.run.estimate import estimate
    from gristmill.pipeline.store.run_records import RunRecord, read_if_whole
    from gristmill.pipeline.store.storage import Store

    record = read_if_whole(Store(folder).sample, "run.json", RunRecord)
    return estimate(record, where.count) if record and record.done else None


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
            screen.print(f"report so far: {escape(cli_report.address(folder))}", soft_wrap=True)


@app.command()
def plan(recipe: RecipePath, out: OutOption = None, check_inputs: CheckInputs = False, as_json: AsJson = False) -> None:
    """Show what would run, what is up to date, and why the rest is not."""
    from gristmill.pipeline.recipe import recipe as recipes
    from gristmill.pipeline.run.dry_run import foresee, render
    from gristmill.pipeline.shuffle.saved_index import check_saved

    loaded = recipes.load(recipe)
    check_saved(loaded, whole=True)
    notes: list[str] = []
    seen = foresee(loaded, out_of(loaded, out), check_inputs, notes.append)
    if as_json:
        print(json.dumps([asdict(node) for node in seen]))
    else:
        console().print(render(seen))
    for note in notes:
        say(console(stderr=as_json), note, "yellow", "inputs")


app.command("schema")(cli_start.schema)


@app.command()
def tune(
    out: OutPath,
    settings: Annotated[
        list[str], typer.Argument(help="what to change: gopher_quality.min_words=80", metavar="STAGE.FIELD=VALUE...")
    ],
    samples: Annotated[
        int,
        typer.Option(
            "--samples",
            min=0,
            help="documents to show that would be newly dropped, and as many that would be newly kept",
        ),
    ] = 3,
    where: Annotated[
        str, typer.Option("--where", help="only documents with these values of signals", metavar="SIGNAL=VALUE,...")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show what another threshold would keep and drop, from stored signals, without a run."""
    from gristmill.pipeline.look import tune as tuning
    from gristmill.pipeline.look.run_folder import RunFolder

    answer = tuning.tune(RunFolder(out), settings, samples, where=where)
    if as_json:
        print(tuning.as_json(answer))
    else:
        console().print(tuning.render(answer))


@app.command()
def clean(
    out: OutPath,
    shuffle: Annotated[
        bool, typer.Option(help="data that global stages exchanged between rounds; the next run recomputes it")
    ] = True,
    partitions: Annotated[
        bool,
        typer.Option(help=f"also documents and signals between segments; {WITHOUT_PARTITIONS}"),
    ] = False,
    rejects: Annotated[bool, typer.Option(help="documents that were dropped, which `inspect` shows")] = False,
    unused: Annotated[
        bool, typer.Option(help="shards and other results of stages that are no longer in the recipe")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be removed")] = False,
) -> None:
    """Remove intermediate files of a finished run, and results of earlier versions of its recipe."""
    from gristmill.pipeline.cli.upkeep import by_folder, clean_up

    show = console()
    files = clean_up(out, shuffle=shuffle, partitions=partitions, rejects=rejects, unused=unused, dry_run=dry_run)
    for line in by_folder(files) if dry_run else ():
        say(show, f"  {line}")
    say(show, f"{'would remove' if dry_run else 'removed'} {len(files):,} files, {sum(files.values()) / 1e6:,.1f} MB")
    if any(path.startswith("partitions/") for path in files):
        say(show, f"partitions/: {WITHOUT_PARTITIONS}", "yellow", "note")


app.command("verify")(cli_shards.verify)
app.command("export")(cli_shards.export)
app.command("import")(cli_shards.import_)
app.command("push")(cli_push.push)
app.command("forget")(cli_forget.forget)
app.command("find")(cli_forget.find)
app.command("inspect")(cli_report.inspect)
app.command("report")(cli_report.report)
app.command("summary")(cli_summary.summary)
app.command("train-judge")(cli_judging.train_judge)
app.command("compress-judge")(cli_compressing.compress_judge)
app.command("judge")(cli_judging.judge)
app.command("label")(cli_labelling.label)
app.command("medu")(cli_judging.medu)
app.command("predictive")(cli_predictive.predictive)
app.command("train")(cli_train.train)
app.command("ablate")(cli_ablate.ablate)
app.command("explore")(cli_explore.explore)
app.command("estimate")(cli_estimate.estimate)
app.command("warm")(cli_warm.warm)
app.command("doctor")(cli_start.doctor)
app.command("init")(cli_start.init)
app.command("demo")(cli_start.demo)
app.command("new")(cli_start.new)
menu.arrange(app)


def is_new(out: str, recipe: Path) -> bool:
    """Is this a recipe to run in a local folder that holds no run yet?"""
    try:
        return "://" not in out and recipe.is_file() and not Path(out, "run.json").exists()
    except OSError:  # a run says why it cannot be
        return False


def out_of(recipe: Recipe, out: str | None) -> str:
    """Where a run goes: the command line, else the recipe, else out/NAME beside the recipe."""
    if out:
        return out.rstrip("/") or out
    folder = recipe.path.resolve().parent
    named = recipe.head.out
    if named:
        return named if "://" in named else str(folder / Path(named).expanduser())
    return str(folder / "out" / recipe.name)


def main() -> None:
    """Entry point: exit codes as documented, errors as one clear message."""
    print_anything()
    try:
        app()
    except GristmillError as error:
        say(console(stderr=True), str(error), "red")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone (| head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        say(console(stderr=True), in_words(error), "red")
        sys.exit(1)
    except Exception as error:
        if not of_storage(error):
            raise
        say(console(stderr=True), f"{error}" or type(error).__name__, "red")
        sys.exit(1)
    finally:
        processes.stop_fork_server()


def command() -> None:
    """`main` as a process of its own, without the 0.2 s that Python takes to unload modules, and with less of the
    collector: nothing of modules that are loaded is garbage, and looking for it takes a tenth of `gristmill plan`."""
    gc.set_threshold(50_000)
    code: object = 0
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code
    if not isinstance(code, int | None):
        sys.exit(str(code))
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):  # whoever read our output may have gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    command()
