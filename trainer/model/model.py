"""A decoder of the Llama family over packed rows: RMSNorm, rotary positions, grouped-query attention inside documents,
SwiGLU, or a mixture of experts in its place.

Queries, keys and values are one matmul, gate and up of the SwiGLU another. The logits of all tokens never exist at once
(`gristmill.trainer.model.linear_cross_entropy`). Nothing here knows of precision or recomputation;
`gristmill.trainer.step` does.

T tokens, C hidden width, H query heads, K key-value heads, D head size, M inner width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gristmill.kernels.gpu import plain
from gristmill.shards.batch import NO_LABEL
from gristmill.trainer.model.attention import CAUSAL, Attend, Window, attend
from gristmill.trainer.model.experts import Experts, Routed, Router, auxiliary_loss
from gristmill.trainer.model.fused import add_rms_norm, rms_norm, rms_norm_beside, rotary_qkv
from gristmill.trainer.model.linear_cross_entropy import linear_cross_entropy
from gristmill.trainer.model.matmuls import Sum, add_linear, apply_linear, gated_mlp
from gristmill.trainer.model.packed import PackedTokens
from gristmill.trainer.model.shapes import DecoderShape, Mixture, RopeScaling

Rotation = tuple[Tensor, Tensor]  # cosines and sines, T x D/2, float32


class Norm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019), computed in float32 at the least."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def of_sum(self, x: Tensor, change: Tensor | None) -> tuple[Tensor, Tensor]:
        """The sum, and its norm."""
        return (
            rms_norm_beside(x, self.weight, self.eps)
            if change is None
            else add_rms_norm(change, x, self.weight, self.eps)
        )


class Block(nn.Module):
    """`mlp`: its inner width, 0 for none. `compiles`: torch.compile may take it."""

    compiles: bool = True

    def __init__(self, shape: DecoderShape, window: int, attend: Attend, mlp: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_size = shape.heads, shape.kv_heads, shape.head_size
        self.window: Window = (window - 1, 0) if window else CAUSAL
        self.attend = attend
        width = shape.heads * shape.head_size
        self.attention_norm = Norm(shape.hidden, shape.norm_eps)
        self.qkv = nn.Linear(shape.hidden, width + 2 * shape.kv_heads * shape.head_size, bias=False)
        self.out = nn.Linear(width, shape.hidden, bias=False)
        self.q_norm, self.k_norm = (
            Norm(numbers, shape.norm_eps) if numbers else None for numbers in shape.qk_norm_widths
        )
        self.mlp_norm = Norm(shape.hidden, shape.norm_eps)
        if mlp:
            self.gate_up = nn.Linear(shape.hidden, 2 * mlp, bias=False)
            self.down = nn.Linear(mlp, shape.hidden, bias=False)

    def forward(
        self,
        x_TC: Tensor,
        change_TC: Tensor | None,
        rotation: Rotation,
        cuts: Tensor,
        longest: int,
        beside: Any = None,
    ) -> Sum:
        """The residual stream, and what the next norm still has to add to it in the same pass over memory."""
        x_TC, normed_TC = self.after_attention(x_TC, change_TC, rotation, cuts, longest, beside)
        return gated_mlp(normed_TC, self.gate_up, self.down, x_TC)

    def after_attention(
        self,
        x_TC: Tensor,
        change_TC: Tensor | None,
        rotation: Rotation,
        cuts: Tensor,
        longest: int,
        beside: Any,
    ) -> tuple[Tensor, Tensor]:
        """The residual stream, and its norm."""
        x_TC, normed_TC = self.attention_norm.of_sum(x_TC, change_TC)
        attended = self.attended(apply_linear(normed_TC, self.qkv), rotation, cuts, longest, beside)
        return self.mlp_norm.of_sum(*add_linear(attended, self.out, x_TC))

    def attended(self, qkv: Tensor, rotation: Rotation, cuts: Tensor, longest: int, beside: Any) -> Tensor:
        if self.q_norm is not None and self.k_norm is not None:
            qkv = self._qk_normed(qkv, self.q_norm, self.k_norm)
        q_THD, k_TKD, v_TKD = rotary_qkv(qkv, *rotation, None, self.heads, self.kv_heads, self.head_size)
        also = {} if beside is None else {"beside": beside}  # for an attention that was put in place of the usual one
        return self.attend(q_THD, k_TKD, v_TKD, cuts, cuts, longest, longest, self.window, **also).flatten(1)

    def _qk_normed(self, qkv: Tensor, q_norm: Norm, k_norm: Norm) -> Tensor:
        """Each head by itself, or all heads together: as wide as the norm's weight is."""
        widths = [heads * self.head_size for heads in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = torch.split(qkv, widths, dim=1)
        normed = (
            plain.rms_norm(x.reshape(len(x), -1, len(norm.weight)), norm.weight, norm.eps).flatten(1)
            for x, norm in ((q, q_norm), (k, k_norm))
        )
        return torch.cat([*normed, v], dim=1)


class SparseBlock(Block):
    """A block whose MLP is a mixture of experts. `gate_up` and `down` are those of its shared experts, if it has any.
    (`gristmill.trainer.model.experts`)"""

    def __init__(self, shape: DecoderShape, window: int, attend: Attend, experts: Mixture) -> None:
        super().__init__(shape, window, attend, experts.shared * experts.width)
        self.router = Router(shape.hidden, experts)
        self.experts = Experts(shape.hidden, experts)

    def forward(  # type: ignore[override]
        self,
        x_TC: Tensor,
        change_TC: Tensor | None,
        rotation: Rotation,
        cuts: Tensor,
        longest: int,
        beside: Any = None,
    ) -> tuple[Tensor, Tensor, Routed]:
        x_TC, normed_TC = self.after_attention(x_TC, change_TC, rotation, cuts, longest, beside)
        weights_TK, routed = self.router(normed_TC)
        made_TC = self.experts(normed_TC, weights_TK, routed.chosen_TK)
        if self.experts.shape.shared:
            x_TC, also_TC = gated_mlp(normed_TC, self.gate_up, self.down, x_TC)
            made_TC = made_TC if also_TC is None else made_TC + also_TC
        return x_TC, made_TC, routed


class Decoder(nn.Module):
    def __init__(self, shape: DecoderShape, attend: Attend = attend) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blocks = nn.ModuleList(block_of(shape, layer, attend) for layer in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.norm_eps)
        self.head = None if shape.tied else nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, packed: PackedTokens) -> Tensor:
        """The training loss: the sum over all targets."""
        return self.loss(packed)

    def hidden(self, packed: PackedTokens) -> Tensor:
        """T x C, normed: the input of the head."""
        return self._routed(packed)[0]

    def through(
        self, blocks: Iterable[nn.Module], x_TC: Tensor, packed: PackedTokens
    ) -> tuple[Tensor, Tensor | None, list[Routed]]:
        """The residual stream and what is to be added to it, and where each sparse block sent its tokens."""
        rotation = rotation_of(packed.positions_T, self.shape)
        change_TC, routed = None, []
        for block in blocks:
            x_TC, change_TC, *of_tokens = block(x_TC, change_TC, rotation, packed.cuts, packed.longest, packed.beside)
            routed += of_tokens
        return x_TC, change_TC, routed

    def _routed(self, packed: PackedTokens) -> tuple[Tensor, list[Routed]]:
        """The input of the head, and where each sparse block sent its tokens."""
        x_TC, change_TC, routed = self.through(self.blocks, self.embedding(packed.ids_T), packed)
        return self.norm.of_sum(x_TC, change_TC)[1], routed

    @property
    def routers(self) -> list[Router]:
        """Of its sparse blocks, in order."""
        return [block.router for block in self.blocks if isinstance(block, SparseBlock)]

    @property
    def head_weight(self) -> Tensor:
        return self.embedding.weight if self.head is None else self.head.weight

    def loss(self, packed: PackedTokens) -> Tensor:
        """The sum of the cross-entropies of all targets, float32 (divide by `packed.counted`). With experts its
        gradient is that of the auxiliary loss too."""
        hidden_TC, routed = self._routed(packed)
        total = linear_cross_entropy(hidden_TC, self.head_weight, packed.targets_T)
        if not routed:
            return total
        auxiliary = auxiliary_loss(self.routers, routed, packed.targets_T != NO_LABEL)
        return total if auxiliary is None else total + (auxiliary - auxiliary.detach())

    def logits(self, packed: PackedTokens) -> Tensor:
        """T x V; for small inputs."""
        return F.linear(self.hidden(packed), self.head_weight)


