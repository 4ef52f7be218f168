#!/usr/bin/env python3
"""The decoder's kernels on a GPU beside torch's own, eager and compiled: time, bytes or operations a second, and errors
against float64.

    python -m benchmarks.training.gpu_kernels [--only rms_norm swiglu ...] [--settings] [--tiny]

Memory-bound kernels are counted by the bytes that must move: each input read once, each output written once. Attention
is counted by document, half of the square for causal, backward two and a half times forward. A comparison is one JSON
line for each peer: `median` is ours in microseconds, `ratio` the peer's time over ours. Errors are norms of differences
over norms, of each output and each gradient, from the same inputs. A section that fails says why and the rest goes on.
`--settings` tries tiles and warps of each kernel; `--tiny` rehearses on a CPU."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # must be there when triton is imported

import torch.nn.functional as F
from torch import Tensor

from benchmarks.training.gpu_attention import attention_narrow, attention_wide
from benchmarks.training.gpu_timing import (
    CUDA,
    DEVICE,
    DTYPE,
    TINY,
    Sizes,
    Step,
    compare,
    compiled,
    drawn,
    microseconds,
    off,
    reason,
    say,
)
from gristmill.kernels.gpu import adamw, cross_entropy, plain, rms_norm, rotary, swiglu
from gristmill.trainer.model import fused, matmuls  # noqa: F401  # have the operators
from gristmill.trainer.model.linear_cross_entropy import linear_cross_entropy
from gristmill.trainer.model.matmuls import has_fused_linears, matmul_into

OPS = torch.ops.gristmill
EPS = 1e-5


def learns(inputs: Sequence[Any]) -> list[Tensor]:
    return [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]


def outputs_of(step: Step, inputs: Sequence[Any]) -> list[Tensor]:
    out = step(*inputs)
    return list(out) if isinstance(out, (tuple, list)) else [out]


def both_ways(step: Step, inputs: Sequence[Any], slopes: Sequence[Tensor]) -> list[Tensor]:
    outputs = outputs_of(step, inputs)
    return [*outputs, *torch.autograd.grad(outputs, learns(inputs), slopes)]


def measured(
    what: str,
    made: Callable[[int], list[Any]],
    sizes: Sizes,
    moved: tuple[float, float],
    ours: Step,
    reference: Step,
    peers: dict[str, Step],
) -> None:
    """A step forward, and forward and backward, that moves so many bytes a token; `made` makes inputs for so many
    tokens."""
    inputs = made(sizes.tokens)
    shapes = {"tokens": sizes.tokens, "inputs": [list(x.shape) for x in learns(inputs)]}
    peers = {"torch": reference, "torch.compile": compiled(reference), **peers}
    slopes = [torch.randn_like(out) for out in outputs_of(ours, inputs)]
    for way, much, run in (
        ("forward", moved[0], lambda step: outputs_of(step, inputs)),
        ("forward and backward", sum(moved), lambda step: both_ways(step, inputs, slopes)),
    ):
        others = {name: lambda s=step, r=run: r(s) for name, step in peers.items()}
        compare(f"{what}, {way}", shapes, much * sizes.tokens, "terabytes_a_second", lambda r=run: r(ours), others)
    inputs = made(sizes.exact)
    slopes = [torch.randn_like(out) for out in outputs_of(ours, inputs)]
    wide = [x.detach().double().requires_grad_() if isinstance(x, Tensor) and x.requires_grad else x for x in inputs]
    exact = both_ways(reference, wide, [slope.double() for slope in slopes])
    eager = {
        name: step for name, step in peers.items() if "compile" not in name
    }  # what is compiled would be so again for this size
    errors = {
        name: [off(*pair) for pair in zip(both_ways(step, inputs, slopes), exact, strict=True)]
        for name, step in {"ours": ours, **eager}.items()
    }
    say(f"{what}, errors of outputs and gradients", {"tokens": sizes.exact}, errors=errors)


def ceilings(sizes: Sizes) -> None:
    room = drawn(4 * sizes.tokens, sizes.mlp)
    other = torch.empty_like(room)
    taken = microseconds(lambda: other.copy_(room))
    say(
        "a copy",
        {"bytes": room.nbytes},
        taken,
        terabytes_a_second=round(2 * room.nbytes / statistics.median(taken) / 1e6, 3),
    )
    a, b = drawn(sizes.square, sizes.square), drawn(sizes.square, sizes.square, seed=1)
    taken = microseconds(lambda: a @ b)
    say(
        "a matrix product",
        {"square": sizes.square},
        taken,
        teraflops=round(2 * sizes.square**3 / statistics.median(taken) / 1e6, 1),
    )


def norms(sizes: Sizes) -> None:
    C, size = sizes.hidden, DTYPE.itemsize
    by = torch.ones(C, device=DEVICE, dtype=DTYPE).requires_grad_()

    def made(tokens: int) -> list[Any]:
        return [drawn(tokens, C).requires_grad_(), by]

    def made_two(tokens: int) -> list[Any]:
        return [drawn(tokens, C).requires_grad_(), drawn(tokens, C, seed=1).requires_grad_(), by]

    def torchs(x: Tensor, w: Tensor) -> Tensor:
        return F.rms_norm(x, (C,), w, EPS)

    measured(
        "rms_norm", made, sizes, (2 * C * size, 3 * C * size), lambda x, w: OPS.rms_norm(x, w, EPS)[0],
        lambda x, w: plain.rms_norm(x, w, EPS), {"F.rms_norm": torchs, "F.rms_norm compiled": compiled(torchs)},
    )  # fmt: skip
    measured(
        "add_rms_norm", made_two, sizes, (4 * C * size, 4 * C * size), lambda x, r,
        w: OPS.add_rms_norm(x, r, w, EPS)[:2],
        lambda x, r, w: plain.add_rms_norm(x, r, w, EPS), {},
    )  # fmt: skip


def rotations(sizes: Sizes) -> None:
    H, K, D = sizes.heads, sizes.kv_heads, sizes.head_size
    turns = torch.arange(4096, device=DEVICE)[:, None] * 1e4 ** -(torch.arange(0, D, 2, device=DEVICE) / D)
    cos, sin = turns.cos(), turns.sin()

    def made(tokens: int) -> list[Any]:
        positions = torch.arange(tokens, dtype=torch.int32, device=DEVICE) % 900
        return [drawn(tokens, (H + 2 * K) * D).requires_grad_(), cos, sin, positions, H, K, D]

    width = (H + 2 * K) * D * DTYPE.itemsize
    measured("rotary_qkv", made, sizes, (2 * width, 2 * width), OPS.rotary_qkv, plain.rotary_qkv, {})


def gates(sizes: Sizes) -> None:
    M = sizes.mlp * DTYPE.itemsize
    measured(
        "swiglu",
        lambda tokens: [drawn(tokens, 2 * sizes.mlp).requires_grad_()],
        sizes,
        (3 * M, 5 * M),
        OPS.swiglu,
        plain.swiglu,
        {},
    )


def gated_layer(sizes: Sizes) -> None:
    """The residual stream with gate_up, SwiGLU and down, and their way back: as one operator (by QuACK on Hopper,
    elsewhere plain), our SwiGLU between cuBLAS's products, and what is compiled."""
    C, M, T = sizes.hidden, sizes.mlp, sizes.tokens

    def made(tokens: int) -> list[Any]:
        return [
            drawn(tokens, C).requires_grad_(),
            (drawn(2 * M, C, seed=1) * C**-0.5).requires_grad_(),
            (drawn(C, M, seed=2) * M**-0.5).requires_grad_(),
            drawn(tokens, C, seed=3).requires_grad_(),
        ]

    def apart(x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor) -> Tensor:
        total: Tensor = residual + OPS.swiglu(x @ gate_up.t()) @ down.t()
        return total

    def torchs(x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor) -> Tensor:
        return residual + plain.swiglu(x @ gate_up.t()) @ down.t()

    def one(x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor) -> Tensor:
        total: Tensor = OPS.gated_mlp(x, gate_up, down, residual)[0]
        return total

    inputs = made(T)
    slopes = [torch.randn_like(out) for out in outputs_of(one, inputs)]
    peers = {"cuBLAS and our SwiGLU": apart, "torch.compile": compiled(torchs)}
    others = {name: lambda s=step: both_ways(s, inputs, slopes) for name, step in peers.items()}
    shape = {
        "tokens": T,
        "hidden": C,
        "inner": M,
        "by": "quack" if has_fused_linears(torch.device(DEVICE)) else "torch",
    }
    compare(
        "gated_mlp, forward and backward",
        shape,
        18 * T * C * M,
        "teraflops",
        lambda: both_ways(one, inputs, slopes),
        others,
    )
    inputs = made(sizes.exact)
    slopes = [torch.randn_like(out) for out in outputs_of(one, inputs)]
    exact = both_ways(
        torchs, [x.detach().double().requires_grad_() for x in inputs], [slope.double() for slope in slopes]
    )
    errors = {
        n: [off(*pair) for pair in zip(both_ways(s, inputs, slopes), exact, strict=True)]
        for n, s in (("ours", one), ("apart", apart))
    }
    say("gated_mlp, errors of the output and gradients", {"tokens": sizes.exact}, errors=errors)


