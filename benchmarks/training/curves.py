#!/usr/bin/env python3
"""Loss curves of every layout beside those of one GPU that repeats itself, and of runs that are stopped and go on in
another layout.

    torchrun --standalone --nproc-per-node 2 -m benchmarks.training.curves [--updates 300]
      [--only dense,sparse,switches,sparse_switches] [--ways "zero 1,1f1b"] [--shape 10m] [--seed 1] [--tiny]
      [--precision bf16] [--deterministic]

All train the same decoder (or mixture) in bf16 on the same drawn rows. One GPU repeats the run with the rows of an
update summed in other portions: how far two of these curves lie apart, at most and over their last tenth, is the
spread. `largest` and `last` say how far a layout lies from their mean, `within` that both are inside the spread;
`lasts` are the repeats' own. `--ways "zero 3,zero 3"` runs a layout twice. `nearest` is the largest distance in any
update to the closest repeat: 0 where both are the same to the last bit, which takes kernels that add in a fixed order
(on CPUs, or with --deterministic) and a layout that rounds nowhere else than one rank does.
`switches`: a run is stopped by SIGTERM after an update drawn by --seed and goes on in the next layout, twice;
`sparse_switches`: the same of the mixture.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from benchmarks.training.speed import decoder_on, say
from benchmarks.training.work import DrawnRows, reason, scratch, tidy
from gristmill.shards.loader import Loader
from gristmill.shards.orders import Shuffled
from gristmill.trainer.model.attention import fastest
from gristmill.trainer.model.shapes import DecoderShape, Mixture, shape_named
from gristmill.trainer.parallel.ranks import ALONE, RankGroup, join_ranks
from gristmill.trainer.run.loop import train
from gristmill.trainer.run.schedule import RateSchedule
from gristmill.trainer.run.settings import Training
from gristmill.trainer.run.stopping import Stopped
from gristmill.trainer.step.optim import AdamW
from gristmill.trainer.step.precision import usual_precision

ADAMW = AdamW(rate=6e-4, weight_decay=0.1, betas=(0.9, 0.95))
PORTIONS = (8, 16, 32, 4)  # rows of a pass, of one GPU that repeats itself
LAYOUTS: dict[str, dict[str, Any]] = {
    "zero 0": {},
    "zero 1": {"zero": 1},
    "zero 2": {"zero": 2},
    "zero 3": {"zero": 3},
    "tensor": {"tensor": 2},
    "context": {"context": 2},
    "1f1b": {"pipeline": 2, "pipeline_schedule": "1f1b"},
    "interleaved": {"pipeline": 2, "pipeline_schedule": "interleaved"},
    "zb1p": {"pipeline": 2, "pipeline_schedule": "zb1p"},
    "zbv": {"pipeline": 2, "pipeline_schedule": "zbv"},
}
MIXTURES: dict[str, dict[str, Any]] = {
    "mixture": {},
    "mixture experts": {"experts": 2},
    "mixture experts zero 1": {"experts": 2, "zero": 1},
}
SWITCHES = (
    ("zero 3", "context", "1f1b"),
    ("tensor", "zbv", "zero 1"),
    ("interleaved", "zero 2", "context"),
    ("zb1p", "zero 0", "tensor"),
)
SPARSE_SWITCHES = (
    ("mixture experts", "zero 3", "mixture experts zero 1"),
    ("context", "mixture experts", "zero 1"),
)


class Curves:
    def __init__(self, args: argparse.Namespace, ranks: RankGroup, device: torch.device) -> None:
        self.args, self.ranks, self.device = args, ranks, device
        self.row, self.vocabulary = (64, 512) if args.tiny else (1024, 16_384)
        shape = shape_named("1m" if args.tiny else args.shape, self.vocabulary, context=self.row)
        self.shape = replace(shape, layers=4, kv_heads=max(2, shape.kv_heads))
        experts = Mixture(8, 2, self.shape.mlp // 2, "sigmoid")
        self.mixture = replace(self.shape, experts=experts)
        self.rows: Any = DrawnRows(args.updates * args.rows, self.row, self.vocabulary)
        self.alone: dict[bool, list[list[float]]] = {}  # curves of one GPU, dense and sparse
        self.mean: dict[bool, list[float]] = {}
        self.spread: dict[bool, tuple[float, float]] = {}

    def say(self, what: str, **facts: Any) -> None:
        if self.ranks.first:
            say(what, **facts)

    def go(
        self, shape: DecoderShape, folder: Path, ranks: RankGroup, stop: int | None = None, **layout: Any
    ) -> list[float]:
        """Losses so far; `stop`: after so many updates a signal comes."""
        training = Training(
            self.args.updates, self.args.rows, **{"rows_per_step": 8, **layout}, optimizer=ADAMW,
            schedule=RateSchedule(), checkpoint_every=None, metrics_every=1, compile=False,
            precision=self.args.precision or usual_precision(self.device), deterministic=self.args.deterministic,
        )  # fmt: skip
        reader, readers = training.reader(ranks.rank, ranks.count)
        loader = Loader(self.rows, training.rows_per_update, Shuffled(), seed=1, rank=reader, world=readers)
        model = decoder_on(self.device, shape, fastest(self.device))

        def told(line: Any) -> None:
            if stop is not None and line.get("step") == stop:
                os.kill(os.getpid(), signal.SIGTERM)

        with suppress(*(Stopped,) if stop else ()):
            train(model, loader, training, folder, device=self.device, ranks=ranks, save_model=False, told=told)
        lines = (folder / "metrics.jsonl").read_text().splitlines() if ranks.first else []
        return [json.loads(line)["loss"] for line in lines if '"loss"' in line]

    def repeats(self, shape: DecoderShape) -> None:
        """Each rank by itself, at the same time; then how far apart they are."""
        portions = [PORTIONS[n % len(PORTIONS)] for n in range(self.args.repeats)]
        mine = portions[self.ranks.rank :: self.ranks.count]
        with scratch() as own:
            curves = [self.go(shape, Path(own) / str(n), ALONE, rows_per_step=rows) for n, rows in enumerate(mine)]
        found = self.ranks.gather(curves)
        curves = [found[n % self.ranks.count][n // self.ranks.count] for n in range(len(portions))]
        sparse = shape.experts is not None
        self.alone[sparse] = curves
        self.mean[sparse] = [statistics.mean(losses) for losses in zip(*curves, strict=True)]
        apart = [beside(a, b) for n, a in enumerate(curves) for b in curves[:n]]
        self.spread[sparse] = max(largest for largest, _ in apart), max(last for _, last in apart)
        self.say(
            "one GPU", sparse=sparse, repeats=len(curves), updates=len(curves[0]), first=curves[0][0],
            last=round(tail(self.mean[sparse]), 7), largest=float(f"{self.spread[sparse][0]:.3g}"),
            spread_of_last=float(f"{self.spread[sparse][1]:.3g}"),
            lasts=[float(f"{tail(curve) - tail(self.mean[sparse]):.3g}") for curve in curves],
        )  # fmt: skip

    def compare(self, name: str, curve: list[float], sparse: bool, seconds: float) -> None:
        if not self.ranks.first:
            return
        mean, most = self.mean[sparse], self.spread[sparse]
        (largest, _), last = beside(curve, mean), tail(curve) - tail(mean)
        self.say(
            "curve", way=name, updates=len(curve), loss=round(tail(curve), 7), largest=float(f"{largest:.3g}"),
            last=float(f"{last:.3g}"), within=bool(largest <= most[0] and abs(last) <= most[1]),
            nearest=float(f"{min(beside(curve, each)[0] for each in self.alone[sparse]):.3g}"),
            seconds=round(seconds, 1),
        )  # fmt: skip

    def tried(self, name: str, job: Callable[[], list[float]], sparse: bool = False) -> None:
        problem, curve, began = None, [], time.perf_counter()
        try:
            curve = job()
        except Exception as error:
            problem = reason(error)
        tidy(self.device)
        if problems := [said for said in self.ranks.gather(problem) if said]:
            self.say("curve", way=name, failed=problems[0])
        else:
            self.compare(name, curve, sparse, time.perf_counter() - began)

    def dense(self) -> None:
        self.layouts(self.shape, LAYOUTS)

    def sparse(self) -> None:
        self.layouts(self.mixture, MIXTURES)

    def layouts(self, shape: DecoderShape, ways: dict[str, dict[str, Any]]) -> None:
        sparse = shape.experts is not None
        if sparse not in self.mean:
            self.repeats(shape)
        chosen = self.args.ways.split(",") if self.args.ways else list(ways)
        for name in chosen:
            if name in ways:
                with self.folder() as folder:
                    self.tried(name, lambda f=folder, w=ways[name]: self.go(shape, f, self.ranks, **w), sparse)

    def switches(self) -> None:
        self.chains(self.shape, SWITCHES)

    def sparse_switches(self) -> None:
        self.chains(self.mixture, SPARSE_SWITCHES)

    def chains(self, shape: DecoderShape, chains: tuple[tuple[str, ...], ...]) -> None:
        sparse = shape.experts is not None
        if sparse not in self.mean:
            self.repeats(shape)
        drawn = random.Random(self.args.seed)
        for ways in chains:
            stops = sorted(drawn.sample(range(1, self.args.updates), len(ways) - 1))
            name = ways[0] + "".join(f", after {stop} {way}" for stop, way in zip(stops, ways[1:], strict=True))
            with self.folder() as folder:
                self.tried(name, lambda f=folder, w=ways, s=stops: self.switched(shape, f, w, s), sparse)

    def switched(self, shape: DecoderShape, folder: Path, ways: tuple[str, ...], stops: list[int]) -> list[float]:
        curve: list[float] = []
        for stop, name in zip((*stops, None), ways, strict=True):
            curve = self.go(shape, folder, self.ranks, stop, **{**LAYOUTS, **MIXTURES}[name])
        return curve

    def folder(self) -> Any:
        return _Shared(self.ranks)


class _Shared:
    """A scratch folder of all ranks."""

    def __init__(self, ranks: RankGroup) -> None:
        self.ranks, self.own = ranks, scratch() if ranks.first else None

    def __enter__(self) -> Path:
        return Path(str(self.ranks.gather(self.own.name if self.own else None)[0])) / "run"

    def __exit__(self, *_: object) -> None:
        self.ranks.gather(None)
        if self.own:
            self.own.cleanup()


def tail(curve: list[float]) -> float:
    return statistics.mean(curve[-max(1, len(curve) // 10) :])


def beside(one: list[float], other: list[float]) -> tuple[float, float]:
    """How far apart two curves are: at most in any update, and over their last tenth."""
    if len(one) != len(other):
        raise ValueError(f"{len(one)} updates beside {len(other)}")
    return max(abs(a - b) for a, b in zip(one, other, strict=True)), abs(tail(one) - tail(other))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="dense,sparse,switches,sparse_switches")
    parser.add_argument("--ways", help="of dense and sparse, by commas; all")
    parser.add_argument("--updates", type=int)
    parser.add_argument("--rows", type=int, default=32, help="of an update")
    parser.add_argument("--repeats", type=int, help="of one GPU; 12")
    parser.add_argument("--seed", type=int, default=1, help="of the updates after which switches stop")
    parser.add_argument("--shape", default="10m")
    parser.add_argument("--precision", choices=["float32", "bf16"], help="default: bf16 on CUDA, float32 on CPUs")
    parser.add_argument("--deterministic", action="store_true", help="kernels that add in a fixed order alone")
    parser.add_argument("--silence", type=float, default=180)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    args.updates = args.updates or (10 if args.tiny else 300)
    args.repeats = args.repeats or (2 if args.tiny else 12)
    if args.tiny:
        torch.set_num_threads(1)
    with join_ranks("cpu" if args.tiny else None, timedelta(seconds=args.silence)) as (ranks, device):
        bench = Curves(args, ranks, device)
        bench.say("machine", device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu")
        for name in args.only.split(","):
            getattr(bench, name)()
        bench.say("ended")


if __name__ == "__main__":
    main()
