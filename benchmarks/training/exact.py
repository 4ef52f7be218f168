#!/usr/bin/env python3
"""What training promises on one GPU: the same bits, killed or not; no wait for the device in an update; fp16; what Muon
costs; joules; a clear end of memory.

    python -m benchmarks.training.exact [--only repeat,waits,muon,energy,fp16,memory] [--shards FOLDER] [--tiny]

On an H200: repeat about 150 s, waits 30, muon 25, energy 20, fp16 15, memory 25. All of the shape 124m in bf16 over
rows of 1,024 (those of FOLDER, else drawn ones), 32 rows an update. `repeat` ends processes of its own at an update
(os._exit, as if shot) and goes on with what they left.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.training.speed import decoder_on, say, seconds_each
from benchmarks.training.work import DrawnRows, go_through, reason, scratch, tidy
from gristmill.kernels.common.energy import meter_for
from gristmill.shards.loader import Loader
from gristmill.shards.orders import Shuffled
from gristmill.shards.reader import open_shards
from gristmill.trainer.model.attention import fastest
from gristmill.trainer.model.model import Decoder
from gristmill.trainer.model.packed import PackedTokens, pack_rows
from gristmill.trainer.model.shapes import DecoderShape, shape_named
from gristmill.trainer.run import loop
from gristmill.trainer.run.batch_search import TooLarge
from gristmill.trainer.run.loop import Outcome, train
from gristmill.trainer.run.settings import Training
from gristmill.trainer.step import checkpoint
from gristmill.trainer.step.muon import Muon
from gristmill.trainer.step.optim import AdamW
from gristmill.trainer.step.stepper import Stepper, stepper_of

ADAMW = AdamW(rate=6e-4, weight_decay=0.1, betas=(0.9, 0.95))
REPEATS = 5
WAYS: dict[str, list[str]] = {"exact": ["--deterministic"], "free": []}
T_95 = 2.776  # Student's, of REPEATS - 1 degrees of freedom


class Bench:
    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.args, self.device = args, device
        self.updates, self.every, self.kill_at, self.rows = (8, 4, 6, 4) if args.tiny else (60, 30, 40, 32)
        length, vocabulary = (32, 256) if args.tiny else (1024, 16_384)
        self.data: Any = (
            open_shards(args.shards) if args.shards else DrawnRows(self.updates * self.rows, length, vocabulary)
        )
        self.length = self.data.meta.row_length
        wide = -(-self.data.meta.vocab_size // 128) * 128
        self.shape = (
            DecoderShape(wide, 32, 2, 2, 1, 64, context=self.length, tied=True)
            if args.tiny
            else shape_named("124m", wide, context=self.length)
        )
        self.training = Training(
            self.updates,
            self.rows,
            self.rows,
            optimizer=ADAMW,
            checkpoint_every=self.every,
            keep=1,
            metrics_every=max(1, self.every // 3),
        )

    def model(self) -> Decoder:
        return decoder_on(self.device, self.shape, fastest(self.device), 1)

    def run(self, folder: Path, training: Training, model: Decoder | None = None) -> Outcome:
        loader = Loader(self.data, training.rows_per_update, Shuffled(), seed=3)
        outcome = train(model or self.model(), loader, training, folder, device=self.device, save_model=False)
        tidy(self.device)
        return outcome

    # The same again

    def repeat(self) -> None:
        with scratch() as temporary:
            folder = Path(temporary)
            shot = {name: self._process("--shot", folder / f"shot {name}", *way) for name, way in WAYS.items()}
            exact = replace(self.training, deterministic=True)
            self.run(folder / "first", exact)  # beside those that are shot: its time is not taken
            for name, process in shot.items():
                process.wait()
                left = [path.name for path in checkpoint.steps(folder / f"shot {name}" / "checkpoints")]
                say(
                    "shot",
                    run=name,
                    exit=process.returncode,
                    checkpoints=left,
                    **({} if process.returncode == 9 else {"error": self._error(folder / f"shot {name}")}),
                )
            again = self.run(folder / "again", exact)
            same = _digests(folder / "first") == _digests(folder / "again")
            say(
                "deterministic, once more",
                same_bits=same,
                loss=again.loss,
                tokens_per_second=round(again.tokens_per_second),
            )
            self.run(folder / "shot exact", exact)
            lines = [_losses(folder / name) for name in ("first", "shot exact")]
            same = _digests(folder / "first") == _digests(folder / "shot exact")
            say(
                "deterministic, shot and gone on",
                same_bits=same,
                same_lines=lines[0] == lines[1],
                updates=self.updates,
                shot_at=self.kill_at,
            )
            self._free(folder, again.tokens_per_second)

    def _free(self, folder: Path, exact_speed: float) -> None:
        """Without `deterministic`. A process that has the card to itself adds up in the same order nearly always, one
        that shares it does not, and one of the runs is shot while others work: so the run that goes on, and those it is
        held against, are processes that work at once. Losses are means over the last line of metrics."""
        here = [self.run(folder / f"here {number}", self.training) for number in range(3)]
        speed = statistics.median(outcome.tokens_per_second for outcome in here[1:])  # the first compiles
        facts = {
            "tokens_per_second": round(speed),
            "deterministic": round(exact_speed),
            "ratio": round(exact_speed / speed, 3),
        }
        say("cost of deterministic", **facts, losses_alone=[outcome.loss for outcome in here])
        names = ["shot free", *(f"free {number}" for number in range(REPEATS))]
        started = [self._process("--whole", folder / name) for name in names]
        try:
            for name, process in zip(names, started, strict=True):
                if process.wait():
                    raise RuntimeError(self._error(folder / name))
        finally:
            for process in started:
                process.kill()
        resumed, *losses = (_last_loss(folder / name) for name in names)
        digests = {json.dumps(_digests(folder / name), sort_keys=True) for name in names[1:]}
        deviation = statistics.stdev(losses)
        away = abs(resumed - statistics.mean(losses)) / (deviation * (1 + 1 / REPEATS) ** 0.5) if deviation else None
        say(
            "not deterministic, shot and gone on", losses=losses, different_weights=len(digests), resumed=resumed,
            between=min(losses) <= resumed <= max(losses),
            deviations_away=away and round(away, 2), expected_below=T_95,
            within=resumed == losses[0] if away is None else away <= T_95,
        )  # fmt: skip

    def _process(self, what: str, folder: Path, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.training.exact", what, str(folder), *more]
        command += ["--tiny"] if self.args.tiny else []
        command += ["--shards", str(self.args.shards)] if self.args.shards else []
        with folder.with_suffix(".err").open("w") as errors:
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)

    def _error(self, folder: Path) -> str:
        return folder.with_suffix(".err").read_text()[-600:]

    def be_shot(self) -> None:
        make = loop.TrainingRun._make_update
        at = self.kill_at
        loop.TrainingRun._make_update = lambda self, feed: (
            os._exit(9) if self.progress.update == at else make(self, feed)
        )  # type: ignore[method-assign]
        self.run(self.args.shot, replace(self.training, deterministic=self.args.deterministic))

    # An update

    def batches(self, rows: int | None = None) -> list[PackedTokens]:
        loader = Loader(self.data, rows or self.rows, Shuffled(), seed=4)
        made = [pack_rows(loader.next_batch().rows).to(self.device) for _ in range(4)]  # type: ignore[union-attr]
        for batch in made:
            torch._dynamo.maybe_mark_dynamic(batch.cuts, 0)
        return made

    def stepper(self, optimizer: Any = ADAMW, compile: bool = True) -> Stepper:
        return stepper_of(
            self.model(), optimizer, "bf16", device=self.device, compile=compile and self.device.type == "cuda"
        )

    def update_of(self, stepper: Stepper, passes: int = 1) -> Callable[[], None]:
        batches = self.batches()

        def update() -> None:
            counted = sum(batch.counted for batch in batches[:passes])
            for number, batch in enumerate(batches[:passes]):
                stepper.backward(stepper.loss(batch) / counted, last=number == passes - 1)
            stepper.step(0.5)
            batches.append(batches.pop(0))

        return update

    def waits(self) -> None:
        say(
            "waits",
            control="a number read from the device",
            waited=self._waited(lambda: torch.ones(1, device=self.device).item()),
        )
        for name, optimizer, passes in (("adamw", ADAMW, 1), ("adamw, two passes", ADAMW, 2), ("muon", Muon(), 1)):
            try:
                update = self.update_of(self.stepper(optimizer), passes)
                for _ in range(6):  # every batch, and what is compiled for it
                    update()
                waited = self._waited(lambda u=update: [u() for _ in range(4)])  # null: nothing
                say("waits", update=name, precision="bf16", updates=4, waited=waited)
            except Exception as error:
                say("waits", update=name, failed=reason(error))
            tidy(self.device)

    def _waited(self, work: Callable[[], Any]) -> str | None:
        """What waited for the device, as torch says it."""
        if self.device.type != "cuda":
            work()
            return "not asked: no GPU"
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            work()
        except RuntimeError as error:
            return reason(error)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return None

    def muon(self) -> None:
        found = {}
        for name, optimizer in (("adamw", ADAMW), ("muon", Muon())):
            stepper = self.stepper(optimizer)
            update = self.update_of(stepper)
            median, _ = seconds_each(update, self.device)
            batch = self.batches()[0]
            steps = []
            for _ in range(10):
                stepper.backward(stepper.loss(batch) / batch.counted, last=True)
                steps.append(self._seconds(lambda s=stepper: s.step(0.5)))
            found[name] = statistics.median(steps)
            say(
                "step",
                optimizer=name,
                update_ms=round(1e3 * median, 2),
                step_ms=round(1e3 * found[name], 2),
                parameters=self.shape.parameters,
            )
            del stepper, update
            tidy(self.device)
        say("step", peer="adamw", more_ms=round(1e3 * (found["muon"] - found["adamw"]), 2))

    def _seconds(self, work: Callable[[], Any]) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    # Others

    def energy(self) -> None:
        update = self.update_of(self.stepper())
        for _ in range(4):
            update()
        seconds = 0.2 if self.args.tiny else 8.0
        with power_of(self.device) as readings:
            meter = meter_for(self.device)
            self._seconds(lambda: None)
            before, began = meter.read(), time.perf_counter()
            many = 0
            while time.perf_counter() - began < seconds:
                self._seconds(update)
                many += 1
            ended, used = time.perf_counter(), meter.read() - before
            time.sleep(min(1.0, seconds))  # for the last reading
        watts = [(at, power) for at, power in readings if began <= at <= ended]
        by_power = statistics.mean(power for _, power in watts) * (ended - began) if len(watts) > 4 else None
        say(
            "energy", seconds=round(ended - began, 2), updates=many, nvml_joules=used.device,
            processors_joules=used.processors, readings=len(watts),
            power_times_seconds=by_power and round(by_power, 1),
            ratio=used.device and by_power and round(used.device / by_power, 4),
            tokens_per_joule=used.device and round(many * self.rows * self.length / used.device, 1),
        )  # fmt: skip

    def fp16(self) -> None:
        with scratch() as temporary:
            for precision in ("fp16", "bf16"):
                training = replace(
                    self.training, updates=self.every, precision=precision, compile=False, metrics_every=1
                )
                outcome = self.run(Path(temporary) / precision, training)
                state = json.loads(
                    (checkpoint.steps(Path(temporary) / precision / "checkpoints")[-1] / checkpoint.STATE).read_text()
                )
                losses = [round(loss, 4) for loss in _losses(Path(temporary) / precision) if loss is not None]
                say(
                    "fp16",
                    precision=precision,
                    losses=losses[:: max(1, self.every // 10)],
                    last=outcome.loss,
                    refused=outcome.refused,
                    **state.get("also", {}),
                )

    def memory(self) -> None:
        """A step that cannot fit, and the same run with one that does, in one process."""
        many = 32 * self.rows
        training = replace(
            self.training, updates=2, rows_per_update=many, rows_per_step=many, checkpoint_every=None, compile=False
        )
        with scratch() as temporary:
            model = self.model()
            if self.device.type != "cuda":
                model = _cramped(model, self.rows * self.length)
            told = None
            try:
                self.run(Path(temporary) / "run", training, model)
            except TooLarge as error:
                told = str(error)
            del model
            say(
                "memory",
                tokens_a_step=many * self.length,
                told=told,
                played=self.device.type != "cuda",
                left_gib=round(tidy(self.device) / 2**30, 2),
            )
            outcome = self.run(Path(temporary) / "run", replace(training, rows_per_step=self.rows))
            say(
                "memory",
                tokens_a_step=self.rows * self.length,
                updates=outcome.updates,
                loss=outcome.loss,
                went_on=outcome.updates == 2,
            )


def _cramped(model: Decoder, most: int) -> Decoder:
    """One whose device is full beyond so many tokens, where there is none to fill."""
    loss = model.loss

    def cramped(batch: PackedTokens) -> torch.Tensor:
        if len(batch.ids_T) > most:
            raise torch.OutOfMemoryError("played")
        return loss(batch)

    model.loss = cramped  # type: ignore[method-assign]
    return model


def _digests(folder: Path) -> dict[str, str]:
    """Of the weights, and of the optimiser's state and the random generators, in the last checkpoint."""
    files: dict[str, str] = json.loads((checkpoint.steps(folder / "checkpoints")[-1] / checkpoint.STATE).read_text())[
        "files"
    ]
    return files


