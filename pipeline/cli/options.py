"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gristmill.pipeline.formatting import as_json as in_json
from gristmill.pipeline.screen import console, escape

if TYPE_CHECKING:
    from gristmill.pipeline.door.judges import TrainedJudge
    from gristmill.pipeline.door.views import View

RecipePath = Annotated[
    Path, typer.Argument(help="the recipe, a YAML file", show_default=False, readable=False)
]  # we say why it is not
PlanPath = Annotated[Path, typer.Argument(help="the plan, a YAML file", show_default=False, readable=False)]
OutOfPlan = Annotated[str | None, typer.Option("--out", help="output folder; default: the plan's `out`")]
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
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option("--device", help="for a neural judge")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="of what is drawn at random")]


def show(view: View, as_json: bool, soft_wrap: bool = False) -> None:
    """What a call of `gristmill` returned."""
    if as_json:
        print(in_json(view.data))
    else:
        console().print(view, soft_wrap=soft_wrap)


def note(line: str) -> None:
    """A line about the work, on standard error."""
    console(stderr=True).print(escape(line), style="dim", soft_wrap=True)


def show_judge(judge: TrainedJudge, as_json: bool) -> None:
    """A judge that was made now."""
    if as_json:
        print(in_json(judge.card | {"folder": judge.folder}))
    else:
        show(judge.figures, as_json, soft_wrap=True)
        console().print(f"judge: {escape(judge.folder)}", soft_wrap=True)
