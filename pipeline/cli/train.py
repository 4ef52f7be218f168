"""The command that trains a decoder on token shards: `gristmill train`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from gristmill.pipeline.cli.ablate import needs_packages
from gristmill.pipeline.cli.command import TRAIN, Command
from gristmill.pipeline.cli.options import EventsAsJson, PlanPath
from gristmill.pipeline.errors import GristmillError, RecipeError
from gristmill.pipeline.formatting import as_bytes, as_seconds
from gristmill.pipeline.screen import console, escape

if TYPE_CHECKING:
    from gristmill.pipeline.train.work import Ready

Lines = Callable[[Mapping[str, Any]], None]


def train(
    plan: PlanPath,
    out: Annotated[
        Path | None, typer.Option("--out", help="output folder; default: the plan's `out`, else out/NAME beside it")
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            min=1,
            help="processes; default: one per GPU, or 1. On several hosts start the command with torchrun instead",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything, and show the run, its epochs and its memory")
    ] = False,
    as_json: EventsAsJson = False,
) -> None:
    """Train a decoder of the Llama family on token shards.

    And measure it. Run it again to resume.
    """
    needs_packages("train")
    import torch

    from gristmill.pipeline.train import plan as plans, work

    loaded = plans.load(plan)
    cards = (loaded.plan.cards or {}).get("count", ranks)
    if ranks and cards != ranks:
        raise RecipeError(f"{plan}: cards: count is {cards}, --ranks says {ranks}; leave one of them out")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    under_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    count = int(os.environ["WORLD_SIZE"]) if under_torchrun else ranks or max(1, gpus)
    if gpus and not under_torchrun and count > gpus:
        raise RecipeError(f"--ranks {count}: this machine has {gpus} GPU{'s' if gpus > 1 else ''}, one for each rank")
    folder = Path(loaded.out(out)).resolve()
    ready = work.prepare(loaded, gpus > 0, count, dry_run)
    if dry_run:
        console().print(foreseen(ready))
        return
    result = work.finished(ready, folder)
    if result is None and count > 1 and not under_torchrun:
        again = [str(plan), "--out", str(folder), *(["--json"] if as_json else [])]
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m"]
        command = [sys.executable, *torchrun, "gristmill.pipeline.cli.app", "train", *again]
        raise SystemExit(subprocess.run(command, check=False).returncode)
    if result is None:
        from gristmill.trainer.run.stopping import Stopped

        try:
            result = work.carry_out(ready, folder, _lines(ready, as_json))
        except Stopped as error:
            console(stderr=True).print(escape(str(error)), soft_wrap=True)
            raise SystemExit(130) from None
        except Exception as error:
            if type(error).__module__.startswith(("gristmill.trainer.", "gristmill.shards.")):
                raise GristmillError(str(error)) from error
            raise
    if result is None:  # another rank tells of it
        return
    if as_json:
        print(json.dumps(result))
    else:
        console().print(came_of(result))
        console().print(f"model: {escape(result['model'])}", soft_wrap=True)


def foreseen(ready: Ready) -> Table:
    """What would be trained, and what it takes."""
    from gristmill.trainer.run.costs import rank_memory

    training, shape, length, ranks = ready.training, ready.shape, ready.meta.row_length, ready.ranks
    readers = max(1, ranks // training.ranks_of_a_row)
    step = training.rows_per_step or training.most_step_rows(readers)
    memory = rank_memory(shape, training, ranks, length, step)
    begins = f"goes on from {ready.source}" if ready.source else "from scratch"
    rows_of = f"{training.rows_per_update:,} rows of {length:,}"
    lines = [
        ("model", f"{shape.parameters:,} parameters, {begins}"),
        ("run", f"{training.updates:,} updates of {rows_of}: {ready.tokens:,} tokens"),
        *(
            (f"set {name}", f"{ready.weights[name]:.1%} of the tokens, {times:.2f} epochs")
            for name, times in ready.epochs.items()
        ),
        ("ranks", f"{ranks:,}" + (f", {training.tensor} to a layer" if training.tensor > 1 else "")
            + (f", {training.context} to a row" if training.context > 1 else "")
            + (f", {training.replicas} replicas" if training.replicas > 1 else "")
            + (f", the blocks in {training.pipeline} parts ({training.schedule_for(shape, ranks)})"
               if training.pipeline > 1 else "")),
        *(("" if at else "parallel: auto", line) for at, line in enumerate(ready.layout.why if ready.layout else ())),
        (
            "memory of a rank",
            f"{as_bytes(memory.peak)} for steps of {step:,} rows"
            + ("" if training.rows_per_step else "; smaller steps are taken if they do not fit"),
        ),
    ]  # fmt: skip
    return _table(lines)


def came_of(result: Mapping[str, Any]) -> Table:
    """The end of a run."""
    return _table(
        [
            ("parameters", f"{result['parameters']:,}"),
            ("updates", f"{result['updates']:,}" + (f", {result['refused']:,} refused" if result["refused"] else "")),
            ("tokens", f"{result['tokens']:,}"),
            ("last loss", "none" if result["loss"] is None else f"{result['loss']:.4f}"),
            ("time", as_seconds(result["seconds"])),
            ("tokens a second", f"{result['tokens_per_second']:,.0f}"),
            *((name, f"{value:.4f}") for name, value in result["evaluation"].items()),
        ]
    )


def _table(lines: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in lines:
        table.add_row(escape(name), escape(value))
    return table


def _lines(ready: Ready, as_json: bool) -> Lines:
    """A line of the terminal for each line of metrics."""
    screen, updates = console(stderr=True), ready.training.updates

    def told(line: Mapping[str, Any]) -> None:
        if as_json:
            print(json.dumps(line), file=sys.stderr, flush=True)
        elif "loss" in line:
            speed = line["tokens_per_second"] or 0.0
            left = (ready.tokens - line["tokens"]) / speed if speed else 0.0
            events = f"  {len(line['events'])} events" if line.get("events") else ""
            loss = "no loss: every update was refused" if line["loss"] is None else f"loss {line['loss']:.4f}"
            screen.print(
                f"update {line['step']:,} of {updates:,}  {loss}  {speed:,.0f} tokens/s"
                f"  {as_seconds(left)} left{events}",
                soft_wrap=True,
            )
        else:
            values = {name: value for name, value in line.items() if name.startswith("evaluation.")}
            said = "  ".join(
                f"{escape(name.removeprefix('evaluation.'))} {value:.4f}" for name, value in values.items()
            )
            screen.print(f"update {line['step']:,} of {updates:,}  {said}", soft_wrap=True)

    return told


COMMAND = Command(train, TRAIN, ("train plan.yaml --dry-run", "train plan.yaml"))
