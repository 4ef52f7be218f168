"""The matmuls of experts: rows sorted by expert, each expert's rows times its own matrix, in one kernel on CUDA.

`torch.nn.functional.grouped_mm` takes bf16 on Hopper and later in one kernel of unequal groups without padding, and
loops elsewhere. In fp8 (`_scaled_grouped_mm`, Hopper) each row of an activation has its own scale and a weight one for
all experts, in the forward pass and for the gradient of the input; the gradient of the weight stays in bf16, because
there groups would have to be padded. The CPU loops over experts, in any precision.

Forward, SwiGLU's input is kept and its output is recomputed in backward, as in `gristmill.trainer.model.matmuls`.

E experts, S rows, `ends` where the rows of each expert end, C hidden width, M inner width.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gristmill.kernels.gpu import plain
from gristmill.kernels.gpu.fp8 import largest, rounded_both, rounded_rows, scale_of
from gristmill.trainer.model import fused

FP8 = torch.float8_e4m3fn
HALVES = (torch.bfloat16, torch.float16)


def expert_mlp(x_SC: Tensor, gate_up: Tensor, down: Tensor, ends_E: Tensor, fp8: bool = False) -> Tensor:
    """Each expert's `down(swiglu(gate_up(x)))` of its own rows; `gate_up` is E x 2M x C, `down` E x C x M."""
    if torch.is_autocast_enabled(x_SC.device.type):
        half = torch.get_autocast_dtype(x_SC.device.type)
        x_SC, gate_up, down = x_SC.to(half), gate_up.to(half), down.to(half)
    output: Tensor = _expert_mlp(x_SC, gate_up, down, ends_E, fp8)[0]
    return output


@torch.library.custom_op("gristmill::expert_mlp", mutates_args=())
def _expert_mlp(x: Tensor, gate_up: Tensor, down: Tensor, ends: Tensor, fp8: bool) -> tuple[Tensor, Tensor]:
    """The output, and gate and up for backward."""
    if fp8:
        both = _scaled(*rounded_rows(x, FP8), gate_up, ends, x.dtype)
        return _scaled(*rounded_rows(both, FP8, gated=True), down, ends, x.dtype), both
    both = matmul(x, gate_up, ends)
    return matmul(_swiglu(both), down, ends), both


@_expert_mlp.register_fake
def _(x: Tensor, gate_up: Tensor, down: Tensor, ends: Tensor, fp8: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], down.shape[1]), x.new_empty(x.shape[0], gate_up.shape[1])


@torch.library.custom_op("gristmill::expert_mlp_backward", mutates_args=())
def _expert_mlp_backward(
    grad_output: Tensor, x: Tensor, gate_up: Tensor, down: Tensor, ends: Tensor, both: Tensor, fp8: bool
) -> tuple[Tensor, Tensor, Tensor]:
    grad_inner = _matmul_back(grad_output, down, ends, fp8)
    grad_both = _swiglu_backward(grad_inner, both)
    del grad_inner  # freed before the next is allocated
    grad_down = matmul_of_weight(grad_output, _swiglu(both), ends)
    return _matmul_back(grad_both, gate_up, ends, fp8), matmul_of_weight(grad_both, x, ends), grad_down


