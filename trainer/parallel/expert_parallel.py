"""Experts over a few ranks: each rank of a group holds an equal part of the experts of every layer; tokens go to them
and back.

The gradient of an expert is the sum over all tokens of its group already, so it is summed over the ranks that hold the
same experts (`Grid.twins`) alone.

T tokens, C hidden width, E experts, K of them a token, P parts of a pass, R ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gristmill.trainer.model.experts import Experts, Sorted
from gristmill.trainer.model.model import Decoder, SparseBlock
from gristmill.trainer.parallel.parts import Cut
from gristmill.trainer.parallel.ranks import RankGroup

PARTS = 2  # of a pass over several ranks, alike on each: one is exchanged while the other is computed


def share_experts(model: Decoder, ranks: RankGroup) -> dict[str, Cut]:
    """Reduces each sparse block to this rank's experts, in place; returns by name what was split, and how. All ranks
    must hold the same weights."""
    experts = model.shape.experts
    if experts is None:
        raise ValueError(f"{ranks.count} ranks are to share the experts, and this shape has none: take experts 1")
    if experts.number % ranks.count:
        raise ValueError(f"{ranks.count} ranks cannot share {experts.number} experts equally")
    own = experts.number // ranks.count
    cuts: dict[str, Cut] = {}
    for layer, block in enumerate(model.blocks):
        if not isinstance(block, SparseBlock):
            continue
        for name, parameter in list(block.experts.named_parameters()):
            cut = Cut(tuple(parameter.shape), 0, ((ranks.rank * own, (ranks.rank + 1) * own),))
            setattr(block.experts, name, nn.Parameter(cut.of(parameter.detach()).clone()))
            cuts[f"blocks.{layer}.experts.{name}"] = cut
        block.experts.exchange = ExpertExchange(ranks.count, ranks.group or torch.distributed.group.WORLD)
        block.compiles = False  # sizes of messages between ranks are the host's to know
    return cuts


class ExpertExchange:
    """Tokens go to the ranks of their experts and back. `count` ranks of `group` hold equal parts of the experts, in
    order. While one part of the tokens travels the other is computed, and backward too: an exchange waits only where
    its result is used."""

    def __init__(self, count: int, group: Any) -> None:
        self.count, self.group = count, group

    def __call__(self, experts: Experts, x_TC: Tensor, weights_TK: Tensor, chosen_TK: Tensor) -> Tensor:
        cut = [tensor.tensor_split(PARTS) for tensor in (x_TC, weights_TK, chosen_TK)]
        by_expert = [Sorted.of(chosen, experts.shape.number) for chosen in cut[2]]
        sent_PE = torch.stack([each.counts_E for each in by_expert])
        own = experts.shape.number // self.count
        sent_RPE = sent_PE.view(PARTS, self.count, own).transpose(0, 1)
        arriving_RPE = exchange_counts(sent_RPE, self.group)
        ends_PE = arriving_RPE.sum(0).cumsum(1).int()
        # One wait for the device in a layer: the sizes of messages are the host's to know.
        sizes = torch.stack([sent_RPE, arriving_RPE]).transpose(1, 2).tolist()
        sent, arriving = ([[sum(of_rank) for of_rank in part] for part in way] for way in sizes)
        there = [Travel(out, into, self.group) for out, into in zip(arriving, sent, strict=True)]
        back = [Travel(out, into, self.group) for out, into in zip(sent, arriving, strict=True)]
        travelling = [
            Exchange.apply(each.spread(x), travel)  # type: ignore[no-untyped-call]
            for each, x, travel in zip(by_expert, cut[0], there, strict=True)
        ]
        returning = []
        for part, rows in enumerate(travelling):
            arrived = Arrive.apply(rows, there[part])  # type: ignore[no-untyped-call]
            of_rank, of_expert = sizes[1][part], [list(counts) for counts in zip(*sizes[1][part], strict=True)]
            made = turned(experts.mlp(turned(arrived, of_rank), ends_PE[part]), of_expert)
            returning.append(Exchange.apply(made, back[part]))  # type: ignore[no-untyped-call]
        outputs = []
        for part, rows in enumerate(returning):
            returned = Arrive.apply(rows, back[part])  # type: ignore[no-untyped-call]
            outputs.append(by_expert[part].gather(returned, cut[1][part], x_TC.dtype))
        return torch.cat(outputs)


def turned(rows: Tensor, counts: list[list[int]]) -> Tensor:
    """Blocks of rows, so many in each, in lines and columns of `counts`: from one line after another to one column
    after another."""
    blocks = torch.split(rows, [count for line in counts for count in line])
    columns = len(counts[0])
    return torch.cat([block for column in range(columns) for block in blocks[column::columns]])


def exchange_counts(counts_RPE: Tensor, group: Any) -> Tensor:
    """How many rows each rank sends here, of each part and expert."""
    even = [1] * len(counts_RPE)
    started = torch.ops._c10d_functional.all_to_all_single(counts_RPE.contiguous(), even, even, group.group_name)
    counts: Tensor = torch.ops._c10d_functional.wait_tensor(started)
    return counts


class Travel:
    """Rows on their way: how many come from each rank, how many go to each; and backward their gradient."""

    def __init__(self, out: list[int], into: list[int], group: Any) -> None:
        self.out, self.into, self.group = out, into, group
        self.gradient: Tensor | None = None

    def start(self, x: Tensor, back: bool = False) -> Tensor:
        """Does not wait."""
        sizes = (self.into, self.out) if back else (self.out, self.into)
        name = self.group.group_name
        started: Tensor = torch.ops._c10d_functional.all_to_all_single(x.contiguous(), *sizes, name)
        return started


class Exchange(torch.autograd.Function):
    """Sends rows to each rank and does not wait: only `Arrive` may touch the result. Backward, the two change roles,
    and what autograd computes between them runs while rows travel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, travel: Travel) -> Tensor:
        ctx.travel = travel
        return travel.start(x)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        gradient, ctx.travel.gradient = ctx.travel.gradient, None
        return torch.ops._c10d_functional.wait_tensor(gradient), None


class Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, travel: Travel) -> Tensor:
        ctx.travel = travel
        return torch.ops._c10d_functional.wait_tensor(x).view_as(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.travel.gradient = ctx.travel.start(grad, back=True)
        return grad, None  # of the right size, and not looked at: the gradient is on its way
