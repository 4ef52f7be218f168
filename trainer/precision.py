"""In which precision a model computes: float32, bf16 by autocast over float32 weights, or bf16 weights with float32 masters.

Autocast suits small models: weights are cast anew at each use. Masters suit large ones: the model holds bf16 only, the optimiser steps on
float32 copies, and an update smaller than the last bit of bf16 is not lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

Precision = Literal["float32", "bf16"]


def computing(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """The context of a forward pass over float32 weights."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def usual_precision(device: torch.device) -> Precision:
    return "bf16" if device.type == "cuda" else "float32"


class Masters:
    """Float32 copies of a model's parameters, which the optimiser steps on in their place."""

    def __init__(self, model: nn.Module) -> None:
        self.weights: Sequence[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.masters: Sequence[Tensor] = [p.detach().float().clone().requires_grad_() for p in self.weights]
        self._of = {id(weight): master for weight, master in zip(self.weights, self.masters, strict=True)}

    def of(self, weight: Tensor) -> Tensor:
        return self._of[id(weight)]

    def named(self, model: nn.Module) -> dict[str, Tensor]:
        """As a checkpoint keeps them."""
        return {name: self.of(p) for name, p in model.named_parameters() if p.requires_grad}

    def take_gradients(self) -> None:
        """Moves the gradients of the weights to the masters."""
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.grad = None if weight.grad is None else weight.grad.float()
            weight.grad = None

    @torch.no_grad()
    def give_weights(self) -> None:
        """Rounds the masters into the weights."""
        torch._foreach_copy_(list(self.weights), list(self.masters))
