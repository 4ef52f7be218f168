"""Ranks: one process a GPU, each with the whole model; gradients are summed.

Losses are divided by what the whole update counts before they are differentiated, so the sum over ranks is the gradient that one process would
have had, also where ranks hold unequal numbers of documents or labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

Item = TypeVar("Item")

BUCKET = 1 << 26  # bytes of gradients that travel together


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def mine(self, items: Sequence[Item]) -> Sequence[Item]:
        """This rank's share: every `count`-th."""
        return items[self.rank :: self.count]

    def summed(self, value: Tensor) -> Tensor:
        if self.count > 1:
            torch.distributed.all_reduce(value)
        return value

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """In place; every rank must have a gradient for every parameter."""
        if self.count == 1:
            return
        for bucket in _buckets([p.grad for p in parameters if p.grad is not None]):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            torch.distributed.all_reduce(flat)
            for gradient, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def share_weights(self, model: nn.Module) -> None:
        """All ranks go on with those of the first."""
        if self.count > 1:
            for tensor in model.state_dict().values():
                torch.distributed.broadcast(tensor, 0)


ALONE = Ranks()


def current_ranks() -> Ranks:
    """Of the process group that the caller has made (`torchrun` and `init_process_group`), or alone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size())
    return ALONE


def _buckets(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    buckets: list[list[Tensor]] = []
    room = 0
    for gradient in gradients:
        size = gradient.numel() * gradient.element_size()
        if not buckets or size > room or gradient.dtype != buckets[-1][0].dtype:
            buckets.append([])
            room = BUCKET
        buckets[-1].append(gradient)
        room -= size
    return buckets
