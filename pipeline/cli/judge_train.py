"""`gristmill judge train`: train a judge by a plan."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.pipeline.cli.command import JUDGES, Command
from gristmill.pipeline.cli.options import AsJson, PlanPath, note, show_judge
from gristmill.pipeline.screen import console


def train(
    plan: PlanPath,
    out: Annotated[
        str | None, typer.Option("--out", help="a new folder for the judge; default: the plan's `out`")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything, and show what would be trained on what")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a judge on labelled texts or another judge's scores.

    Reports how well it does on hosts that it has not seen.
    """
    from gristmill.pipeline.door.judges import train_judge
    from gristmill.pipeline.judging import judge_plan, show as views, train as judging

    if dry_run:
        console().print(views.plan_table(judging.prepare(judge_plan.load(plan), out)))
    else:
        show_judge(train_judge(plan, out, note=note), as_json)


COMMAND = Command(train, JUDGES, ("judge train judge.yaml --dry-run", "judge train judge.yaml"))