def products(sizes: Sizes) -> None:
    """What is multiplied between the operators above, where QuACK's tiles fill the card; elsewhere both are cuBLAS's."""
    T, C, Q = sizes.tokens * 5 // 2, sizes.hidden, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_size
    shapes = {
        "qkv": (T, Q, C),
        "slope of qkv's input": (T, C, Q),
        "slope of out's input": (T, C, C),
        "slope of qkv's weight": (Q, C, T),
    }
    for what, (rows, columns, inner) in shapes.items():
        x, weight = drawn(rows, inner), drawn(columns, inner, seed=1)
        out = torch.empty(rows, columns, device=DEVICE, dtype=DTYPE)
        ours, cublas = partial(matmul_into, out, x, weight), partial(torch.mm, x, weight.t(), out=out)
        size = {"rows": rows, "columns": columns, "inner": inner}
        compare(f"product, {what}", size, 2 * rows * columns * inner, "teraflops", ours, {"cuBLAS": cublas})


def targets_of(rows: int, vocabulary: int) -> Tensor:
    targets = torch.randint(vocabulary, (rows,), device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(1))
    targets[::1000] = plain.NONE
    return targets


def row_losses(sizes: Sizes) -> None:
    rows, V = sizes.rows, sizes.vocabulary
    logits, targets = drawn(rows, V), targets_of(rows, V)

    def losses(x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(x.float(), t, ignore_index=plain.NONE, reduction="none")

    def gradient(step: Step) -> Tensor:
        leaf = logits.detach().requires_grad_()
        return torch.autograd.grad(step(leaf, targets).sum(), leaf)[0]

    faster = compiled(losses)
    shape, unit = {"rows": rows, "vocabulary": V}, "terabytes_a_second"
    peers: dict[str, Step] = {
        "torch": lambda: losses(logits, targets),
        "torch.compile": lambda: faster(logits, targets),
    }
    compare(
        "cross_entropy, losses", shape, logits.nbytes, unit, lambda: cross_entropy.row_losses(logits, targets), peers
    )
    some, few = logits[: sizes.exact].clone(), targets[: sizes.exact]
    exact = some.double()
    wanted = plain.row_losses_and_slopes(exact, few)
    found = cross_entropy.row_losses_and_slopes(some, few)
    say("cross_entropy, errors", {"rows": len(some)}, errors={"loss": off(found, wanted), "gradient": off(some, exact)})
    both: dict[str, Step] = {"torch": lambda: gradient(losses), "torch.compile": lambda: gradient(faster)}

    def ours() -> Tensor:
        return cross_entropy.row_losses_and_slopes(logits, targets)  # over its own gradients: still numbers

    compare("cross_entropy, losses and gradients", shape, 2 * logits.nbytes, unit, ours, both)


def heads(sizes: Sizes) -> None:
    T, C, V = sizes.tokens, sizes.hidden, sizes.vocabulary
    hidden, targets = drawn(T, C).requires_grad_(), targets_of(T, V)
    weight = (drawn(V, C, seed=2) * 0.02).requires_grad_()
    scale = torch.tensor(1 / T, device=DEVICE)

    def whole(h: Tensor, w: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(
            F.linear(h, w).to(torch.promote_types(h.dtype, torch.float32)), t, ignore_index=plain.NONE, reduction="sum"
        )

    def both(loss: Step, h: Tensor = hidden, w: Tensor = weight, t: Tensor = targets) -> tuple[Tensor, ...]:
        total = loss(h, w, t) * scale
        return total, *torch.autograd.grad(total, (h, w))

    def chunked(rows: int) -> Step:
        return lambda h, w, t: linear_cross_entropy(h, w, t, 0.0, rows)

    work, shape = 6.0 * T * C * V, {"tokens": T, "hidden": C, "vocabulary": V}
    compiled_whole = compiled(whole)
    peers: dict[str, Step] = {
        f"ours in chunks of {rows:,}": lambda r=rows: both(chunked(r)) for rows in (sizes.rows // 2, 2 * sizes.rows)
    }
    peers |= {"torch, all logits": lambda: both(whole), "torch.compile, all logits": lambda: both(compiled_whole)}
    compare(
        "linear_cross_entropy, forward and backward",
        {**shape, "rows": sizes.rows},
        work,
        "teraflops",
        lambda: both(chunked(sizes.rows)),
        peers,
    )
    few = (hidden[: sizes.exact].detach().requires_grad_(), weight, targets[: sizes.exact])
    exact = both(whole, few[0].detach().double().requires_grad_(), weight.detach().double().requires_grad_(), few[2])
    steps = {"ours": chunked(max(sizes.exact // 4, 1)), "torch": whole}
    errors = {name: [off(*pair) for pair in zip(both(step, *few), exact, strict=True)] for name, step in steps.items()}
    say("linear_cross_entropy, errors of loss and gradients", {**shape, "tokens": sizes.exact}, errors=errors)


def optimiser(sizes: Sizes) -> None:
    N, rule = sizes.parameters, adamw.AdamWRule()
    gradient, master = drawn(N) * 1e-3, drawn(N, dtype=torch.float32)
    weight, mean, square = master.to(DTYPE), torch.zeros_like(master), torch.zeros_like(master)
    rate, steps, clip, finite = (torch.tensor(x, device=DEVICE) for x in (1e-3, 1.0, 0.5, 0.0))

    def ours() -> None:
        adamw.adamw_step(
            weight, gradient, master, mean, square, plain.step_scalars(rate, steps, clip, finite, rule.betas), rule
        )

    learning = master.clone().requires_grad_()
    torchs = torch.optim.AdamW([learning], lr=1e-3, betas=rule.betas, weight_decay=rule.weight_decay, fused=True)

    def masters() -> None:
        learning.grad = gradient.float()
        torch._foreach_mul_([learning.grad], clip)
        torchs.step()
        torch._foreach_copy_([weight], [learning.detach()])

    start, exact = master.clone(), master.double()
    ours()
    exact_states = [torch.zeros_like(exact) for _ in range(2)]
    plain.adamw_step(
        exact.clone(),
        gradient.double(),
        exact,
        *exact_states,
        plain.step_scalars(rate, steps, clip, finite, rule.betas).double(),
        rule,
    )
    masters()
    changes = {
        "ours": off(master - start, exact - start.double()),
        "torch": off(learning.detach() - start, exact - start.double()),
    }
    say("adamw, errors of a step's change", {"parameters": N}, errors=changes)
    del exact, exact_states, start
    moved = (2 * DTYPE.itemsize + 24) * N
    compare(
        "adamw",
        {"parameters": N},
        moved,
        "terabytes_a_second",
        ours,
        {"torch fused, with a float32 gradient, clipping and a copy": masters},
    )


def settings(sizes: Sizes) -> None:
    """Tiles and warps of each kernel; what is fastest here belongs in the kernel's file."""
    T, C, unit = sizes.tokens, sizes.hidden, "terabytes_a_second"
    x, other, by = drawn(T, C), drawn(T, C, seed=1), torch.ones(C, device=DEVICE, dtype=DTYPE)
    _, scales = rms_norm.rms_norm(x, by, EPS)
    gate_up, d_out = drawn(T, 2 * sizes.mlp), drawn(T, sizes.mlp, seed=1)
    logits, targets = drawn(sizes.rows, sizes.vocabulary), targets_of(sizes.rows, sizes.vocabulary)
    H, K, D = sizes.heads, sizes.kv_heads, sizes.head_size
    qkv, angles = drawn(T, (H + 2 * K) * D), drawn(T, D // 2, dtype=torch.float32)
    N = sizes.parameters
    state = [drawn(N), drawn(N), *(drawn(N, dtype=torch.float32).abs() for _ in range(3))]
    scalars, rule = torch.tensor([1e-3, 1e-3, 1.0, 1.0, 0.0], device=DEVICE), adamw.AdamWRule()
    shapes = [(2048, 4), (4096, 4), (4096, 8), (8192, 8), (8192, 16), (16_384, 16)]
    back = [
        rms_norm.NormTile(e, w, p, s)
        for e, w in ((2048, 4), (4096, 8), (8192, 8))
        for p in (1, 2, 4)
        for s in (1, 2, 3)
    ]
    tried: list[tuple[str, float, list[Any], Step]] = [
        ("rms_norm", 2 * x.nbytes, [rms_norm.NormTile(*s) for s in shapes], lambda t: rms_norm.rms_norm(x, by, EPS, t)),
        ("add_rms_norm", 4 * x.nbytes, [rms_norm.NormTile(*s) for s in shapes],
        lambda t: rms_norm.add_rms_norm(x, other, by, EPS, t)),
        ("rms_norm_backward, of a sum", 4 * x.nbytes, back,
        lambda t: rms_norm.rms_norm_backward(other, x, by, scales, x, t)),
        ("rotary_qkv", 2 * qkv.nbytes,
        [rotary.RotaryTile(p, w) for p, w in ((1024, 2), (1024, 4), (2048, 4), (4096, 4), (4096, 8))],
         lambda t: rotary.rotary_qkv(qkv, angles, angles, None, H, K, D, t)),
        ("swiglu", 3 * d_out.nbytes, [swiglu.SwigluTile(e, 1024, w) for e, w in shapes[:4]],
        lambda t: swiglu.swiglu(gate_up, t)),
        ("swiglu_backward", 5 * d_out.nbytes, [swiglu.SwigluTile(e, 1024, w) for e, w in ((1024, 4), *shapes[:4])],
         lambda t: swiglu.swiglu_backward(d_out, gate_up, None, t)),
        ("cross_entropy", 2 * logits.nbytes,
        [cross_entropy.LogitTile(*s) for s in (*shapes[1:], (16_384, 32), (32_768, 32))],
         lambda t: cross_entropy.row_losses_and_slopes(logits, targets, 0.0, t)),
        ("adamw", (2 * DTYPE.itemsize + 24) * N,
        [adamw.AdamWTile(e, w) for e, w in ((1024, 4), (1024, 8), (2048, 8), (4096, 8), (4096, 16))],
         lambda t: adamw.adamw_step(*state, scalars, rule, t)),
    ]  # fmt: skip
    for what, moved, tiles, run in tried:
        for tile in tiles if CUDA else tiles[:2]:
            taken = microseconds(lambda r=run, t=tile: r(t), 0.03)
            say(
                f"settings of {what}", tile._asdict(), taken, **{unit: round(moved / statistics.median(taken) / 1e6, 3)}
            )


SECTIONS: dict[str, Callable[[Sizes], None]] = {
    "ceilings": ceilings, "rms_norm": norms, "rotary": rotations, "swiglu": gates, "gated_mlp": gated_layer,
    "products": products, "cross_entropy": row_losses,
    "linear_cross_entropy": heads, "adamw": optimiser, "attention": attention_wide, "attention_64": attention_narrow,
}  # fmt: skip


def run_sections(chosen: dict[str, Callable[[Sizes], None]], sizes: Sizes) -> Iterator[str]:
    """The names of those that failed."""
    for name, section in chosen.items():
        start = time.perf_counter()
        try:
            section(sizes)
        except Exception as error:
            yield name
            say(f"section {name}", {}, failed=reason(error))
        say(f"section {name}", {}, seconds=round(time.perf_counter() - start, 1))
        if CUDA:
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="of the sections, these alone")
    parser.add_argument("--settings", action="store_true", help="try tiles and warps instead")
    parser.add_argument("--tiny", action="store_true", help="small sizes: a rehearsal, also without a GPU")
    arguments = parser.parse_args()
    if not CUDA and not arguments.tiny:
        sys.exit("there is no GPU here; --tiny rehearses in Triton's interpreter")
    chosen = (
        {"settings": settings} if arguments.settings else {name: SECTIONS[name] for name in arguments.only or SECTIONS}
    )
    failed = list(run_sections(chosen, TINY if arguments.tiny else Sizes()))
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
