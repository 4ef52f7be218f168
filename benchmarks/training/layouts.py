#!/usr/bin/env python3
"""Layouts of a model over GPUs beside one GPU, at equal tokens an update and in the same run: speed, memory beside the
prediction, losses.

    torchrun --standalone --nproc-per-node 2 -m benchmarks.training.layouts [--ways "one,zero 2,zero 3,1f1b"]
      [--shape 1.3b] [--row 4096] [--micros 16] [--tokens 32768] [--rounds 2] [--updates 0] [--tiny]

A way is one or more of these, joined by +: `one` (one GPU, the others wait), `auto` (as `parallel: auto` chooses),
`zero N`, `tensor N`, `context N`, `experts N`, a schedule of pipelines (`1f1b`, `interleaved`, `zb1p`, `zbv`; `1f1b 2`
where there are more ranks than parts), `selective` or `full` (recompute), `fp8`. Without N: all ranks. An update is
--micros passes of --tokens in packed rows of --row. `of_one` is the speed over that of `one`; `efficiency` that by GPU;
`off` is how far losses are from the first way's; with --updates, `loss` is that after so many. On more cards, the same
command with another --nproc-per-node. Two H100s: about 25 s a way of 1.3b with 16 passes of 16,384 tokens.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from benchmarks.training.ranks import ADAMW, GIB, TINY, _off
from benchmarks.training.speed import VOCABULARY, batches_on, decoder_on, say, seconds_each
from benchmarks.training.work import reason, tidy
from gristmill.trainer.model.attention import fastest
from gristmill.trainer.model.matmuls import has_fused_linears
from gristmill.trainer.model.packed import PackedTokens
from gristmill.trainer.model.shapes import shape_named
from gristmill.trainer.parallel.memory import rank_memory
from gristmill.trainer.parallel.planner import Task, cards_from, choose
from gristmill.trainer.parallel.ranks import ALONE, RankGroup, join_ranks
from gristmill.trainer.parallel.spread import over
from gristmill.trainer.run.settings import SCHEDULES, Training
from gristmill.trainer.step.stepper import Stepper

WAYS = "one,zero 2,zero 3,1f1b,interleaved,zb1p,zbv"
RATE = 0.02  # share of the peak: losses of a few updates stay near each other
FIELDS = ("zero", "tensor", "context", "experts")


class Layouts:
    first_losses: list[float] | None = None
    of_one: float | None = None

    def __init__(self, args: argparse.Namespace, ranks: RankGroup, device: torch.device) -> None:
        self.args, self.ranks, self.device = args, ranks, device
        self.cuda = device.type == "cuda"
        self.cards = cards_from({}, ranks.count)
        shape = replace(TINY, layers=4) if args.tiny else shape_named(args.shape, VOCABULARY, context=args.row)
        self.shape = replace(shape, vocabulary=VOCABULARY) if not args.tiny else shape
        self.training = Training(
            args.updates or 1, args.micros * args.tokens // args.row, args.tokens // args.row, optimizer=ADAMW,
            checkpoint_every=None, precision="bf16" if self.cuda else "float32", compile=None if self.cuda else False,
        )  # fmt: skip

    def measure(self) -> None:
        for way in self.args.ways.split(","):
            problem, found = None, None
            alone = way.split("+")[0] == "one"
            try:
                found = self.way(way, ALONE if alone else self.ranks) if not alone or self.ranks.first else None
            except Exception as error:  # what fails on every rank fails alone
                problem = reason(error)
            tidy(self.device)
            if problems := [said for said in self.ranks.gather(problem) if said]:
                self.say("layouts", way=way, failed=problems[0])
                continue
            speed, losses = self.ranks.gather(found)[0]
            self.first_losses = self.first_losses or losses
            self.of_one = speed if alone else self.of_one

    def laid_out(self, way: str, ranks: RankGroup) -> Training:
        if way == "auto":
            fused = self.fused(self.training)
            return choose(Task(self.shape, self.training, self.cards, self.args.row, fused_linears=fused)).training
        settings: dict[str, Any] = {}
        for part in way.split("+"):
            word, _, number = part.strip().partition(" ")
            if word == "one":
                continue
            if word in FIELDS:
                settings[word] = int(number or ranks.count)
            elif word in SCHEDULES:
                settings |= {"pipeline": int(number or ranks.count), "pipeline_schedule": word}
            elif word == "fp8":
                settings["linears"] = word
            else:
                settings["recompute"] = word
        step = (self.training.rows_per_step or 1) * settings.get("context", 1)  # rows that these ranks share
        return replace(self.training, **settings, rows_per_step=step)

    def fused(self, training: Training) -> bool:
        return has_fused_linears(self.device) and training.precision == "bf16" and training.linears == "bf16"

    def way(self, way: str, ranks: RankGroup) -> tuple[float, list[float]]:
        args, training = self.args, self.laid_out(way, ranks)
        stepper = over(ranks).stepper(decoder_on(self.device, self.shape, fastest(self.device)), training, self.device)
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        steps, whole = self.passes(stepper, training, ranks)
        losses: list[Tensor] = []

        def update() -> None:
            losses.append(stepper.accumulate(steps, whole) / whole)
            stepper.step(RATE)

        seconds, spread = seconds_each(update, self.device, warm=1, rounds=args.rounds, steps=1)
        while len(losses) < args.updates:
            update()
        peak = torch.cuda.max_memory_allocated() if self.cuda else 0
        if ranks.count > 1:
            seconds, peak = max(ranks.gather(seconds)), max(ranks.gather(peak))
        curve = [round(float(loss), 6) for loss in losses]
        predicted = rank_memory(
            self.shape, training, ranks.count, args.row, training.rows_per_step or 1, fused_linears=self.fused(training)
        ).peak
        plan, speed = getattr(stepper.model, "plan", None), args.micros * args.tokens / seconds
        of_one = self.of_one and speed / self.of_one
        facts: dict[str, Any] = {}
        if plan:
            facts = {"blocks": [b - a for a, b in plan.layers]}
        if way == "auto":
            names = ("pipeline", "experts", "tensor", "context", "recompute", "zero", "rows_per_step")
            facts |= {name: getattr(training, name) for name in names}
        self.say(
            "layouts", way=way, gpus=ranks.count, shape=args.shape, row=args.row, passes=len(steps),
            tokens_per_second=round(speed), spread=round(spread, 3),
            of_one=of_one and round(of_one, 3), efficiency=of_one and round(of_one / ranks.count, 3), gib=round(peak / GIB, 2),
            predicted_gib=round(predicted / GIB, 2), losses=curve[:3], **facts,
            **({"off": _off(curve, self.first_losses)} if self.first_losses else {}),
            **({"loss": curve[-1]} if args.updates else {}),
        )  # fmt: skip
        return speed, curve

    def passes(
        self, stepper: Stepper, training: Training, ranks: RankGroup
    ) -> tuple[list[tuple[PackedTokens, bool]], Tensor]:
        """This rank's of an update, and the tokens of all: the same documents in every layout."""
        args, (reader, readers) = self.args, training.reader(ranks.rank, ranks.count)
        of_pass = (training.rows_per_step or 1) * args.row // args.tokens or 1
        whole = torch.tensor(sum(piece.counted for piece in self.pieces), device=self.device)
        mine = self.pieces[reader * args.micros // readers : (reader + 1) * args.micros // readers]
        joined = [_joined(mine[at : at + of_pass]) for at in range(0, len(mine), of_pass)]
        parts = [stepper.part_of(each).to(self.device) for each in joined]
        for part in parts if self.cuda else ():
            for cuts in part.all_cuts():
                torch._dynamo.maybe_mark_dynamic(cuts, 0)
        return [(part, number == len(parts)) for number, part in enumerate(parts, 1)], whole

    @cached_property
    def pieces(self) -> list[PackedTokens]:
        args = self.args
        batches = batches_on(torch.device("cpu"), args.tokens, args.row, args.mean, range(args.micros))
        return [_within(batch, self.shape.vocabulary) for batch in batches]

    def say(self, what: str, **facts: Any) -> None:
        if self.ranks.first:
            say(what, **facts)


def _within(batch: PackedTokens, vocabulary: int) -> PackedTokens:
    targets_T = torch.where(batch.targets_T < 0, batch.targets_T, batch.targets_T % vocabulary)
    return replace(batch, ids_T=batch.ids_T % vocabulary, targets_T=targets_T)


def _joined(batches: list[PackedTokens]) -> PackedTokens:
    """In one pass, as rows that ranks of a context share are."""
    if len(batches) == 1:
        return batches[0]
    ends, cuts = 0, []
    for batch in batches:
        cuts.append(batch.cuts[:-1] + ends)
        ends += int(batch.cuts[-1])
    last = torch.tensor([ends], dtype=batches[0].cuts.dtype, device=batches[0].cuts.device)
    return replace(
        batches[0],
        ids_T=torch.cat([batch.ids_T for batch in batches]),
        positions_T=torch.cat([batch.positions_T for batch in batches]),
        targets_T=torch.cat([batch.targets_T for batch in batches]),
        cuts=torch.cat([*cuts, last]),
        longest=max(batch.longest for batch in batches),
        counted=sum(batch.counted for batch in batches),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=WAYS)
    parser.add_argument("--shape", default="1.3b")
    parser.add_argument("--row", type=int, default=4096)
    parser.add_argument("--mean", type=float, default=900, help="length of documents")
    parser.add_argument("--micros", type=int, default=16, help="passes of an update, on one GPU")
    parser.add_argument("--tokens", type=int, default=32_768, help="of a pass")
    parser.add_argument("--rounds", type=int, default=2, help="updates that are timed, after one")
    parser.add_argument("--updates", type=int, default=0, help="after which a loss is told")
    parser.add_argument("--silence", type=float, default=180)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if args.tiny:
        torch.set_num_threads(1)
        args.row, args.tokens, args.micros, args.mean = 64, 256, 4, 21
    with join_ranks("cpu" if args.tiny else None, timedelta(seconds=args.silence)) as (ranks, device):
        bench, began = Layouts(args, ranks, device), time.perf_counter()
        name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        bench.say("machine", device=name, torch=torch.__version__)
        bench.measure()
        bench.say("ended", seconds=round(time.perf_counter() - began, 1))


if __name__ == "__main__":
    main()
