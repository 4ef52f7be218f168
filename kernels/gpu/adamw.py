"""One step of AdamW (Loshchilov and Hutter 2019) over bf16 weights with float32 masters: each number is read once and
written once.

    weight 2 (written), gradient 2 (bf16, read), master, mean and square 4 each (read and written): 28 bytes a parameter

What changes from step to step (rate, clipping, whether the gradient is finite, the number of steps) is a scalar on the
device (`gristmill.kernels.gpu.plain.step_scalars`), so the host never waits for it. As in torch's fused kernel, weight
decay comes first.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from gristmill.kernels.gpu.plain import AdamWRule


class AdamWTile(NamedTuple):
    """The parameters of one program, and the warps that share them; results do not depend on either."""

    elements: int = 2048
    warps: int = 8


TILE = AdamWTile()


def adamw_step(
    weight: Tensor,
    gradient: Tensor,
    master: Tensor,
    mean: Tensor,
    square: Tensor,
    scalars: Tensor,
    rule: AdamWRule,
    tile: AdamWTile = TILE,
) -> None:
    """Updates weight (any precision), master, mean and square (float32) of one parameter in place."""
    if not (weight.shape == gradient.shape == master.shape == mean.shape == square.shape):
        raise ValueError(
            f"weight {tuple(weight.shape)}, gradient {tuple(gradient.shape)} and states {tuple(master.shape)} differ"
        )
    if not all(x.is_contiguous() for x in (weight, master, mean, square)):
        raise ValueError("weight, master, mean and square must be contiguous")
    size = master.numel()
    if size:
        (beta1, beta2), eps, decay = rule
        _step[(triton.cdiv(size, tile.elements),)](
            weight, gradient.contiguous(), master, mean, square, scalars, size, 1 - beta1, beta2, 1 - beta2, eps, decay,
            BLOCK=tile.elements, num_warps=tile.warps,
        )  # fmt: skip


@triton.jit(do_not_specialize=["new", "keep", "new_square", "eps", "decay"])
def _step(
    weight, gradient, master, mean, square, scalars, size, new, keep, new_square, eps, decay, BLOCK: tl.constexpr
):
    if tl.load(scalars + 4) == 0:
        rate, corrected_rate, root, clip = (
            tl.load(scalars),
            tl.load(scalars + 1),
            tl.load(scalars + 2),
            tl.load(scalars + 3),
        )
        index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        there = index < size
        slope = tl.load(gradient + index, mask=there, other=0).to(tl.float32) * clip
        w, m, s = (
            tl.load(master + index, mask=there, other=0),
            tl.load(mean + index, mask=there, other=0),
            tl.load(square + index, mask=there, other=0),
        )
        w -= rate * decay * w
        m += new * (slope - m)
        s = keep * s + new_square * slope * slope
        w -= corrected_rate * m / (tl.sqrt(s) / root + eps)
        tl.store(master + index, w, mask=there)
        tl.store(mean + index, m, mask=there)
        tl.store(square + index, s, mask=there)
        tl.store(weight + index, w.to(weight.dtype.element_ty), mask=there)
