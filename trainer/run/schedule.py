"""The learning rate: pure functions from the number of an update to its share of the peak rate.

Updates count from 0. A warm-up of w updates rises in w equal steps and its last one is made at the full rate; a
decay reaches its end at `step == updates`, which is never made, so the last update still moves. Warm-up, stable,
decay: Hu et al. 2024 (MiniCPM); decay by 1 - sqrt: Hägele et al. 2024; linear to zero: Bergsma et al. 2025.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic.dataclasses import dataclass

from gristmill.trainer.checked import CHECKED, Share

Kind = Literal["constant", "linear", "cosine", "stable"]
Fall = Literal["linear", "sqrt"]


def warmup_share(step: int, warmup: int) -> float:
    """1 after the warm-up."""
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


def linear(step: int, updates: int, warmup: int = 0, floor: float = 0.0) -> float:
    """Up, then straight down to `floor`."""
    return min(warmup_share(step, warmup), floor + (1 - floor) * (1 - _progress(step, updates, warmup)))


def cosine(step: int, updates: int, warmup: int = 0, floor: float = 0.0) -> float:
    """Up, then down to `floor` by half a cosine."""
    return min(
        warmup_share(step, warmup), floor + (1 - floor) * (1 + math.cos(math.pi * _progress(step, updates, warmup))) / 2
    )


def stable(
    step: int, updates: int, warmup: int = 0, decay: int = 0, floor: float = 0.0, fall: Fall = "linear"
) -> float:
    """Up, level, and down to `floor` over the last `decay` updates. Before the fall the value does not depend on
    `updates`: train on from there."""
    passed = _progress(step, updates, updates - decay) if decay else 0.0
    remaining = 1 - passed if fall == "linear" else 1 - math.sqrt(passed)
    return min(warmup_share(step, warmup), floor + (1 - floor) * remaining)


def _progress(step: int, updates: int, start: int) -> float:
    return min(1.0, max(0.0, (step - start) / max(1, updates - start)))


@dataclass(frozen=True, config=CHECKED)
class RateSchedule:
    """A schedule as settings; `warmup` and `decay` are shares of the updates."""

    kind: Kind = "linear"  # how the rate moves after the warm-up
    warmup: Share = 0.05  # share of the updates in which it rises
    decay: Share = 0.2  # stable: share of the updates in which it falls
    floor: Share = 0.0  # share of the peak at the end
    fall: Fall = "linear"  # stable: the form of the fall

    def __post_init__(self) -> None:
        if self.warmup + (self.decay if self.kind == "stable" else 0) > 1:
            raise ValueError(
                f"warmup {self.warmup} and decay {self.decay} are shares of the updates and must fit into 1"
            )

    def share(self, step: int, updates: int) -> float:
        """Of the peak rate, for update `step` of `updates`."""
        warmup = round(self.warmup * updates)
        if self.kind == "constant":
            return warmup_share(step, warmup)
        if self.kind == "linear":
            return linear(step, updates, warmup, self.floor)
        if self.kind == "cosine":
            return cosine(step, updates, warmup, self.floor)
        return stable(step, updates, warmup, round(self.decay * updates), self.floor, self.fall)
