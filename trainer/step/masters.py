"""Where the optimiser's master weights live: on the GPU beside the weights, or in host memory.

On the host they take no room on the GPU (12 bytes a parameter with AdamW): gradients are copied over in pinned memory,
the CPU steps in float32, and the new weights are copied back in the model's precision. The result is the same to
rounding, and slower: 6 bytes a parameter cross the bus each time, and the CPU's memory is read. ZeRO 2 and 3 get the
same from FSDP2 (`gristmill.trainer.parallel.sharded`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gristmill.trainer.parallel.parts import Cut
from gristmill.trainer.step.optim import step_if_finite


@dataclass(frozen=True)
class Slot:
    """A parameter that this rank steps on: the weight that the model computes with, and the master that the optimiser
    changes (the same tensor, or a float32 copy)."""

    name: str
    weight: Tensor
    master: Tensor
    cut: Cut


class MasterLookup:
    """The master of a weight, for optimisers; a weight that this rank does not step on stands for itself."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._of = {id(slot.weight): slot.master for slot in slots}

    def of(self, weight: Tensor) -> Tensor:
        return self._of.get(id(weight), weight)


class MasterStore(Protocol):
    def step(
        self, optimizer: torch.optim.Optimizer, gradients: Mapping[str, Tensor], norm: Tensor, most: float
    ) -> None:
        """Scales gradients down to the norm `most` and steps, unless `norm` is not finite."""

    def write_weights(self) -> None:
        """Rounds the masters into the weights."""


class DeviceMasters:
    """An optimiser with a method `step_into(weights, masters, gradients, norm, most)` clips, steps and rounds by
    itself, in one pass over its numbers."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._copied = [slot for slot in slots if slot.master is not slot.weight]

    def step(self, optimizer: Any, gradients: Mapping[str, Tensor], norm: Tensor, most: float) -> None:
        if hasattr(optimizer, "step_into"):
            slots = self._slots
            optimizer.step_into(
                [s.weight for s in slots], [s.master for s in slots], [gradients[s.name] for s in slots], norm, most
            )
            return
        for slot in self._slots:
            slot.master.grad = gradients[slot.name]
        scale_gradients(list(gradients.values()), norm, most)
        step_if_finite(optimizer, norm)
        for slot in self._slots:
            slot.master.grad = None
        self.write_weights()

    @torch.no_grad()
    def write_weights(self) -> None:
        if self._copied:
            torch._foreach_copy_([slot.weight for slot in self._copied], [slot.master for slot in self._copied])


class HostMasters:
    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        pinned = any(slot.weight.is_cuda for slot in slots)
        self._gradients = [torch.empty_like(slot.master, pin_memory=pinned) for slot in slots]
        self._rounded = [
            slot.master.detach()
            if slot.weight.dtype == slot.master.dtype
            else torch.empty(slot.weight.shape, dtype=slot.weight.dtype, pin_memory=pinned)
            for slot in slots
        ]

    def step(
        self, optimizer: torch.optim.Optimizer, gradients: Mapping[str, Tensor], norm: Tensor, most: float
    ) -> None:
        scale_gradients(list(gradients.values()), norm, most)
        for slot, gradient in zip(self._slots, self._gradients, strict=True):
            gradient.copy_(gradients[slot.name], non_blocking=True)
        norm_on_host = norm.cpu()  # synchronises with all copies before it
        for slot, gradient in zip(self._slots, self._gradients, strict=True):
            slot.master.grad = gradient
        step_if_finite(optimizer, norm_on_host)
        for slot in self._slots:
            slot.master.grad = None
        self.write_weights()

    @torch.no_grad()
    def write_weights(self) -> None:
        """The next forward pass waits for its weights on the GPU; the host does not wait."""
        for slot, rounded in zip(self._slots, self._rounded, strict=True):
            if rounded.dtype != slot.master.dtype:
                rounded.copy_(slot.master)
            slot.weight.copy_(rounded, non_blocking=True)


def scale_gradients(gradients: Sequence[Tensor], norm: Tensor, most: float) -> None:
    """In place, on the device or on the host."""
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    for kind in {gradient.device.type for gradient in gradients}:
        torch._foreach_mul_([gradient for gradient in gradients if gradient.device.type == kind], factor.to(kind))


def copy_to_host(weight: Tensor, pinned: bool) -> Tensor:
    """A float32 copy; `pinned`: in memory that the GPU can read by itself."""
    copy = torch.empty(weight.shape, dtype=torch.promote_types(weight.dtype, torch.float32), pin_memory=pinned)
    return copy.copy_(weight.detach()).requires_grad_()


def use_fused_kernel(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """AdamW on the CPU by torch's fused kernel: it reads each number once."""
    if isinstance(optimizer, torch.optim.AdamW):
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = True, False
    return optimizer
