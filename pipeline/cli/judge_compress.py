"""`gristmill judge compress`: make a neural judge smaller and faster."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from gristmill.pipeline.cli.command import JUDGES, Command
from gristmill.pipeline.cli.options import AsJson, Device, Seed, TextColumn, note, show_judge


def compress(
    folder: Annotated[str, typer.Argument(help="a neural judge's folder", show_default=False)],
    texts: Annotated[
        list[str],
        typer.Argument(
            help="texts like those it will score, without labels: Parquet, JSON lines or CSV",
            show_default=False,
        ),
    ],
    out: Annotated[str, typer.Option("--out", help="a new folder for the compressed judge")],
    weights: Annotated[
        Literal["int8", "int4", "float32"], typer.Option("--weights", help="float32: as they are")
    ] = "int8",
    sparse: Annotated[
        bool, typer.Option("--sparse", help="remove two of every four weights; on an H200 0.66 times the speed of bf16")
    ] = False,
    layers: Annotated[int | None, typer.Option("--layers", min=2, help="layers that stay; default: all")] = None,
    epochs: Annotated[
        float, typer.Option("--epochs", min=0, help="with --layers: epochs of distillation over the texts; 0: none")
    ] = 3.0,
    calibration: Annotated[
        int, typer.Option("--calibration", min=1, help="texts by which errors are made up for")
    ] = 256,
    text: TextColumn = "text",
    group: Annotated[
        str, typer.Option("--group", help="column whose values are held out as a whole (URLs by host)")
    ] = "url",
    hold_out: Annotated[
        float, typer.Option("--hold-out", min=0, max=0.9, help="share of groups on which the cost is measured; 0: none")
    ] = 0.2,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Make a neural judge smaller and faster.

    Reports how well it keeps the order of the full judge's scores.
    """
    from gristmill.pipeline.door.judges import open_judge

    small = open_judge(folder, "cpu").compress(
        texts, out, weights=weights, sparse=sparse, layers=layers, epochs=epochs,
        calibration=calibration, text=text, group=group, hold_out=hold_out, seed=seed, device=device, note=note,
    )  # fmt: skip
    show_judge(small, as_json)


COMMAND = Command(compress, JUDGES, ("judge compress judges/grade pages.parquet --out judges/small",))
