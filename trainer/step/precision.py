"""The precision in which a model computes: float32, bf16 or fp16 by autocast over float32 weights, or bf16 weights with
float32 masters.

Autocast suits small models: weights are cast at each use. Masters suit large ones: the model holds bf16 only, the
optimiser steps on float32 copies, and an update smaller than the last bit of bf16 is not lost. fp16 has 3 more bits of
precision than bf16 and a far smaller range, below which gradients vanish: `LossScale` scales the loss up before
backward (Micikevicius et al. 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["float32", "bf16", "fp16"]
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast_for(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """The context of a forward pass over float32 weights. Training in fp16 needs a `LossScale` too."""
    return torch.autocast(device.type, HALF[precision]) if precision in HALF else nullcontext()


def usual_precision(device: torch.device) -> Literal["float32", "bf16"]:
    return "bf16" if device.type == "cuda" else "float32"


@dataclass(frozen=True)
class Scaling:
    """How a loss scale changes: times `growth` after `patience` updates without an overflow, times `backoff` after an
    overflow."""

    start: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    patience: int = 2000
    least: float = 1.0
    most: float = 2.0**24

    def __post_init__(self) -> None:
        if not (
            0 < self.least <= self.start <= self.most and self.growth > 1 > self.backoff > 0 and self.patience >= 1
        ):
            raise ValueError(f"a loss scale cannot move so: {self}")


class LossScale:
    """The factor by which losses are multiplied before backward. It lives on the device and is updated there, without a
    synchronisation."""

    def __init__(self, device: torch.device | str, scaling: Scaling | None = None) -> None:
        self.scaling = scaling or Scaling()
        self.scale = torch.tensor(self.scaling.start, dtype=torch.float32, device=device)
        self.good = torch.zeros((), dtype=torch.int32, device=device)  # updates since the scale last moved

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * self.scale

    @torch.no_grad()
    def unscale_(self, gradients: Sequence[Tensor]) -> Tensor:
        """Divides the gradients. Returns whether any number of them is not finite: 1.0 or 0.0, a float32 tensor, as
        optimisers take `found_inf`.

        Of several ranks with gradients of their own, use the largest.
        """
        found_inf = torch.zeros((), dtype=torch.float32, device=self.scale.device)
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            alike = [gradient for gradient in gradients if gradient.dtype == dtype]
            torch._amp_foreach_non_finite_check_and_unscale_(alike, found_inf, self.scale.reciprocal())
        return found_inf

    @torch.no_grad()
    def update(self, found_inf: Tensor, ignored: Tensor | None = None) -> None:
        """After each update, made or skipped. Where `ignored` is true the scale stays: the update was skipped for
        another reason."""
        rule, scale, good = self.scaling, self.scale.clone(), self.good.clone()
        torch._amp_update_scale_(scale, good, found_inf, rule.growth, rule.backoff, rule.patience)
        scale.clamp_(rule.least, rule.most)
        if ignored is not None:
            scale, good = torch.where(ignored, self.scale, scale), torch.where(ignored, self.good, good)
        self.scale.copy_(scale)
        self.good.copy_(good)

    def state(self) -> dict[str, float]:
        """As JSON has it; on CUDA this waits."""
        return {"scale": float(self.scale), "good": int(self.good)}

    def load_state(self, state: dict[str, float]) -> None:
        self.scale.fill_(state["scale"])
        self.good.fill_(int(state["good"]))
