"""`gristmill judge compress`: make a neural judge smaller and faster."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Annotated, Any

import typer

from gristmill.pipeline.cli.command import JUDGES, Command
from gristmill.pipeline.cli.judge_score import DEVICES
from gristmill.pipeline.cli.options import AsJson, Device, Seed, TextColumn, one_of
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.screen import console, escape

WEIGHTS = ("float32", "int8", "int4")
DROP_BY = ("loss", "similarity")


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
    sparse: Annotated[bool, typer.Option("--sparse", help="remove two of every four weights")] = False,
    layers: Annotated[int | None, typer.Option("--layers", min=2, help="layers that stay; default: all")] = None,
    drop_by: Annotated[
        str, typer.Option("--drop-by", help="layers go by loss (what it changes) or similarity (of input and output)")
    ] = "loss",
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
    one_of("--drop-by", drop_by, DROP_BY)
    one_of("--device", device, DEVICES)

    from gristmill.classifiers.card import JudgeError
    from gristmill.kernels.common.device import on_device
    from gristmill.pipeline.judging.lessons import texts_in_groups
    from gristmill.pipeline.judging.scoring import judge_at
    from gristmill.pipeline.judging.train import check_writable, room_for

    def log(line: str) -> None:
        screen.print(escape(line), soft_wrap=True)

    where, screen, judge = room_for(out), console(stderr=True), judge_at(folder)
    if judge.card.kind != "neural":
        raise RecipeError(f"{folder}: a {judge.card.kind} judge; only neural judges can be compressed")
    compression: Any = import_module("gristmill.classifiers.neural.compression")
    grouped, place = texts_in_groups(texts, text, group), on_device(device)
    check_writable(where)
    log(f"compressing on {place}, with {len(grouped):,} texts")
    try:
        how = compression.Compression(weights, sparse, layers, drop_by, epochs, calibration, hold_out, seed)
        small = compression.compress(
            judge, grouped, how, place, lambda facts: log(", ".join(f"{name} {value}" for name, value in facts.items()))
        )
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
