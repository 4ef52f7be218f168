"""The command that asks whether data got better: `gristmill ablate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.pipeline.cli.command import TRAIN, Command
from gristmill.pipeline.cli.options import EventsAsJson
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.screen import address, console, escape, say

if TYPE_CHECKING:
    from rich.console import Console

    from gristmill.pipeline.ablate.run import PreparedAblation


def ablate(
    plan: Annotated[
        Path,
        typer.Argument(
            help="the plan, a YAML file; or the folder of an ablation, to show it",
            show_default=False,
            readable=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="output folder; default: the plan's `out`, else out/NAME beside it")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=0,
            help="processes; default: one per GPU, or one per two cores; 0: in this process, one run after another",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            help="an existing Dask scheduler, tcp://host:port; its workers must see the same folders, those with a GPU"
            " start with --resources GPU=1. Its protocol is unauthenticated pickle: use TLS beyond this machine",
        ),
    ] = None,
    only: Annotated[str | None, typer.Option("--only", help="only this arm and the control", metavar="ARM")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="check everything, and show what would run and roughly how long it would take"),
    ] = False,
    as_json: EventsAsJson = False,
) -> None:
    """Train arms and a control, and say which data to adopt.

    Each with several seeds. Run it again to resume.
    """
    if plan.is_dir():
        show_record(plan, as_json)
        return

    from gristmill.pipeline.door.scripts import needs_packages

    needs_packages("ablate")
    from gristmill.pipeline.ablate.plan import load, one_arm
    from gristmill.pipeline.ablate.run import PreparedAblation, run
    from gristmill.pipeline.ablate.show import ui_for
    from gristmill.pipeline.ablate.workers import crew_of

    loaded = load(plan)
    if only is not None:
        one_arm(loaded, only)  # says so if there is no such arm
    folder, screen = Path(loaded.out(out)).resolve(), console(stderr=True)
    try:
        crew = crew_of(workers, scheduler, loaded.plan.ranks or 1)
        if dry_run:
            some = one_arm(loaded, only) if only else loaded
            show_estimate(PreparedAblation(some, folder, crew, lambda line: say(screen, line), True), screen)
            return
        run(loaded, folder, crew, ui_for(folder, screen, as_json), only)
    except KeyboardInterrupt:
        say(
            screen,
            f"interrupted; finished work is kept in {folder}. Run the same command to resume from the last checkpoints",
        )
        raise SystemExit(130) from None
    show_record(folder, as_json)


def show_estimate(ready: PreparedAblation, screen: Console) -> None:
    import psutil

    from gristmill.pipeline.ablate.estimate import estimate, foreseen, measuring_warning, trial_of
    from gristmill.pipeline.train.trial import NotTried

    warnings, found = list(ready.warnings), None
    say(screen, "trying a few steps, to see how long they take")
    try:
        trial = trial_of(ready)
        found = estimate(ready, trial, psutil.Process().create_time())
        warnings += measuring_warning(ready, trial, found)
    except NotTried as error:
        warnings.append(f"no estimate of time: {error}")
    for warning in warnings:
        say(screen, warning, "yellow", "warning")
    console().print(foreseen(ready, found))


def show_record(folder: Path, as_json: bool) -> None:
    """Tables, or JSON; arms that failed are an error once everything else has been said."""
    from gristmill.pipeline.ablate.show import cost_line, curves
    from gristmill.pipeline.door.ablations import open_ablation

    ablation, screen = open_ablation(folder), console()
    record = ablation.record
    proxies = record.get("proxies") is not None
    if as_json:
        print(json.dumps(record))
    else:
        screen.print(ablation.verdicts, soft_wrap=True)
        if any(len(arm["differences"]) > 1 for arm in record["arms"]):
            screen.print(ablation.others)
        if (table := curves(record)) is not None:
            screen.print(table)
        screen.print(escape(cost_line(record)))
        screen.print(f"results: {escape(str(folder / 'ablation.json'))}", soft_wrap=True)
        screen.print(f"report: {escape(address(str(folder), 'ablation.html'))}", soft_wrap=True)
        if proxies:
            screen.print(f"table for `mix`: {escape(str(folder / 'ablations.csv'))}", soft_wrap=True)
    failed = [f"{arm['name']}: {arm['error']}" for arm in record["arms"] if arm["status"] == "failed"]
    lost = [f"{job['arm']}, seed {job['seed']}: {job['error']}" for job in record["jobs"] if job["status"] == "failed"]
    some = f"{len(failed)} of {len(record['arms'])}"
    if record["status"] == "failed" and not proxies:
        raise RunFailed(
            "nothing can be said: the control was not finished with two seeds. " + "; ".join(lost or failed)
        )
    if failed or lost:
        what = f"{some} mixes have no run. " if proxies else f"{some} arms have no verdict. "
        raise RunFailed(what + "; ".join(lost or failed if proxies else failed or lost))


COMMAND = Command(ablate, TRAIN, ("ablate candidates.yaml --dry-run", "ablate candidates.yaml"))
