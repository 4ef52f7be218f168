"""`gristmill judge train`: train a judge by a plan."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import JUDGES, Command
from gristmill.pipeline.cli.options import AsJson, PlanPath
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.screen import console, escape


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
    from gristmill.classifiers.card import JudgeError
    from gristmill.pipeline.judging import judge_plan, train as judging
    from gristmill.pipeline.judging.show import plan_table, show_figures

    loaded = judge_plan.load(plan)
    folder = judging.room_for(loaded.out(out), loaded.where("out") if not out else "--out")
    screen = console(stderr=True)
    try:
        ready = judging.prepare(loaded)
        if dry_run:
            console().print(plan_table(ready, folder))
            return
        judging.check_writable(folder)
        trained = judging.train(ready, lambda line: screen.print(escape(line), soft_wrap=True))
        judging.save(ready, trained, folder)
    except JudgeError as error:
        raise RecipeError(str(error)) from error
    if as_json:
        print(json.dumps(trained.card.as_json() | {"folder": str(folder)}))
    else:
        show_figures(console(), trained.card)
        console().print(f"judge: {escape(str(folder))}", soft_wrap=True)


COMMAND = Command(train, JUDGES, ("judge train judge.yaml --dry-run", "judge train judge.yaml"))
