"""`residual + layer(x)`, on Hopper as one matrix product that begins with the sum (QuACK's; of few tokens cuBLAS's):
the norm that follows has less to read and to write.

A block is two such sums. Elsewhere what a layer adds goes beside the residual stream to the next norm, which adds it in
its own pass over memory (`gristmill.trainer.model.fused.add_rms_norm`): so a sum here is a stream, and what is still to
be added to it.

T tokens, C hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gristmill.trainer.model.product import product
from gristmill.trainer.model.quack import by_quack, fits_weight, many_tiles, multiplies, quack, tile

Sum = tuple[Tensor, Tensor | None]


def added(x: Tensor, layer: nn.Linear, residual_TC: Tensor) -> Sum:
    if multiplies(layer) and _for_products(x, layer.weight, residual_TC):
        total: Tensor = _added(x, layer.weight, residual_TC)
        return total, None
    return residual_TC, layer(x)


def _for_products(x: Tensor, weight: Tensor, residual: Tensor) -> bool:
    return fits_weight(x, weight, residual)


@torch.library.custom_op("gristmill::added", mutates_args=())
def _added(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    return sum_with_product(x, weight, residual)


@_added.register_fake
def _(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    return torch.empty_like(residual, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _slopes(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:
    x, weight = ctx.saved_tensors
    return product(slope, weight.t()), product(slope.t(), x.t()), slope


_added.register_autograd(_slopes, setup_context=_keep)


def sum_with_product(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """`residual + x @ weight.t()`, rounded once."""
    if not by_quack(x) or not many_tiles(x.shape[0], weight.shape[0]):
        return torch.addmm(residual, x, weight.t())
    total = torch.empty_like(residual, memory_format=torch.contiguous_format)
    chosen = tile(128, 192, pingpong=True, cluster=(2, 1))
    quack().gemm_tuned.fn(x.contiguous(), weight.t(), total, C=residual.contiguous(), config=chosen)
    return total
