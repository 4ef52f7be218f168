#!/usr/bin/env python3
"""Pipelines beside one GPU and FSDP2, at equal tokens an update and in the same run.

    torchrun --standalone --nproc-per-node 2 -m benchmarks.training.pipelines [--micros 16] [--tokens 32768]
      [--ways one,zero 2,zero 3,1f1b,interleaved,zb1p,zbv] [--recompute none] [--tiny]

The shape 1.3b in bf16 over packed rows of 4,096: an update is --micros micro-batches of --tokens. One GPU makes them
one after another while the others wait, FSDP2 (our zero 2 and 3) shares them, a pipeline passes them on. `predicted`
is the time by `gristmill.trainer.step.pipeline_plan` over that of equal work without a pause, `gib` beside
`gristmill.trainer.step.memory`, `off` how far losses are from the first way's. About 25 s a way on two H200s, by
guess.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from benchmarks.training.ranks import GIB, TINY, Bench, Way, _off
from benchmarks.training.speed import batches_on, seconds_each
from gristmill.trainer.model.packed import PackedTokens
from gristmill.trainer.model.quack import has_fused_linears
from gristmill.trainer.step.memory import memory_of
from gristmill.trainer.step.parallel import ALONE, join_ranks
from gristmill.trainer.step.pipeline_plan import SPLIT
from gristmill.trainer.step.stepper import Stepper

WAYS = "one,zero 2,zero 3,1f1b,interleaved,zb1p,zbv"
RATE = 0.02  # share of the peak: losses of a few updates stay near each other


class Pipelines(Bench):
    first_losses: list[float] | None = None
    of_one: float | None = None

    def measure(self) -> None:
        for name in self.args.ways.split(","):
            self.tried(name, lambda n=name: self._way(n), way=name)

    def _way(self, name: str) -> None:
        ranks = ALONE if name == "one" else self.ranks
        if name == "one" and not self.ranks.first:
            found: tuple[float, list[float]] | None = None
        else:
            found = self._measured(name, ranks)
        seconds, losses = self.ranks.gather(found)[0]
        speed = self.args.micros * self.tokens / seconds
        self.first_losses = self.first_losses or losses
        self.of_one = speed if name == "one" else self.of_one

    def _measured(self, name: str, ranks: Any) -> tuple[float, list[float]]:
        way = Way(recompute=self.args.recompute, compile=name not in SPLIT and self.device.type == "cuda")
        if name.startswith("zero"):
            way = replace(way, zero=int(name.split()[-1]))
        elif name != "one":
            way = replace(way, pipeline=ranks.count, schedule=name)
        if self.args.tiny:
            way, shape = replace(way, precision="float32"), replace(TINY, layers=4)
        else:
            shape = self._large_shape()
        stepper = self.stepper(shape, way, ranks)
        grid, micros = stepper.ranks, self.args.micros
        mine = range(grid.data.rank, micros, grid.data.count)
        batches = [_within(batch, shape.vocabulary) for batch in self._batches(mine)]
        counted = torch.tensor(sum(batch.counted for batch in batches), device=self.device)
        whole = grid.data.all_reduce(counted)
        steps = [(batch, number == len(batches)) for number, batch in enumerate(batches, 1)]
        losses: list[Tensor] = []
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

        def update() -> None:
            losses.append(stepper.accumulate(steps, whole) / whole)
            stepper.step(RATE)

        seconds, spread = seconds_each(update, self.device, warm=1, rounds=2, steps=1)
        if ranks.count > 1:
            seconds = self.largest(seconds)
        curve = [round(float(loss), 6) for loss in losses]
        predicted = self._predicted(stepper, way)
        peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0
        most = self.largest(peak) if ranks.count > 1 else peak
        plan, speed = stepper.plan, micros * self.tokens / seconds
        facts = {"blocks": [b - a for a, b in plan.layers], "predicted": _idle(stepper, micros)} if plan else {}
        self.say(
            "pipelines", way=name, gpus=ranks.count, micros=micros, tokens=self.tokens, tokens_per_second=round(speed),
            ratio=self.of_one and round(speed / self.of_one, 3), spread=round(spread, 3), gib=round(most / GIB, 2),
            predicted_gib=round(predicted / GIB, 2), losses=curve[:3], **facts,
            **({"off": _off(curve, self.first_losses)} if self.first_losses else {}),
        )  # fmt: skip
        return seconds, curve

    def _batches(self, numbers: range) -> list[PackedTokens]:
        return batches_on(self.device, self.tokens, self.row, self.mean, numbers)

    def _predicted(self, stepper: Stepper, way: Way) -> int:
        fused = has_fused_linears(self.device) and way.precision == "bf16"
        count = stepper.ranks.data.count
        return memory_of(
            stepper.model.shape, self.tokens, zero=way.zero, recompute=way.recompute, ranks=count,
            passes=self.args.micros // count, fused_linears=fused, plan=stepper.plan
        ).peak  # fmt: skip


def _within(batch: PackedTokens, vocabulary: int) -> PackedTokens:
    targets_T = torch.where(batch.targets_T < 0, batch.targets_T, batch.targets_T % vocabulary)
    return replace(batch, ids_T=batch.ids_T % vocabulary, targets_T=targets_T)


def _idle(stepper: Stepper, micros: int) -> float:
    plan = stepper.plan
    if plan is None:
        return 0.0
    return round(plan.time(micros) * plan.ranks / (3 * micros * sum(plan.work)), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=WAYS)
    parser.add_argument("--micros", type=int, default=16, help="micro-batches of an update")
    parser.add_argument("--tokens", type=int, default=32_768, help="of a micro-batch")
    parser.add_argument("--recompute", default="none", help="none, selective, full")
    parser.add_argument("--silence", type=float, default=180)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if args.tiny:
        torch.set_num_threads(1)
        args.micros = min(args.micros, 4)
    with join_ranks("cpu" if args.tiny else None, timedelta(seconds=args.silence)) as (ranks, device):
        bench = Pipelines(args, ranks, device)
        name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        bench.say("machine", device=name, torch=torch.__version__)
        bench.measure()
        bench.say("ended", seconds=round(time.perf_counter() - bench.began, 1))


if __name__ == "__main__":
    main()
