"""Cross-entropy of a linear head in chunks of rows, so that the logits of all tokens never exist at once.

Gradients are computed in the forward pass, where the logits are: a chunk's logits become their gradients in place, and
two matmuls carry these to the hidden states and the weight. What is saved for backward is the gradients, and backward
only multiplies them by grad_output.

The weight's gradient is accumulated over chunks in float32 (by cuBLAS, inside the matmul) and rounded once, after the
multiplication by grad_output. In bf16 it would be rounded once a chunk, and save 412 MB of traffic a chunk at 50,304 x
2,048: a tenth of a millisecond where the matmuls take seven.

T tokens, C hidden width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gristmill.kernels.gpu import plain
from gristmill.trainer.model.matmuls import matmul_into

ROWS = 8192  # of a chunk; fewer make the matmuls slower, more only take memory


def linear_cross_entropy(
    hidden_TC: Tensor, weight_VC: Tensor, targets_T: Tensor, z: float = 0.0, rows: int = ROWS
) -> Tensor:
    """The sum over rows whose target is not -100, float32 (float64 of float64). With `z` comes so much of each
    log(sum of exponentials)**2 (z-loss).

    `weight_VC` may be an embedding too: its gradients add up. Under autocast, matmuls are of its type.
    """
    hidden_TC, weight_VC = _cast_for_autocast(hidden_TC, weight_VC)
    if not torch.is_grad_enabled() or not (hidden_TC.requires_grad or weight_VC.requires_grad):
        losses: Tensor = _losses(hidden_TC, weight_VC, targets_T, z, rows)
        return losses.sum()
    total: Tensor = _sum_and_gradients(hidden_TC, weight_VC, targets_T, z, rows)[0]
    return total


def _cast_for_autocast(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        precision = torch.get_autocast_dtype(device)
        return hidden.to(precision), weight.to(precision)
    return hidden, weight


@torch.library.custom_op("gristmill::linear_cross_entropy", mutates_args=())
def _sum_and_gradients(
    hidden: Tensor, weight: Tensor, targets: Tensor, z: float, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum, and its gradients with respect to hidden states and weight."""
    rows, wide = _even_chunk_rows(len(hidden), rows), torch.promote_types(hidden.dtype, torch.float32)
    losses = hidden.new_empty(len(hidden), dtype=wide)
    d_hidden, d_weight = (
        torch.empty_like(hidden, memory_format=torch.contiguous_format),
        torch.zeros_like(weight, dtype=wide),
    )
    buffer = hidden.new_empty(rows, len(weight))
    with torch.autocast(hidden.device.type, enabled=False):
        for start in range(0, len(hidden), rows):
            chunk, d_chunk = hidden[start : start + rows], d_hidden[start : start + rows]
            logits = matmul_into(buffer[: len(chunk)], chunk, weight)
            losses[start : start + rows] = _row_losses_and_gradients(logits, targets[start : start + rows], z)
            torch.mm(logits, weight, out=d_chunk)
            _add_matmul(d_weight, logits.t(), chunk)
    return losses.sum(), d_hidden, d_weight


@_sum_and_gradients.register_fake
def _(hidden: Tensor, weight: Tensor, targets: Tensor, z: float, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.promote_types(hidden.dtype, torch.float32)
    d_hidden = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    return hidden.new_empty((), dtype=wide), d_hidden, torch.empty_like(weight, dtype=wide)


@torch.library.custom_op("gristmill::linear_cross_entropy_backward", mutates_args=())
def _scale_gradients(grad_output: Tensor, d_hidden: Tensor, d_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both times a scalar, multiplied in float32 and rounded to the precision of the first. (In bf16 it would be off by
    up to 0.4 %.)"""
    grad_output = grad_output.reshape(1)
    return (
        torch.mul(d_hidden, grad_output, out=torch.empty_like(d_hidden)),
        torch.mul(d_weight, grad_output, out=torch.empty_like(d_weight, dtype=d_hidden.dtype)),
    )


@_scale_gradients.register_fake
def _(grad_output: Tensor, d_hidden: Tensor, d_weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(d_hidden), torch.empty_like(d_weight, dtype=d_hidden.dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # zeros as large as the weight otherwise


def _backward(ctx: Any, grad_output: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_output is None:
        return None, None, None, None, None
    d_hidden, d_weight = _scale_gradients(grad_output, *ctx.saved_tensors)
    return d_hidden, d_weight, None, None, None


_sum_and_gradients.register_autograd(_backward, setup_context=_setup_context)


@torch.library.custom_op("gristmill::linear_losses", mutates_args=())
def _losses(hidden: Tensor, weight: Tensor, targets: Tensor, z: float, rows: int) -> Tensor:
    rows, wide = _even_chunk_rows(len(hidden), rows), torch.promote_types(hidden.dtype, torch.float32)
    losses, buffer = hidden.new_empty(len(hidden), dtype=wide), hidden.new_empty(rows, len(weight))
    with torch.autocast(hidden.device.type, enabled=False):
        for start in range(0, len(hidden), rows):
            chunk = hidden[start : start + rows]
            logits = matmul_into(buffer[: len(chunk)], chunk, weight)
            losses[start : start + rows] = _row_losses(logits, targets[start : start + rows], z)
    return losses


@_losses.register_fake
def _(hidden: Tensor, weight: Tensor, targets: Tensor, z: float, rows: int) -> Tensor:
    return hidden.new_empty(hidden.shape[0], dtype=torch.promote_types(hidden.dtype, torch.float32))


def _even_chunk_rows(tokens: int, rows: int) -> int:
    """Rows of a chunk such that chunks are about equal, in whole tiles of the matmuls."""
    chunks = max(-(-tokens // rows), 1)
    each = -(-tokens // chunks)
    return max(min(-(-each // 128) * 128, rows), 1)


def _row_losses_and_gradients(logits: Tensor, targets: Tensor, z: float) -> Tensor:
    if logits.is_cuda and logits.dtype != torch.float64:
        from gristmill.kernels.gpu import cross_entropy as kernels

        return kernels.row_losses_and_slopes(logits, targets, z)
    return plain.row_losses_and_slopes(logits, targets, z)


def _row_losses(logits: Tensor, targets: Tensor, z: float) -> Tensor:
    if logits.is_cuda and logits.dtype != torch.float64:
        from gristmill.kernels.gpu import cross_entropy as kernels

        return kernels.row_losses(logits, targets, z)
    return plain.row_losses(logits, targets, z)


def _add_matmul(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, accumulated in the total's precision."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))
