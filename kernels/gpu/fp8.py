"""Rounding to eight bits for matmuls on Hopper: the largest magnitude of a matrix, and the rounded matrix and its
transpose in one pass.

The product of two fp8 matrices needs both with the summed dimension innermost, so training needs each matrix in both
orders. Reading 16 bits once and writing 8 twice moves 4 bytes a number; rounding and transposing apart move 6.

M rows, N columns. A scale is the factor by which a rounded number is to be multiplied.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57_344.0}
LEAST_MAGNITUDE = 1e-12  # of a matrix of zeros


@triton.jit
def _largest(x, out, size, BLOCK: tl.constexpr, TURNS: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK * TURNS
    most = tl.zeros((BLOCK,), tl.float32)
    for turn in range(TURNS):
        index = start + turn * BLOCK + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.abs(tl.load(x + index, mask=index < size, other=0.0).to(tl.float32)))
    tl.atomic_max(out, tl.max(most, 0))  # magnitudes are not negative: their bits are ordered as they are


@triton.jit
def _round_both(x, largest, rounded, turned, M, N, most: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    shrink = most / tl.maximum(tl.load(largest), 1e-12)
    tile = tl.load(x + rows[:, None] * N + columns[None, :], mask=inside, other=0.0).to(tl.float32) * shrink
    tile = tl.minimum(tl.maximum(tile, -most), most).to(rounded.dtype.element_ty)
    tl.store(rounded + rows[:, None] * N + columns[None, :], tile, mask=inside)
    tl.store(turned + columns[:, None] * M + rows[None, :], tl.trans(tile), mask=tl.trans(inside))


def largest(x: Tensor) -> Tensor:
    """The largest magnitude of a contiguous matrix, as a float32 scalar on the device."""
    if not x.is_cuda:
        return largest_plain(x)
    out = torch.zeros(1, dtype=torch.float32, device=x.device)
    block, turns = 4096, 8
    _largest[(triton.cdiv(x.numel(), block * turns),)](x, out, x.numel(), block, turns, num_warps=8)
    return out


def rounded_both(x_MN: Tensor, most: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """M x N and N x M in `kind`, scaled so that `most` becomes its largest number."""
    if not x_MN.is_cuda:
        return rounded_both_plain(x_MN, most, kind)
    return _launched(x_MN, most, kind)


def _launched(x_MN: Tensor, most: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    M, N = x_MN.shape
    rounded, turned = (torch.empty(size, dtype=kind, device=x_MN.device) for size in ((M, N), (N, M)))
    rows, columns = 128, 64
    grid: Any = (triton.cdiv(M, rows), triton.cdiv(N, columns))
    _round_both[grid](x_MN, most, rounded, turned, M, N, LARGEST[kind], rows, columns, num_warps=8)
    return rounded, turned


def scale_of(most: Tensor, kind: torch.dtype) -> Tensor:
    return most.clamp(min=LEAST_MAGNITUDE) / LARGEST[kind]


def largest_plain(x: Tensor) -> Tensor:
    return x.abs().amax().float().reshape(1)


def rounded_both_plain(x_MN: Tensor, most: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    bound = LARGEST[kind]
    rounded = (x_MN.float() * (bound / most.clamp(min=LEAST_MAGNITUDE))).clamp(-bound, bound).to(kind)
    return rounded, rounded.t().contiguous()