def _losses(folder: Path) -> list[float | None]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _last_loss(folder: Path) -> float:
    """The mean of the updates of the last line."""
    loss = _losses(folder)[-1]
    if loss is None:
        raise RuntimeError(f"{folder.name}: its last updates had no loss")
    return loss


@contextmanager
def power_of(device: torch.device) -> Iterator[list[tuple[float, float]]]:
    """Times and watts as nvidia-smi tells them, ten a second, while the context lasts; it is entered with the first."""
    readings: list[tuple[float, float]] = []
    if device.type != "cuda":
        yield readings
        return
    command = [
        "nvidia-smi",
        "-i",
        f"GPU-{torch.cuda.get_device_properties(device).uuid}",
        "--query-gpu=power.draw.instant",
        "--format=csv,noheader,nounits",
    ]
    try:
        process = subprocess.Popen([*command, "-lms", "100"], stdout=subprocess.PIPE, text=True)
    except OSError as error:
        say("energy", nvidia_smi=reason(error))
        yield readings
        return
    first = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                readings.append((time.perf_counter(), float(line)))
            except ValueError:
                say("energy", nvidia_smi=line.strip())
            first.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    first.wait(15)
    try:
        yield readings
    finally:
        process.terminate()
        reader.join(5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="repeat,waits,muon,energy,fp16,memory")
    parser.add_argument("--shards", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--shot", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--whole", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--deterministic", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tiny:
        torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.tiny else "cpu")
    bench = Bench(args, device)
    if args.shot:
        bench.be_shot()
        return
    if args.whole:
        bench.run(args.whole, bench.training)
        return
    say(
        "machine",
        device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        torch=torch.__version__,
        numpy=np.__version__,
    )
    sections = {
        "repeat": (150, bench.repeat), "waits": (30, bench.waits), "muon": (25, bench.muon),
        "energy": (20, bench.energy), "fp16": (15, bench.fp16),
        "memory": (25, bench.memory),
    }  # fmt: skip
    go_through(sections, args.only, device)


if __name__ == "__main__":
    main()
