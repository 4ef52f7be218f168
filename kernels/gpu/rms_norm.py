"""RMSNorm (Zhang and Sennrich 2019), also of a sum: x / sqrt(mean(x**2) + eps) * weight, in float32, rounded once.

With n = x / rms and g = d_out * weight, the gradient of x is (g - n * mean(g * n)) / rms and that of the weight is the
sum over rows of d_out * n: each program adds up its own rows, and a second kernel adds the programs in order. There are
no atomic additions, so two runs give the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gristmill.kernels.gpu.grid import processors


class NormTile(NamedTuple):
    """What one program takes at a time. Results of the forward pass do not depend on it. `programs` is the number of
    programs for each multiprocessor, backward."""

    elements: int
    warps: int
    programs: int = 2
    stages: int = 1


FORWARD, BACKWARD = NormTile(8192, 8), NormTile(4096, 8, programs=2, stages=3)
ASKED_AHEAD = 16_384  # bytes of a tensor's rows up to which several stages fit into every card's shared memory


def rms_norm(x_TC: Tensor, weight_C: Tensor, eps: float, tile: NormTile = FORWARD) -> tuple[Tensor, Tensor]:
    """The norm, and 1 / rms of each row (float32) for the backward pass."""
    x_TC, (rows, width) = x_TC.contiguous(), x_TC.shape
    normed, scales = torch.empty_like(x_TC), x_TC.new_empty(rows, dtype=torch.float32)
    if rows:
        shape = _shape(width, tile)
        _normed[(triton.cdiv(rows, shape["ROWS"]),)](
            x_TC, weight_C, normed, scales, rows, eps, **shape, num_warps=tile.warps
        )
    return normed, scales


def add_rms_norm(
    x_TC: Tensor, residual_TC: Tensor, weight_C: Tensor, eps: float, tile: NormTile = FORWARD
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum (rounded to its type before it is normed), its norm, and 1 / rms of each row. Both inputs have one
    type."""
    if x_TC.shape != residual_TC.shape or x_TC.dtype != residual_TC.dtype:
        raise ValueError(
            f"{x_TC.dtype} {tuple(x_TC.shape)} and {residual_TC.dtype} {tuple(residual_TC.shape)} are not alike"
        )
    x_TC, residual_TC, (rows, width) = x_TC.contiguous(), residual_TC.contiguous(), x_TC.shape
    total, normed, scales = torch.empty_like(x_TC), torch.empty_like(x_TC), x_TC.new_empty(rows, dtype=torch.float32)
    if rows:
        shape = _shape(width, tile)
        programs = (triton.cdiv(rows, shape["ROWS"]),)
        _sum_normed[programs](
            x_TC, residual_TC, weight_C, total, normed, scales, rows, eps, **shape, num_warps=tile.warps
        )
    return total, normed, scales


def rms_norm_backward(
    d_normed: Tensor,
    x_TC: Tensor,
    weight_C: Tensor,
    scales: Tensor,
    d_x: Tensor | None = None,
    tile: NormTile = BACKWARD,
) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the weight. `d_x` is a further gradient of x (of a sum that is used past its norm), and
    is added."""
    d_normed, x_TC, (rows, width) = d_normed.contiguous(), x_TC.contiguous(), x_TC.shape
    flowing = None if d_x is None else d_x.contiguous()
    gradient, of_weight = torch.empty_like(x_TC), torch.zeros_like(weight_C)
    if not rows:
        return gradient, of_weight
    shape = _shape(width, tile)
    programs = min(triton.cdiv(rows, shape["ROWS"]), tile.programs * processors(x_TC.device))
    parts = x_TC.new_empty((programs, width), dtype=torch.float32)
    stages = tile.stages if shape["ROWS"] * shape["BLOCK"] * x_TC.element_size() <= ASKED_AHEAD else 1
    _slopes[(programs,)](
        d_normed, x_TC, weight_C, scales, flowing, gradient, parts, rows, **shape, STAGES=stages, num_warps=tile.warps
    )  # fmt: skip
    _add_up[(triton.cdiv(width, 32),)](parts, of_weight, programs, width, PARTS=128, BLOCK=32, num_warps=4)
    return gradient, of_weight


def _shape(width: int, tile: NormTile) -> dict[str, int]:
    block = triton.next_power_of_2(width)
    return {"WIDTH": width, "BLOCK": block, "ROWS": max(tile.elements // block, 1)}


@triton.jit
def _norm_of(wide, weight, column, eps, WIDTH: tl.constexpr):
    scale = tl.rsqrt(tl.sum(wide * wide, 1) / WIDTH + eps)
    by = tl.load(weight + column, mask=column < WIDTH, other=0).to(tl.float32)
    return wide * scale[:, None] * by[None, :], scale


@triton.jit
def _normed(x, weight, normed, scales, rows, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    there = (row < rows)[:, None] & (column < WIDTH)[None, :]
    index = row[:, None] * WIDTH + column[None, :]
    norm, scale = _norm_of(tl.load(x + index, mask=there, other=0).to(tl.float32), weight, column, eps, WIDTH)
    tl.store(scales + row, scale, mask=row < rows)
    tl.store(normed + index, norm.to(normed.dtype.element_ty), mask=there)


@triton.jit
def _sum_normed(
    x, residual, weight, total, normed, scales, rows, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    row, column = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    there = (row < rows)[:, None] & (column < WIDTH)[None, :]
    index = row[:, None] * WIDTH + column[None, :]
    wide = tl.load(x + index, mask=there, other=0).to(tl.float32) + tl.load(residual + index, mask=there, other=0).to(
        tl.float32
    )
    rounded = wide.to(total.dtype.element_ty)
    norm, scale = _norm_of(rounded.to(tl.float32), weight, column, eps, WIDTH)
    tl.store(total + index, rounded, mask=there)
    tl.store(scales + row, scale, mask=row < rows)
    tl.store(normed + index, norm.to(normed.dtype.element_ty), mask=there)


@triton.jit
def _slopes(
    d_normed, x, weight, scales, flowing, gradient, parts, rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    by = tl.load(weight + column, mask=column < WIDTH, other=0).to(tl.float32)
    of_weight = tl.zeros([ROWS, BLOCK], tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        there = (row < rows)[:, None] & (column < WIDTH)[None, :]
        index = row[:, None] * WIDTH + column[None, :]
        scale = tl.load(scales + row, mask=row < rows, other=0)[:, None]
        slope = tl.load(d_normed + index, mask=there, other=0).to(tl.float32)
        norm = tl.load(x + index, mask=there, other=0).to(tl.float32) * scale
        if flowing is not None:  # loaded before the sums that all must wait for
            beside = tl.load(flowing + index, mask=there, other=0).to(tl.float32)
        of_weight += slope * norm
        slope *= by[None, :]
        slope = (slope - norm * (tl.sum(slope * norm, 1) / WIDTH)[:, None]) * scale
        if flowing is not None:
            slope += beside
        tl.store(gradient + index, slope.to(gradient.dtype.element_ty), mask=there)
    tl.store(parts + tl.program_id(0) * WIDTH + column, tl.sum(of_weight, 0), mask=column < WIDTH)


@triton.jit
def _add_up(parts, out, programs, width, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([PARTS, BLOCK], tl.float32)
    for start in range(0, programs, PARTS):
        part = start + tl.arange(0, PARTS)
        there = (part < programs)[:, None] & (column < width)[None, :]
        total += tl.load(parts + part[:, None] * width + column[None, :], mask=there, other=0)
    tl.store(out + column, tl.sum(total, 0).to(out.dtype.element_ty), mask=column < width)
