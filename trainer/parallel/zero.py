"""Gradients of weights that every rank holds whole: accumulated in float32, sent in buckets while the backward pass
still runs.

Stage 0 of ZeRO (Rajbhandari et al. 2020) sums them on all ranks. Stage 1 gives each parameter, whole, to one rank (Muon
orthogonalises whole matrices): the sum goes to its owner, which alone has its float32 master and optimiser state,
steps, and sends the new weight to all. A bucket's memory is allocated when its first gradient arrives and freed when
the optimiser has stepped, so it is not there while a forward pass is at its largest. With replicas
(`gristmill.trainer.parallel.replicas`) the ranks of one of them do so, and sum what they have over the replicas.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from gristmill.trainer.parallel.ranks import BUCKET, RankGroup
from gristmill.trainer.parallel.replicas import ReplicaSum, TwoLevels

HOOK = "gradients_taken_by"  # attribute of a weight: the hook that collects its gradient
ALIGNED = 64  # numbers: each gradient begins at a multiple of 256 bytes


class Gradients(Protocol):
    """Collects the gradients of an update."""

    def backward(self, loss: Tensor, last: bool) -> None: ...

    def local(self) -> dict[str, Tensor]:
        """After the last pass: the sum over the ranks of the gradients that this rank steps on, by name."""

    def shared(self) -> Iterator[tuple[Tensor, int]]:
        """The same numbers in as few tensors as possible, each with the number of ranks that hold it too."""

    def clear(self) -> None:
        """Before the next update."""

    def broadcast_weights(self) -> None:
        """Sends each owner's new weights to all ranks."""


