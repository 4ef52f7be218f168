"""`gristmill judge rate`: what sources are worth for benchmarks or in your words, by a language model."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.pipeline.cli.command import JUDGES, Command
from gristmill.pipeline.cli.options import AsJson, PlanPath
from gristmill.pipeline.screen import console, counting, escape


def rate(
    plan: PlanPath,
    out: Annotated[str | None, typer.Option("--out", help="output folder; default: the plan's `out`")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything, and show what would be asked and its cost at most")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Have a language model rate sources for benchmarks or descriptions.

    As a table that `mix` reads (MEDU). Marks that documents have already make the same table, without a model.
    """
    from gristmill.pipeline.judging import medu
    from gristmill.pipeline.judging.show import questions_table, show_findings

    job = medu.RateJob.of(medu.load(plan), out)
    if dry_run:
        console().print(questions_table(job.tasks, job.documents, job.expected, job.plan.costs, job.folder))
        return
    sources = {document.source for document in job.documents}
    if sources:
        console(stderr=True).print(
            f"documents: {len(job.documents):,}, sources: {len(sources):,}, tasks: {len(job.tasks):,}", soft_wrap=True
        )
    with counting("answers") as seen:
        findings = job.carry_out(seen)
    if as_json:
        print((job.folder / "account.json").read_text(encoding="utf-8"), end="")
    else:
        show_findings(console(), findings, job.plan.costs)
        console().print(f"utilities: {escape(str(job.folder / 'utilities.csv'))}", soft_wrap=True)


COMMAND = Command(rate, JUDGES, ("judge rate medu.yaml --dry-run", "judge rate medu.yaml"))
