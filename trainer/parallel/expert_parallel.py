"""Experts over a few ranks: each rank of a group holds an equal part of the experts of every layer; tokens go to them
and back.

The gradient of an expert is the sum over all tokens of its group already, so it is summed over the ranks that hold the
same experts (`Grid.twins`) alone.

T tokens, C hidden width, E experts, K of them a token, R ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gristmill.trainer.model.experts import Experts, Sorted
from gristmill.trainer.model.model import Decoder, SparseBlock
from gristmill.trainer.parallel.context import Exchanged, exchange
from gristmill.trainer.parallel.parts import Cut
from gristmill.trainer.parallel.ranks import RankGroup


def share_experts(model: Decoder, ranks: RankGroup) -> dict[str, Cut]:
    """Reduces each sparse block to this rank's experts, in place; returns by name what was split, and how. All ranks
    must hold the same weights."""
    experts = model.shape.experts
    own = experts.number // ranks.count if experts else 0
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
    order."""

    def __init__(self, count: int, group: Any) -> None:
        self.count, self.group = count, group

    def __call__(self, experts: Experts, x_TC: Tensor, weights_TK: Tensor, chosen_TK: Tensor) -> Tensor:
        by_expert = Sorted.of(chosen_TK, experts.shape.number)
        sent_RE = by_expert.counts_E.view(self.count, -1)
        arriving_RE = exchange(sent_RE, None, None, self.group)
        # One wait for the device in a layer: the sizes of messages are the host's to know.
        sent, arriving = torch.stack([sent_RE, arriving_RE]).tolist()
        out, into = ([sum(counts) for counts in way] for way in (arriving, sent))
        of_expert = [list(counts) for counts in zip(*arriving, strict=True)]
        x = by_expert.spread(x_TC)
        rows: Tensor = Exchanged.apply(x, out, into, self.group)  # type: ignore[no-untyped-call]
        made = turned(experts.mlp(turned(rows, arriving), arriving_RE.sum(0).cumsum(0).int()), of_expert)
        returned: Tensor = Exchanged.apply(made, into, out, self.group)  # type: ignore[no-untyped-call]
        return by_expert.gather(returned, weights_TK, x_TC.dtype)


def turned(rows: Tensor, counts: list[list[int]]) -> Tensor:
    """Blocks of rows, so many in each, in lines and columns of `counts`: from one line after another to one column
    after another."""
    blocks = torch.split(rows, [count for line in counts for count in line])
    columns = len(counts[0])
    return torch.cat([block for column in range(columns) for block in blocks[column::columns]])
