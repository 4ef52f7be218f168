"""Gradients of an update, accumulated in float32 over its passes.

Gradients lie side by side in buckets, in the order in which a backward pass makes them. A bucket's memory is allocated
when its first gradient arrives and freed when the optimizer has stepped, so it is not there while a forward pass is at
its largest. Where buckets go when they are full is a hook (`BucketedGradients.filled`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

HOOK = "gradients_taken_by"  # attribute of a weight: the hook that collects its gradient
ALIGNED = 64  # numbers: each gradient begins at a multiple of 256 bytes
BUCKET = 1 << 26  # bytes of a bucket of float32


class Gradients(Protocol):
    """Collects the gradients of an update."""

    def backward(self, loss: Tensor, last: bool) -> None: ...

    def local(self) -> dict[str, Tensor]:
        """After the last pass: the gradients that this process steps on, by name."""

    def flat(self) -> Iterator[Tensor]:
        """The same numbers in as few tensors as possible."""

    def clear(self) -> None:
        """Before the next update."""

    def send_weights(self) -> None:
        """After the optimizer's step: to whoever computes with the new weights."""


@dataclass
class Bucket:
    """Gradients side by side in one tensor; a weight's is a view of it."""

    names: list[str] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    size: int = 0
    flat: Tensor | None = None
    unused: int = 0  # numbers at the end
    begun: set[int] = field(default_factory=set)
    missing: int = 0  # weights whose last gradient of the update is still to come

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
    """Of the weights in `buckets`, which may have been made for several processes."""

    def __init__(self, buckets: Iterable[Bucket]) -> None:
        self._buckets = list(buckets)
        self._may_stay = False
        self._place = {
            id(weight): (bucket, index) for bucket in self._buckets for index, weight in enumerate(bucket.weights)
        }
        self._last = False
        self.clear()
        arrived = call_if_alive(self._arrived)
        for bucket in self._buckets:
            for weight in bucket.weights:
                if earlier := getattr(weight, HOOK, None):
                    earlier.remove()  # of a stepper that used this model before
                register: Any = weight.register_post_accumulate_grad_hook
                setattr(weight, HOOK, register(arrived))

    def keep_in_place(self) -> None:
        """Where an update is one pass, its gradients stay with the weights, in their precision, for an optimizer that
        can read them there."""
        self._may_stay = True

    def backward(self, loss: Tensor, last: bool) -> None:
        self._last = last
        torch.autograd.backward(loss)
        self._passes += 1
        if last:
            self.finish()

    def finish(self) -> None:
        """After the last gradient."""
        if not self._in_place:
            while self._full < len(self._buckets):
                self._next_is_full()

    def filled(self, bucket: Bucket) -> None:
        """A hook: all gradients of the update are in this bucket. Buckets come in their order."""
        bucket.complete()

    def own_buckets(self) -> list[Bucket]:
        """A hook: those whose weights this process steps on."""
        return self._buckets

    def send_weights(self) -> None:
        """A hook: they are in their place."""

    @property
    def _in_place(self) -> bool:
        return self._may_stay and all(not bucket.begun for bucket in self._buckets)

    def _arrived(self, weight: Tensor) -> None:
        if self._may_stay and self._last and self._passes == 0:
            return
        if weight.grad is None:
            raise RuntimeError("a gradient was announced and is not there")
        self._take(weight, weight.grad)
        weight.grad = None

    def _take(self, weight: Tensor, gradient: Tensor) -> None:
        bucket, place = self._place[id(weight)]
        bucket.take(place, gradient)
        bucket.missing -= self._last
        while self._last and self._full < len(self._buckets) and self._buckets[self._full].missing <= 0:
            self._next_is_full()

    def _next_is_full(self) -> None:
        self._full += 1
        self.filled(self._buckets[self._full - 1])

    def local(self) -> dict[str, Tensor]:
        if self._in_place:
            return {
                name: torch.zeros_like(weight) if weight.grad is None else weight.grad
                for bucket in self._buckets
                for name, weight in zip(bucket.names, bucket.weights, strict=True)
            }
        return {name: bucket.view(place) for bucket in self.own_buckets() for place, name in enumerate(bucket.names)}

    def flat(self) -> Iterator[Tensor]:
        if self._in_place:
            yield from self.local().values()
            return
        for bucket in self.own_buckets():
            yield bucket.complete()

    def clear(self) -> None:
        self._passes = self._full = 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.weights)
            bucket.flat = None
            bucket.begun.clear()
            for weight in bucket.weights:
                weight.grad = None


def buckets_of(weights: Mapping[str, Tensor]) -> list[Bucket]:
    """In the order in which a backward pass fills them: that of the weights, reversed."""
    full: list[Bucket] = []
    filling: dict[torch.dtype, Bucket] = {}
    for name, weight in reversed(list(weights.items())):
        bucket = filling.setdefault(weight.dtype, Bucket())
        bucket.add(name, weight)
        if bucket.size * 4 >= BUCKET:
            full.append(filling.pop(weight.dtype))
    return [*full, *filling.values()]
