"""Where the numbers live that the optimiser steps on: beside the weights, or in the host's memory.

On the host they take no room on the GPU (12 bytes a parameter with AdamW): gradients come over in pinned memory, the
CPU steps in float32, and the new weights go back in the model's precision. The same update to rounding, and slower: 6
bytes a parameter cross the bus each time, and the CPU's memory is read. ZeRO 2 and 3 have the same from FSDP2
(`gristmill.trainer.step.sharded`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gristmill.trainer.step.optim import stepped
from gristmill.trainer.step.parts import Cut


@dataclass(frozen=True)
class Slot:
    """A parameter that this rank steps on: what the model computes with, and what the optimiser changes (the same
    tensor, or a float32 copy)."""

    name: str
    weight: Tensor
    master: Tensor
    cut: Cut


class MastersOf:
    """As optimisers ask for them: the master of a weight; a weight that this rank does not step on stands for itself."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._of = {id(slot.weight): slot.master for slot in slots}

    def of(self, weight: Tensor) -> Tensor:
        return self._of.get(id(weight), weight)


class MasterStore(Protocol):
    def step(
        self, optimizer: torch.optim.Optimizer, gradients: Mapping[str, Tensor], norm: Tensor, most: float
    ) -> None:
        """Unless `norm` is not finite; gradients are scaled down to the norm `most`."""

    def give(self) -> None:
        """Rounds the masters into the weights."""


class OnDevice:
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
        clip_to(list(gradients.values()), norm, most)
        stepped(optimizer, norm)
        for slot in self._slots:
            slot.master.grad = None
        self.give()

    @torch.no_grad()
    def give(self) -> None:
        if self._copied:
            torch._foreach_copy_([slot.weight for slot in self._copied], [slot.master for slot in self._copied])


class OnHost:
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
        clip_to(list(gradients.values()), norm, most)
        for slot, here in zip(self._slots, self._gradients, strict=True):
            here.copy_(gradients[slot.name], non_blocking=True)
        known = norm.cpu()  # waits for all that was sent before it
        for slot, here in zip(self._slots, self._gradients, strict=True):
            slot.master.grad = here
        stepped(optimizer, known)
        for slot in self._slots:
            slot.master.grad = None
        self.give()

    @torch.no_grad()
    def give(self) -> None:
        """The next forward pass waits for its weights on the GPU; the host goes on."""
        for slot, rounded in zip(self._slots, self._rounded, strict=True):
            if rounded.dtype != slot.master.dtype:
                rounded.copy_(slot.master)
            slot.weight.copy_(rounded, non_blocking=True)


def clip_to(gradients: Sequence[Tensor], norm: Tensor, most: float) -> None:
    """In place, those of the host too."""
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    for kind in {gradient.device.type for gradient in gradients}:
        torch._foreach_mul_([gradient for gradient in gradients if gradient.device.type == kind], factor.to(kind))


def on_host(weight: Tensor, pinned: bool) -> Tensor:
    """A float32 copy; `pinned`: in memory that the GPU can read by itself."""
    there = torch.empty(weight.shape, dtype=torch.promote_types(weight.dtype, torch.float32), pin_memory=pinned)
    return there.copy_(weight.detach()).requires_grad_()


def one_pass(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """AdamW on the CPU by torch's fused kernel: it reads each number once."""
    if isinstance(optimizer, torch.optim.AdamW):
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = True, False
    return optimizer
