"""`gristmill judge rate`: what sources are worth for benchmarks, by a language model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import JUDGES, Command
from gristmill.pipeline.cli.options import AsJson, PlanPath
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.screen import console, counting, escape


def rate(
    plan: PlanPath,
    out: Annotated[str | None, typer.Option("--out", help="output folder; default: the plan's `out`")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything, and show what would be asked and its cost at most")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Have a language model rate sources for benchmarks.

    As a table that `mix` reads (MEDU).
    """
    from gristmill.classifiers.llm.model import LanguageModelError
    from gristmill.pipeline.judging import medu
    from gristmill.pipeline.judging.show import questions_table, show_findings

    loaded = medu.load(plan)
    wanted, folder = loaded.plan, Path(loaded.out(out))
    tasks = medu.development_sets(wanted.tasks, loaded.where)
    documents = medu.documents_of(wanted, loaded.where)
    if dry_run:
        at_most = medu.estimate_of(tasks, documents, wanted)
        console().print(questions_table(tasks, documents, at_most, wanted.costs, folder))
        return
    screen = console(stderr=True)
    sources = {document.source for document in documents}
    screen.print(f"documents: {len(documents):,}, sources: {len(sources):,}, tasks: {len(tasks):,}", soft_wrap=True)
    try:
        with counting("answers") as seen:
            model = wanted.model.watched(seen)
            findings = medu.find(model, tasks, documents, wanted, folder / "answers")
    except (LanguageModelError, ValueError) as error:
        raise RunFailed(str(error)) from error
    medu.save(findings, folder, model.name, wanted.costs)
    if as_json:
        print((folder / "account.json").read_text(encoding="utf-8"), end="")
    else:
        show_findings(console(), findings, wanted.costs)
        console().print(f"utilities: {escape(str(folder / 'utilities.csv'))}", soft_wrap=True)


COMMAND = Command(rate, JUDGES, ("judge rate medu.yaml --dry-run", "judge rate medu.yaml"))
