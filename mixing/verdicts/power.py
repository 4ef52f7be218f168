"""How many seeds would settle an ablation, and what difference the present ones can detect.

The power of the interval of `gristmill.mixing.verdicts.paired`, integrated over the distribution of the seeds'
variance: with V ~ chi-square(S - 1) / (S - 1) the half width is sqrt(t[S-1]^2 seed_sd^2 V / S + t[E-1]^2
items_error^2), and the mean is normal. Without variance of items that is the noncentral t of the paired test (tested
against scipy's, and against the known 34, 10, 6, 5, 4 seeds for 0.5, 1, 1.5, 2 and 3 standard deviations). More seeds
reduce the error of seeds only; that of items stays, so some differences need more items instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from gristmill.kernels.base.types import Floats
from gristmill.mixing.verdicts.paired import Errors
from gristmill.mixing.verdicts.student import normal_below, t_quantile

POWER = 0.8
MOST_SEEDS = 1000
KNOTS = 128


def power(
    difference: float, seed_sd: float, items_error: float, seeds: int, clusters: float, confidence: float = 0.95
) -> float:
    """The chance that an interval of this many seeds excludes 0 on the side of a true difference."""
    if seeds < 2 or clusters < 2:
        return 0.0
    difference = abs(difference)
    share = (1 + confidence) / 2
    sd = math.hypot(seed_sd / math.sqrt(seeds), items_error)
    of_items = t_quantile(share, clusters - 1) * items_error
    if sd == 0:
        return 1.0 if difference > 0 else 0.0
    of_seeds = t_quantile(share, seeds - 1) * seed_sd / math.sqrt(seeds)
    values, weights = _chi_over_root(seeds - 1)
    halves = np.hypot(of_seeds * values, of_items)
    return float(weights @ normal_below((difference - halves) / sd))


def seeds_needed(
    difference: float, seed_sd: float, items_error: float, clusters: float, confidence: float = 0.95
) -> int | None:
    """The fewest seeds with a power of 80 %; None where even 1,000 would not do."""
    if difference == 0 or math.isinf(seed_sd) or math.isinf(items_error):
        return None

    def enough(seeds: int) -> bool:
        return power(difference, seed_sd, items_error, seeds, clusters, confidence) >= POWER

    if not enough(MOST_SEEDS):
        return None
    low, high = 1, MOST_SEEDS  # power grows with seeds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def detectable(errors: Errors, confidence: float = 0.95) -> float:
    """The smallest true difference that this many seeds and items would detect in 80 % of cases."""
    if errors.seeds < 2 or errors.clusters < 2:
        return math.inf
    sd = errors.seeds_error * math.sqrt(errors.seeds)
    low, high = 0.0, 4 * errors.half_width(confidence) + 4 * errors.error
    if high == 0:
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        reached = power(middle, sd, errors.items_error, errors.seeds, errors.clusters, confidence)
        low, high = (low, middle) if reached >= POWER else (middle, high)
    return high


@dataclass(frozen=True)
class Noise:
    """What an ablation is expected to vary by, in the unit of its target."""

    run_sd: float  # of a seed's difference between arm and control, the mean over its data orders
    cluster_sd: float  # of what an arm does for a cluster of items

    def errors(self, seeds: int, clusters: float) -> Errors:
        """Of a difference that is not known yet."""
        of_items = self.cluster_sd / math.sqrt(clusters) if clusters > 1 else math.inf
        return Errors(0.0, self.run_sd / math.sqrt(seeds) if seeds > 1 else math.inf, of_items, seeds, clusters)


def pooled(found: Sequence[Errors]) -> Noise | None:
    """The noise of differences that were measured, weighted by their degrees of freedom; None where there are none."""
    usable = [each for each in found if each.seeds > 1 and each.clusters > 1 and math.isfinite(each.error)]
    if not usable:
        return None
    runs = sum((each.seeds - 1) * each.seeds * each.seeds_error**2 for each in usable)
    items = sum((each.clusters - 1) * each.clusters * each.items_error**2 for each in usable)
    return Noise(
        math.sqrt(runs / sum(each.seeds - 1 for each in usable)),
        math.sqrt(items / sum(each.clusters - 1 for each in usable)),
    )


def _chi_over_root(degrees: int) -> tuple[Floats, Floats]:
    """Values of sqrt(chi-square / degrees) and their weights: Gauss-Legendre over the whole mass."""
    root = math.sqrt(degrees)
    low, high = max(0.0, root - 9), root + 9  # chi itself has a standard deviation under 0.71
    nodes, weights = _knots()
    chi = low + (nodes + 1) / 2 * (high - low)
    log_density = (degrees - 1) * np.log(chi) - chi**2 / 2 - (degrees / 2 - 1) * math.log(2) - math.lgamma(degrees / 2)
    weights = np.exp(log_density) * weights
    return chi / root, weights / weights.sum()


@cache
def _knots() -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(KNOTS)
    return nodes, weights
