#!/usr/bin/env python3
"""Losses, gradient norms and weights of twenty updates in every layout, precision, recomputation, optimizer and
schedule of the learning rate: recorded before the trainer is rewritten, compared afterwards.

    python -m benchmarks.training.locked_losses take FILE [--only WORDS] [--updates 20]
    python -m benchmarks.training.locked_losses hold FILE [--only WORDS]

benchmarks/training/locked_losses.json is such a file.

Small decoders in float32, bf16, fp16 and fp8 on the CPU, through `train`; several ranks exchange over gloo. On the
machine that wrote FILE, with the same torch, all must be equal to the last bit; elsewhere the script says how far the
losses are apart. fp8 on a CPU multiplies the rounded numbers in float32: it locks scales and rounding, not the matmul.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import socket
import sys
import tempfile
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from benchmarks.training.work import DrawnRows, reason
from gristmill.shards.loader import Loader
from gristmill.shards.orders import Shuffled
from gristmill.trainer.model.model import Decoder, initialise
from gristmill.trainer.model.shapes import DecoderShape, Mixture
from gristmill.trainer.parallel.ranks import join_ranks
from gristmill.trainer.parallel.spread import over
from gristmill.trainer.run.loop import train
from gristmill.trainer.run.schedule import RateSchedule
from gristmill.trainer.run.settings import Training
from gristmill.trainer.step.muon import Muon
from gristmill.trainer.step.optim import AdamW

ROW, VOCABULARY, ROWS = 64, 96, 8  # ROWS: of an update
DENSE = DecoderShape(VOCABULARY, 32, 4, 4, 2, 48, context=ROW, tied=True)
UNTIED = DecoderShape(VOCABULARY, 32, 5, 4, 2, 48, context=ROW, windows=(16, 0))
THREE_HEADS = DecoderShape(VOCABULARY, 24, 2, 3, 3, 40, context=ROW)
SIGMOID = replace(UNTIED, windows=(), qk_norm="head", experts=Mixture(4, 2, 24, "sigmoid", shared=1, dense=(0,)))
SOFTMAX = replace(DENSE, experts=Mixture(4, 2, 24))
ADAMW = AdamW(rate=0.01, weight_decay=0.1, betas=(0.9, 0.95))


@dataclass(frozen=True)
class Way:
    """One run: on so many ranks, with these fields of `Training`."""

    ranks: int = 1
    shape: DecoderShape = DENSE
    training: dict[str, Any] = field(default_factory=dict)


def ways() -> dict[str, Way]:
    """All, by name. Names of several ranks begin with their number."""
    found: dict[str, Way] = {}

    def add(name: str, ranks: int = 1, shape: DecoderShape = DENSE, **training: Any) -> None:
        found[name] = Way(ranks, shape, {"precision": "float32", **training})

    for precision in ("float32", "bf16", "fp16"):
        add(precision, precision=precision)
        add(f"{precision}, untied", shape=UNTIED, precision=precision)
        add(f"{precision}, one pass", precision=precision, rows_per_step=ROWS)
        add(f"{precision}, offload", precision=precision, offload=True)
        add(f"{precision}, Muon", precision=precision, optimizer=Muon(rate=0.01))
        add(f"{precision}, sigmoid experts", shape=SIGMOID, precision=precision)
        add(f"{precision}, softmax experts", shape=SOFTMAX, precision=precision)
        for recompute in ("selective", "full"):
            add(f"{precision}, {recompute}", precision=precision, recompute=recompute)
            add(f"{precision}, {recompute}, experts", shape=SIGMOID, precision=precision, recompute=recompute)
    add("fp8", precision="bf16", linears="fp8")
    add("fp8, selective, experts", shape=SIGMOID, precision="bf16", linears="fp8", recompute="selective")
    for kind in ("constant", "linear", "cosine", "stable"):
        add(f"rate {kind}", schedule=RateSchedule(kind=kind, warmup=0.1, floor=0.1))
    for fall in ("linear", "sqrt", "1-sqrt"):
        try:
            schedule = RateSchedule(kind="stable", decay=0.4, fall=fall)  # type: ignore[arg-type]
        except ValueError:
            continue
        add(f"rate stable, fall {fall}", schedule=schedule)
    add("average", average=2, checkpoint_every=4)
    for precision in ("float32", "bf16"):
        for zero in range(4):
            add(f"2, {precision}, zero {zero}", 2, precision=precision, zero=zero)
            add(
                f"2, {precision}, zero {zero}, untied, full",
                2,
                UNTIED,
                precision=precision,
                zero=zero,
                recompute="full",
            )
            add(f"2, {precision}, zero {zero}, offload", 2, precision=precision, zero=zero, offload=True)
            add(f"2, {precision}, zero {zero}, experts", 2, SIGMOID, precision=precision, zero=zero)
        for zero in (0, 1):
            add(f"2, {precision}, zero {zero}, Muon", 2, precision=precision, zero=zero, optimizer=Muon(rate=0.01))
            add(f"2, {precision}, tensor, zero {zero}", 2, precision=precision, tensor=2, zero=zero)
            add(
                f"2, {precision}, experts over ranks, zero {zero}",
                2,
                SIGMOID,
                precision=precision,
                experts=2,
                zero=zero,
            )
        add(f"2, {precision}, softmax experts over ranks", 2, SOFTMAX, precision=precision, experts=2, recompute="full")
        add(f"2, {precision}, context by heads", 2, precision=precision, context=2)
        add(f"2, {precision}, context by keys, zero 3", 2, THREE_HEADS, precision=precision, context=2, zero=3)
        add(f"2, {precision}, experts, context", 2, SIGMOID, precision=precision, experts=2, context=2)
        for schedule in ("1f1b", "interleaved", "zb1p", "zbv"):
            pipeline = {"precision": precision, "pipeline": 2, "pipeline_schedule": schedule, "rows_per_step": 2}
            add(f"2, {precision}, {schedule}", 2, **pipeline)
            add(f"2, {precision}, {schedule}, untied, Muon", 2, UNTIED, **pipeline, optimizer=Muon(rate=0.01))
        add(f"2, {precision}, zbv, offload, selective", 2, **pipeline, offload=True, recompute="selective")
    for zero in range(4):
        add(f"2, fp16, zero {zero}", 2, precision="fp16", zero=zero)
    add("2, fp16, 1f1b", 2, precision="fp16", pipeline=2, pipeline_schedule="1f1b", rows_per_step=2)
    add("2, fp8, zero 3", 2, precision="bf16", linears="fp8", zero=3)
    for zero in (0, 1, 2, 3):
        add(f"4, replicas, float32, zero {zero}", 4, precision="bf16", replicas=2, zero=zero)
    add("4, tensor, zero 1", 4, precision="bf16", tensor=2, zero=1)
    add("4, tensor, context, zero 1", 4, tensor=2, context=2, zero=1)
    add("4, pipeline, tensor", 4, tensor=2, pipeline=2, pipeline_schedule="zb1p", rows_per_step=2)
    add("4, pipeline, zero 1", 4, precision="bf16", pipeline=2, pipeline_schedule="zbv", zero=1, rows_per_step=2)
    add("4, pipeline, context", 4, pipeline=2, context=2, pipeline_schedule="1f1b", rows_per_step=2)
    add("4, experts of 2, zero 1", 4, SIGMOID, precision="bf16", experts=2, zero=1)
    return found


def run(way: Way, rows: Any, folder: Path, ranks: Any, device: torch.device, updates: int) -> dict[str, Any]:
    """What the first rank writes; {} on the others."""
    settings = {
        "rows_per_step": 2, "optimizer": ADAMW, "checkpoint_every": None, "metrics_every": 1, "compile": False,
        **way.training,
    }  # fmt: skip
    settings["rows_per_step"] = min(settings["rows_per_step"], ROWS // max(1, way.ranks))
    training = Training(updates, ROWS, **settings)
    reader, readers = training.reader(ranks.rank, ranks.count)
    loader = Loader(rows, ROWS, Shuffled(), seed=1, rank=reader, world=readers)
    model = initialise(Decoder(way.shape), 1)
    train(model, loader, training, folder, device=device, on=over(ranks))
    if not ranks.first:
        return {}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    weights = hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()
    return {"losses": [line["loss"] for line in lines], "norms": [line["norm"] for line in lines], "weights": weights}


def on_rank(rank: int, count: int, port: int, names: list[str], folder: Path, updates: int) -> None:
    """What a process does: the runs in turn."""
    torch.set_num_threads(1)
    if count > 1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), LOCAL_RANK=str(rank))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    rows: Any = DrawnRows(updates * ROWS, ROW, VOCABULARY)
    every = ways()
    with join_ranks("cpu", timedelta(seconds=120)) as (ranks, device):
        for number, name in enumerate(names):
            try:
                result = run(every[name], rows, folder / f"{count}.{number}", ranks, device, updates)
            except (ValueError, RuntimeError) as error:  # alike on all ranks; the other runs are still worth having
                result = {"failed": reason(error)}
            if ranks.first:
                (folder / f"{count}.{number}.json").write_text(json.dumps(result))


def results(names: list[str], updates: int) -> dict[str, Any]:
    """Of all these runs, one set of processes for each number of ranks."""
    every, found = ways(), {}
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        for count in (1, 2, 4):
            chosen = [name for name in names if every[name].ranks == count]
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = server.getsockname()[1]
            processes = [
                context.Process(target=on_rank, args=(rank, count, port, chosen, Path(scratch), updates))
                for rank in range(count if chosen else 0)
            ]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            for number, name in enumerate(chosen):
                path = Path(scratch) / f"{count}.{number}.json"
                found[name] = json.loads(path.read_text()) if path.exists() else {"failed": "its process ended"}
    return found


def machine() -> dict[str, str]:
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    return {"cpu": model.partition(":")[2].strip() or platform.machine(), "torch": torch.__version__}


def compare(name: str, ours: dict[str, Any], theirs: dict[str, Any] | None) -> str | None:
    """What differs, in a line; None: nothing."""
    if theirs is None:
        return f"{name}: not in the file"
    if ours == theirs:
        return None
    if "losses" not in ours or "losses" not in theirs:
        return f"{name}: {'fails' if 'losses' not in ours else 'failed in the file'}"
    apart = [
        max(abs((a or 0.0) - (b or 0.0)) for a, b in zip(ours[key], theirs[key], strict=True))
        for key in ("losses", "norms")
    ]
    return f"{name}: losses differ by {apart[0]:.3g} at most, norms by {apart[1]:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["take", "hold"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="runs whose names contain one of these words, by semicolons")
    parser.add_argument("--ranks", type=int, choices=[1, 2, 4], help="runs of so many ranks; all")
    parser.add_argument("--updates", type=int, default=20)
    args = parser.parse_args()
    words = args.only.split(";") if args.only else [""]
    recorded = json.loads(args.file.read_text()) if args.what == "hold" else {}
    updates = recorded.get("updates", args.updates)
    names = [
        name for name, way in ways().items() if any(word in name for word in words) and args.ranks in (None, way.ranks)
    ]
    found = results(names, updates)
    if args.what == "take":
        runs = ",\n".join(f"{json.dumps(name)}: {json.dumps(result)}" for name, result in found.items())
        args.file.write_text(f'{{"machine": {json.dumps(machine())}, "updates": {updates}, "runs": {{\n{runs}\n}}}}\n')
        failed = {name: result["failed"] for name, result in found.items() if "failed" in result}
        print(json.dumps({"what": "taken", "runs": len(found), "failed": failed}))
        sys.exit(1 if failed else 0)
    differing = [text for name in names if (text := compare(name, found[name], recorded["runs"].get(name)))]
    same = machine() == recorded["machine"]
    print(json.dumps({"what": "held", "runs": len(found), "same machine": same, "differing": differing}, indent=1))
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
