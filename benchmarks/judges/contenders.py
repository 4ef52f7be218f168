#!/usr/bin/env python3
"""What could make a step of an fp8 judge faster: contenders for its attention, its norms and its products, in turns of
50 ms so that all have the same heat.

    python -m benchmarks.judges.contenders [--only attention,norms,products] [--lengths lengths.npy] [--tiny]

A step is 65,536 tokens of BERT-base shape. Attention is of texts of 512 tokens, and of those of `--lengths`
(neural_judge.py make); a contender that answers in fp8 spares the pass that rounds, so that pass is counted with the
others. Norms are of what a product gave: bf16 as it is, normed in bf16 and in fp8. Products are each of the ways that
cuBLASLt's heuristic names. One JSON line a contender, fastest first; `off` is the norm of the difference to float32
over the norm. `--tiny` runs them on a CPU, Triton's kernels in its interpreter."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # must be there when triton is imported

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.training.gpu_timing import CUDA, DEVICE, drawn, reason
from gristmill.kernels.gpu import cublaslt
from gristmill.kernels.gpu.packed_attention import AttentionTile, packed_attention
from gristmill.kernels.gpu.plain import FP8, rounded
from gristmill.trainer.model.attention import EVERYTHING, attend, attend_by_length, attend_flash4

HEADS, SIZE, WIDTH, INNER, CUT = 12, 64, 768, 3072, 512
TILES = [
    AttentionTile(q, k, w, s) for q, k, w in ((128, 64, 8), (128, 64, 4), (64, 64, 4)) for s in (3, 4)
]  # the best of fifteen
Contender = Callable[[], Tensor]


@triton.jit
def _normed(
    x, weight, bias, normed, rounded, shrink, rows, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    row, column = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = column < WIDTH
    there = (row < rows)[:, None] & inside[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    wide = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    apart = tl.where(inside[None, :], wide - (tl.sum(wide, 1) / WIDTH)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, 1) / WIDTH + eps)
    by = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    more = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    answer = (apart * scale[:, None] * by[None, :] + more[None, :]).to(normed.dtype.element_ty)
    tl.store(normed + at, answer, mask=there)
    answer = tl.minimum(tl.maximum(answer.to(tl.float32) * tl.load(shrink), -448.0), 448.0)
    tl.store(rounded + at, answer.to(rounded.dtype.element_ty), mask=there)


def norm_by_triton(x: Tensor, weight: Tensor, bias: Tensor, shrink: Tensor, rows: int, warps: int) -> Tensor:
    normed, in_fp8 = torch.empty_like(x), torch.empty_like(x, dtype=FP8)
    _normed[(triton.cdiv(len(x), rows),)](
        x, weight, bias, normed, in_fp8, shrink, len(x), 1e-12, WIDTH, 1024, rows, num_warps=warps
    )
    return in_fp8


def attention(args: argparse.Namespace) -> None:
    given = np.load(args.lengths) if args.lengths else None
    sets = {"512": np.full(args.tokens // CUT, CUT)}
    if given is not None:
        chosen = np.random.default_rng(0).choice(given, args.tokens // int(given.min()) + 1)
        sets["pages"] = np.sort(chosen[np.cumsum(chosen) <= args.tokens])[::-1]
    pack = torch.compile(rounded, dynamic=False, backend="inductor" if CUDA else "eager")
    for name, lengths in sets.items():
        lengths = np.append(lengths, args.tokens - lengths.sum()) if lengths.sum() < args.tokens else lengths
        cuts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)).to(DEVICE)
        longest, qkv = int(lengths.max()), drawn(args.tokens, 3, HEADS, SIZE)
        shrink = torch.full((1,), 20.0, device=DEVICE)
        q, k, v = qkv.unbind(1)
        exact = (
            attend_by_length(*(x.float() for x in (q, k, v)), cuts, cuts, longest, longest, EVERYTHING).flatten(1) * 20
        )
        contenders: dict[str, Contender] = {"varlen_attn": partial(_varlen, q, k, v, cuts, longest, pack, shrink)}
        if CUDA:
            contenders |= {
                f"flash-attn-4 {tile}": partial(_flash4, q, k, v, cuts, longest, tile, pack, shrink)
                for tile in (None, (192, 128))
            }
        for tile in TILES if CUDA else TILES[:1]:
            contenders[f"ours {tuple(tile)}"] = partial(_ours, q, k, v, cuts, shrink, tile)
        turns(f"attention of {name}, in fp8", contenders, exact)
        bounds = (cuts, cuts, longest, longest, EVERYTHING)
        others: dict[str, Contender] = {
            "varlen_attn": partial(attend, q, k, v, *bounds),
            "ours": partial(packed_attention, q, k, v, cuts),
        }
        if CUDA:
            others["flash-attn-4"] = partial(attend_flash4, q, k, v, *bounds)
        turns(f"attention of {name}, in bf16", others, exact.unflatten(1, (HEADS, SIZE)) / 20)


def _ours(q: Tensor, k: Tensor, v: Tensor, cuts: Tensor, shrink: Tensor, tile: AttentionTile) -> Tensor:
    return packed_attention(q, k, v, cuts, shrink, tile=tile).flatten(1)


def _varlen(q: Tensor, k: Tensor, v: Tensor, cuts: Tensor, longest: int, pack: Any, shrink: Tensor) -> Tensor:
    answer: Tensor = pack(attend(q, k, v, cuts, cuts, longest, longest, EVERYTHING).flatten(1), shrink)
    return answer


def _flash4(
    q: Tensor, k: Tensor, v: Tensor, cuts: Tensor, longest: int, tile: Any, pack: Any, shrink: Tensor
) -> Tensor:
    from flash_attn.cute.interface import _flash_attn_fwd

    found = _flash_attn_fwd(
        q, k, v, cu_seqlens_q=cuts, cu_seqlens_k=cuts, max_seqlen_q=longest, max_seqlen_k=longest, tile_mn=tile
    )
    answer: Tensor = pack(found[0].flatten(1), shrink)
    return answer


def norms(args: argparse.Namespace) -> None:
    x, weight, bias = drawn(args.tokens, WIDTH), drawn(WIDTH, seed=1), drawn(WIDTH, seed=2)
    shrink = torch.full((1,), 20.0, device=DEVICE)

    def torchs(x: Tensor, shrink: Tensor) -> tuple[Tensor, Tensor]:
        normed = F.layer_norm(x, (WIDTH,), weight, bias, 1e-12)
        return normed, rounded(normed, shrink)

    compiled = torch.compile(torchs, dynamic=False, backend="inductor" if CUDA else "eager")
    contenders: dict[str, Contender] = {"torch.compile": lambda: compiled(x, shrink)[1]}
    for rows, warps in ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8)) if CUDA else ((4, 4),):
        contenders[f"Triton {rows} rows, {warps} warps"] = partial(norm_by_triton, x, weight, bias, shrink, rows, warps)
    turns(
        "norms",
        contenders,
        F.layer_norm(x.float(), (WIDTH,), weight.float(), bias.float(), 1e-12) * 20,
        args.tokens * WIDTH * 5,
    )


def products(args: argparse.Namespace) -> None:
    if not CUDA:
        return
    one = torch.ones(1, device=DEVICE)
    for name, inner, outer in (
        ("up, GELU, fp8", WIDTH, INNER),
        ("down, added", INNER, WIDTH),
        ("out, added", WIDTH, WIDTH),
    ):
        x8, weight8 = drawn(args.tokens, inner).to(FP8), drawn(outer, inner, seed=1).to(FP8)
        given = (x8, weight8, drawn(outer, seed=2), one, one / inner**0.5)
        to = drawn(args.tokens, outer, seed=3)
        gelu = outer == INNER
        go = partial(cublaslt.gelu_rounded, *given, one) if gelu else partial(cublaslt.linear_added, *given, to)
        exact = (cublaslt.gelu_rounded_plain(*given, one) if gelu else cublaslt.linear_added_plain(*given, to)).float()
        go()
        key = next(reversed(cublaslt._plans))
        plan = cublaslt._plans[key]
        ways = [
            plan._replace(algorithm=way, workspace=size)
            for way, size in cublaslt._algorithms(plan.description, plan.layouts, 12)
        ]

        def by(way: Any, key: Any = key, go: Contender = go) -> Tensor:
            cublaslt._plans[key] = way
            return go()

        turns(
            name, {f"way {i}": partial(by, way) for i, way in enumerate(ways)}, exact, 2 * args.tokens * inner * outer
        )
        cublaslt._plans[key] = plan


def turns(what: str, contenders: dict[str, Contender], exact: Tensor, work: int = 0) -> None:
    seen: dict[str, list[float]] = {}
    off = {}
    for name, step in contenders.items():
        try:
            off[name] = float((step().float() - exact).norm() / exact.norm())
            seen[name] = []
        except Exception as error:  # the others are still worth having
            print(json.dumps({"what": what, "contender": name, "failed": reason(error)}), flush=True)
    for turn in range(10 if CUDA else 2):
        for name in seen:
            _wait()
            began, calls = time.perf_counter(), 0
            while time.perf_counter() - began < 0.05 and (CUDA or not calls):
                for _ in range(8 if CUDA else 1):
                    contenders[name]()
                calls += 8 if CUDA else 1
                _wait()
            if turn > 1 or not CUDA:
                seen[name].append((time.perf_counter() - began) / calls)
    for name, taken in sorted(seen.items(), key=lambda item: statistics.median(item[1])):
        took = statistics.median(taken)
        print(
            json.dumps(
                {
                    "what": what,
                    "contender": name,
                    "milliseconds": round(1e3 * took, 4),
                    "off": round(off[name], 5),
                    "tera_a_second": round(work / took / 1e12, 2),
                }
            ),
            flush=True,
        )


def _wait() -> None:
    if CUDA:
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="attention,norms,products")
    parser.add_argument("--lengths", type=Path)
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if args.tiny:
        args.tokens = 1024
    sections = {"attention": attention, "norms": norms, "products": products}
    wanted, failed = [sections[name] for name in args.only.split(",")], 0
    for section in wanted:
        try:
            with torch.inference_mode():
                section(args)
        except Exception:  # the others are still worth having
            traceback.print_exc(limit=3)
            failed = 1
    sys.exit(failed)


if __name__ == "__main__":
    main()
