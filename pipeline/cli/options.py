"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline.errors import RecipeError

RecipePath = Annotated[
    Path, typer.Argument(help="the recipe, a YAML file", show_default=False, readable=False)
]  # we say why it is not
PlanPath = Annotated[Path, typer.Argument(help="the plan, a YAML file", show_default=False, readable=False)]
OutPath = Annotated[str, typer.Argument(help="the output folder of a run", show_default=False)]
OutOption = Annotated[
    str | None, typer.Option("--out", help="output folder; default: the recipe's `out`, else out/NAME beside it")
]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="worker processes; default: one per core")]
CheckInputs = Annotated[
    bool,
    typer.Option(
        "--check-inputs",
        help="read every input file to detect changes, even if size and modification time are the same",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output")]
EventsAsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, events on standard error")]
TextColumn = Annotated[str, typer.Option("--text", help="the column with the text")]
Device = Annotated[str, typer.Option("--device", help="for a neural judge: auto, cpu or cuda")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="of what is drawn at random")]


def one_of(option: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise RecipeError(f"{option} {given}: expected {', '.join(known[:-1])} or {known[-1]}")
