"""`gristmill judge compress`: make a neural judge smaller and faster."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gristmill.pipeline.cli.command import JUDGES, Command
from gristmill.pipeline.cli.judge_score import DEVICES
from gristmill.pipeline.cli.options import AsJson, Device, Seed, TextColumn, one_of
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.screen import console, escape

WEIGHTS = ("float32", "int8", "int4")


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
    weights: Annotated[str, typer.Option("--weights", help="int8, int4 or float32 (as they are)")] = "int8",
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
    one_of("--weights", weights, WEIGHTS)
    one_of("--device", device, DEVICES)

    from gristmill.classifiers.card import JudgeError
    from gristmill.kernels.common.device import on_device
    from gristmill.pipeline.judging.compress import compressed
    from gristmill.pipeline.judging.train import room_for

    where, screen = room_for(out), console(stderr=True)
    settings: dict[str, Any] = {
        "weights": weights, "sparse": sparse, "layers": layers, "epochs": epochs,
        "calibration": calibration, "held_out": hold_out, "seed": seed,
    }  # fmt: skip
    try:
        small = compressed(
            folder, texts, text, group, settings, on_device(device), where,
            lambda line: screen.print(escape(line), soft_wrap=True),
        )  # fmt: skip
        small.save(where)
    except JudgeError as error:
        raise RecipeError(str(error)) from error
    if as_json:
        print(json.dumps(small.card.as_json() | {"folder": str(where)}))
        return
    for name, cost in small.card.metrics.items():
        console().print(
            f"{name}: rank correlation to the full judge {as_figure(cost['spearman_to_full'])}, largest difference "
            f"{as_figure(cost['largest_difference'])}, on {cost['texts']:,} texts held out",
            soft_wrap=True,
        )
    console().print(f"judge: {escape(str(where))}", soft_wrap=True)


def as_figure(value: float | None) -> str:
    return "unknown (all scores are equal)" if value is None else f"{value:.4f}"


COMMAND = Command(compress, JUDGES, ("judge compress judges/grade pages.parquet --out judges/small",))
