"""The command that trains a decoder on token shards: `gristmill train`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gristmill.pipeline.cli.command import TRAIN, Command
from gristmill.pipeline.cli.options import EventsAsJson, PlanPath
from gristmill.pipeline.errors import GristmillError, RecipeError
from gristmill.pipeline.formatting import as_bytes, as_seconds
from gristmill.pipeline.processes import end_with_parent
from gristmill.pipeline.screen import console, escape, facts_table, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gristmill.pipeline.train.progress import RunProgress
    from gristmill.pipeline.train.run import Ready


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
    from gristmill.pipeline.door.scripts import needs_packages

    needs_packages("train")
    import torch

    from gristmill.pipeline.train import plan as plans, run
    from gristmill.pipeline.train.ranks import is_first, is_rank, run_ranks
    from gristmill.trainer.run.stopping import Stopped

    if is_rank():
        end_with_parent()
    loaded = plans.load(plan)
    asked = ranks or loaded.plan.ranks
    cards = (loaded.plan.cards or {}).get("count", asked)
    if asked and cards != asked:
        says = "--ranks" if ranks else "`ranks`"
        raise RecipeError(f"{plan}: cards: count is {cards}, {says} says {asked}; leave one of them out")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    count = int(os.environ["WORLD_SIZE"]) if is_rank() else asked or max(1, gpus)
    if gpus and not is_rank() and count > gpus:
        raise RecipeError(
            f"{plan}: ranks: {count}, and this machine has {gpus} GPU{'s' if gpus > 1 else ''}, one for each rank"
        )
    folder, screen = Path(loaded.out(out)).resolve(), console(stderr=True)
    try:
        ready = run.prepare(loaded, gpus > 0, count, dry_run)
        if dry_run:
            show_estimate(ready, gpus > 0, screen)
            return
        result = run.finished(ready, folder)
        if result is None and count > 1 and not is_rank():
            again = [str(plan), "--out", str(folder), *(["--json"] if as_json else [])]
            raise SystemExit(run_ranks("gristmill.pipeline.cli.app", ["train", *again], count))
        if result is None:
            ui = TrainUi(ready, screen, as_json)
            result = run.carry_out(ready, folder, ui.told, ui.clock)
    except (Stopped, KeyboardInterrupt) as error:
        if is_first():
            where = str(error) if isinstance(error, Stopped) else f"interrupted; checkpoints are kept in {folder}"
            say(screen, f"{where}. Run the same command to resume")
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


def show_estimate(ready: Ready, on_gpu: bool, screen: Console) -> None:
    """The run, and how long it takes here."""
    import psutil

    from gristmill.pipeline.train.trial import NotTried, try_job

    reason, trial = f"a trial needs all {ready.ranks} ranks", None
    if ready.ranks == 1 and ready.loaded.plan.cards is None:
        say(screen, "trying a few steps, to see how long they take")
        try:
            trial = try_job(ready.job(Path(), on_gpu))
        except NotTried as error:
            reason = str(error)
    if trial is None:
        takes = f"not estimated: {reason}"
    else:
        training = trial.training(ready.training.updates, ready.training.rows_per_update)
        measuring = ready.measurements * trial.measuring
        start = max(0.0, time.time() - psutil.Process().create_time() - trial.seconds) + trial.start
        takes = (
            f"about {as_seconds(start + training + measuring)} here: training {as_seconds(training)}, measuring"
            f" {as_seconds(measuring)} ({ready.measurements:,} times), starting {as_seconds(start)}"
        )
        if measuring > training:
            every = ready.loaded.plan.evaluate.every
            setting = f"measure less often (evaluate.every: {every})" if every else "measure less"
            say(
                screen,
                f"measuring would take {as_seconds(measuring)}, training {as_seconds(training)}: {setting}, or on fewer"
                f" of {trial.largest}",
                "yellow",
                "warning",
            )
    console().print(foreseen(ready, takes))


def foreseen(ready: Ready, takes: str) -> Table:
    """What would be trained, and what it takes."""
    from gristmill.trainer.parallel.memory import rank_memory
    from gristmill.trainer.parallel.pipeline_plan import schedule_for

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
            + (f", the blocks in {training.pipeline} parts ({schedule_for(training, shape)})"
               if training.pipeline > 1 else "")),
        *(("" if at else "parallel: auto", line) for at, line in enumerate(ready.layout.why if ready.layout else ())),
        (
            "memory of a rank",
            f"{as_bytes(memory.peak)} for steps of {step:,} rows"
            + ("" if training.rows_per_step else "; smaller steps are taken if they do not fit"),
        ),
        ("time", takes),
    ]  # fmt: skip
    return facts_table(lines)


def came_of(result: Mapping[str, Any]) -> Table:
    """The end of a run."""
    return facts_table(
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


class TrainUi:
    """A line for each tenth of the run, or with --json every line of metrics."""

    def __init__(self, ready: Ready, screen: Console, as_json: bool) -> None:
        from gristmill.pipeline.train.progress import RunClock

        training = ready.training
        every = (ready.loaded.plan.evaluate.every or training.updates) if ready.measurements else None
        self.clock = RunClock(training.updates, every, training.metrics_every)
        self.updates, self.screen, self.as_json = training.updates, screen, as_json
        self.tenths = self.events = 0

    def told(self, line: Mapping[str, Any]) -> None:
        """A line of the trainer's metrics."""
        if self.as_json:
            print(json.dumps(line), file=sys.stderr, flush=True)
        elif "loss" in line:
            self.report(self.clock.read(line), line.get("events", ()))
        else:
            values = "  ".join(
                f"{name.removeprefix('evaluation.')} {value:.4f}"
                for name, value in line.items()
                if name.startswith("evaluation.")
            )
            self.screen.print(escape(f"update {line['step']:,} of {self.updates:,}  {values}"), soft_wrap=True)

    def report(self, progress: RunProgress, events: Sequence[object]) -> None:
        from gristmill.pipeline.progress.terminal import in_words

        self.events += len(events)
        loss = "no loss: every update was refused" if progress.loss is None else f"loss {progress.loss:.4f}"
        speed = f"{progress.tokens_per_second or 0:,.0f} tokens/s"
        left = f"{in_words(progress.left)} left"
        refused = f"  {self.events:,} events" if self.events else ""
        tenths = 10 if progress.update == self.updates else int(10 * progress.share)
        if tenths > self.tenths:
            self.tenths = tenths
            words = f"update {progress.update:,} of {self.updates:,}  {loss}  {speed}"
            self.screen.print(
                f"{tenths / 10:.0%}  {words}" + (f"  {left}" if tenths < 10 else "") + refused, soft_wrap=True
            )


COMMAND = Command(train, TRAIN, ("train plan.yaml --dry-run", "train plan.yaml"))
