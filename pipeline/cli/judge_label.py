"""`gristmill judge label`: have a language model label texts by a taxonomy, as a table to train judges on."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import JUDGES, Command
from gristmill.pipeline.cli.options import AsJson, PlanPath
from gristmill.pipeline.screen import console, counting, escape


def label(
    plan: PlanPath,
    out: Annotated[str | None, typer.Option("--out", help="output folder; default: the plan's `out`")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything, and show what would be asked and its cost")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Have a language model label texts by a taxonomy.

    As a table to train a judge on.
    """
    from gristmill.pipeline.judging import labelling
    from gristmill.pipeline.judging.show import show_labels

    job = labelling.LabelJob.of(labelling.load(plan), out)
    console(stderr=not dry_run).print(escape(job.expected), soft_wrap=True)
    if dry_run:
        return
    with counting("answers") as seen:
        findings = job.carry_out(seen)
    if as_json:
        print(json.dumps(findings.facts))
    else:
        show_labels(console(), findings.facts)
        console().print(f"labels: {escape(str(job.folder / 'labels.parquet'))}", soft_wrap=True)


COMMAND = Command(label, JUDGES, ("judge label labels.yaml --dry-run", "judge label labels.yaml"))
