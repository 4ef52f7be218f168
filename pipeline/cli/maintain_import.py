"""`gristmill maintain import`: tokens or judges of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import UPKEEP, Command
from gristmill.pipeline.screen import console, escape


def import_(
    source: Annotated[
        Path, typer.Argument(help="a file, a folder of token files, or a model's folder or hub id", show_default=False)
    ],
    destination: Annotated[Path, typer.Argument(help="a new folder", show_default=False)],
    kind: Annotated[
        str, typer.Option("--from", help="token files: datatrove, megatron; judges: fasttext, sklearn, transformers")
    ],
    tokenizer: Annotated[
        str | None, typer.Option(help="of token files: the tokenizer that made them (a folder, file or hub id)")
    ] = None,
    eos_token: Annotated[str | None, typer.Option(help="of token files: the end of a text, if it does not say")] = None,
    row_length: Annotated[int | None, typer.Option(min=16, help="of token files: tokens in a row; 2048")] = None,
    head: Annotated[
        str | None, typer.Option(help="of a judge: the name of its score (quality), or what its names begin with")
    ] = None,
    good_label: Annotated[str | None, typer.Option(help="of a judge with two labels: which one is good")] = None,
    classes: Annotated[str | None, typer.Option(help="of a judge: its labels from worst to best, by commas")] = None,
    between: Annotated[str | None, typer.Option(help="of a regressor: lowest and highest value, 0,5")] = None,
    steps: Annotated[
        str | None, typer.Option(help="fasttext: what was done to texts before training (chapter Judges), by commas")
    ] = None,
) -> None:
    """Take in tokens or judges of another tool.

    Tokens become shards, a model a judge (the book's chapter Export).
    """
    from gristmill.pipeline.interchange.imports import Importing, bring_in

    how = Importing(tokenizer, eos_token, row_length, head, good_label, classes, between, steps)
    console().print(escape(bring_in(source, destination, kind, how)), soft_wrap=True)


COMMAND = Command(import_, UPKEEP, ("maintain import tokens/ shards/ --from datatrove",))
