#!/usr/bin/env python3
"""Linear maps in fp8 beside bf16: loss curves over the same batches from the same weights. Speed: speed.py.

    python -m benchmarks.training.fp8 [--shards FOLDER] [--updates 300] [--no-repeat] [--tiny]

On an H200 about 130 s (bf16, fp8, and bf16 once more, whose distance from the first is what chance alone does). Curves
are of the shape 124m, each point the mean of a thirtieth of the updates; rows are those of FOLDER (token shards), or
drawn ones.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.training.speed import decoder_on, say
from benchmarks.training.work import DrawnRows, scratch, tidy
from gristmill.shards.loader import Loader
from gristmill.shards.orders import Shuffled
from gristmill.shards.reader import open_shards
from gristmill.trainer.model.attention import fastest
from gristmill.trainer.model.shapes import shape_named
from gristmill.trainer.run.loop import train
from gristmill.trainer.run.schedule import RateSchedule
from gristmill.trainer.run.settings import Training
from gristmill.trainer.step.optim import AdamW

POINTS = 30
ADAMW = AdamW(rate=6e-4, weight_decay=0.1, betas=(0.9, 0.95))


def curves(args: argparse.Namespace, device: torch.device) -> None:
    rows: Any = open_shards(args.shards) if args.shards else _drawn(args)
    first = _curve(args, device, rows, "bf16")
    say("curve", linears="bf16", **first)
    eighth = _curve(args, device, rows, "fp8")
    say("curve", linears="fp8", **eighth, **_apart(eighth["losses"], first["losses"]))
    if not args.no_repeat:
        again = _curve(args, device, rows, "bf16")
        say("curve", linears="bf16, once more", **again, **_apart(again["losses"], first["losses"]))


def _drawn(args: argparse.Namespace) -> DrawnRows:
    length, vocabulary = (64, 512) if args.tiny else (1024, 16_384)
    return DrawnRows(args.updates * args.tokens // length, length, vocabulary)


def _curve(args: argparse.Namespace, device: torch.device, rows: Any, linears: Any) -> dict[str, Any]:
    length = rows.meta.row_length
    shape = shape_named("1m" if args.tiny else "124m", -(-rows.meta.vocab_size // 128) * 128, context=length)
    training = Training(
        args.updates, args.tokens // length, args.tokens // length, optimizer=ADAMW, schedule=RateSchedule(),
        linears=linears, checkpoint_every=None,
        metrics_every=max(1, args.updates // POINTS),
    )  # fmt: skip
    loader = Loader(rows, training.rows_per_update, Shuffled(), seed=1)
    with scratch() as folder:
        outcome = train(
            decoder_on(device, shape, fastest(device)),
            loader,
            training,
            Path(folder) / "run",
            device=device,
            save_model=False,
        )
        lines = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    tidy(device)
    losses = [round(line["loss"], 5) for line in lines]
    return {
        "losses": losses,
        "tokens": outcome.tokens,
        "tokens_per_second": round(outcome.tokens_per_second),
        "refused": outcome.refused,
    }


def _apart(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """From the bf16 curve, relative."""
    differences = [our / their - 1 for our, their in zip(ours, theirs, strict=True)]
    return {"largest_difference": round(max(differences, key=abs), 6), "final_difference": round(differences[-1], 6)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path)
    parser.add_argument("--updates", type=int)
    parser.add_argument("--tokens", type=int, help="of an update")
    parser.add_argument("--no-repeat", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    args.updates, args.tokens = args.updates or (6 if args.tiny else 300), args.tokens or (256 if args.tiny else 32_768)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.tiny else "cpu")
    say("machine", device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu", torch=torch.__version__)
    curves(args, device)


if __name__ == "__main__":
    main()
