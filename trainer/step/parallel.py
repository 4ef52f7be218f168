"""Ranks: one process a GPU (or a CPU's share), started by `torchrun`, which sum what they found.

Losses are divided by what the whole update counts before they are differentiated, so the sum over ranks is the gradient
that one process would have had, also where ranks hold unequal numbers of documents or labels.

A rank that dies takes its run with it: the others stop with a `RankError` that says who stopped and that the first
error is elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

Item = TypeVar("Item")

BUCKET = 1 << 26  # bytes of gradients that travel together
LONGEST_SILENCE = timedelta(minutes=10)


class RankError(RuntimeError):
    """Another rank of the run is gone."""


@dataclass(frozen=True)
class RankGroup:
    """This process among `count`: those of `group`, or all there are."""

    rank: int = 0
    count: int = 1
    group: Any = field(default=None, compare=False, repr=False)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def mine(self, items: Sequence[Item]) -> Sequence[Item]:
        """This rank's share: every `count`-th."""
        return items[self.rank :: self.count]

    def summed(self, value: Tensor) -> Tensor:
        if self.count > 1:
            torch.distributed.all_reduce(value, group=self.group)
        return value

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """In place; every rank must have a gradient for every parameter."""
        if self.count == 1:
            return
        for bucket in _buckets([p.grad for p in parameters if p.grad is not None]):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            torch.distributed.all_reduce(flat, group=self.group)
            for gradient, part in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def share_weights(self, model: nn.Module) -> None:
        """All ranks go on with those of the first."""
        if self.count > 1:
            for tensor in model.state_dict().values():
                here = tensor.to(device_of_messages(self))
                torch.distributed.broadcast(here, group=self.group, group_src=0)
                if here is not tensor:
                    tensor.copy_(here)

    def gathered(self, value: Any) -> list[Any]:
        """What each rank says, on all ranks: anything that JSON can carry."""
        if self.count == 1:
            return [value]
        said = torch.from_numpy(np.frombuffer(json.dumps(value).encode(), np.uint8).copy()).to(device_of_messages(self))
        sizes = [torch.zeros(1, dtype=torch.int64, device=said.device) for _ in range(self.count)]
        torch.distributed.all_gather(sizes, torch.tensor([len(said)], device=said.device), group=self.group)
        longest = max(int(size) for size in sizes)
        heard = [said.new_zeros(longest) for _ in sizes]
        torch.distributed.all_gather(heard, torch.cat([said, said.new_zeros(longest - len(said))]), group=self.group)
        return [json.loads(part[: int(size)].cpu().numpy().tobytes()) for part, size in zip(heard, sizes, strict=True)]

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.count > 1:
            self.summed(torch.zeros(1, device=device_of_messages(self))).item()


ALONE = RankGroup()


@dataclass(frozen=True)
class Grid:
    """Ranks in two directions. Those of `tensor` hold cuts of the same layers and see the same tokens; those of `data`
    see others."""

    all: RankGroup = ALONE
    data: RankGroup = ALONE
    tensor: RankGroup = ALONE


def grid_of(ranks: RankGroup, tensor: int) -> Grid:
    """Neighbours share layers: they are the ones with the fastest wires between them. Every rank must call this."""
    if tensor == 1:
        return Grid(ranks, ranks, ALONE)
    if tensor < 1 or ranks.count % tensor:
        raise ValueError(f"{ranks.count} ranks cannot be cut into groups of {tensor} that share each layer")
    rows = [list(range(first, first + tensor)) for first in range(0, ranks.count, tensor)]
    columns = [list(range(first, ranks.count, tensor)) for first in range(tensor)]
    made = {tuple(members): torch.distributed.new_group(members) for members in [*rows, *columns]}
    row, column = rows[ranks.rank // tensor], columns[ranks.rank % tensor]
    return Grid(
        ranks,
        RankGroup(ranks.rank // tensor, len(column), made[tuple(column)]),
        RankGroup(ranks.rank % tensor, tensor, made[tuple(row)]),
    )


def current_ranks() -> RankGroup:
    """Of the process group that the caller has made (`launched`, or `init_process_group`), or alone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return RankGroup(torch.distributed.get_rank(), torch.distributed.get_world_size())
    return ALONE


def device_of_messages(ranks: RankGroup) -> torch.device:
    """Where tensors must lie that these ranks send each other."""
    if torch.distributed.get_backend(ranks.group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@contextmanager
def launched(kind: str | None = None, silence: timedelta = LONGEST_SILENCE) -> Iterator[tuple[RankGroup, torch.device]]:
    """The ranks that `torchrun` started and this one's device; without `torchrun`, alone. `kind`: cuda (NCCL), cpu
    (gloo), None for what is here.

    Leaves no process group behind. Where the work failed because another rank did, the error says so.
    """
    kind = kind or ("cuda" if torch.cuda.is_available() else "cpu")
    started = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0"))) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        if not torch.cuda.is_available() or device.index >= torch.cuda.device_count():
            raise RankError(
                f"local rank {device.index} has no GPU: {torch.cuda.device_count()} here; start no more processes than GPUs"
            )
        torch.cuda.set_device(device)
    if not started:
        yield ALONE, device
        return
    torch.distributed.init_process_group(
        "nccl" if kind == "cuda" else "gloo", timeout=silence, device_id=device if kind == "cuda" else None
    )
    ranks = current_ranks()
    try:
        yield ranks, device
        ranks.wait()  # a rank that is done early must not take its sockets away from those that are not
    except RuntimeError as error:
        if _of_another_rank(error):
            raise RankError(
                f"rank {ranks.rank} of {ranks.count} lost another rank, or waited {silence} for it; look for the first error among the others"
            ) from error
        raise
    finally:
        torch.distributed.destroy_process_group()


def _of_another_rank(error: RuntimeError) -> bool:
    """gloo raises plain errors that name its transport."""
    if isinstance(error, torch.distributed.DistError):
        return True
    return any(
        word in str(error)
        for word in ("gloo", "Connection closed by peer", "Connection reset by peer", "Timed out waiting")
    )


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
