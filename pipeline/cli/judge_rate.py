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
    from gristmill.classifiers.llm.account import Prices
    from gristmill.classifiers.llm.model import LanguageModelError
    from gristmill.pipeline.judging import medu as medu_files, medu_plan
    from gristmill.pipeline.judging.asking import Watched
    from gristmill.pipeline.judging.show import questions_table, show_findings

    loaded = medu_plan.load(plan)
    wanted = loaded.plan
    folder = Path(loaded.out(out))
    prices = Prices(wanted.prices.prompt, wanted.prices.answer) if wanted.prices else None
    tasks = medu_files.development_sets(wanted.tasks, loaded.where)
    sampling = medu_files.Sampling(wanted.by, wanted.text, wanted.most, wanted.cut, wanted.seed)
    documents = medu_files.documents_of(wanted.named, sampling, loaded.where)
    asked = medu_files.AskSettings(wanted.reading, wanted.most_failures, wanted.max_tokens)
    if dry_run:
        console().print(
            questions_table(
                tasks, documents, medu_files.estimate_of(tasks, documents, asked, wanted.seed), prices, folder
            )
        )
        return
    screen = console(stderr=True)
    sources = {document.source for document in documents}
    screen.print(f"documents: {len(documents):,}, sources: {len(sources):,}, tasks: {len(tasks):,}", soft_wrap=True)
    try:
        with counting("answers") as seen:
            watched = Watched(wanted.model.opened(wanted.model.tensor_parallel), seen)
            findings = medu_files.find(watched, tasks, documents, asked, folder / "answers", wanted.seed)
    except (LanguageModelError, ValueError) as error:
        raise RunFailed(str(error)) from error
    medu_files.save(findings, folder, watched.name, prices)
    if as_json:
        print((folder / "account.json").read_text(encoding="utf-8"), end="")
    else:
        show_findings(console(), findings, prices)
        console().print(f"utilities: {escape(str(folder / 'utilities.csv'))}", soft_wrap=True)


COMMAND = Command(rate, JUDGES, ("judge rate medu.yaml --dry-run", "judge rate medu.yaml"))
