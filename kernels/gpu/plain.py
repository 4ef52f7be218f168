"""References of the decoder's and the judges' kernels: ordinary torch, obviously right, differentiable, in any
precision and on any device.

The CPU runs these, and the Triton kernels of the same names are tested against them in float64. Needs torch alone. Sums
and products are computed in float32 at least and rounded once, as in the kernels.

T tokens, C hidden width, H query heads, K key-value heads, D head size, M inner width, P rows of the tables, V
vocabulary.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NONE = -100  # the target of a row that has none
FP8, LARGEST = torch.float8_e4m3fn, 448.0
HEAD_SIZES = (16, 32, 64, 128)  # that attention over packed texts takes in one piece


class AdamWRule(NamedTuple):
    """The settings of AdamW that do not change from step to step."""

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1


def widened(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rounded(x: Tensor, shrink: Tensor) -> Tensor:
    """x times `shrink`, in fp8, saturated at its largest number."""
    return (x.float() * shrink).clamp(-LARGEST, LARGEST).to(FP8)


def rms_norm(x_TC: Tensor, weight_C: Tensor, eps: float) -> Tensor:
    wide = widened(x_TC)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight_C).to(x_TC.dtype)


def add_rms_norm(x_TC: Tensor, residual_TC: Tensor, weight_C: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum, and its norm."""
    total = x_TC + residual_TC
    return total, rms_norm(total, weight_C, eps)


def rotary_qkv(
    qkv: Tensor, cos: Tensor, sin: Tensor, positions_T: Tensor | None, heads: int, kv_heads: int, head_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries T x H x D, keys and values T x K x D, of `qkv` T x (H + 2K)D; `cos` and `sin` are P x D/2."""
    q, k, v = qkv.unflatten(-1, (-1, head_size)).split((heads, kv_heads, kv_heads), dim=1)
    if positions_T is not None:
        cos, sin = cos[positions_T.long()], sin[positions_T.long()]
    return turned(q, cos, sin), turned(k, cos, sin), v


def turned(x_THD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = widened(x_THD).chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x_THD.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """T x M of T x 2M."""
    gate, up = widened(gate_up).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def row_losses(logits: Tensor, targets: Tensor, z: float = 0.0) -> Tensor:
    """Each row's cross-entropy, 0 where the target is -100, plus z * log(sum of exponentials)**2."""
    wide, has_target = widened(logits), targets != NONE
    log_sums = wide.logsumexp(-1)
    losses = log_sums - wide.gather(1, torch.where(has_target, targets, 0)[:, None])[:, 0] + z * log_sums.square()
    return torch.where(has_target, losses, 0)


def row_losses_and_slopes(logits: Tensor, targets: Tensor, z: float = 0.0) -> Tensor:
    """The losses; `logits` become their gradients."""
    losses, has_target, wide = row_losses(logits, targets, z), targets != NONE, widened(logits)
    slopes = torch.softmax(wide, -1) * (1 + 2 * z * wide.logsumexp(-1, keepdim=True))
    columns = torch.where(has_target, targets, 0)[:, None]
    slopes.scatter_add_(1, columns, slopes.new_full(columns.shape, -1))
    logits.copy_(torch.where(has_target[:, None], slopes, 0))
    return losses


def adamw_step(
    weight: Tensor, gradient: Tensor, master: Tensor, mean: Tensor, square: Tensor, scalars: Tensor, rule: AdamWRule
) -> None:
    """`scalars`: see `gristmill.kernels.gpu.adamw.step_scalars`."""
    rate, corrected_rate, root, clip, found_inf = scalars.tolist()
    if found_inf:
        return
    slope = gradient.to(master.dtype) * clip
    master.mul_(1 - rate * rule.weight_decay)
    mean.lerp_(slope, 1 - rule.betas[0])
    square.mul_(rule.betas[1]).addcmul_(slope, slope, value=1 - rule.betas[1])
    master.sub_(corrected_rate * mean / (square.sqrt() / root + rule.eps))
    weight.copy_(master)


def step_scalars(rate: Tensor, steps: Tensor, clip: Tensor, found_inf: Tensor, betas: tuple[float, float]) -> Tensor:
    """[5] for `adamw_step`: rate, rate over the first bias correction, root of the second, the factor of gradients, and
    whether the step is skipped (not 0). `steps` counts this step, from 1. All are scalars on the device, computed in
    float64 and kept in float32."""
    steps, rate = steps.double(), rate.double()
    first, second = (1 - torch.pow(torch.full_like(steps, beta), steps) for beta in betas)
    return torch.stack(
        [x.reshape(()) for x in (rate, rate / first, second.sqrt(), clip.double(), found_inf.double())]
    ).float()


def packed_attention(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    cuts: Tensor,
    shrink: Tensor | None = None,
    first_NHD: Tensor | None = None,
) -> Tensor:
    """T x H x D: each token attends to all of its text, text by text. With `shrink` the result times it, in fp8. The
    outputs of first tokens also go, unrounded, into `first_NHD`."""
    answer, bounds = torch.zeros_like(widened(q_THD), memory_format=torch.contiguous_format), cuts.tolist()
    for text, (first, end) in enumerate(pairwise(bounds)):
        q, k, v = (widened(x[first:end]).transpose(0, 1) for x in (q_THD, k_THD, v_THD))
        answer[first:end] = F.scaled_dot_product_attention(q, k, v).transpose(0, 1)
        if first_NHD is not None and end > first:
            first_NHD[text] = answer[first]
    return answer.to(q_THD.dtype) if shrink is None else rounded(answer, shrink)
