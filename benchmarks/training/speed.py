#!/usr/bin/env python3
"""Training speed on one GPU beside plain transformers with torch.compile and fused AdamW, same shape, same run; and
where our time goes.

    python -m benchmarks.training.speed [--only ceiling,ours,transformers,profile] [--shapes 1.3b,124m] [--steps
      32768,65536] [--passes 4] [--tiny]

Prints one JSON line a result. Ours trains packed rows of documents (log-normal lengths of the stated mean, end to end,
each sees only itself) with bf16 weights, float32 masters and clipping; transformers trains full causal rows of the same
length, bf16 weights alone, which is the most that a user gets for nothing. `--passes`: so many steps to an update of
the optimiser, ours and theirs; rates are of tokens, whatever the update. Weights and tokens are random.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from gristmill.trainer.model import added, fused, gated_mlp, product
from gristmill.trainer.model.attention import Attend, attend, attend_flash4, fastest
from gristmill.trainer.model.model import Decoder
from gristmill.trainer.model.packed import PackedTokens, pack_documents
from gristmill.trainer.model.shapes import DecoderShape, shape_named
from gristmill.trainer.step.optim import AdamW
from gristmill.trainer.step.stepper import stepper_of

_has_kernels, _fits_matmul = (
    fused._has_kernels,
    {module: module._fits_matmul for module in (added, gated_mlp, product)},
)

MEAN_LENGTH = {4096: 900, 1024: 500}
ROWS = {"124m": 1024}  # tokens of a row; of other shapes 4,096
VOCABULARY = 50_304
TFLOPS = 1e12


def say(what: str, **facts: Any) -> None:
    print(json.dumps({"what": what, **facts}), flush=True)


def seconds_each(
    step: Callable[[], Any], device: torch.device, warm: int = 4, rounds: int = 5, steps: int = 4
) -> tuple[float, float]:
    """Median and spread (largest less smallest, over the median) of rounds of steps; as in training, nothing waits for
    a single step."""
    if device.type != "cuda":
        warm, rounds, steps = 1, 2, 1
    for _ in range(warm):
        step()
    taken = []
    for _ in range(rounds):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append((time.perf_counter() - began) / steps)
    median = statistics.median(taken)
    return median, (max(taken) - min(taken)) / median


def documents(tokens: int, row: int, mean: float, seed: int) -> PackedTokens:
    """Rows filled to the last token with documents of log-normal lengths; those in the rows have this mean."""
    random = np.random.default_rng(seed)
    rows = [[row]] * (tokens // row)  # the mean of full rows
    for wider in np.arange(1.0, 40.0, 0.05) if mean < row else ():
        rows = _rows(np.random.default_rng(seed), tokens, row, mean * wider)
        if np.mean(np.concatenate(rows)) >= mean:
            break
    return pack_documents([random.integers(0, VOCABULARY, length).tolist() for lengths in rows for length in lengths])


def batches_on(device: torch.device, tokens: int, row: int, mean: float, seeds: Iterable[int]) -> list[PackedTokens]:
    batches = [documents(tokens, row, mean, seed).to(device) for seed in seeds]
    for batch in batches:  # as gristmill.trainer.run.feed does: one compilation less
        torch._dynamo.maybe_mark_dynamic(batch.cuts, 0)
    return batches


def _rows(random: np.random.Generator, tokens: int, row: int, mean: float) -> list[list[int]]:
    """Each document goes to the emptiest row and is cut at its end."""
    rows: list[list[int]] = [[] for _ in range(tokens // row)]
    left = np.full(len(rows), row)
    while left.any():
        here = int(np.argmax(left))
        taken = int(min(row, left[here], max(1, random.lognormal(np.log(mean) - 0.5, 1.0))))
        rows[here].append(taken)
        left[here] -= taken
    return rows


@torch.no_grad()
def decoder_on(device: torch.device, shape: DecoderShape, attention: Attend, seed: int = 0) -> Decoder:
    """As `gristmill.trainer.model.model.initialise` makes it, but drawn where it lives: for 1.3 billion numbers a CPU
    takes half a minute."""
    with device:
        model = Decoder(shape, attention)
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            narrower = (
                1 / math.sqrt(2 * shape.layers) if name.endswith(("out.weight", "down.weight", "experts.down")) else 1.0
            )
            parameter.normal_(0.0, 0.02 * narrower, generator=generator)
    return model


class Ours:
    """`parts`: flash4 or varlen (attention), fp8 (linear maps), inductor (what torch.compile makes of norms, rotary and
    SwiGLU in place of our kernels), apart (SwiGLU and the residual stream's sums beside the products, not in them, and
    all products by cuBLAS)."""

    def __init__(self, shape: DecoderShape, device: torch.device, parts: set[str], recompute: Any = "none") -> None:
        torch._dynamo.reset()
        fused._has_kernels = (lambda x: False) if "inductor" in parts else _has_kernels
        for module, chosen in _fits_matmul.items():
            module._fits_matmul = (lambda *tensors: False) if {"inductor", "apart"} & parts else chosen
        attention = attend_flash4 if "flash4" in parts else attend if "varlen" in parts else fastest(device)
        model = decoder_on(device, shape, attention)
        if "fp8" in parts:
            from gristmill.trainer.model.fp8 import use_fp8

            use_fp8(model)
        settings = AdamW(rate=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
        self.stepper = stepper_of(
            model, settings, "bf16", device=device, compile="eager" not in parts, recompute=recompute
        )

    def step(self, batches: list[PackedTokens]) -> None:
        counted = sum(batch.counted for batch in batches)
        for number, batch in enumerate(batches):
            self.stepper.backward(self.stepper.loss(batch) / counted, number == len(batches) - 1)
        self.stepper.step(1.0)


def ours(
    args: argparse.Namespace, device: torch.device, name: str, row: int, tokens: int, mean: float, engine: str
) -> None:
    shape = shape_named(name, VOCABULARY, context=row) if not args.tiny else shape_named("1m", VOCABULARY, context=row)
    trained = Ours(shape, device, set(engine.split("+")))
    batches = batches_on(device, tokens, row, mean, range(4))
    turn = iter(range(1 << 30))
    turns = {"warm": max(2, 4 // args.passes), "steps": max(1, 4 // args.passes)}
    median, spread = seconds_each(
        lambda: trained.step([batches[next(turn) % 4] for _ in range(args.passes)]), device, **turns
    )
    median /= args.passes
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    lengths = np.concatenate([np.diff(batch.cuts.cpu().numpy()) for batch in batches]).astype(np.float64)
    matmul = 6 * (shape.parameters - (0 if shape.tied else shape.vocabulary * shape.hidden)) * tokens
    attended = 6 * 2 * shape.layers * shape.heads * shape.head_size * (lengths * (lengths + 1) / 2).sum() / 4
    say(
        "ours", shape=name, row=row, mean_length=float(lengths.mean()), engine=engine, tokens=tokens,
        passes=args.passes, tokens_per_second=round(tokens / median), spread=round(spread, 3),
        tflops=round((matmul + attended) / median / TFLOPS, 1), gib=memory and round(memory, 1),
    )  # fmt: skip
    if args.profile:
        profile(lambda: trained.step([batches[0]]), f"{name}-{engine}-{tokens}")


def transformers(args: argparse.Namespace, device: torch.device, name: str, row: int, batch: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch._dynamo.reset()
    shape = shape_named(name if not args.tiny else "1m", VOCABULARY, context=row)
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.mlp, max_position_embeddings=row, tie_word_embeddings=shape.tied,
        attn_implementation="sdpa", use_cache=False,
    )  # fmt: skip
    with device:
        model: Any = LlamaForCausalLM(config).to(torch.bfloat16)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    ids = torch.randint(0, VOCABULARY, (batch, row), device=device)

    def step() -> None:
        for _ in range(args.passes):
            (compiled(input_ids=ids, labels=ids).loss / args.passes).backward()
        optimizer.step()
        optimizer.zero_grad()

    median, spread = seconds_each(step, device, warm=max(2, 4 // args.passes), steps=max(1, 4 // args.passes))
    median /= args.passes
    say(
        "transformers",
        shape=name,
        row=row,
        batch=batch,
        passes=args.passes,
        tokens_per_second=round(batch * row / median),
        spread=round(spread, 3),
    )


def ceiling(args: argparse.Namespace, device: torch.device) -> None:
    side = 256 if args.tiny else 8192
    shapes = [(side, side, side)]
    if not args.tiny:
        for tokens in (32_768, 65_536):
            shapes += [
                (tokens, 3072, 2048),
                (tokens, 2048, 2048),
                (tokens, 16_384, 2048),
                (tokens, 2048, 8192),
                (16_384, 2048, tokens),
                (8192, VOCABULARY, 2048),
            ]
    for m, n, k in shapes:
        a, b = (torch.randn(size, device=device, dtype=torch.bfloat16) for size in ((m, k), (n, k)))
        median, _ = seconds_each(lambda a=a, b=b: a @ b.t(), device, warm=3, steps=10)
        say("matmul", mnk=[m, n, k], tflops=round(2 * m * n * k / median / TFLOPS))


KINDS = {  # of kernels, by a part of their names; the first that fits
    "matmuls, fp8": ("nvjet_sm90_qr", "nvjet_sm90_qq"),
    "matmuls": ("quackgemm", "nvjet", "splitK"),
    "attention": ("flash",),
    "cross-entropy": ("_losses",),
    "norms": ("_slopes", "_normed", "_add_up"),
    "AdamW and clipping": ("_step", "multi_tensor"),
    "rounding to fp8": ("_round_both", "_largest"),
    "rotary": ("_turn",),
    "SwiGLU": ("_forward", "_backward"),
}


def kind_of(kernel: str) -> str:
    return next((kind for kind, parts in KINDS.items() if any(part in kernel for part in parts)), "other")


def profile(step: Callable[[], None], name: str) -> None:
    from torch.profiler import ProfilerActivity, profile as profiled

    step()
    with profiled(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], record_shapes=True) as seen:
        step()
        torch.cuda.synchronize()
    for e in seen.key_averages(group_by_input_shape=True):
        if (
            e.key in ("aten::copy_", "aten::clone", "aten::add_", "aten::add", "aten::fill_", "aten::mul")
            and e.self_device_time_total > 100
        ):
            print(f"{e.self_device_time_total / 1e3:9.2f} ms {e.count:5d} x  {e.key} {e.input_shapes}")
    events = sorted(
        (e for e in seen.key_averages() if e.device_type.name == "CUDA"), key=lambda e: -e.self_device_time_total
    )
    total = sum(e.self_device_time_total for e in events)
    print(f"--- {name}: {total / 1e3:.1f} ms on the device", flush=True)
    kinds: dict[str, float] = {}
    for e in events:
        if not e.key.startswith("##"):  # a compiled graph, whose kernels come by themselves
            kinds[kind_of(e.key)] = kinds.get(kind_of(e.key), 0.0) + e.self_device_time_total / 1e3
    say("kernels", of=name, ms={kind: round(taken, 1) for kind, taken in sorted(kinds.items(), key=lambda kt: -kt[1])})
    for e in events[:40]:
        print(
            f"{e.self_device_time_total / 1e3:9.2f} ms {100 * e.self_device_time_total / total:5.1f} % {e.count:5d} x  "
            f"{e.key[:110]}"
        )


def shapes_of(given: str) -> list[tuple[str, int]]:
    """Shapes with the length of their rows."""
    named = [entry.partition(":") for entry in given.split(",")]
    for name, _, _ in named:
        shape_named(name, VOCABULARY)
    return [(name, int(row or ROWS.get(name, 4096))) for name, _, row in named]


def main() -> None:
    from benchmarks.training.work import tidy  # which imports this module

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="ceiling,ours,transformers")
    parser.add_argument("--shapes", type=shapes_of, default="1.3b,124m", help="of a NAME or NAME:ROW each")
    parser.add_argument("--steps", default="32768,65536")
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--engines", default="fastest")
    parser.add_argument("--full", action="store_true", help="full rows too")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() and not args.tiny else "cpu")
    say(
        "machine",
        device=torch.cuda.get_device_name() if device.type == "cuda" else platform.processor(),
        torch=torch.__version__,
        python=platform.python_version(),
    )
    wanted = args.only.split(",")
    jobs: list[Callable[[], None]] = []
    if "ceiling" in wanted:
        jobs.append(lambda: ceiling(args, device))
    for name, row in args.shapes:
        row = 64 if args.tiny else row
        for engine in args.engines.split(",") if "ours" in wanted else ():
            for tokens in [256] if args.tiny else [int(n) for n in args.steps.split(",")]:
                for mean in [MEAN_LENGTH.get(row, row // 3), row] if args.full else [MEAN_LENGTH.get(row, row // 3)]:
                    jobs.append(lambda n=name, r=row, t=tokens, m=mean, e=engine: ours(args, device, n, r, t, m, e))
        if "transformers" in wanted:
            batches = [2] if args.tiny else {4096: [4, 8], 1024: [64]}.get(row, [8])
            jobs += [lambda n=name, r=row, b=batch: transformers(args, device, n, r, b) for batch in batches]
    for job in jobs:
        try:
            job()
        except Exception:  # the others are still worth having
            traceback.print_exc(limit=4)
            print("failed, going on", flush=True)
        if device.type == "cuda":
            tidy(device)  # or weights of this model count as memory of the next
            torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
