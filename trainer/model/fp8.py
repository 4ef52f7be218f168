"""Linear maps of a decoder's blocks in fp8: e4m3 for weights and activations, e5m2 for slopes, products accumulated and
answered in higher precision.

Each matrix has one scale, from its own largest magnitude at that moment (Micikevicius et al. 2022), so there is no
state that a checkpoint would have to carry. The embedding, the head, norms and attention stay as they are. On a device
without fp8 products the same rounding is done and multiplied in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gristmill.kernels.gpu.fp8 import largest, rounded_both, scale_of

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2


def use_fp8(model: nn.Module) -> None:
    """Changes the blocks' linear maps in place; parameters and their names stay. Sizes that fp8 products cannot take
    (not of 16) stay in bf16."""
    for block in model.blocks:  # type: ignore[union-attr]
        for child in block.children():
            if type(child) is nn.Linear and child.bias is None and not any(size % 16 for size in child.weight.shape):
                child.__class__ = Fp8Linear


class Fp8Linear(nn.Linear):
    """Rows (tokens) must be a multiple of 16."""

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = fp8_linear(x, self.weight)[0]
        return answer


@torch.library.custom_op("gristmill::fp8_linear", mutates_args=())
def fp8_linear(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x @ weight.T, and what the way back needs: x transposed and weight transposed in e4m3, and their scales."""
    x8, turned_x8, x_scale = _rounded(x, FORWARD)
    weight8, turned_weight8, weight_scale = _rounded(weight, FORWARD)
    return _product(x8, weight8, x_scale, weight_scale, x.dtype, True), turned_x8, turned_weight8, x_scale, weight_scale


@fp8_linear.register_fake
def _(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    (T, inputs), outputs = x.shape, weight.shape[0]
    turned = x.new_empty(inputs, T, dtype=FORWARD), x.new_empty(inputs, outputs, dtype=FORWARD)
    return (x.new_empty(T, outputs), *turned, x.new_empty(1, dtype=torch.float32), x.new_empty(1, dtype=torch.float32))


@torch.library.custom_op("gristmill::fp8_linear_backward", mutates_args=())
def fp8_linear_backward(
    slope: Tensor, turned_x8: Tensor, turned_weight8: Tensor, x_scale: Tensor, weight_scale: Tensor
) -> tuple[Tensor, Tensor]:
    slope8, turned_slope8, slope_scale = _rounded(slope, BACKWARD)
    to_x = _product(slope8, turned_weight8, slope_scale, weight_scale, slope.dtype, False)
    to_weight = _product(turned_slope8, turned_x8, slope_scale, x_scale, slope.dtype, False)
    return to_x, to_weight


@fp8_linear_backward.register_fake
def _(slope: Tensor, turned_x8: Tensor, turned_weight8: Tensor, *scales: Tensor) -> tuple[Tensor, Tensor]:
    inputs, outputs = turned_weight8.shape
    return slope.new_empty(slope.shape[0], inputs), slope.new_empty(outputs, inputs)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.set_materialize_grads(False)


def _slopes(ctx: Any, slope: Tensor, *_: Tensor | None) -> tuple[Tensor, Tensor]:
    slopes: tuple[Tensor, Tensor] = fp8_linear_backward(slope.contiguous(), *ctx.saved_tensors)
    return slopes


fp8_linear.register_autograd(_slopes, setup_context=_keep)


def _rounded(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x = x.contiguous()
    most = largest(x)
    return *rounded_both(x, most, kind), scale_of(most, kind)


def _product(
    left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, answer: torch.dtype, fast: bool
) -> Tensor:
    """left @ right.T, both with the summed dimension innermost."""
    if not left.is_cuda:
        return ((left.float() * left_scale) @ (right.float() * right_scale).t()).to(answer)
    return torch._scaled_mm(
        left, right.t(), scale_a=left_scale, scale_b=right_scale, out_dtype=answer, use_fast_accum=fast
    )
