"""The command that asks whether data got better: `gristmill ablate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.kernels.common.extras import install
from gristmill.pipeline.cli.command import TRAIN, Command
from gristmill.pipeline.cli.options import EventsAsJson
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.screen import console, escape, say

if TYPE_CHECKING:
    from rich.console import Console

    from gristmill.pipeline.ablate.run import PreparedAblation
    from gristmill.pipeline.report.ablation_record import AblationRecord


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
        show_record(_record_of(plan), plan, as_json)
        return

    needs_packages()
    from gristmill.pipeline.ablate.plan import load, one_arm
    from gristmill.pipeline.ablate.run import PreparedAblation, run
    from gristmill.pipeline.ablate.show import AblationEvents, AblationUi
    from gristmill.pipeline.ablate.workers import crew_of

    loaded = load(plan)
    if only is not None:
        one_arm(loaded, only)  # says so if there is no such arm
    folder, screen = Path(loaded.out(out)).resolve(), console(stderr=True)
    try:
        crew = crew_of(workers, loaded.plan.ranks or 1)
        if dry_run:
            some = one_arm(loaded, only) if only else loaded
            show_estimate(PreparedAblation(some, folder, crew, lambda line: say(screen, line), True), screen)
            return
        record = run(loaded, folder, crew, AblationEvents(folder) if as_json else AblationUi(folder), only)
    except KeyboardInterrupt:
        say(
            screen,
            f"interrupted; finished work is kept in {folder}. Run the same command to resume from the last checkpoints",
        )
        raise SystemExit(130) from None
    show_record(record, folder, as_json)


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


def show_record(record: AblationRecord, folder: Path, as_json: bool) -> None:
    """Tables, or JSON; arms that failed are an error once everything else has been said."""
    from gristmill.pipeline.ablate.show import cost_line, curves, others, proxy_runs, reasons, verdicts
    from gristmill.pipeline.report.ablation_record import remarks

    if as_json:
        print(json.dumps(record))
    else:
        show = console()
        show.print(verdicts(record) if record.get("proxies") is None else proxy_runs(record))
        for line in [*reasons(record), *remarks(record)]:
            show.print(escape(line), soft_wrap=True)
        if any(len(arm["differences"]) > 1 for arm in record["arms"]):
            show.print(others(record))
        if (table := curves(record)) is not None:
            show.print(table)
        show.print(escape(cost_line(record)))
        show.print(f"results: {escape(str(folder / 'ablation.json'))}", soft_wrap=True)
        show.print(f"report: {escape((folder.resolve() / 'ablation.html').as_uri())}", soft_wrap=True)
    failed = [f"{arm['name']}: {arm['error']}" for arm in record["arms"] if arm["status"] == "failed"]
    lost = [f"{job['arm']}, seed {job['seed']}: {job['error']}" for job in record["jobs"] if job["status"] == "failed"]
    if record.get("proxies") is not None:
        if not as_json:
            console().print(f"table for `mix`: {escape(str(folder / 'ablations.csv'))}", soft_wrap=True)
        if lost or failed:
            raise RunFailed(f"{len(failed)} of {len(record['arms'])} mixes have no run. " + "; ".join(lost or failed))
        return
    if record["status"] == "failed":
        raise RunFailed(
            "nothing can be said: the control was not finished with two seeds. " + "; ".join(lost or failed)
        )
    if failed or lost:
        raise RunFailed(f"{len(failed)} of {len(record['arms'])} arms have no verdict. " + "; ".join(failed or lost))


def needs_packages(command: str = "ablate") -> None:
    from importlib.util import find_spec

    for module in ("torch", "scipy"):
        if find_spec(module) is None:
            raise RecipeError(f"{command} trains models; it needs {module}: {install('gpu')}")


def _record_of(folder: Path) -> AblationRecord:
    try:
        record: AblationRecord = json.loads((folder / "ablation.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(
            f"{folder}: no ablation is here (there is no ablation.json); give its plan to run it"
        ) from None
    except ValueError as error:
        raise RunFailed(f"{folder}/ablation.json: not JSON ({error})") from error
    return record


COMMAND = Command(ablate, TRAIN, ("ablate candidates.yaml --dry-run", "ablate candidates.yaml"))
