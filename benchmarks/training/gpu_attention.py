"""Attention inside documents by every engine that is there: a section of benchmarks/training/gpu_kernels.py."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.training.gpu_timing import DEVICE, Sizes, Step, compiled, drawn, microseconds, off, reason, say
from gristmill.trainer.model.attention import CAUSAL, attend, attend_flash4


def attention_wide(sizes: Sizes) -> None:
    attention(sizes, 32, 8, 128)


def attention_narrow(sizes: Sizes) -> None:
    attention(sizes, 12, 12, 64)


def attention(sizes: Sizes, H: int, K: int, D: int) -> None:
    T = sizes.attended
    q, k, v = (drawn(T, count, D, seed=i).requires_grad_() for i, count in enumerate((H, K, K)))
    gradient = drawn(T, H, D, seed=3)
    documents = torch.zeros(T, dtype=torch.int32, device=DEVICE)
    flex = flex_attention_over(documents)
    ratios: dict[tuple[str, str], dict[int, float]] = {}
    lost: dict[str, str] = {}
    for length in sizes.lengths:
        cuts = torch.arange(0, T + 1, length, dtype=torch.int32, device=DEVICE)
        documents.copy_(torch.arange(T, device=DEVICE) // length)
        engines: dict[str, Step] = {
            "varlen_attn": lambda *qkv, c=cuts, n=length: attend(*qkv, c, c, n, n, CAUSAL),
            "flash-attn-4": lambda *qkv, c=cuts, n=length: attend_flash4(*qkv, c, c, n, n, CAUSAL),
            "flex_attention": flex(length),
        }
        base: dict[str, float] = {}
        first: Tensor | None = None
        for engine, step in engines.items():
            if engine in lost:
                continue
            try:
                answer = step(q, k, v).detach()
                first = answer if first is None else first
                for way, times, run in (
                    ("forward", 1.0, lambda s=step: s(q, k, v)),
                    ("forward and backward", 3.5, lambda s=step: torch.autograd.grad(s(q, k, v), (q, k, v), gradient)),
                ):
                    taken = microseconds(run, 0.1)
                    median = statistics.median(taken)
                    work = times * 4 * (T // length) * (length**2 / 2) * H * D
                    shape = {"tokens": T, "length": length, "heads": H, "kv_heads": K, "head_size": D}
                    more: dict[str, Any] = {
                        "by": engine,
                        "teraflops": round(work / median / 1e6, 1),
                        "off_from_varlen_attn": off(answer, first.double()),
                    }
                    base.setdefault(way, median)
                    if engine != "varlen_attn":
                        ratios.setdefault((engine, way), {})[length] = base[way] / median
                        more |= {"peer": "varlen_attn", "ratio": round(base[way] / median, 3)}
                    say(f"attention, {way}", shape, taken, **more)
            except Exception as error:
                lost[engine] = reason(error)
                say(
                    f"attention, {engine}",
                    {"heads": H, "kv_heads": K, "head_size": D, "length": length},
                    failed=lost[engine],
                )
    for (engine, way), found in ratios.items():
        mean = statistics.geometric_mean([found[n] for n in found if n in (1024, 2048, 4096)] or list(found.values()))
        lengths = {str(n): round(ratio, 3) for n, ratio in found.items()}
        say(
            f"attention, {way}, geometric mean at 1k, 2k, 4k",
            {"head_size": D},
            by=engine,
            peer="varlen_attn",
            ratio=round(mean, 3),
            ratios=lengths,
        )


def flex_attention_over(documents: Tensor) -> Callable[[int], Step]:
    """For documents of one length, a whole number of blocks; the mask's blocks are written down, not searched for."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    block, T = 128, len(documents)
    run = compiled(flex_attention)

    def seen(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (documents[query] == documents[key]) & (query >= key)

    def of_length(length: int) -> Step:
        own = torch.arange(T // block, dtype=torch.int32, device=DEVICE)
        first = own * block // length * (length // block)
        before = (first[:, None] + own[None, :]).clamp(max=T // block - 1).int()
        diagonal = torch.zeros_like(before)
        diagonal[:, 0] = own
        mask = BlockMask.from_kv_blocks(
            torch.ones_like(own)[None, None],
            diagonal[None, None],
            (own - first).int()[None, None],
            before[None, None],
            block,
            seen,
            (T, T),
        )

        def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            wide = [x.transpose(0, 1)[None] for x in (q, k, v)]
            return run(*wide, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])[0].transpose(0, 1)

        return step

    return of_length
