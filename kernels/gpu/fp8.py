"""Rounding to eight bits for matmuls on Hopper: the largest magnitude of a matrix, and the rounded matrix and its
transpose in one pass; and rows with a scale each, for matmuls of experts.

The product of two fp8 matrices needs both with the summed dimension innermost, so training needs each matrix in both
orders. Reading 16 bits once and writing 8 twice moves 4 bytes a number; rounding and transposing apart move 6.

M rows, N columns, of each of E matrices where there are several. A scale is the factor by which a rounded number is to
be multiplied.
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
    matrix = tl.program_id(2).to(tl.int64) * M * N
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    shrink = most / tl.maximum(tl.load(largest), 1e-12)
    tile = tl.load(x + matrix + rows[:, None] * N + columns[None, :], mask=inside, other=0.0).to(tl.float32) * shrink
    tile = tl.minimum(tl.maximum(tile, -most), most).to(rounded.dtype.element_ty)
    tl.store(rounded + matrix + rows[:, None] * N + columns[None, :], tile, mask=inside)
    tl.store(turned + matrix + columns[:, None] * M + rows[None, :], tl.trans(tile), mask=tl.trans(inside))


@triton.jit
def _round_rows(x, rounded, scales, N, most: tl.constexpr, gated: tl.constexpr, COLUMNS: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, COLUMNS)
    inside = columns < N
    start = row * (2 * N if gated else N)
    numbers = tl.load(x + start + columns, mask=inside, other=0.0).to(tl.float32)
    if gated:
        up = tl.load(x + start + N + columns, mask=inside, other=0.0).to(tl.float32)
        numbers = numbers / (1 + tl.exp(-numbers)) * up
    scale = tl.maximum(tl.max(tl.abs(numbers), 0), 1e-12) / most
    numbers = tl.minimum(tl.maximum(numbers / scale, -most), most)
    tl.store(rounded + row * N + columns, numbers.to(rounded.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)


def largest(x: Tensor) -> Tensor:
    """The largest magnitude in contiguous matrices, as a float32 scalar on the device."""
    if not x.is_cuda:
        return largest_plain(x)
    out = torch.zeros(1, dtype=torch.float32, device=x.device)
    block, turns = 4096, 8
    _largest[(triton.cdiv(x.numel(), block * turns),)](x, out, x.numel(), block, turns, num_warps=8)
    return out


def rounded_both(x_MN: Tensor, most: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """M x N and N x M in `kind`, scaled so that `most` becomes its largest number; or E x M x N and E x N x M."""
    if not x_MN.is_cuda or x_MN.dtype != torch.bfloat16:  # of float32 Triton 3.6 turns a tile wrongly
        return rounded_both_plain(x_MN, most, kind)
    return _launched(x_MN, most, kind)


def rounded_rows(x_MN: Tensor, kind: torch.dtype, gated: bool = False) -> tuple[Tensor, Tensor]:
    """A contiguous matrix in `kind`, each row scaled by its own largest magnitude; and the scales, float32_M. `gated`:
    of `silu(left half of a row) * right half`."""
    if not x_MN.is_cuda:
        return rounded_rows_plain(x_MN, kind, gated)
    return _rows_launched(x_MN, kind, gated)


def _launched(x_MN: Tensor, most: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    *several, M, N = x_MN.shape
    rounded, turned = (torch.empty((*several, *size), dtype=kind, device=x_MN.device) for size in ((M, N), (N, M)))
    rows, columns = 128, 64
    grid: Any = (triton.cdiv(M, rows), triton.cdiv(N, columns), *(several or (1,)))
    _round_both[grid](x_MN, most, rounded, turned, M, N, LARGEST[kind], rows, columns, num_warps=8)
    return rounded, turned


def _rows_launched(x_MN: Tensor, kind: torch.dtype, gated: bool) -> tuple[Tensor, Tensor]:
    M, N = len(x_MN), x_MN.shape[1] // (2 if gated else 1)
    rounded = torch.empty((M, N), dtype=kind, device=x_MN.device)
    scales = torch.empty(M, dtype=torch.float32, device=x_MN.device)
    columns = triton.next_power_of_2(N)
    if M:
        warps = max(1, min(16, columns // 512))
        _round_rows[(M,)](x_MN, rounded, scales, N, LARGEST[kind], gated, columns, num_warps=warps)
    return rounded, scales


def scale_of(most: Tensor, kind: torch.dtype) -> Tensor:
    return most.clamp(min=LEAST_MAGNITUDE) / LARGEST[kind]


def largest_plain(x: Tensor) -> Tensor:
    return x.abs().amax().float().reshape(1)


def rounded_both_plain(x_MN: Tensor, most: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    bound = LARGEST[kind]
    rounded = (x_MN.float() * (bound / most.clamp(min=LEAST_MAGNITUDE))).clamp(-bound, bound).to(kind)
    return rounded, rounded.transpose(-1, -2).contiguous()


def rounded_rows_plain(x_MN: Tensor, kind: torch.dtype, gated: bool = False) -> tuple[Tensor, Tensor]:
    wide = x_MN.float()
    if gated:
        gate, up = wide.chunk(2, dim=1)
        wide = gate * torch.sigmoid(gate) * up
    scale_M1 = wide.abs().amax(1, keepdim=True).clamp(min=LEAST_MAGNITUDE) / LARGEST[kind]
    return (wide / scale_M1).clamp(-LARGEST[kind], LARGEST[kind]).to(kind), scale_M1[:, 0]
