"""Gradients of weights that every rank holds whole: accumulated in float32, sent in buckets while the backward pass
still runs.

Stage 0 of ZeRO (Rajbhandari et al. 2020) sums them on all ranks. Stage 1 gives each parameter, whole, to one rank (Muon
orthogonalises whole matrices): the sum goes to its owner, which alone has its float32 master and optimiser state,
steps, and sends the new weight to all. A bucket's memory is allocated when its first gradient arrives and freed when
the optimiser has stepped, so it is not there while a forward pass is at its largest.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from gristmill.trainer.step.parallel import BUCKET, RankGroup

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
    names: list[str] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    size: int = 0
    flat: Tensor | None = None
    begun: set[int] = field(default_factory=set)
    missing: int = 0
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


def _call_if_alive(arrived: weakref.WeakMethod[Any], weight: Tensor) -> None:
    method = arrived()
    if method is not None:
        method(weight)


class BucketedGradients:
    """`owner_of` None: stage 0. `copies`: how many ranks hold a parameter's summed gradient."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        ranks: RankGroup,
        owner_of: Mapping[str, int] | None = None,
        copies: Mapping[str, int] | None = None,
    ) -> None:
        self._ranks = ranks
        self._keep_in_place = False
        self._buckets = _make_buckets(weights, owner_of or {}, copies or {}, ranks.count)
        self._place = {
            id(weight): (bucket, index) for bucket in self._buckets for index, weight in enumerate(bucket.weights)
        }
        self._passes = 0
        self._last = False
        self._sent = 0
        # Weak, because the garbage collector does not see through hooks: the weights would never be freed.
        arrived = weakref.WeakMethod(self._arrived)
        for weight in weights.values():
            if earlier := getattr(weight, HOOK, None):
                earlier.remove()  # of a stepper that used this model before
            register: Any = weight.register_post_accumulate_grad_hook
            setattr(weight, HOOK, register(lambda arriving: _call_if_alive(arrived, arriving)))

    def keep_in_place(self) -> None:
        """Where an update is one pass of one rank: its gradients stay with the weights, in their precision, for an
        optimiser that can read them there."""
        self._keep_in_place = self._ranks.count == 1

    def backward(self, loss: Tensor, last: bool) -> None:
        self._last, self._sent = last, 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.weights)
        loss.backward()  # type: ignore[no-untyped-call]
        self._passes += 1
        if last and not self._in_place:
            while self._sent < len(self._buckets):
                self._send()
            for bucket in self._buckets:
                if bucket.work is not None:
                    bucket.work.wait()
                    bucket.work = None
                if bucket.owner not in (None, self._ranks.rank):
                    bucket.flat = None

    @property
    def _in_place(self) -> bool:
        return self._keep_in_place and all(not bucket.begun for bucket in self._buckets)

    def _arrived(self, weight: Tensor) -> None:
        if self._keep_in_place and self._last and self._passes == 0:
            return
        bucket, place = self._place[id(weight)]
        if weight.grad is None:
            raise RuntimeError("a gradient was announced and is not there")
        bucket.take(place, weight.grad)
        weight.grad = None
        bucket.missing -= 1
        while self._last and self._sent < len(self._buckets) and self._buckets[self._sent].missing <= 0:
            self._send()

    def _send(self) -> None:
        """The next bucket: all ranks send them in one order."""
        bucket = self._buckets[self._sent]
        self._sent += 1
        flat = bucket.complete()
        if self._ranks.count == 1:
            return
        if bucket.owner is None:
            bucket.work = torch.distributed.all_reduce(flat, group=self._ranks.group, async_op=True)
        else:
            bucket.work = torch.distributed.reduce(flat, group=self._ranks.group, group_dst=bucket.owner, async_op=True)

    def _own_buckets(self) -> list[Bucket]:
        return [bucket for bucket in self._buckets if bucket.owner in (None, self._ranks.rank)]

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
        self._passes = 0
        for bucket in self._buckets:
            bucket.flat = None
            bucket.begun.clear()
            for weight in bucket.weights:
                weight.grad = None

    @torch.no_grad()
    def broadcast_weights(self) -> None:
        """All at once: a bucket is one message."""
        if self._ranks.count == 1:
            return
        broadcasts = []
        for bucket in self._buckets:
            if bucket.owner is None:
                continue
            flat = torch.cat([weight.detach().flatten() for weight in bucket.weights])
            work = torch.distributed.broadcast(flat, group=self._ranks.group, group_src=bucket.owner, async_op=True)
            broadcasts.append((bucket, flat, work))
        for bucket, flat, work in broadcasts:
            work.wait()
            if bucket.owner != self._ranks.rank:
                parts = torch.split(flat, [weight.numel() for weight in bucket.weights])
                torch._foreach_copy_(bucket.weights, [p.view_as(w) for p, w in zip(parts, bucket.weights, strict=True)])


def _make_buckets(
    weights: Mapping[str, Tensor], owner_of: Mapping[str, int], copies: Mapping[str, int], count: int
) -> list[Bucket]:
    """Buckets in the order in which a backward pass fills them: that of the weights, reversed."""
    full: list[Bucket] = []
    filling: dict[tuple[int | None, int, torch.dtype], Bucket] = {}
    for name, weight in reversed(list(weights.items())):
        owner = owner_of.get(name)
        holders = copies.get(name, count if owner is None else 1)
        key = (owner, holders, weight.dtype)
        bucket = filling.setdefault(key, Bucket(owner, holders))
        bucket.add(name, weight)
        if bucket.size * 4 >= BUCKET:
            full.append(filling.pop(key))
    return [*full, *filling.values()]


def names_owned(owner_of: Mapping[str, int], rank: int) -> Sequence[str]:
    return [name for name, owner in owner_of.items() if owner == rank]
