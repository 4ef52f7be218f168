"""Stages 0 and 1 of ZeRO (Rajbhandari et al. 2020), for weights that every rank holds whole: buckets of gradients are
sent while the backward pass still runs.

Stage 0 sums them on all ranks. Stage 1 gives each parameter, whole, to one rank (Muon orthogonalises whole matrices):
the sum goes to its owner, which alone has its float32 master and optimiser state, steps, and sends the new weight to
all. With replicas the ranks of one of them do so, and owners sum what they have over the replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from gristmill.trainer.parallel.ranks import ALONE, RankGroup
from gristmill.trainer.step.gradients import BUCKET, Bucket, BucketedGradients


def owners(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """A rank for each parameter: the largest first, each to the rank that has least."""
    loads = [0] * count
    owner_of = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owner_of[name] = min(range(count), key=lambda rank: (loads[rank], rank))
        loads[owner_of[name]] += sizes[name]
    return {name: owner_of[name] for name in sizes}


@dataclass
class RankBucket(Bucket):
    """A bucket that `ranks` sum, for its owner or for all of them (None); `copies` ranks hold the sum."""

    owner: int | None = None
    copies: int = 1
    ranks: RankGroup = ALONE
    work: Any = None

    @property
    def is_own(self) -> bool:
        return self.owner in (None, self.ranks.rank)


class ReducedGradients(BucketedGradients):
    """`owner_of` None: stage 0. `copies`: how many ranks hold a parameter's summed gradient. `apart`: parameters
    that other ranks sum than `ranks` (experts). `replicas`: owners of the same, where `ranks` are one replica's."""

    _buckets: list[RankBucket]  # type: ignore[assignment]

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        ranks: RankGroup,
        owner_of: Mapping[str, int] | None = None,
        copies: Mapping[str, int] | None = None,
        apart: Mapping[str, RankGroup] | None = None,
        replicas: RankGroup = ALONE,
    ) -> None:
        self._ranks, self._replicas = ranks, replicas
        super().__init__(_buckets_of(weights, owner_of or {}, copies or {}, ranks, apart or {}))

    def keep_in_place(self) -> None:
        self._may_stay = self._ranks.count == 1

    def accumulate(self, output: Tensor | GradientEdge, gradient: Tensor | None, final: bool) -> None:
        """Of a part of the model. `final`: what arrives is the last of this update for these weights."""
        self._last = final
        torch.autograd.backward(output, gradient)

    def add(self, weight: Tensor, gradient: Tensor, final: bool) -> None:
        """A gradient that no backward pass brings."""
        self._last = final
        self._take(weight, gradient)

    def finish(self) -> None:
        """Sends what is left, and waits."""
        super().finish()
        for bucket in self._buckets if not self._in_place else ():
            if bucket.work is not None:
                bucket.work.wait()
                bucket.work = None
            if not bucket.is_own:
                bucket.flat = None
            elif bucket.owner is not None and bucket.flat is not None:
                self._replicas.total(bucket.flat)

    def filled(self, bucket: Bucket) -> None:
        """All ranks send their buckets in one order."""
        flat = bucket.complete()
        if not isinstance(bucket, RankBucket):
            raise TypeError("a bucket that no ranks sum")
        ranks = bucket.ranks
        if ranks.count == 1:
            return
        if bucket.owner is None:
            bucket.work = torch.distributed.all_reduce(flat, group=ranks.group, async_op=True)
        else:
            bucket.work = torch.distributed.reduce(flat, group=ranks.group, group_dst=bucket.owner, async_op=True)

    def own_buckets(self) -> list[Bucket]:
        return [bucket for bucket in self._buckets if bucket.is_own]

    def copies(self) -> Iterable[int]:
        """How many ranks hold each tensor of `flat`."""
        if self._in_place:
            return [1] * len(self.local())
        return [bucket.copies for bucket in self._buckets if bucket.is_own]

    @torch.no_grad()
    def send_weights(self) -> None:
        """Each owner's to all ranks, all at once: a bucket is one message."""
        broadcasts = []
        for bucket in self._buckets:
            if bucket.owner is None or bucket.ranks.count == 1:
                continue
            flat = torch.cat([weight.detach().flatten() for weight in bucket.weights])
            work = torch.distributed.broadcast(flat, group=bucket.ranks.group, group_src=bucket.owner, async_op=True)
            broadcasts.append((bucket, flat, work))
        for bucket, flat, work in broadcasts:
            work.wait()
            if not bucket.is_own:
                parts = torch.split(flat, [weight.numel() for weight in bucket.weights])
                torch._foreach_copy_(bucket.weights, [p.view_as(w) for p, w in zip(parts, bucket.weights, strict=True)])


def _buckets_of(
    weights: Mapping[str, Tensor],
    owner_of: Mapping[str, int],
    copies: Mapping[str, int],
    ranks: RankGroup,
    apart: Mapping[str, RankGroup],
) -> list[RankBucket]:
    """As `gradients.buckets_of`, apart by owner, by ranks and by how many hold the sum."""
    full: list[RankBucket] = []
    filling: dict[tuple[int | None, int, torch.dtype, bool], RankBucket] = {}
    for name, weight in reversed(list(weights.items())):
        owner, group = owner_of.get(name), apart.get(name, ranks)
        holders = copies.get(name, group.count if owner is None else 1)
        key = (owner, holders, weight.dtype, name in apart)
        bucket = filling.setdefault(key, RankBucket(owner=owner, copies=holders, ranks=group))
        bucket.add(name, weight)
        if bucket.size * 4 >= BUCKET:
            full.append(filling.pop(key))
    buckets = [*full, *filling.values()]
    for bucket in buckets:
        bucket.unused = -bucket.size % bucket.ranks.count
        bucket.size += bucket.unused
    return buckets
