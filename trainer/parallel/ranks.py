"""Ranks: one process a GPU (or a CPU's share), started by `torchrun`, which sum their gradients.

Losses are divided by what the whole update counts before backward, so the sum over ranks is the gradient that one
process would have had, also where ranks hold unequal numbers of documents or labels.

A rank that dies ends the run: the others stop with a `RankError` that says which rank stopped and that the first error
is elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from gristmill.kernels.base.types import Array
from gristmill.trainer.step.world import World

Item = TypeVar("Item")

LONGEST_SILENCE = timedelta(minutes=10)


class RankError(RuntimeError):
    """Another rank of the run is gone."""


@dataclass(frozen=True)
class RankGroup(World):
    """This process among `count`: those of `group`, or all ranks."""

    rank: int = 0
    count: int = 1
    group: Any = field(default=None, compare=False, repr=False)

    @property
    def number(self) -> int:
        return self.rank

    @property
    def readers(self) -> int:
        return self.count

    def own_share(self, items: Sequence[Item]) -> Sequence[Item]:
        """This rank's share: every `count`-th."""
        return items[self.rank :: self.count]

    def total(self, value: Tensor) -> Tensor:
        if self.count > 1:
            torch.distributed.all_reduce(value, group=self.group)
        return value

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """In place; every rank must have a gradient for every parameter."""
        if self.count == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        for work in [torch.distributed.all_reduce(each, group=self.group, async_op=True) for each in gradients]:
            if work is not None:
                work.wait()

    def share_weights(self, model: nn.Module) -> None:
        """Copies the first rank's weights to all."""
        if self.count > 1:
            for tensor in model.state_dict().values():
                sent = tensor.to(device_of_messages(self))
                torch.distributed.broadcast(sent, group=self.group, group_src=0)
                if sent is not tensor:
                    tensor.copy_(sent)

    def gather(self, value: Any) -> list[Any]:
        """Each rank's value, on all ranks."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(values, value, group=self.group)
        return values

    def wait(self) -> None:
        """Until all ranks have arrived."""
        if self.count > 1:
            self.total(torch.zeros(1, device=device_of_messages(self))).item()


ALONE = RankGroup()


@dataclass(frozen=True)
class Grid(World):
    """Ranks in dimensions. Each of `pipeline` holds some of the blocks. Of those that hold the same ones, `tensor` hold
    parts of the same layers and see the same tokens; those of `data` see others. Some of these, `context`, see parts of
    the same rows; some, `experts`, hold different experts, and `twins` the same. `shards` are those of `data` on one
    host, `replicas` the like on the others."""

    all: RankGroup = ALONE
    data: RankGroup = ALONE
    tensor: RankGroup = ALONE
    context: RankGroup = ALONE
    pipeline: RankGroup = ALONE
    experts: RankGroup = ALONE
    twins: RankGroup = ALONE
    shards: RankGroup = ALONE
    replicas: RankGroup = ALONE

    @property
    def count(self) -> int:
        return self.all.count

    @property
    def number(self) -> int:
        return self.all.rank

    @property
    def readers(self) -> int:
        return self.data.count // self.context.count

    @property
    def reports(self) -> bool:
        return self.tensor.first and self.context.first and self.pipeline.first

    def gather(self, value: Any) -> list[Any]:
        return self.all.gather(value)

    def wait(self) -> None:
        self.all.wait()

    def total(self, value: Tensor) -> Tensor:
        return self.data.total(value)

    def total_read(self, counts: Tensor) -> Tensor:
        return self.data.total(counts if self.context.first else torch.zeros_like(counts))


def grid_of(
    ranks: RankGroup, tensor: int = 1, context: int = 1, pipeline: int = 1, experts: int = 1, replicas: int = 1
) -> Grid:
    """Neighbours share layers, then rows, then experts, because they have the fastest links between them; stages of a
    pipeline are farthest apart. Every rank must call this."""
    of_data = ranks.count // (pipeline * tensor)
    if ranks.count == 1:
        return Grid()
    cube = np.arange(ranks.count).reshape(pipeline, of_data, tensor)
    columns = [cube[stage, :, place] for stage in range(pipeline) for place in range(tensor)]
    sharing = of_data // replicas

    def neighbours(count: int) -> list[Array]:
        return [column[first : first + count] for column in columns for first in range(0, of_data, count)]

    def strided(step: int) -> list[Array]:
        return [column[first::step] for column in columns for first in range(step)]

    sets = {
        "data": columns,
        "tensor": list(cube.reshape(-1, tensor)),
        "context": neighbours(context),
        "pipeline": list(cube.reshape(pipeline, -1).T),
        "experts": neighbours(experts),
        "twins": strided(experts),
        "shards": neighbours(sharing),
        "replicas": strided(sharing),
    }
    groups: dict[tuple[int, ...], RankGroup] = {tuple(range(ranks.count)): ranks}
    found: dict[str, RankGroup] = {}
    for name, members_of in sets.items():
        for members in (tuple(each.tolist()) for each in members_of):
            if len(members) > 1 and members not in groups:
                group = torch.distributed.new_group(members)
                place = members.index(ranks.rank) if ranks.rank in members else 0
                groups[members] = RankGroup(place, len(members), group)
            if ranks.rank in members:
                found[name] = groups.get(members, ALONE)
    return Grid(ranks, **found)


def current_ranks() -> RankGroup:
    """Of the process group that the caller has made (`join_ranks`, or `init_process_group`), or alone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return RankGroup(torch.distributed.get_rank(), torch.distributed.get_world_size())
    return ALONE


def device_of_messages(ranks: RankGroup) -> torch.device:
    """Where tensors must be for these ranks to send them to each other."""
    if torch.distributed.get_backend(ranks.group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@contextmanager
def join_ranks(
    kind: str | None = None, silence: timedelta = LONGEST_SILENCE
) -> Iterator[tuple[RankGroup, torch.device]]:
    """The ranks that `torchrun` started and this one's device; without `torchrun`, alone. `kind`: cuda (NCCL), cpu
    (gloo), None for what is available.

    Destroys its process group at the end. Where another rank caused the failure, the error says so.
    """
    kind = kind or ("cuda" if torch.cuda.is_available() else "cpu")
    started = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0"))) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        if not torch.cuda.is_available() or device.index >= torch.cuda.device_count():
            raise RankError(
                f"local rank {device.index} has no GPU: {torch.cuda.device_count()} here; start no more processes than "
                "GPUs"
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
        if _is_from_another_rank(error):
            raise RankError(
                f"rank {ranks.rank} of {ranks.count} lost another rank, or waited {silence} for it; look for the first "
                "error among the others"
            ) from error
        raise
    finally:
        torch.distributed.destroy_process_group()


def _is_from_another_rank(error: RuntimeError) -> bool:
    """gloo raises plain errors that name its transport."""
    if isinstance(error, torch.distributed.DistError):
        return True
    return any(
        word in str(error)
        for word in ("gloo", "Connection closed by peer", "Connection reset by peer", "Timed out waiting")
    )