@_expert_mlp_backward.register_fake
def _(
    grad_output: Tensor, x: Tensor, gate_up: Tensor, down: Tensor, ends: Tensor, both: Tensor, fp8: bool
) -> tuple[Tensor, Tensor, Tensor]:
    grad_x, grad_gate_up, grad_down = (
        torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (x, gate_up, down)
    )
    return grad_x, grad_gate_up, grad_down


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, gate_up, down, ends, ctx.fp8 = inputs
    ctx.save_for_backward(x, gate_up, down, ends, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_output: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_output is None:
        return (None,) * 5
    return (*_expert_mlp_backward(grad_output.contiguous(), *ctx.saved_tensors, ctx.fp8), None, None)


_expert_mlp.register_autograd(_backward, setup_context=_setup_context)


def matmul(x_SC: Tensor, weight: Tensor, ends_E: Tensor) -> Tensor:
    """S x N: each expert's rows times its N x C matrix, transposed."""
    if _in_one_kernel(x_SC, weight.shape[1]):
        grouped: Tensor = F.grouped_mm(x_SC, weight.transpose(1, 2), offs=ends_E)
        return grouped
    output = x_SC.new_empty(x_SC.shape[0], weight.shape[1])
    for expert, (start, end) in enumerate(pairwise([0, *ends_E.tolist()])):
        torch.mm(x_SC[start:end], weight[expert].t(), out=output[start:end])
    return output


def matmul_of_weight(grad_SN: Tensor, x_SC: Tensor, ends_E: Tensor) -> Tensor:
    """E x N x C: the gradient of each expert's matrix; of one without rows it is 0."""
    if _in_one_kernel(x_SC, grad_SN.shape[1]):
        grouped: Tensor = F.grouped_mm(grad_SN.t(), x_SC, offs=ends_E)
        return grouped
    output = x_SC.new_empty(len(ends_E), grad_SN.shape[1], x_SC.shape[1])
    for expert, (start, end) in enumerate(pairwise([0, *ends_E.tolist()])):
        torch.mm(grad_SN[start:end].t(), x_SC[start:end], out=output[expert])
    return output


def _in_one_kernel(x_SC: Tensor, columns: int) -> bool:
    """Lines begin at multiples of 16 bytes, and there is a line at all."""
    return x_SC.is_cuda and len(x_SC) > 0 and x_SC.shape[1] % 8 == columns % 8 == 0


def _matmul_back(grad_SN: Tensor, weight: Tensor, ends_E: Tensor, fp8: bool) -> Tensor:
    """S x C: each expert's rows times its N x C matrix."""
    if fp8:
        return _scaled(*rounded_rows(grad_SN, FP8), weight, ends_E, grad_SN.dtype, turned=True)
    return matmul(grad_SN, weight.transpose(1, 2), ends_E)


def _scaled(
    x8_SC: Tensor, scale_S: Tensor, weight: Tensor, ends_E: Tensor, dtype: torch.dtype, turned: bool = False
) -> Tensor:
    """S x N: rounded rows times each expert's N x C matrix (`turned`: C x N), which is rounded here."""
    weight = weight.contiguous()
    most = largest(weight)
    weight8_ENC, scale = rounded_both(weight, most, FP8)[turned], scale_of(most, FP8)
    if x8_SC.is_cuda and len(x8_SC):
        return torch._scaled_grouped_mm(
            x8_SC,
            weight8_ENC.transpose(1, 2),
            scale_S,
            scale.expand(weight8_ENC.shape[:2]).contiguous(),
            offs=ends_E,
            out_dtype=dtype,
            use_fast_accum=True,
        )
    exact = matmul(x8_SC.float() * scale_S[:, None], weight8_ENC.float() * scale, ends_E)
    return exact.to(dtype)


def _swiglu(both: Tensor) -> Tensor:
    return fused._swiglu(both) if fused._has_kernels(both) else plain.swiglu(both)  # type: ignore[no-any-return]


def _swiglu_backward(grad_inner: Tensor, both: Tensor) -> Tensor:
    if fused._has_kernels(both):
        return fused._swiglu_backward(grad_inner, both)  # type: ignore[no-any-return]
    gate, up = plain.widened(both).chunk(2, dim=1)
    grad, sigmoid = plain.widened(grad_inner), torch.sigmoid(gate)
    gradients = [grad * up * sigmoid * (1 + gate * (1 - sigmoid)), grad * gate * sigmoid]
    return torch.cat(gradients, dim=1).to(both.dtype)


# --- the router's ----------------------------------------------------------------------------------------------------


def wide_matmul(x_TC: Tensor, weight_EC: Tensor) -> Tensor:
    """`x @ weight.t()` in float32 at the least: rounded to half, scores would choose other experts."""
    logits: Tensor = _wide_matmul(x_TC, weight_EC)
    return logits


@torch.library.custom_op("gristmill::wide_matmul", mutates_args=())
def _wide_matmul(x: Tensor, weight: Tensor) -> Tensor:
    if x.is_cuda and x.dtype in HALVES and x.dtype == weight.dtype:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    wide = _widest(x, weight)
    return x.to(wide) @ weight.to(wide).t()


@_wide_matmul.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0], dtype=_widest(x, weight))


def _widest(x: Tensor, weight: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(x.dtype, weight.dtype), torch.float32)


def _wide_setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _wide_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, weight = ctx.saved_tensors
    return grad.to(weight.dtype) @ weight.to(weight.dtype), (grad.to(x.dtype).t() @ x).to(weight.dtype)


_wide_matmul.register_autograd(_wide_backward, setup_context=_wide_setup_context)