def owners(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """A rank for each parameter: the largest first, each to the rank that has least."""
    loads = [0] * count
    owner_of = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owner_of[name] = min(range(count), key=lambda rank: (loads[rank], rank))
        loads[owner_of[name]] += sizes[name]
    return {name: owner_of[name] for name in sizes}


@dataclass
class Bucket:
    """Gradients side by side in one tensor; a weight's is a view of it."""

    owner: int | None  # None: the sum is for all ranks
    copies: int
    ranks: RankGroup  # that sum it
    names: list[str] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    size: int = 0
    flat: Tensor | None = None
    unused: int = 0  # numbers at the end, so that ranks can share it equally
    begun: set[int] = field(default_factory=set)
    missing: int = 0  # weights whose last gradient of the update is still to come
    work: Any = None

    def add(self, name: str, weight: Tensor) -> None:
        self.names.append(name)
        self.weights.append(weight)
        self.starts.append(self.size)
        self.size += -(-weight.numel() // ALIGNED) * ALIGNED

    def view(self, place: int) -> Tensor:
        if self.flat is None:
            weight = self.weights[0]
            self.flat = torch.empty(
                self.size, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device
            )
            for start, each in zip(self.starts, self.weights, strict=True):
                if gap := -each.numel() % ALIGNED:
                    self.flat[start + each.numel() : start + each.numel() + gap] = 0
            self.flat[self.size - self.unused :] = 0
        weight = self.weights[place]
        return self.flat[self.starts[place] : self.starts[place] + weight.numel()].view(weight.shape)

    def take(self, place: int, gradient: Tensor) -> None:
        if place in self.begun:
            self.view(place).add_(gradient)
        else:
            self.view(place).copy_(gradient)  # the first of an update needs no zeros to be added to
            self.begun.add(place)

    def complete(self) -> Tensor:
        for place in range(len(self.weights)):
            if place not in self.begun:
                self.view(place).zero_()
        if self.flat is None:
            raise RuntimeError("a bucket of no weights has no gradients")
        return self.flat


def call_if_alive(arrived: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """A hook of a weight. The garbage collector does not see through hooks: what holds a weight and hangs on it by a
    method of its own would never be freed."""
    weak = weakref.WeakMethod(arrived)

    def call(weight: Tensor) -> None:
        if (method := weak()) is not None:
            method(weight)

    return call


class BucketedGradients:
    """`owner_of` None: stage 0. `copies`: how many ranks hold a parameter's summed gradient. `between`: where `ranks`
    are those of one replica. `apart`: parameters that other ranks sum than `ranks` (experts)."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        ranks: RankGroup,
        owner_of: Mapping[str, int] | None = None,
        copies: Mapping[str, int] | None = None,
        between: ReplicaSum | None = None,
        apart: Mapping[str, RankGroup] | None = None,
    ) -> None:
        self._ranks, self._between = ranks, between
        self._keep_in_place = False
        self._buckets = _make_buckets(weights, owner_of or {}, copies or {}, ranks, apart or {})
        device = next(iter(weights.values())).device
        self._stream: Any = None
        if between is not None and device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._place = {
            id(weight): (bucket, index) for bucket in self._buckets for index, weight in enumerate(bucket.weights)
        }
        self._last = False
        self.clear()
        arrived = call_if_alive(self._arrived)
        for weight in weights.values():
            if earlier := getattr(weight, HOOK, None):
                earlier.remove()  # of a stepper that used this model before
            register: Any = weight.register_post_accumulate_grad_hook
            setattr(weight, HOOK, register(arrived))

    def keep_in_place(self) -> None:
        """Where an update is one pass of one rank: its gradients stay with the weights, in their precision, for an
        optimiser that can read them there."""
        self._keep_in_place = self._ranks.count == 1 and self._between is None

    def backward(self, loss: Tensor, last: bool) -> None:
        self.accumulate(loss, None, last)
        self._passes += 1
        if last:
            self.finish()

    def accumulate(self, output: Tensor | GradientEdge, gradient: Tensor | None, final: bool) -> None:
        """Of a part of the model too. `final`: what arrives is the last of this update for these weights."""
        self._last = final
        torch.autograd.backward(output, gradient)

    def add(self, weight: Tensor, gradient: Tensor, final: bool) -> None:
        """A gradient that no backward pass brings."""
        self._last = final
        self._take(weight, gradient)

    def finish(self) -> None:
        """After the last gradient: sends what is left, and waits."""
        if not self._in_place:
            while self._sent < len(self._buckets):
                self._send()
            for bucket in self._buckets:
                if bucket.work is not None:
                    bucket.work.wait()
                    bucket.work = None
                if bucket.owner not in (None, bucket.ranks.rank):
                    bucket.flat = None

    @property
    def _in_place(self) -> bool:
        return self._keep_in_place and all(not bucket.begun for bucket in self._buckets)

    def _arrived(self, weight: Tensor) -> None:
        if self._keep_in_place and self._last and self._passes == 0:
            return
        if weight.grad is None:
            raise RuntimeError("a gradient was announced and is not there")
        self._take(weight, weight.grad)
        weight.grad = None

    def _take(self, weight: Tensor, gradient: Tensor) -> None:
        bucket, place = self._place[id(weight)]
        bucket.take(place, gradient)
        bucket.missing -= self._last
        while self._last and self._sent < len(self._buckets) and self._buckets[self._sent].missing <= 0:
            self._send()

    def _send(self) -> None:
        """The next bucket: all ranks send them in one order."""
        bucket = self._buckets[self._sent]
        self._sent += 1
        flat = bucket.complete()
        ranks = bucket.ranks
        if self._between is not None:
            bucket.work = TwoLevels(flat, bucket.owner, ranks, self._between, self._sent, self._stream)
            return
        if ranks.count == 1:
            return
        if bucket.owner is None:
            bucket.work = torch.distributed.all_reduce(flat, group=ranks.group, async_op=True)
        else:
            bucket.work = torch.distributed.reduce(flat, group=ranks.group, group_dst=bucket.owner, async_op=True)

    def _own_buckets(self) -> list[Bucket]:
        return [bucket for bucket in self._buckets if bucket.owner in (None, bucket.ranks.rank)]

    def local(self) -> dict[str, Tensor]:
        if self._in_place:
            return {
                name: torch.zeros_like(weight) if weight.grad is None else weight.grad
                for bucket in self._buckets
                for name, weight in zip(bucket.names, bucket.weights, strict=True)
            }
        return {name: bucket.view(place) for bucket in self._own_buckets() for place, name in enumerate(bucket.names)}

    def shared(self) -> Iterator[tuple[Tensor, int]]:
        if self._in_place:
            yield from ((gradient, 1) for gradient in self.local().values())
            return
        for bucket in self._own_buckets():
            yield bucket.complete(), bucket.copies

    def clear(self) -> None:
        self._passes = self._sent = 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.weights)
            bucket.flat = None
            bucket.begun.clear()
            for weight in bucket.weights:
                weight.grad = None

    @torch.no_grad()
    def broadcast_weights(self) -> None:
        """All at once: a bucket is one message."""
        broadcasts = []
        for bucket in self._buckets:
            if bucket.owner is None or bucket.ranks.count == 1:
                continue
            flat = torch.cat([weight.detach().flatten() for weight in bucket.weights])
            work = torch.distributed.broadcast(flat, group=bucket.ranks.group, group_src=bucket.owner, async_op=True)
            broadcasts.append((bucket, flat, work))
        for bucket, flat, work in broadcasts:
            work.wait()
            if bucket.owner != bucket.ranks.rank:
                parts = torch.split(flat, [weight.numel() for weight in bucket.weights])
                torch._foreach_copy_(bucket.weights, [p.view_as(w) for p, w in zip(parts, bucket.weights, strict=True)])


def _make_buckets(
    weights: Mapping[str, Tensor],
    owner_of: Mapping[str, int],
    copies: Mapping[str, int],
    ranks: RankGroup,
    apart: Mapping[str, RankGroup],
) -> list[Bucket]:
    """Buckets in the order in which a backward pass fills them: that of the weights, reversed."""
    full: list[Bucket] = []
    filling: dict[tuple[int | None, int, torch.dtype, bool], Bucket] = {}
    for name, weight in reversed(list(weights.items())):
        owner, group = owner_of.get(name), apart.get(name, ranks)
        holders = copies.get(name, group.count if owner is None else 1)
        key = (owner, holders, weight.dtype, name in apart)
        bucket = filling.setdefault(key, Bucket(owner, holders, group))
        bucket.add(name, weight)
        if bucket.size * 4 >= BUCKET:
            full.append(filling.pop(key))
    buckets = [*full, *filling.values()]
    for bucket in buckets:
        bucket.unused = -bucket.size % bucket.ranks.count
        bucket.size += bucket.unused
    return buckets