def block_of(shape: DecoderShape, layer: int, attend: Attend) -> Block:
    experts = shape.experts_of(layer)
    if experts is None:
        return Block(shape, shape.window(layer), attend, shape.mlp)
    return SparseBlock(shape, shape.window(layer), attend, experts)


def rotation_of(positions_T: Tensor, shape: DecoderShape) -> Rotation:
    """By how much each pair of numbers of a head turns at each position; the first half of a head's numbers are paired
    with the second."""
    D = shape.head_size
    frequencies = 1.0 / shape.rope_base ** (torch.arange(0, D, 2, device=positions_T.device).float() / D)
    if shape.rope_scaling:
        frequencies = _scale_frequencies(frequencies, shape.rope_scaling)
    angles = positions_T.float()[:, None] * frequencies
    return angles.cos(), angles.sin()


def _scale_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    turns = scaling.context * frequencies / (2 * math.pi)  # within the context that the model was first trained on
    smooth = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies


@torch.no_grad()
def initialise(model: Decoder, seed: int) -> Decoder:
    """Normal weights of deviation 0.02, those that write into the residual stream smaller by sqrt(2 x layers) (Radford
    et al. 2019); the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    into_residual = 0.02 / math.sqrt(2 * model.shape.layers)
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            parameter.fill_(1.0)
            continue
        deviation = into_residual if name.endswith(("out.weight", "down.weight", "experts.down")) else 0.02
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)
    return model
