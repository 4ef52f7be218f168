"""Layers split over a few ranks (Shoeybi et al. 2019, Megatron-LM): for models whose layers alone are too large, or too
slow, for one GPU.

Each rank has some of the heads and some of the inner width: `qkv` and `gate_up` are split by output, `out` and `down`
by input, so each half of a block needs one sum over the ranks forward and one backward. The ranks of a group see the
same tokens. Norms, embedding and head are whole on every rank, and computed alike on each (so a large vocabulary gains
nothing here).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_reduce, wait_tensor

from gristmill.trainer.model.model import Block, Decoder
from gristmill.trainer.parallel.parts import Cut, Span
from gristmill.trainer.parallel.ranks import RankGroup


class ColumnParallelLinear(nn.Linear):
    """Computes a part of the output; its input is the same on all ranks, so the input's gradient is a sum over them."""

    group: Any
    multiply: Callable[[Tensor, Tensor], Tensor] = staticmethod(F.linear)

    def forward(self, x: Tensor) -> Tensor:
        same: Tensor = _CopyToRanks.apply(x, self.group)  # type: ignore[no-untyped-call]
        return self.multiply(same, self.weight)


class RowParallelLinear(nn.Linear):
    """Reads a part of the input; the output is a sum over the ranks."""

    group: Any
    multiply: Callable[[Tensor, Tensor], Tensor] = staticmethod(F.linear)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = _SumOverRanks.apply(self.multiply(x, self.weight), self.group)  # type: ignore[no-untyped-call]
        return total


class _CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _all_reduce(grad_output, ctx.group), None


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        return _all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad_output, None


def _all_reduce(x: Tensor, group: Any) -> Tensor:
    """A functional collective, which torch.compile can trace. In float32 where x is narrower: the sum is rounded
    once."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()
    total: Tensor = wait_tensor(all_reduce(wide, "sum", group))  # type: ignore[no-untyped-call]
    return total.to(x.dtype)


def split_layers(model: Decoder, ranks: RankGroup) -> dict[str, Cut]:
    """Reduces each block to this rank's heads and inner width, in place; returns by name what was split, and how. All
    ranks must hold the same weights, of a shape that `layout_faults` lets be cut."""
    shape = model.shape
    q, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    of_q, of_kv, of_mlp = (_span_of_rank(width, ranks) for width in (q, kv, shape.mlp))
    by_output = {"qkv": (of_q, _shift(of_kv, q), _shift(of_kv, q + kv)), "gate_up": (of_mlp, _shift(of_mlp, shape.mlp))}
    by_input = {"out": (of_q,), "down": (of_mlp,)}
    cuts: dict[str, Cut] = {}
    for layer, block in model.blocks.named_children():  # a stage of a pipeline holds some
        if not isinstance(block, Block):
            raise TypeError(f"blocks.{layer} is a {type(block).__name__}, which cannot be cut over ranks")
        for kind, dim, spans_of in ((ColumnParallelLinear, 0, by_output), (RowParallelLinear, 1, by_input)):
            for name, spans in spans_of.items():
                cut = Cut(tuple(getattr(block, name).weight.shape), dim, spans)
                setattr(block, name, _split_layer(kind, getattr(block, name), cut, ranks))
                cuts[f"blocks.{layer}.{name}.weight"] = cut
        block.heads, block.kv_heads = shape.heads // ranks.count, shape.kv_heads // ranks.count
    return cuts


def _split_layer(
    kind: type[ColumnParallelLinear | RowParallelLinear], layer: nn.Linear, cut: Cut, ranks: RankGroup
) -> nn.Linear:
    if type(layer) is not nn.Linear or layer.bias is not None:
        raise ValueError(f"{type(layer).__name__} layers (fp8, biases) are not cut: take tensor 1, or linears 'bf16'")
    weight = cut.of(layer.weight.detach()).clone()
    cut_layer = kind(weight.shape[1], weight.shape[0], bias=False, device="meta")
    cut_layer.weight = nn.Parameter(weight)
    cut_layer.group = ranks.group if ranks.group is not None else torch.distributed.group.WORLD
    return cut_layer


def _span_of_rank(width: int, ranks: RankGroup) -> Span:
    each = width // ranks.count
    return (ranks.rank * each, (ranks.rank + 1) * each)


def _shift(span: Span, by: int) -> Span:
    return (span[0] + by, span[1] + by)
