"""`gristmill judge label`: have a language model label texts by a taxonomy, as a table to train judges on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import JUDGES, Command
from gristmill.pipeline.cli.options import AsJson, PlanPath
from gristmill.pipeline.errors import RunFailed
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
    from gristmill.classifiers.llm.model import LanguageModelError
    from gristmill.pipeline.inputs.columns import files_of
    from gristmill.pipeline.judging import labelling
    from gristmill.pipeline.judging.show import show_labels

    loaded, asking = labelling.load(plan)
    wanted, folder = loaded.plan, Path(loaded.out(out))
    files = files_of(wanted.texts, loaded.where("texts"))
    table = labelling.draw(files, wanted.text, wanted.most, wanted.seed, loaded.where("text"))
    expected = labelling.estimate_of(table, asking, wanted)
    console(stderr=not dry_run).print(escape(expected.words(wanted.costs)), soft_wrap=True)
    if dry_run:
        return
    try:
        with counting("answers") as seen:
            findings = labelling.label_texts(table, asking, wanted, folder / "answers", seen)
    except (LanguageModelError, ValueError) as error:
        raise RunFailed(str(error)) from error
    labelling.save(findings, folder)
    if as_json:
        print(json.dumps(findings.facts))
    else:
        show_labels(console(), findings.facts)
        console().print(f"labels: {escape(str(folder / 'labels.parquet'))}", soft_wrap=True)


COMMAND = Command(label, JUDGES, ("judge label labels.yaml --dry-run", "judge label labels.yaml"))
