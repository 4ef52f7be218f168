"""The decoder's memory-bound steps, each one operator forward and one backward that torch.compile takes whole
(`gristmill::*`).

On CUDA they are the Triton kernels of `gristmill.kernels.gpu`; elsewhere (and in float64) plain torch, differentiable
in any precision. For backward, rms_norm saves its input (of a sum, the sum) and 1 / rms, rotary_qkv the angles alone,
swiglu its input.

What is too small for a kernel of our own is `fused_on_cuda`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor

from gristmill.kernels.gpu import plain

FAST = (torch.bfloat16, torch.float16, torch.float32)


def fused_on_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled on CUDA wherever it is called: torch alone would write the result of every operator to memory."""
    compiled = cache(lambda: torch.compile(function))  # which takes a second to import

    @wraps(function)
    def called(x: Tensor, *others: Any) -> Any:
        return (compiled() if x.is_cuda and not torch.compiler.is_compiling() else function)(x, *others)

    return called


def rms_norm(x_TC: Tensor, weight_C: Tensor, eps: float) -> Tensor:
    if not _has_kernels(x_TC):
        return plain.rms_norm(x_TC, weight_C, eps)
    normed: Tensor = _rms_norm(x_TC, weight_C, eps)[0]
    return normed


def rms_norm_beside(x_TC: Tensor, weight_C: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x unchanged, and its norm: the gradients that reach x from both are added in one pass over memory."""
    if not _has_kernels(x_TC):
        return x_TC, plain.rms_norm(x_TC, weight_C, eps)
    same, normed = _RmsNormBeside.apply(x_TC, weight_C, eps)  # type: ignore[no-untyped-call]
    return same, normed


def add_rms_norm(x_TC: Tensor, residual_TC: Tensor, weight_C: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum, and its norm."""
    if not _has_kernels(x_TC) or x_TC.dtype != residual_TC.dtype:
        return plain.add_rms_norm(x_TC, residual_TC, weight_C, eps)
    total, normed, _ = _add_rms_norm(x_TC, residual_TC, weight_C, eps)
    return total, normed


def rotary_qkv(
    qkv: Tensor, cos: Tensor, sin: Tensor, positions_T: Tensor | None, heads: int, kv_heads: int, head_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries T x H x D, keys and values T x K x D, of `qkv` T x (H + 2K)D. `cos` and `sin` have a row (D/2, float32)
    for each position, or for each token where there are no positions; they get no gradient."""
    if not _has_kernels(qkv):
        return plain.rotary_qkv(qkv, cos, sin, positions_T, heads, kv_heads, head_size)
    q, k, v = _rotary_qkv(qkv, cos, sin, positions_T, heads, kv_heads, head_size)
    return q, k, v


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, T x M of T x 2M."""
    if not _has_kernels(gate_up):
        return plain.swiglu(gate_up)
    out: Tensor = _swiglu(gate_up)
    return out


def _has_kernels(x: Tensor) -> bool:
    return x.is_cuda and x.dtype in FAST


@torch.library.custom_op("gristmill::rms_norm", mutates_args=())
def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    from gristmill.kernels.gpu import rms_norm as kernels

    return kernels.rms_norm(x, weight, eps)


@_rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(x.shape[0], dtype=torch.float32)


@torch.library.custom_op("gristmill::rms_norm_backward", mutates_args=())
def _rms_norm_backward(
    d_normed: Tensor, x: Tensor, weight: Tensor, scales: Tensor, d_x: Tensor | None
) -> tuple[Tensor, Tensor]:
    from gristmill.kernels.gpu import rms_norm as kernels

    return kernels.rms_norm_backward(d_normed, x, weight, scales, d_x)


@_rms_norm_backward.register_fake
def _(d_normed: Tensor, x: Tensor, weight: Tensor, scales: Tensor, d_x: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(weight)


def _norm_setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def _norm_backward(ctx: Any, d_normed: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
    d_x, d_weight = _rms_norm_backward(d_normed, *ctx.saved_tensors, None)
    return d_x, d_weight, None


_rms_norm.register_autograd(_norm_backward, setup_context=_norm_setup_context)


class _RmsNormBeside(torch.autograd.Function):
    """Not a custom operator, because those may not return their inputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        normed, scales = _rms_norm(x, weight, eps)
        ctx.save_for_backward(x, weight, scales)
        return x.view_as(x), normed

    @staticmethod
    def backward(ctx: Any, d_x: Tensor, d_normed: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        d_x, d_weight = _rms_norm_backward(d_normed, *ctx.saved_tensors, d_x)
        return d_x, d_weight, None


@torch.library.custom_op("gristmill::add_rms_norm", mutates_args=())
def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    from gristmill.kernels.gpu import rms_norm as kernels

    return kernels.add_rms_norm(x, residual, weight, eps)


@_add_rms_norm.register_fake
def _(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    total, normed = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))
    return total, normed, x.new_empty(x.shape[0], dtype=torch.float32)


def _add_norm_setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[0], inputs[2], output[2])
    ctx.mark_non_differentiable(output[2])


def _add_norm_backward(ctx: Any, d_total: Tensor, d_normed: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    d_x, d_weight = _rms_norm_backward(d_normed, *ctx.saved_tensors, d_total)
    return d_x, d_x, d_weight, None


_add_rms_norm.register_autograd(_add_norm_backward, setup_context=_add_norm_setup_context)


@torch.library.custom_op("gristmill::rotary_qkv", mutates_args=())
def _rotary_qkv(
    qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, heads: int, kv_heads: int, head_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    from gristmill.kernels.gpu import rotary as kernels

    return kernels.rotary_qkv(qkv, cos, sin, positions, heads, kv_heads, head_size)


@_rotary_qkv.register_fake
def _(
    qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, heads: int, kv_heads: int, head_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (qkv.new_empty(qkv.shape[0], count, head_size) for count in (heads, kv_heads, kv_heads))
    return q, k, v


@torch.library.custom_op("gristmill::rotary_qkv_backward", mutates_args=())
def _rotary_qkv_backward(
    d_q: Tensor, d_k: Tensor, d_v: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None
) -> Tensor:
    from gristmill.kernels.gpu import rotary as kernels

    return kernels.rotary_qkv_backward(d_q, d_k, d_v, cos, sin, positions)


@_rotary_qkv_backward.register_fake
def _(d_q: Tensor, d_k: Tensor, d_v: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None) -> Tensor:
    return d_q.new_empty(d_q.shape[0], (d_q.shape[1] + 2 * d_k.shape[1]) * d_q.shape[2])


def _rotary_setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[1:4])


def _rotary_backward(ctx: Any, d_q: Tensor, d_k: Tensor, d_v: Tensor) -> tuple[Tensor | None, ...]:
    return _rotary_qkv_backward(d_q, d_k, d_v, *ctx.saved_tensors), None, None, None, None, None, None


_rotary_qkv.register_autograd(_rotary_backward, setup_context=_rotary_setup_context)


@torch.library.custom_op("gristmill::swiglu", mutates_args=())
def _swiglu(gate_up: Tensor) -> Tensor:
    from gristmill.kernels.gpu import swiglu as kernels

    return kernels.swiglu(gate_up)


@_swiglu.register_fake
def _(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


@torch.library.custom_op("gristmill::swiglu_backward", mutates_args=())
def _swiglu_backward(d_out: Tensor, gate_up: Tensor) -> Tensor:
    from gristmill.kernels.gpu import swiglu as kernels

    return kernels.swiglu_backward(d_out, gate_up)


@_swiglu_backward.register_fake
def _(d_out: Tensor, gate_up: Tensor) -> Tensor:
    return torch.empty_like(gate_up, memory_format=torch.contiguous_format)


def _swiglu_setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def _swiglu_autograd_backward(ctx: Any, d_out: Tensor) -> Tensor:
    d_gate_up: Tensor = _swiglu_backward(d_out, ctx.saved_tensors[0])
    return d_gate_up


_swiglu.register_autograd(_swiglu_autograd_backward, setup_context=_swiglu_setup_context)
