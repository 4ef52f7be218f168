"""Cross-entropy of rows of logits: each row's loss, with its gradient written over the logits, so that there is no
second matrix of that size.

One program a row: a first pass computes the largest logit and the sum of exponentials together (Milakov and Gimelshein
2018), a second writes softmax minus the target. With `z`, z * log(sum of exponentials)**2 is added to the loss (z-loss;
Chowdhery et al. 2022). Rows with target -100 are not read and get zeros. A target outside the vocabulary makes its
row's loss NaN, since a kernel cannot raise.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gristmill.kernels.gpu.plain import NONE

_NONE, LOWEST = tl.constexpr(NONE), tl.constexpr(-3.0e38)  # no infinity, whose difference to itself is no number


class LogitTile(NamedTuple):
    """The logits that one program takes at a time, and the warps that share them."""

    columns: int = 8192
    warps: int = 8


TILE = LogitTile()


def row_losses(logits: Tensor, targets: Tensor, z: float = 0.0, tile: LogitTile = TILE) -> Tensor:
    """Float32, one a row; 0 where there is no target."""
    return _run(_losses, logits, targets, z, tile)


def row_losses_and_slopes(logits: Tensor, targets: Tensor, z: float = 0.0, tile: LogitTile = TILE) -> Tensor:
    """The losses. `logits` become their gradients, in their own precision."""
    return _run(_losses_and_slopes, logits, targets, z, tile)


def _run(kernel, logits: Tensor, targets: Tensor, z: float, tile: LogitTile) -> Tensor:
    rows, vocabulary = logits.shape
    if logits.stride(1) != 1 or targets.shape != (rows,):
        raise ValueError(
            f"logits {tuple(logits.shape)} with strides {logits.stride()} and targets {tuple(targets.shape)}"
        )
    losses = logits.new_empty(rows, dtype=torch.float32)
    if rows:
        block = min(triton.next_power_of_2(vocabulary), tile.columns)
        kernel[(rows,)](
            logits,
            targets.contiguous(),
            losses,
            logits.stride(0),
            z,
            VOCABULARY=vocabulary,
            BLOCK=block,
            num_warps=tile.warps,
        )
    return losses


@triton.jit
def _largest_and_sum(row, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    largest, total = tl.full((), LOWEST, tl.float32), tl.full((), 0, tl.float32)
    for start in range(0, VOCABULARY, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(row + column, mask=column < VOCABULARY, other=float("-inf"), eviction_policy="evict_last").to(
            tl.float32
        )
        larger = tl.maximum(largest, tl.max(x, 0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(x - larger), 0)
        largest = larger
    return largest, total


@triton.jit
def _chosen(row, target, VOCABULARY: tl.constexpr):
    return tl.load(row + target, mask=(target >= 0) & (target < VOCABULARY), other=float("nan")).to(tl.float32)


@triton.jit(do_not_specialize=["z"])
def _losses(logits, targets, losses, stride, z, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    row, target = logits + index * stride, tl.load(targets + index)
    if target == _NONE:
        tl.store(losses + index, 0.0)
    else:
        largest, total = _largest_and_sum(row, VOCABULARY, BLOCK)
        log_sum = largest + tl.log(total)
        tl.store(losses + index, log_sum - _chosen(row, target, VOCABULARY) + z * log_sum * log_sum)


@triton.jit(do_not_specialize=["z"])
def _losses_and_slopes(logits, targets, losses, stride, z, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    row, target = logits + index * stride, tl.load(targets + index)
    if target == _NONE:
        tl.store(losses + index, 0.0)
        for start in range(0, VOCABULARY, BLOCK):
            column = start + tl.arange(0, BLOCK)
            tl.store(row + column, tl.zeros([BLOCK], logits.dtype.element_ty), mask=column < VOCABULARY)
    else:
        chosen = _chosen(
            row, target, VOCABULARY
        )  # before the pass whose barriers all threads meet: the next one writes over it
        largest, total = _largest_and_sum(row, VOCABULARY, BLOCK)
        log_sum = largest + tl.log(total)
        tl.store(losses + index, log_sum - chosen + z * log_sum * log_sum)
        share = (1 + 2 * z * log_sum) / total
        for start in range(0, VOCABULARY, BLOCK):
            column = start + tl.arange(0, BLOCK)
            x = tl.load(row + column, mask=column < VOCABULARY, other=float("-inf"), eviction_policy="evict_first").to(
                tl.float32
            )
            slope = tl.exp(x - largest) * share
            slope = tl.where(column == target, slope - 1, slope)
            tl.store(row + column, slope.to(logits.dtype.element_ty), mask=column < VOCABULARY)
