"""Linear layers of a decoder's blocks in fp8: e4m3 for weights and activations, e5m2 for gradients; matmuls accumulate
and return in higher precision.

Each matrix has one scale, from its own largest magnitude at that moment (Micikevicius et al. 2022), so checkpoints
carry no extra state. The embedding, the head, norms and attention stay as they are. On a device without fp8 matmuls
values are rounded in the same way and multiplied in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gristmill.kernels.gpu.fp8 import largest, rounded_both, scale_of
from gristmill.trainer.model.experts import Experts

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2


def use_fp8(model: nn.Module) -> None:
    """Changes the blocks' linear layers, and their experts, in place; parameters and their names stay. Sizes that fp8
    matmuls cannot take (not multiples of 16) stay in bf16."""
    for block in model.blocks:  # type: ignore[union-attr]
        for child in block.children():
            if isinstance(child, Experts):
                child.fp8 = not any(size % 16 for size in child.down.shape[1:])
            if type(child) is nn.Linear and child.bias is None and not any(size % 16 for size in child.weight.shape):
                child.__class__ = Fp8Linear


class Fp8Linear(nn.Linear):
    """The number of rows (tokens) must be a multiple of 16."""

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = fp8_linear(x, self.weight)[0]
        return output


@torch.library.custom_op("gristmill::fp8_linear", mutates_args=())
def fp8_linear(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x @ weight.T, and what backward needs: x transposed and weight transposed in e4m3, and their scales."""
    x8, x8_t, x_scale = _quantise(x, FORWARD)
    weight8, weight8_t, weight_scale = _quantise(weight, FORWARD)
    return _scaled_matmul(x8, weight8, x_scale, weight_scale, x.dtype, True), x8_t, weight8_t, x_scale, weight_scale


@fp8_linear.register_fake
def _(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    (T, inputs), outputs = x.shape, weight.shape[0]
    transposed = x.new_empty(inputs, T, dtype=FORWARD), x.new_empty(inputs, outputs, dtype=FORWARD)
    return (
        x.new_empty(T, outputs),
        *transposed,
        x.new_empty(1, dtype=torch.float32),
        x.new_empty(1, dtype=torch.float32),
    )


@torch.library.custom_op("gristmill::fp8_linear_backward", mutates_args=())
def fp8_linear_backward(
    grad_output: Tensor, x8_t: Tensor, weight8_t: Tensor, x_scale: Tensor, weight_scale: Tensor
) -> tuple[Tensor, Tensor]:
    grad8, grad8_t, grad_scale = _quantise(grad_output, BACKWARD)
    grad_x = _scaled_matmul(grad8, weight8_t, grad_scale, weight_scale, grad_output.dtype, False)
    grad_weight = _scaled_matmul(grad8_t, x8_t, grad_scale, x_scale, grad_output.dtype, False)
    return grad_x, grad_weight


@fp8_linear_backward.register_fake
def _(grad_output: Tensor, x8_t: Tensor, weight8_t: Tensor, *scales: Tensor) -> tuple[Tensor, Tensor]:
    inputs, outputs = weight8_t.shape
    return grad_output.new_empty(grad_output.shape[0], inputs), grad_output.new_empty(outputs, inputs)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_output: Tensor, *_: Tensor | None) -> tuple[Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor] = fp8_linear_backward(grad_output.contiguous(), *ctx.saved_tensors)
    return gradients


fp8_linear.register_autograd(_backward, setup_context=_setup_context)


def _quantise(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x = x.contiguous()
    amax = largest(x)
    return *rounded_both(x, amax, kind), scale_of(amax, kind)


def _scaled_matmul(
    left: Tensor,
    right: Tensor,
    left_scale: Tensor,
    right_scale: Tensor,
    out_dtype: torch.dtype,
    fast_accumulation: bool,
) -> Tensor:
    """left @ right.T; both have the summed dimension innermost."""
    if not left.is_cuda:
        return ((left.float() * left_scale) @ (right.float() * right_scale).t()).to(out_dtype)
    return torch._scaled_mm(
        left, right.t(), scale_a=left_scale, scale_b=right_scale, out_dtype=out_dtype, use_fast_accum=fast_accumulation
    )
