"""`residual + layer(x)` as one matmul with the addition in its epilogue, on Hopper (QuACK; for few tokens cuBLAS). The
next norm then reads and writes less.

A block has two such sums. Elsewhere the layer's output is passed to the next norm beside the residual stream, and the
norm adds it in its own pass over memory (`gristmill.trainer.model.fused.add_rms_norm`). So a sum here is the residual
stream and an addend that is still to be added, or None.

T tokens, C hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gristmill.trainer.model.product import matmul
from gristmill.trainer.model.quack import by_quack, fits_weight, many_tiles, multiplies, quack, tile

Sum = tuple[Tensor, Tensor | None]


def add_linear(x: Tensor, layer: nn.Linear, residual_TC: Tensor) -> Sum:
    if multiplies(layer) and _fits_matmul(x, layer.weight, residual_TC):
        total: Tensor = _add_linear(x, layer.weight, residual_TC)
        return total, None
    return residual_TC, layer(x)


def _fits_matmul(x: Tensor, weight: Tensor, residual: Tensor) -> bool:
    return fits_weight(x, weight, residual)


@torch.library.custom_op("gristmill::added", mutates_args=())
def _add_linear(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    return add_matmul(x, weight, residual)


@_add_linear.register_fake
def _(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    return torch.empty_like(residual, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, ...]:
    x, weight = ctx.saved_tensors
    return matmul(grad_output, weight.t()), matmul(grad_output.t(), x.t()), grad_output


_add_linear.register_autograd(_backward, setup_context=_setup_context)


def add_matmul(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """`residual + x @ weight.t()`, rounded once."""
    if not by_quack(x) or not many_tiles(x.shape[0], weight.shape[0]):
        return torch.addmm(residual, x, weight.t())
    total = torch.empty_like(residual, memory_format=torch.contiguous_format)
    chosen = tile(128, 192, pingpong=True, cluster=(2, 1))
    quack().gemm_tuned.fn(x.contiguous(), weight.t(), total, C=residual.contiguous(), config=chosen)
    return total
