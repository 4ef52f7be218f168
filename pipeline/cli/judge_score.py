"""`gristmill judge score`: score texts with a judge."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import JUDGES, Command
from gristmill.pipeline.cli.options import AsJson, Device, TextColumn, show
from gristmill.pipeline.screen import console, counting, escape


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
    show_texts: Annotated[
        int, typer.Option("--show", min=0, max=100, help="how many of the best and worst texts to show")
    ] = 3,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Score texts with a judge.

    Shows quantiles, the best and the worst; with --out, writes every score into a file.
    """
    from gristmill.pipeline.door.judges import open_judge

    judge = open_judge(folder, device)
    if texts:
        with counting("texts scored") as seen:
            view = judge.score_files(texts, out, text=text, explain=explain, show=show_texts, seen=seen)
    else:
        one = "" if sys.stdin.isatty() else sys.stdin.buffer.read().decode("utf-8", "replace")
        view = judge.score_text(one, explain) if one.strip() else judge.figures
    show(view, as_json, soft_wrap=True)
    if texts and out and not as_json:
        console().print(f"scores: {escape(out)}", soft_wrap=True)


COMMAND = Command(
    score, JUDGES, ("judge score judges/mine texts.parquet", "judge score judges/mine --explain < page.txt")
)
