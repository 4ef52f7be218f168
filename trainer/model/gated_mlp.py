"""`residual + down(swiglu(gate_up(x)))`, on Hopper with SwiGLU and the sum inside the matrix products beside them
(`gristmill.trainer.model.quack`).

A product that ends in SwiGLU spares reading gate and up once more, and the slope's product that ends in SwiGLU's way
back spares writing and reading the slope between them; what SwiGLU made is worked out anew there instead of being kept.
On one H200, 32,768 tokens of the shape 1.3b: 3.07 ms beside
3.82 for cuBLAS and our own SwiGLU forward, 1.98 beside 2.45 for the way back (the products alone: 3.11 and 1.56).

QuACK wants gate and up side by side (a gate, its up, the next gate). The weight stays as checkpoints have it, gates
first: the products read and write it so by its layout, and only `both`, which nobody else sees, is interleaved.

T tokens, C hidden width, M inner width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gristmill.kernels.gpu import plain
from gristmill.trainer.model.added import Sum, sum_with_product
from gristmill.trainer.model.fused import swiglu
from gristmill.trainer.model.quack import by_quack, fits, many_tiles, multiplies, quack, tile


def gated_mlp(x_TC: Tensor, gate_up: nn.Linear, down: nn.Linear, residual_TC: Tensor) -> Sum:
    """Layers that do more than multiply are called one by one."""
    if multiplies(gate_up) and multiplies(down) and _for_products(x_TC, gate_up.weight, down.weight, residual_TC):
        total: Tensor = _gated_mlp(x_TC, gate_up.weight, down.weight, residual_TC)[0]
        return total, None
    return residual_TC, down(swiglu(gate_up(x_TC)))


def _for_products(x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor) -> bool:
    return gate_up.shape[0] % 32 == 0 and gate_up.shape[1] % 16 == 0 and fits(x, gate_up, down, residual)


@torch.library.custom_op("gristmill::gated_mlp", mutates_args=())
def _gated_mlp(x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """The sum, and gate and up of each token interleaved, T x 2M, for the way back."""
    both, product = _gated(x, gate_up)
    return sum_with_product(product, down, residual), both


@_gated_mlp.register_fake
def _(x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(residual, memory_format=torch.contiguous_format), x.new_empty(x.shape[0], gate_up.shape[0])


@torch.library.custom_op("gristmill::gated_mlp_backward", mutates_args=())
def _gated_mlp_backward(
    slope: Tensor, x: Tensor, gate_up: Tensor, down: Tensor, both: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    slope_of_both, product = _gated_backward(slope, down, both)
    to_down = slope.t() @ product
    del product  # as wide as the largest of them: gone before the next is made
    return _to_input(slope_of_both, gate_up), _to_weight(slope_of_both, x), to_down


@_gated_mlp_backward.register_fake
def _(slope: Tensor, x: Tensor, gate_up: Tensor, down: Tensor, both: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    to_x, to_gate_up, to_down = (
        torch.empty_like(of, memory_format=torch.contiguous_format) for of in (x, gate_up, down)
    )
    return to_x, to_gate_up, to_down


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _slopes(ctx: Any, slope: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return (
        (None, None, None, None)
        if slope is None
        else (*_gated_mlp_backward(slope.contiguous(), *ctx.saved_tensors), slope)
    )


_gated_mlp.register_autograd(_slopes, setup_context=_keep)


def _gated(x: Tensor, gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """Gate and up interleaved, and SwiGLU of them."""
    x = x.contiguous()
    if not by_quack(x):
        both = x @ gate_up.t()
        return interleaved(both, 1), plain.swiglu(both)
    both, product = x.new_empty(x.shape[0], gate_up.shape[0]), x.new_empty(x.shape[0], gate_up.shape[0] // 2)
    chosen = tile(128, 192, pingpong=True, cluster=(1, 2))
    quack().gemm_gated_tuned.fn(x, gate_up.t(), both, product, activation="swiglu", config=chosen, concat_layout=("B",))
    return both, product


def _gated_backward(slope: Tensor, down: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
    """The slope of gate and up, interleaved, and once more what SwiGLU made of them."""
    if not by_quack(slope):
        gate, up = plain.widened(side_by_side(both, 1)).chunk(2, dim=1)
        slope_of_product, passed = plain.widened(slope @ down), torch.sigmoid(gate)
        slopes = [slope_of_product * up * passed * (1 + gate * (1 - passed)), slope_of_product * gate * passed]
        return interleaved(torch.cat(slopes, dim=1), 1).to(both.dtype), (gate * passed * up).to(both.dtype)
    slope_of_both, product = torch.empty_like(both), both.new_empty(both.shape[0], both.shape[1] // 2)
    chosen = tile(128, 160, pingpong=True, cluster=(2, 1))
    quack().gemm_dgated_tuned.fn(
        slope, down, both, slope_of_both, product, activation="swiglu", dynamic_scheduler=False, config=chosen
    )
    return slope_of_both, product


def _to_input(slope_of_both: Tensor, gate_up: Tensor) -> Tensor:
    if not by_quack(slope_of_both):
        return slope_of_both @ interleaved(gate_up, 0)
    to_input = slope_of_both.new_empty(slope_of_both.shape[0], gate_up.shape[1])
    chosen = tile(128, 256, pingpong=False, cluster=(2, 1))
    quack().gemm_tuned.fn(slope_of_both, gate_up, to_input, config=chosen, concat_layout=("B",))
    return to_input


def _to_weight(slope_of_both: Tensor, x: Tensor) -> Tensor:
    both, width = slope_of_both.shape[1], x.shape[1]
    if not by_quack(x) or not many_tiles(both, width):
        return side_by_side(slope_of_both.t() @ x, 0)
    to_weight = x.new_empty(both, width)
    chosen = tile(128, 256, pingpong=False, cluster=(1, 2))
    quack().gemm_tuned.fn(slope_of_both.t(), x.contiguous(), to_weight, config=chosen, concat_layout=("out",))
    return to_weight


def interleaved(x: Tensor, dim: int) -> Tensor:
    """A gate, its up, the next gate: of all gates, then all ups."""
    pairs = x.reshape(*x.shape[:dim], 2, -1, *x.shape[dim + 1 :])
    return pairs.transpose(dim, dim + 1).reshape(x.shape)


def side_by_side(x: Tensor, dim: int) -> Tensor:
    """All gates, then all ups: of what is interleaved."""
    pairs = x.reshape(*x.shape[:dim], -1, 2, *x.shape[dim + 1 :])
    return pairs.transpose(dim, dim + 1).reshape(x.shape)
