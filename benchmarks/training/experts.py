#!/usr/bin/env python3
"""A mixture of experts beside the dense decoder of the same active size, and beside transformers' mixture, in one run;
and how even the load is after 300 updates.

    python -m benchmarks.training.experts [--only speed,transformers,load] [--shapes 1.3b,4b-a1.3b] [--tokens 32768]
      [--engines fastest,fp8] [--updates 300] [--load-shape 300m-a124m] [--routers sigmoid,softmax] [--tiny]

The mixture of 4.3 billion parameters takes 70 GB of weights, masters and optimiser state: `speed` at the default shapes
needs a card of 141 GB; `--shapes 124m,300m-a124m` any. Rows are packed documents, as in speed.py. `load` trains
--load-shape with each of --routers on drawn rows, and prints the largest load over the mean of any layer (the mean over
the last tenth of the updates, and the largest of them), and the tokens dropped in all lines; 4b-a1.3b takes four
minutes a router on an H200.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.training.speed import MEAN_LENGTH, VOCABULARY, Ours, batches_on, decoder_on, say, seconds_each
from benchmarks.training.work import DrawnRows, go_through, scratch, tidy
from gristmill.shards.loader import Loader
from gristmill.shards.orders import Shuffled
from gristmill.trainer.model.attention import fastest
from gristmill.trainer.model.matmuls import has_fused_linears
from gristmill.trainer.model.shapes import DecoderShape, Mixture, shape_named
from gristmill.trainer.parallel.memory import memory_of
from gristmill.trainer.run.loop import train
from gristmill.trainer.run.schedule import RateSchedule
from gristmill.trainer.run.settings import Training
from gristmill.trainer.step.optim import AdamW

ADAMW = AdamW(rate=6e-4, weight_decay=0.1, betas=(0.9, 0.95))


def shapes(args: argparse.Namespace) -> tuple[DecoderShape, DecoderShape]:
    """Dense, and sparse with as many active parameters."""
    if args.tiny:
        dense = shape_named("1m", 512, context=args.row)
        return dense, replace(dense, experts=Mixture(8, 2, dense.mlp // 2, "sigmoid"))
    dense, sparse = (shape_named(name, VOCABULARY, context=args.row) for name in args.shapes.split(","))
    return dense, sparse


def speed(args: argparse.Namespace, device: torch.device) -> None:
    for engine in args.engines.split(","):
        dense, sparse = (rate(args, device, shape, engine) for shape in shapes(args))
        say("sparse over dense", engine=engine, wanted=0.75, ratio=round(sparse / dense, 3))


def rate(args: argparse.Namespace, device: torch.device, shape: DecoderShape, engine: str) -> float:
    """Tokens a second."""
    tidy(device)  # of the shape before
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trained = Ours(shape, device, set(engine.split("+")))
    batches = batches_on(device, args.tokens, args.row, MEAN_LENGTH.get(args.row, args.row // 3), range(4))
    if args.tiny:
        batches = [replace(each, ids_T=each.ids_T % 512, targets_T=each.targets_T.clamp(max=511)) for each in batches]
    turn = iter(range(1 << 30))
    median, spread = seconds_each(lambda: trained.step([batches[next(turn) % 4]]), device)
    fp8 = "fp8" in engine.split("+")
    training = Training(1, 1, linears="fp8" if fp8 else "bf16")
    predicted = memory_of(shape, training, args.tokens, fused_linears=has_fused_linears(device)).peak
    say(
        "ours", experts=shape.experts and shape.experts.number, engine=engine, tokens=args.tokens,
        parameters=shape.parameters, active=shape.active_parameters,
        tokens_per_second=round(args.tokens / median), spread=round(spread, 3),
        gib=round(torch.cuda.max_memory_allocated() / 2**30, 1) if device.type == "cuda" else None,
        predicted_gib=round(predicted / 2**30, 1), **trained.stepper.balance.facts(),
    )  # fmt: skip
    return args.tokens / median


def transformers(args: argparse.Namespace, device: torch.device) -> None:
    """Mixtral of the same sizes, with grouped matmuls, compiled; bf16 weights alone and full rows, as in speed.py."""
    from transformers import AutoModelForCausalLM, MixtralConfig

    torch._dynamo.reset()
    shape = shapes(args)[1]
    experts = shape.experts
    if experts is None:
        raise ValueError("the second of --shapes is the mixture")
    config = MixtralConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, intermediate_size=experts.width,
        num_local_experts=experts.number, num_experts_per_tok=experts.active, max_position_embeddings=args.row,
        tie_word_embeddings=shape.tied, use_cache=False, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with device:
        model: Any = AutoModelForCausalLM.from_config(
            config, attn_implementation="sdpa", experts_implementation="grouped_mm", dtype=torch.bfloat16
        )
    step_of = torch.compile(model) if device.type == "cuda" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    for batch in (2,) if args.tiny else (4, 8):
        ids = torch.randint(0, shape.vocabulary, (batch, args.row), device=device)

        def step(ids: torch.Tensor = ids) -> None:
            step_of(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        median, spread = seconds_each(step, device)
        say("transformers", batch=batch, tokens_per_second=round(batch * args.row / median), spread=round(spread, 3))


def load(args: argparse.Namespace, device: torch.device) -> None:
    row, vocabulary, tokens = (64, 512, 256) if args.tiny else (1024, 16_384, 32_768)
    rows: Any = DrawnRows(args.updates * tokens // row, row, vocabulary)
    for router in args.routers.split(","):
        shape = shapes(args)[1] if args.tiny else shape_named(args.load_shape, vocabulary, context=row)
        if shape.experts is None:
            raise ValueError("--load-shape is a mixture")
        shape = replace(shape, experts=replace(shape.experts, router=router))
        training = Training(
            args.updates, tokens // row, tokens // row, optimizer=ADAMW, schedule=RateSchedule(), checkpoint_every=None,
            precision="bf16" if device.type == "cuda" else "float32", metrics_every=1,
        )  # fmt: skip
        with scratch() as folder:
            loader = Loader(rows, training.rows_per_update, Shuffled(), seed=1)
            model = decoder_on(device, shape, fastest(device))
            train(model, loader, training, Path(folder) / "run", device=device, save_model=False)
            lines = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
        last = [line["expert_load"] for line in lines[-max(1, args.updates // 10) :]]
        say(
            "load", shape=args.load_shape, router=router, parameters=shape.parameters, active=shape.active_parameters,
            updates=args.updates, first=round(lines[0]["expert_load"], 3),
            last=round(sum(last) / len(last), 3), largest=round(max(last), 3), wanted=1.1, loss=round(lines[-1]["loss"], 4),
            dropped=sum(line["tokens_dropped"] for line in lines),
        )  # fmt: skip
        del model
        tidy(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="speed,transformers,load")
    parser.add_argument("--shapes", default="1.3b,4b-a1.3b", help="a dense one and a mixture")
    parser.add_argument("--row", type=int)
    parser.add_argument("--tokens", type=int, help="of a step")
    parser.add_argument("--engines", help="as in speed.py")
    parser.add_argument("--updates", type=int, help="of load")
    parser.add_argument("--load-shape", default="300m-a124m", help="a mixture")
    parser.add_argument("--routers", default="sigmoid,softmax", help="of load")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    args.row, args.tokens = args.row or (64 if args.tiny else 4096), args.tokens or (256 if args.tiny else 32_768)
    args.engines = args.engines or ("eager" if args.tiny else "fastest")
    args.updates = args.updates or (6 if args.tiny else 300)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.tiny else "cpu")
    say("machine", device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu", torch=torch.__version__)
    sections = {
        "speed": (120, lambda: speed(args, device)),
        "transformers": (90, lambda: transformers(args, device)),
        "load": (60, lambda: load(args, device)),
    }
    go_through(sections, args.only, device)


if __name__ == "__main__":
    main()
