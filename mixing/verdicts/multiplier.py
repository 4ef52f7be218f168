"""A difference as a compute multiplier: how much more compute the control would need to reach the arm's loss.

The control's loss after a share t of a run's tokens is fitted as a power law with a floor,

    loss(t) = floor + scale * t^-exponent        floor >= 0, scale > 0

to the mean of its runs at several lengths, and moved so that it passes through the control's final loss. The multiplier
is the t at which it meets the arm's loss: 1 where both are equal, 1.25 where the control would need a quarter more. It
is given within the lengths that were run and half and twice beyond, not further: `more than 2.0`.

**Interval.** The ends of the difference's own interval (seeds and items, `gristmill.mixing.verdicts.paired`) go through
the curve. The curve's own error is a jackknife over seeds of the logarithm of the multiplier, taken at each end; its
half width is added in squares. Coverage: `benchmarks/training/multiplier_coverage.py`.

Losses here fall as models get better; for accuracy pass 1 minus it. Everything is deterministic.

Shapes: S seeds, P points of the curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gristmill.kernels.base.types import Floats
from gristmill.mixing.verdicts.paired import Errors
from gristmill.mixing.verdicts.student import t_quantile

BEYOND = 2.0  # how far the fitted law is followed past the lengths that were run
LEAST_POINTS = 3
EXPONENTS = np.geomspace(0.02, 4.0, 160)


@dataclass(frozen=True)
class LossCurve:
    """The control's losses at shares of a run's tokens, seed by seed; `shares_P` ascend."""

    shares_P: Floats
    losses_SP: Floats

    @property
    def reach(self) -> tuple[float, float]:
        """The least and the largest multiplier that it can tell."""
        return float(min(self.shares_P[0], 1.0)) / BEYOND, float(max(self.shares_P[-1], 1.0)) * BEYOND


@dataclass(frozen=True)
class PowerLaw:
    """loss(t) = floor + scale * t^-exponent."""

    floor: float
    scale: float
    exponent: float

    def through(self, loss: float) -> PowerLaw:
        """The same law, moved to this loss at t = 1."""
        return PowerLaw(loss - self.scale, self.scale, self.exponent)

    def log_share_at(self, loss: float) -> float:
        """The logarithm of the t with this loss; infinite below the floor."""
        above = (loss - self.floor) / self.scale
        return math.inf if above <= 0 else -math.log(above) / self.exponent


@dataclass(frozen=True)
class Multiplier:
    """Values that are at an end of the curve's `reach` say that much at least, or at most."""

    value: float
    low: float
    high: float
    reach: tuple[float, float]

    @property
    def beyond(self) -> str | None:
        """`more` or `less` where the value is at the end of what the curve can tell."""
        least, most = self.reach
        return "more" if self.value >= most else "less" if self.value <= least else None


def fitted(shares_P: Floats, losses_P: Floats) -> PowerLaw | None:
    """Least squares over a grid of exponents; None where the losses do not fall."""
    x_GP = shares_P[None, :] ** -EXPONENTS[:, None]
    x_mean_G, y_mean = x_GP.mean(axis=1), float(losses_P.mean())
    off_GP = x_GP - x_mean_G[:, None]
    scale_G = off_GP @ (losses_P - y_mean) / (off_GP**2).sum(axis=1)
    floor_G = y_mean - scale_G * x_mean_G
    bare_G = (x_GP @ losses_P) / (x_GP**2).sum(axis=1)  # the scale where the floor would be below 0
    scale_G, floor_G = np.where(floor_G < 0, bare_G, scale_G), np.maximum(floor_G, 0.0)
    missed_G = ((floor_G[:, None] + scale_G[:, None] * x_GP - losses_P) ** 2).sum(axis=1)
    missed_G[scale_G <= 0] = math.inf
    best = int(missed_G.argmin())
    if not math.isfinite(missed_G[best]):
        return None
    return PowerLaw(float(floor_G[best]), float(scale_G[best]), float(EXPONENTS[best]))


def multiplier(curve: LossCurve, level: float, difference: Errors, confidence: float = 0.95) -> Multiplier | None:
    """`level` is the control's final loss, `difference` the arm's less it. None where there is no falling curve of at
    least three points."""
    if len(curve.shares_P) < LEAST_POINTS:
        return None
    law = fitted(curve.shares_P, curve.losses_SP.mean(axis=0))
    if law is None:
        return None
    least, most = (math.log(end) for end in curve.reach)
    law = law.through(level)
    left_out = [each.through(level) for each in _without_one_seed(curve)]

    def at(own: PowerLaw, change: float) -> float:
        return min(most, max(least, own.log_share_at(level + change)))

    def end(change: float) -> float:
        """How far an end of the interval is from the value, with the curve's error."""
        if math.isinf(change):
            return math.inf
        of_curve = 0.0
        if len(left_out) > 1:
            found = np.array([at(each, change) for each in left_out])
            error = math.sqrt((len(found) - 1) * float(found.var()))
            of_curve = t_quantile((1 + confidence) / 2, len(found) - 1) * error
        return math.hypot(at(law, change) - value, of_curve)

    value = at(law, difference.mean)
    best, worst = difference.interval(confidence)
    reach = curve.reach
    return Multiplier(
        _within(reach, value), _within(reach, value - end(worst)), _within(reach, value + end(best)), reach
    )


def _within(reach: tuple[float, float], log_share: float) -> float:
    """The share of a logarithm; an end of the reach is that end to the last bit."""
    least, most = reach
    return least if log_share <= math.log(least) else most if log_share >= math.log(most) else math.exp(log_share)


def _without_one_seed(curve: LossCurve) -> list[PowerLaw]:
    """A law for each seed left out. Where the losses of the others do not fall, the flattest law of the rest stands for
    it."""
    seeds = len(curve.losses_SP)
    if seeds < 2:
        return []
    laws = [fitted(curve.shares_P, np.delete(curve.losses_SP, seed, axis=0).mean(axis=0)) for seed in range(seeds)]
    found = [law for law in laws if law is not None]
    flattest = min(found, key=lambda law: law.scale * law.exponent, default=None)
    return [] if flattest is None else [law or flattest for law in laws]
