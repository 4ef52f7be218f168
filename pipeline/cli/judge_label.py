"""`gristmill judge label`: have a language model label texts by a taxonomy, as a table to train judges on."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.pipeline.cli.command import JUDGES, Command
from gristmill.pipeline.cli.options import AsJson, OutOfPlan, PlanPath, note, show
from gristmill.pipeline.screen import counting


def label(
    plan: PlanPath,
    out: OutOfPlan = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything, and show what would be asked and its cost")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Have a language model label texts by a taxonomy.

    As a table to train a judge on.
    """
    from gristmill.pipeline.door.judges import label_texts

    with counting("answers") as seen:
        labelled = label_texts(plan, out, dry_run=dry_run, seen=seen, note=note)
    show(labelled, as_json, soft_wrap=True)


COMMAND = Command(label, JUDGES, ("judge label labels.yaml --dry-run", "judge label labels.yaml"))
