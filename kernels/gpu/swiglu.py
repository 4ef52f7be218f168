"""silu(gate) * up (Shazeer 2020) of the one matmul that makes both, in float32, rounded once.

The backward pass recomputes the activation and writes the gradient of the matmul as one matrix, over the matmul's
output where asked.

T tokens, M inner width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class SwigluTile(NamedTuple):
    """The outputs of one program, at most how many of one row, and the warps that share them; results do not depend on
    them."""

    elements: int = 2048
    columns: int = 1024
    warps: int = 4


TILE = SwigluTile()


def swiglu(gate_up: Tensor, tile: SwigluTile = TILE) -> Tensor:
    """T x M of T x 2M."""
    gate_up, (tokens, both) = gate_up.contiguous(), gate_up.shape
    if both % 2:
        raise ValueError(f"rows of {both} are not gate and up: their number is odd")
    out = gate_up.new_empty(tokens, both // 2)
    if out.numel():
        shape, programs = _shape(tokens, both // 2, tile)
        _forward[programs](gate_up, out, tokens, both // 2, **shape, num_warps=tile.warps)
    return out


def swiglu_backward(d_out: Tensor, gate_up: Tensor, out: Tensor | None = None, tile: SwigluTile = TILE) -> Tensor:
    """The gradient of `gate_up`, written to `out`, which may be `gate_up` itself."""
    d_out, gate_up, (tokens, inner) = d_out.contiguous(), gate_up.contiguous(), d_out.shape
    out = torch.empty_like(gate_up) if out is None else out
    if not out.is_contiguous() or out.shape != gate_up.shape:
        raise ValueError(
            f"the gradient is written to a contiguous matrix of {tuple(gate_up.shape)}, not {tuple(out.shape)}"
        )
    if d_out.numel():
        shape, programs = _shape(tokens, inner, tile)
        _backward[programs](d_out, gate_up, out, tokens, inner, **shape, num_warps=tile.warps)
    return out


def _shape(tokens: int, inner: int, tile: SwigluTile) -> tuple[dict[str, int], tuple[int]]:
    block = min(triton.next_power_of_2(inner), tile.columns)
    rows = max(tile.elements // block, 1)
    return {"BLOCK": block, "ROWS": rows}, (triton.cdiv(tokens, rows) * triton.cdiv(inner, block),)


@triton.jit
def _where(tokens, inner, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Where a program's outputs and their gates are, and which of them exist."""
    parts = tl.cdiv(inner, BLOCK)
    row = (tl.program_id(0) // parts).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % parts) * BLOCK + tl.arange(0, BLOCK)
    there = (row < tokens)[:, None] & (column < inner)[None, :]
    return row[:, None] * inner + column[None, :], row[:, None] * (2 * inner) + column[None, :], there


@triton.jit
def _forward(gate_up, out, tokens, inner, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    index, of_gate, there = _where(tokens, inner, BLOCK, ROWS)
    gate = tl.load(gate_up + of_gate, mask=there, other=0).to(tl.float32)
    up = tl.load(gate_up + of_gate + inner, mask=there, other=0).to(tl.float32)
    tl.store(out + index, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=there)


@triton.jit
def _backward(d_out, gate_up, d_gate_up, tokens, inner, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    index, of_gate, there = _where(tokens, inner, BLOCK, ROWS)
    slope = tl.load(d_out + index, mask=there, other=0).to(tl.float32)
    gate = tl.load(gate_up + of_gate, mask=there, other=0).to(tl.float32)
    up = tl.load(gate_up + of_gate + inner, mask=there, other=0).to(tl.float32)
    open_ = tl.sigmoid(gate)
    passed = gate * open_
    d_gate = slope * up * (open_ + passed * (1 - open_))
    tl.store(d_gate_up + of_gate, d_gate.to(d_gate_up.dtype.element_ty), mask=there)
    tl.store(d_gate_up + of_gate + inner, (slope * passed).to(d_gate_up.dtype.element_ty), mask=there)
