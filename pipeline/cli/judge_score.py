"""`gristmill judge score`: score texts with a judge."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import JUDGES, Command
from gristmill.pipeline.cli.options import AsJson, Device, TextColumn, one_of
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.screen import console, counting, escape

DEVICES = ("auto", "cpu", "cuda")


def score(
    folder: Annotated[str, typer.Argument(help="the judge's folder", show_default=False)],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Parquet, JSON lines, CSV or text files; none: the text from standard input, else the judge's card",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", help="a Parquet file with every score, and its file, row and URL")
    ] = None,
    text: TextColumn = "text",
    explain: Annotated[bool, typer.Option("--explain", help="show the words that moved each score most")] = False,
    show: Annotated[
        int, typer.Option("--show", min=0, max=100, help="how many of the best and worst texts to show")
    ] = 3,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Score texts with a judge.

    Shows quantiles, the best and the worst; with --out, writes every score into a file.
    """
    one_of("--device", device, DEVICES)

    from gristmill.classifiers.card import JudgeError
    from gristmill.pipeline.inputs.columns import files_of
    from gristmill.pipeline.judging import scoring, show as shown

    loaded = scoring.judge_at(folder, device)
    try:
        if not texts:
            one = "" if sys.stdin.isatty() else sys.stdin.buffer.read().decode("utf-8", "replace")
            if not one.strip():
                if as_json:
                    print(json.dumps(loaded.card.as_json()))
                else:
                    shown.show_card(console(), loaded.card)
                return
            found = scoring.score_text(loaded, one)
        else:
            with counting("texts scored") as seen:
                found = scoring.score_files(loaded, files_of(texts, "texts"), text, out, show, seen)
        unexplained = scoring.explain(loaded, found) if explain else ""
    except JudgeError as error:
        raise RecipeError(str(error)) from error
    if as_json:
        print(json.dumps(scoring.as_json(found, unexplained)))
    else:
        shown.show_scores(console(), found, unexplained)
        if out:
            console().print(f"scores: {escape(out)}", soft_wrap=True)


COMMAND = Command(
    score, JUDGES, ("judge score judges/mine texts.parquet", "judge score judges/mine --explain < page.txt")
)
