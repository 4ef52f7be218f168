#!/usr/bin/env python3
"""Training over several GPUs: does every layout do what one GPU does, how much faster is it, and does memory go as
predicted.

    torchrun --standalone --nproc-per-node 2 -m benchmarks.training.ranks [--only smoke,scaling,memory,context]
      [--zero 0,1,2] [--ways none/0,full/3] [--tokens 32768] [--long 65536] [--tiny]

On two H200s: smoke about 80 s, scaling about 150 s, memory about 200 s (--seconds ends it earlier: ways that come too
late are named and left out). Smoke: losses of a small decoder in each layout beside those of one rank over the same
documents, in float32 too, and a checkpoint of zero 3 that one rank goes on from. Scaling: the shape 1.3b in bf16,
compiled, packed rows of 4,096, the same tokens a rank; one GPU is measured in the same run, the others waiting.
Context: rows of --long tokens, each shared by all ranks, of one document and of many, beside one GPU. Memory: the most
that was allocated in the second and third update beside `gristmill.trainer.parallel.memory`. Without torchrun, memory alone
makes sense. A rank that fails alone ends the run after --silence seconds.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.training.speed import VOCABULARY, batches_on, decoder_on, documents, say, seconds_each
from benchmarks.training.work import reason, scratch, tidy
from gristmill.trainer.model.attention import fastest
from gristmill.trainer.model.matmuls import has_fused_linears
from gristmill.trainer.model.packed import PackedTokens, pack_documents
from gristmill.trainer.model.shapes import DecoderShape, Mixture, shape_named
from gristmill.trainer.parallel.memory import memory_of
from gristmill.trainer.parallel.ranks import ALONE, RankGroup, join_ranks
from gristmill.trainer.parallel.spread import SpreadStepper, spread
from gristmill.trainer.run.settings import Training
from gristmill.trainer.step import checkpoint
from gristmill.trainer.step.optim import AdamW

GIB = 2**30
ADAMW = AdamW(rate=1e-3, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-4)  # rounding does not become a direction
TINY = DecoderShape(512, 64, 2, 4, 2, 128, context=64, tied=True)
WAYS = "none/0,none/1,none/2,none/3,selective/0,full/0,selective/3,full/3,selective/1,full/1,selective/2,full/2"
SMOKE_UPDATES = 6
MEANS = {"one document": 1e9, "documents of 16,000": 16e3, "documents of 900": 900.0}


@dataclass(frozen=True)
class Way:
    zero: int = 0
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    schedule: Any = "1f1b"
    experts: int = 1
    offload: bool = False
    precision: Any = "bf16"
    recompute: Any = "none"
    compile: bool = False

    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value != getattr(Way, name)} or {"zero": 0}


class Bench:
    def __init__(self, args: argparse.Namespace, ranks: RankGroup, device: torch.device) -> None:
        self.args, self.ranks, self.device = args, ranks, device
        self.row, self.tokens, self.mean = (64, 256, 21) if args.tiny else (4096, args.tokens, 900)
        self.began = time.perf_counter()

    def say(self, what: str, **facts: Any) -> None:
        if self.ranks.first:
            say(what, ranks=self.ranks.count, **facts)

    def largest(self, number: float) -> float:
        return float(max(self.ranks.gather(number)))

    def stepper(self, shape: DecoderShape, way: Way, ranks: RankGroup, seed: int = 0) -> SpreadStepper:
        model = decoder_on(self.device, shape, fastest(self.device), seed)
        training = Training(
            1, 64 * ranks.count, optimizer=ADAMW, precision=way.precision, zero=way.zero, tensor=way.tensor,
            context=way.context, pipeline=way.pipeline, pipeline_schedule=way.schedule if way.pipeline > 1 else None,
            experts=way.experts, offload=way.offload, recompute=way.recompute, compile=way.compile,
        )  # fmt: skip
        return spread(model, training, ranks, self.device)

    def tried(self, what: str, job: Any, **facts: Any) -> None:
        """What fails on every rank fails alone."""
        problem = None
        try:
            job()
        except Exception as error:
            problem = reason(error)
        tidy(self.device)
        if problems := [said for said in self.ranks.gather(problem) if said]:
            self.say(what, **facts, failed=problems[0])

    def begins(self, section: str, seconds: int) -> None:
        self.say("begins", section=section, expected_seconds=seconds, after=round(time.perf_counter() - self.began, 1))

    # Smoke

    def smoke(self) -> None:
        self.begins("smoke", 80)
        shape = replace(TINY, layers=4) if self.args.tiny else shape_named("10m", 4096, context=2048)
        alone: dict[str, Any] = {}
        for precision in ("float32", "bf16", "fp16"):
            found: dict[str, list[float]] = {}
            self.tried(
                "smoke", lambda p=precision, f=found: f.update(self._alone(shape, p)), alone=True, precision=precision
            )
            alone[precision] = self.ranks.gather(found)[0]
        ways = [Way(zero=zero) for zero in (0, 1, 2, 3)] + [
            Way(tensor=2),
            Way(context=2),
            Way(offload=True),
            Way(zero=3, offload=True),
            Way(precision="fp16"),
        ]
        exact = [{"zero": zero} for zero in (0, 1, 2, 3)] + [
            {"tensor": 2},
            {"zero": 2, "offload": True},
            {"zero": 1, "tensor": 2},
            {"zero": 3, "recompute": "full"},
            {"context": 2},
            {"context": 2, "zero": 3},
            {"pipeline": 2},
            *({"pipeline": 2, "schedule": schedule} for schedule in ("interleaved", "zb1p", "zbv")),
        ]
        ways += [
            Way(precision="float32", **layout) for layout in exact
        ]  # bf16's roundings grow with every update, these do not
        for way in [*ways, Way(zero=3, precision="fp16"), Way(zero=1, tensor=2), Way(zero=2, recompute="full")]:
            if self.ranks.count % (way.tensor * way.context * way.pipeline) == 0:
                self.tried("smoke", lambda w=way: self._beside(shape, w, alone[w.precision]), way=way.facts())
        self.tried("saved under zero 3, loaded alone", lambda: self._saved(shape))
        sparse = replace(shape, experts=Mixture(8, 2, shape.mlp // 2, "sigmoid"))
        found = {}
        self.tried("smoke", lambda: found.update(self._alone(sparse, "float32")), alone=True, mixture=True)
        beside = self.ranks.gather(found)[0]
        for way in (Way(precision="float32", experts=experts, zero=zero) for experts in (1, 2) for zero in (0, 1)):
            self.tried("smoke", lambda w=way: self._beside(sparse, w, beside), way=way.facts(), mixture=True)

    def _alone(self, shape: DecoderShape, precision: str) -> dict[str, list[float]]:
        if not self.ranks.first:
            return {}
        losses, norms = self._curve(self.stepper(shape, Way(precision=precision), ALONE), shape, range(SMOKE_UPDATES))
        facts = {"alone": True, "precision": precision, "mixture": shape.experts is not None}
        self.say("smoke", **facts, losses=losses, norms=norms)
        return {"losses": losses, "norms": norms}

    def _beside(self, shape: DecoderShape, way: Way, alone: dict[str, list[float]]) -> None:
        losses, norms = self._curve(self.stepper(shape, way, self.ranks), shape, range(SMOKE_UPDATES))
        self.say(
            "smoke",
            way=way.facts(),
            mixture=shape.experts is not None,
            losses=losses,
            off=_off(losses, alone["losses"]),
            norms_off=_off(norms, alone["norms"]),
        )

    def _curve(self, stepper: SpreadStepper, shape: DecoderShape, updates: range) -> tuple[list[float], list[float]]:
        losses, norms = [], []
        for update in updates:
            pieces = self._pieces(update, shape.vocabulary)
            counted = sum(piece.counted for piece in pieces)
            grid = stepper.ranks
            mine = list(pieces[grid.data.rank // grid.context.count :: grid.readers])
            parts = [stepper.part_of(piece).to(self.device) for piece in mine]
            steps = [(part, number == len(parts)) for number, part in enumerate(parts, 1)]
            total = stepper.accumulate(steps, torch.tensor(counted, device=self.device))
            norm = stepper.step(1.0)
            losses.append(round(float(total) / counted, 6))
            norms.append(round(float(norm), 6))
        return losses, norms

    def _pieces(self, update: int, vocabulary: int) -> list[PackedTokens]:
        """Unequal ones, of all ranks together; the same tokens come often, so that there is something to learn."""
        random = np.random.default_rng(update)
        longest = 24 if self.args.tiny else 700
        return [
            pack_documents(
                [
                    (vocabulary * random.random(random.integers(2, longest)) ** 3).astype(int).tolist()
                    for _ in range(2 + piece % 3)
                ]
            )
            for piece in range(2 * self.ranks.count)
        ]

    def _saved(self, shape: DecoderShape) -> None:
        with scratch() as own:
            folder = Path(self.ranks.gather(own)[0])
            stepper = self.stepper(shape, Way(zero=3), self.ranks)
            self._curve(stepper, shape, range(3))
            stepper.save(folder, 3, {})
            went_on, _ = self._curve(stepper, shape, range(3, 6))
            if self.ranks.first:
                loaded = self.stepper(shape, Way(), ALONE, seed=9)
                loaded.load(checkpoint.steps(folder)[-1])
                losses, _ = self._curve(loaded, shape, range(3, 6))
                self.say("saved under zero 3, loaded alone", losses=losses, went_on=went_on, off=_off(losses, went_on))

    # Scaling

    def scaling(self) -> None:
        self.begins("scaling", 150)
        alone: list[float] = []
        self.tried(
            "scaling",
            lambda: alone.append(self._speed(Way(compile=True), ALONE)) if self.ranks.first else None,
            alone=True,
        )
        one = self.ranks.gather(alone[0] if alone else None)[0]
        for zero in [int(number) for number in self.args.zero.split(",")]:
            self.tried("scaling", lambda z=zero: self._speed(Way(zero=z, compile=True), self.ranks, one), zero=zero)

    def _speed(self, way: Way, ranks: RankGroup, one: float | None = None) -> float:
        _, updates = self._large(way, ranks)
        median, spread = seconds_each(lambda: next(updates), self.device, warm=4, rounds=4, steps=4)
        if ranks.count > 1:
            median = self.largest(median)
        speed = ranks.count * self.tokens / median
        memory = round(torch.cuda.max_memory_allocated() / GIB, 1) if self.device.type == "cuda" else None
        self.say(
            "scaling", gpus=ranks.count, zero=way.zero, tokens_a_rank=self.tokens, tokens_per_second=round(speed),
            milliseconds=round(1e3 * median, 1),
            spread=round(spread, 3), gib=memory, ratio=one and round(speed / one, 3),
        )  # fmt: skip
        return speed

    def _large(self, way: Way, ranks: RankGroup) -> tuple[SpreadStepper, Any]:
        """And an endless row of its updates."""
        way = Way(**{**vars(way), "compile": way.compile and self.device.type == "cuda"})
        stepper = self.stepper(self._large_shape(), way, ranks)
        batches = batches_on(self.device, self.tokens, self.row, self.mean, range(4 * ranks.rank, 4 * ranks.rank + 4))
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

        def update(batch: PackedTokens) -> None:
            stepper.backward(stepper.loss(batch) / (batch.counted * ranks.count), last=True)
            stepper.step(0.1)

        return stepper, (update(batch) for batch in itertools.cycle(batches))

    def _large_shape(self) -> DecoderShape:
        return (
            replace(TINY, vocabulary=VOCABULARY)
            if self.args.tiny
            else shape_named("1.3b", VOCABULARY, context=self.row)
        )

    # Context

    def context(self) -> None:
        """One row an update, which one GPU holds and all ranks share."""
        self.begins("context", 120)
        row = 1024 if self.args.tiny else self.args.long
        for recompute in self.args.context.split(","):
            for name, mean in MEANS.items():
                if str(int(mean)) not in self.args.means.split(","):
                    continue
                alone: list[float] = []
                way = Way(recompute=recompute, compile=not self.args.eager)
                one = replace(way)
                self.tried(
                    "context",
                    lambda m=mean, w=one, a=alone: a.append(self._shared(w, ALONE, row, m)) if self.ranks.first else None,
                    documents=name, recompute=recompute, alone=True,
                )  # fmt: skip
                of_one = self.ranks.gather(alone[0] if alone else None)[0]
                together = replace(way, context=self.ranks.count)
                self.tried(
                    "context", lambda m=mean, w=together, o=of_one: self._shared(w, self.ranks, row, m, o),
                    documents=name, recompute=recompute,
                )  # fmt: skip

    def _shared(self, way: Way, ranks: RankGroup, row: int, mean: float, one: float | None = None) -> float:
        way = replace(way, compile=way.compile and self.device.type == "cuda")
        shape = replace(self._large_shape(), context=row)
        stepper = self.stepper(shape, way, ranks)
        lines = [documents(row, row, mean, seed) for seed in range(4)]
        parts = [stepper.part_of(line).to(self.device) for line in lines]
        for part in parts:
            for cuts in part.all_cuts():
                torch._dynamo.maybe_mark_dynamic(cuts, 0)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

        def update(part: PackedTokens, line: PackedTokens) -> None:
            stepper.backward(stepper.loss(part) / line.counted, last=True)
            stepper.step(0.1)

        updates = (update(part, line) for part, line in itertools.cycle(zip(parts, lines, strict=True)))
        median, spread = seconds_each(lambda: next(updates), self.device, warm=4, rounds=2, steps=4)
        if ranks.count > 1:
            median = self.largest(median)
        speed = row / median
        memory = round(torch.cuda.max_memory_allocated() / GIB, 1) if self.device.type == "cuda" else None
        self.say(
            "context", gpus=ranks.count, row=row, mean=mean, recompute=way.recompute, tokens_per_second=round(speed),
            spread=round(spread, 3), gib=memory, shared=[part.beside.tokens if part.beside else 0 for part in parts],
            ratio=one and round(speed / one, 3),
        )  # fmt: skip
        return speed

    # Memory

    def memory(self) -> None:
        self.begins("memory", 200)
        began = time.perf_counter()
        late = []
        for entry in self.args.ways.split(","):
            recompute, zero = entry.split("/")
            if int(zero) and self.ranks.count == 1:
                continue
            if self.largest(time.perf_counter() - began) > self.args.seconds:
                late.append(entry)
                continue
            way = Way(zero=int(zero), recompute=recompute, compile=not self.args.eager)
            self.tried("memory", lambda w=way: self._memory(w), way=entry)
        if late:
            self.say("memory", left_out=late, failed=f"not begun within {self.args.seconds} s")

    def _memory(self, way: Way) -> None:
        began = time.perf_counter()
        left_over = tidy(self.device)
        stepper, updates = self._large(way, self.ranks)
        next(updates)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        next(updates)
        next(updates)
        predicted = memory_of(
            stepper.model.shape, Training(1, 1, zero=way.zero, recompute=way.recompute), self.tokens, self.ranks.count,
            fused_linears=has_fused_linears(self.device)
        )  # fmt: skip
        measured = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0
        most = self.largest(measured)
        self.say(
            "memory", zero=way.zero, recompute=way.recompute, tokens=self.tokens, measured_gib=round(most / GIB, 2),
            predicted_gib=round(predicted.peak / GIB, 2),
            ratio=round(most / predicted.peak, 3),
            parts={name: round(number / GIB, 2) for name, number in vars(predicted).items()},
            left_over_gib=round(left_over / GIB, 2), seconds=round(time.perf_counter() - began, 1),
        )  # fmt: skip


def _off(ours: list[float], theirs: list[float]) -> float:
    """The largest relative difference."""
    return float(
        f"{max(0.0 if our == their else abs(our / their - 1) for our, their in zip(ours, theirs, strict=True)):.2e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="smoke,scaling,memory")
    parser.add_argument("--zero", default="0,1,2", help="stages of scaling")
    parser.add_argument("--ways", default=WAYS, help="of memory: recompute/zero, those first that matter most")
    parser.add_argument("--seconds", type=float, default=240, help="after which memory begins no other way")
    parser.add_argument("--tokens", type=int, default=32_768, help="a rank and update, of scaling and memory")
    parser.add_argument("--long", type=int, default=65_536, help="tokens of a row, of context")
    parser.add_argument("--context", default="none", help="of context: recompute none, selective, full")
    parser.add_argument("--means", default="1000000000,16000,900", help="of context: mean lengths of documents")
    parser.add_argument("--eager", action="store_true", help="memory without torch.compile")
    parser.add_argument("--silence", type=float, default=180)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if args.tiny:
        torch.set_num_threads(1)
    with join_ranks("cpu" if args.tiny else None, timedelta(seconds=args.silence)) as (ranks, device):
        bench = Bench(args, ranks, device)
        bench.say(
            "machine", device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu", torch=torch.__version__
        )
        sections = {"smoke": bench.smoke, "scaling": bench.scaling, "memory": bench.memory, "context": bench.context}
        for name in args.only.split(","):
            sections[name]()
        bench.say("ended", seconds=round(time.perf_counter() - bench.began, 1))


if __name__ == "__main__":
    main()
