"""`gristmill judge rate`: what sources are worth for benchmarks or in your words, by a language model."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.pipeline.cli.command import JUDGES, Command
from gristmill.pipeline.cli.options import AsJson, OutOfPlan, PlanPath, note, show
from gristmill.pipeline.screen import counting


def rate(
    plan: PlanPath,
    out: OutOfPlan = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything, and show what would be asked and its cost at most")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Have a language model rate sources for benchmarks or descriptions.

    As a table that `mix` reads (MEDU). Marks that documents have already make the same table, without a model.
    """
    from gristmill.pipeline.door.judges import rate_sources

    with counting("answers") as seen:
        rated = rate_sources(plan, out, dry_run=dry_run, seen=seen, note=note)
    show(rated, as_json, soft_wrap=not dry_run)


COMMAND = Command(rate, JUDGES, ("judge rate medu.yaml --dry-run", "judge rate medu.yaml"))
