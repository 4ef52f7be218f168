"""Attention inside texts that are packed end to end, each token to all of its text, for inference.

Queries come in blocks of one text, keys a few at a time; only the last few keys of a text need a mask. Sums and
exponentials are float32; weights are rounded to the values' type before they are multiplied, as in FlashAttention (Dao
et al. 2022). The output can be rounded to fp8 for the next matmul, which saves a pass over it. (Causal, for training,
it is no faster than flash-attn-4: docs/log.md.)

T tokens, H heads, D head size, a power of two from 16 to 128.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gristmill.kernels.gpu.plain import FP8, HEAD_SIZES, LARGEST

_LOG2_E, _LARGEST = 1.4426950408889634, tl.constexpr(LARGEST)


class AttentionTile(NamedTuple):
    """Queries of a program, keys at a time. Only the latter changes the order of summation."""

    queries: int = 128
    keys: int = 64
    warps: int = 8
    stages: int = 3


TILE = AttentionTile()


def packed_attention(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    cuts: Tensor,
    shrink: Tensor | None = None,
    first_NHD: Tensor | None = None,
    tile: AttentionTile = TILE,
) -> Tensor:
    """T x H x D in the inputs' type; with `shrink` (a float32 scalar on the device) scaled by it, in fp8. `cuts`
    (int32) are the texts' bounds from 0; tokens behind the last bound have no output. The outputs of texts' first
    tokens are also written, unrounded, to `first_NHD` (float32); rows of empty texts are left as they are."""
    tokens, heads, size = q_THD.shape
    if not q_THD.shape == k_THD.shape == v_THD.shape or size not in HEAD_SIZES:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q_THD, k_THD, v_THD))
        raise ValueError(f"queries, keys and values are {shapes}: alike is wanted, with heads of {HEAD_SIZES}")
    rows = {x.stride(0) for x in (q_THD, k_THD, v_THD)}
    if len(rows) > 1 or any(x.stride()[1:] != (size, 1) for x in (q_THD, k_THD, v_THD)):
        raise ValueError("heads that stand side by side are wanted, and tokens equally far apart")
    answer = torch.empty(tokens, heads, size, device=q_THD.device, dtype=q_THD.dtype if shrink is None else FP8)
    texts = len(cuts) - 1
    if tokens and texts > 0:
        with torch.cuda.device_of(q_THD):
            _attended[(tokens // tile.queries + texts, heads)](
                q_THD, k_THD, v_THD, cuts, answer, first_NHD, shrink, texts, rows.pop(), heads * size,
                _LOG2_E / size**0.5,
                SIZE=size, QUERIES=tile.queries, KEYS=tile.keys, num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    return answer


@triton.jit(do_not_specialize=["texts"])
def _attended(
    q, k, v, cuts, answer, firsts, shrink, texts, stride, width, scale, SIZE: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr
):  # fmt: skip
    """One program has the queries of one block of one text, of one head. `scale` turns exponents into powers of two."""
    block, column, place = tl.program_id(0), tl.program_id(1) * SIZE + tl.arange(0, SIZE), tl.arange(0, KEYS)
    text = _text_of(block, cuts, texts, QUERIES)
    first, end = tl.load(cuts + text), tl.load(cuts + text + 1)
    begin = first + (block - first // QUERIES - text) * QUERIES
    if begin < end:
        row = begin + tl.arange(0, QUERIES)
        there = (row < end)[:, None]
        asked = tl.load(q + row.to(tl.int64)[:, None] * stride + column[None, :], mask=there, other=0.0)
        keys, values = k + column[:, None], v + column[None, :]
        most, total = tl.full([QUERIES], float("-inf"), tl.float32), tl.zeros([QUERIES], tl.float32)
        summed = tl.zeros([QUERIES, SIZE], tl.float32)
        whole = first + (end - first) // KEYS * KEYS
        for start in range(first, whole, KEYS):
            key = (start + place).to(tl.int64) * stride
            score = tl.dot(asked, tl.load(keys + key[None, :]), input_precision="ieee")
            most, total, summed = _met(score, tl.load(values + key[:, None]), most, total, summed, scale)
        if whole < end:
            key, sees = (whole + place).to(tl.int64) * stride, whole + place < end
            score = tl.dot(asked, tl.load(keys + key[None, :], mask=sees[None, :], other=0.0), input_precision="ieee")
            score = tl.where(sees[None, :], score, float("-inf"))
            most, total, summed = _met(
                score, tl.load(values + key[:, None], mask=sees[:, None], other=0.0), most, total, summed, scale
            )
        summed = summed / total[:, None]
        if firsts is not None:  # noqa: SIM102  # the outer one is decided by the compiler
            if begin == first:
                alone = tl.sum(tl.where((row == first)[:, None], summed, 0.0), 0)
                tl.store(firsts + text.to(tl.int64) * width + column, alone)
        if shrink is not None:
            summed = tl.minimum(tl.maximum(summed * tl.load(shrink), -_LARGEST), _LARGEST)
        tl.store(
            answer + row.to(tl.int64)[:, None] * width + column[None, :], summed.to(answer.dtype.element_ty), mask=there
        )


@triton.jit
def _met(score, value, most, total, summed, scale):
    """Adds a few keys to the running softmax of the queries."""
    higher = tl.maximum(most, tl.max(score, 1) * scale)
    weight, kept = tl.exp2(score * scale - higher[:, None]), tl.exp2(most - higher)
    summed = tl.dot(weight.to(value.dtype), value, summed * kept[:, None], input_precision="ieee")
    return higher, total * kept + tl.sum(weight, 1), summed


@triton.jit
def _text_of(block, cuts, texts, QUERIES: tl.constexpr):
    """The last text that begins at this block or before it. Text i has the blocks from cuts[i] // QUERIES + i on, which
    suffice wherever it begins."""
    before = 0
    for start in range(0, texts, 1024):
        text = start + tl.arange(0, 1024)
        cut = tl.load(cuts + text, mask=text < texts, other=0)
        before += tl.sum(((text < texts) & (cut // QUERIES + text <= block)).to(tl.int32), 0)
    return before - 1
