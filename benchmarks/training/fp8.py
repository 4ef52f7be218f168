#!/usr/bin/env python3
"""Linear maps in fp8 beside bf16: loss curves over the same batches from the same weights, and tokens a second.

    python -m benchmarks.training.fp8 [--only curves,speed] [--shards FOLDER] [--updates 300] [--no-repeat] [--tiny]

On an H200: curves about 130 s (bf16, fp8, and bf16 once more, whose distance from the first is what chance alone does),
speed about 90 s. Curves are of the shape 124m, each point the mean of a thirtieth of the updates; rows are those of
FOLDER (token shards), or drawn ones. Speed is of the shape 1.3b in rows of 4,096, as trainer_speed measures it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.training.speed import MEAN_LENGTH, VOCABULARY, Ours, batches_on, decoder_on, say, seconds_each
from benchmarks.training.work import DrawnRows, go_through, scratch, tidy
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


def speed(args: argparse.Namespace, device: torch.device) -> None:
    row, tokens = (64, 256) if args.tiny else (4096, args.tokens)
    shape = shape_named("1m" if args.tiny else "1.3b", VOCABULARY, context=row)
    way = {"eager"} if args.tiny else {"fastest"}
    found = {}
    for linears in ("bf16", "fp8"):
        trained = Ours(shape, device, way | {linears})
        batches = batches_on(device, tokens, row, MEAN_LENGTH.get(row, row // 3), range(4))
        turn = iter(range(1 << 30))
        median, spread = seconds_each(lambda t=trained, b=batches, n=turn: t.step([b[next(n) % 4]]), device)
        found[linears] = tokens / median
        say("speed", linears=linears, tokens=tokens, tokens_per_second=round(found[linears]), spread=round(spread, 3))
        del trained, batches
        tidy(device)
    say("speed", peer="bf16", ratio=round(found["fp8"] / found["bf16"], 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="curves,speed")
    parser.add_argument("--shards", type=Path)
    parser.add_argument("--updates", type=int)
    parser.add_argument("--tokens", type=int, help="of an update")
    parser.add_argument("--no-repeat", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    args.updates, args.tokens = args.updates or (6 if args.tiny else 300), args.tokens or (256 if args.tiny else 32_768)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.tiny else "cpu")
    say("machine", device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu", torch=torch.__version__)
    go_through(
        {"curves": (130, lambda: curves(args, device)), "speed": (90, lambda: speed(args, device))}, args.only, device
    )


if __name__ == "__main__":
    main()
