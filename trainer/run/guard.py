"""Skips updates that would do harm: a loss or a gradient norm that is not finite, or far above the recent ones.

Far above is robust: over the median of the last accepted updates by a number of their median absolute deviations
(times 1.4826, which for normal numbers is one standard deviation; at least 1 % of the median, so that a flat stretch
does not make every bump a spike). The decision is made on the device without a synchronisation: a refused update
gets a gradient that is not finite, which the optimiser's step skips.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from gristmill.trainer.checked import CHECKED, Count

NORMAL = 1.4826  # standard deviation of normal numbers over their median absolute deviation
FLAT = 0.01
Deviations = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class UnsoundRun(RuntimeError):
    """Training that cannot continue: update after update is refused."""


@dataclass(frozen=True, config=CHECKED)
class Guard:
    """`loss_times` and `norm_times` are how many deviations above the median are too far (None: only what is not finite
    is refused). Before `least` updates were accepted nothing finite is. After `in_a_row` refused updates the run
    stops."""

    loss_times: Deviations | None = 15.0  # deviations above the median that are too far
    norm_times: Deviations | None = 50.0  # the same for the gradient's norm
    window: Count = 128  # accepted updates that it compares with
    least: Count = 32  # before so many nothing finite is refused
    in_a_row: Count = 10  # so many refused updates end the run

    def __post_init__(self) -> None:
        if self.least > self.window:
            raise ValueError(f"least {self.least} of a window of {self.window} updates: at most the window")


class Watch:
    """The last accepted losses and norms, on the device, and what is too far above them."""

    def __init__(self, guard: Guard, device: torch.device) -> None:
        self.guard = guard
        self._times = torch.tensor(
            [guard.loss_times or math.inf, guard.norm_times or math.inf], dtype=torch.float64, device=device
        )
        self._places = torch.arange(guard.window, device=device)
        self._rank = torch.zeros(2, 1, dtype=torch.int64, device=device)
        self.reset()

    def reset(self) -> None:
        """When the data changes: another stage of a curriculum."""
        self._recent = torch.full((2, self.guard.window), math.inf, dtype=torch.float64, device=self._times.device)
        self._count = torch.zeros((), dtype=torch.int64, device=self._times.device)

    @torch.no_grad()
    def limits(self) -> Tensor:
        """Of the loss and of the norm, float64; infinite where nothing finite is too far."""
        count = self._count.clamp(max=self.guard.window)
        # The lower median; places not yet filled are infinite and sort last.
        rank = self._rank + ((count - 1) // 2).clamp(min=0)
        median = self._recent.sort(dim=1).values.gather(1, rank)
        # Infinite less infinite: nothing recorded yet.
        distances = (self._recent - median).abs().nan_to_num(nan=math.inf, posinf=math.inf)
        deviation = NORMAL * distances.sort(dim=1).values.gather(1, rank)
        limits = (median + self._times[:, None] * deviation.maximum(FLAT * median.abs()))[:, 0]
        return torch.where(count >= self.guard.least, limits.nan_to_num(nan=math.inf, posinf=math.inf), math.inf)

    @torch.no_grad()
    def judged(self, loss: Tensor, norm: Tensor, limits: Tensor, counted: Tensor | int = 1) -> Tensor:
        """Whether the update was accepted, on the device; if so it is recorded, unless no token was `counted`: a
        loss of 0 says nothing of others."""
        both = torch.stack([loss.double(), norm.double()])
        accepted = sound(both, limits).all()
        remembered = accepted & (torch.as_tensor(counted, device=both.device) > 0)
        here = (self._places == self._count % self.guard.window) & remembered
        self._recent = torch.where(here, both[:, None], self._recent)
        self._count = self._count + remembered
        return accepted

    def facts(self) -> dict[str, Any]:
        """Oldest first, as JSON has it; waits for the device."""
        count = int(self._count)
        held = min(count, self.guard.window)
        order = [place % self.guard.window for place in range(count - held, count)]
        losses, norms = self._recent.cpu()[:, order].tolist()
        return {"losses": losses, "norms": norms}

    def restore(self, facts: Mapping[str, Any]) -> None:
        self.reset()
        held = torch.tensor([facts["losses"], facts["norms"]], dtype=torch.float64, device=self._times.device)
        self._recent[:, : held.shape[1]] = held
        self._count += held.shape[1]


def sound(values: Tensor, limits: Tensor) -> Tensor:
    """Finite, and not above."""
    return values.isfinite() & (values <= limits)
