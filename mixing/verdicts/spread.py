"""How much a difference varies with the seed, and how much with the order of the data.

A run has a seed (initial weights) and a data order. Every run has an order of its own: K orders are nested in each of S
seeds. So the mean over a seed's orders is one independent draw, Student's interval over seeds is exact whatever the
orders do, and the two variances are those of a one-way analysis:

    order^2 = mean square within seeds,                                    S (K - 1) degrees of freedom
    seed^2  = (mean square between seeds - mean square within) / K,        S - 1
    run^2   = seed^2 + order^2: one run more, with a new seed and a new order

What a repeated run would change (rounding on a GPU) is part of the order's: a run is not repeated. Orders crossed with
seeds would tell their interaction too, but an interval would then rest on K - 1 degrees of freedom: with two orders it
would be 12.7 standard errors wide.

Intervals: chi-square for the order's, Williams (1962) and Tukey for the seed's, chi-square with the degrees of
Satterthwaite (1946) for a run's.

Shapes: S seeds, K orders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gristmill.kernels.base.types import Floats
from gristmill.mixing.verdicts.student import scipy


@dataclass(frozen=True)
class Deviation:
    """An estimated standard deviation with its 95 % interval; the upper end is infinite where nothing bounds it."""

    sd: float
    low: float
    high: float
    degrees: float


@dataclass(frozen=True)
class Spread:
    """Standard deviations of a run's difference. With one order a seed, `seed` and `order` cannot be told apart."""

    run: Deviation
    seed: Deviation | None = None
    order: Deviation | None = None


def spread(differences_SK: Floats, confidence: float = 0.95) -> Spread | None:
    """Of the differences of all runs; None with fewer than two seeds."""
    seeds, orders = differences_SK.shape
    if seeds < 2:
        return None
    between = orders * float(differences_SK.mean(axis=1).var(ddof=1))
    if orders == 1:
        return Spread(_of_square(between, seeds - 1, confidence))
    within = float(differences_SK.var(axis=1, ddof=1).mean())
    inner = seeds * (orders - 1)
    parts = between / orders, within * (1 - 1 / orders)
    total = sum(parts)
    degrees = total**2 / (parts[0] ** 2 / (seeds - 1) + parts[1] ** 2 / inner) if total > 0 else float(seeds - 1)
    return Spread(
        run=_of_square(total, degrees, confidence),
        seed=_seed(between, within, seeds, orders, confidence),
        order=_of_square(within, inner, confidence),
    )


def _of_square(square: float, degrees: float, confidence: float) -> Deviation:
    """A variance that is one mean square."""
    low, high = _chi_square(degrees, confidence)
    return Deviation(math.sqrt(square), math.sqrt(degrees * square / high), math.sqrt(degrees * square / low), degrees)


def _seed(between: float, within: float, seeds: int, orders: int, confidence: float) -> Deviation:
    """The variance that seeds add to that of orders; 0 where they add nothing."""
    outer, inner = seeds - 1, seeds * (orders - 1)
    variance = max(0.0, (between - within) / orders)
    few, many = _chi_square(outer, confidence)
    rest = (1 - confidence) / 2
    f_low, f_high = (float(scipy().special.fdtri(outer, inner, share)) for share in (rest, 1 - rest))
    low = max(0.0, outer * (between - f_high * within) / (orders * many))
    high = max(0.0, outer * (between - f_low * within) / (orders * few))
    return Deviation(math.sqrt(variance), math.sqrt(min(low, variance)), math.sqrt(max(high, variance)), outer)


def _chi_square(degrees: float, confidence: float) -> tuple[float, float]:
    rest = (1 - confidence) / 2
    special = scipy().special
    return 2 * float(special.gammaincinv(degrees / 2, rest)), 2 * float(special.gammaincinv(degrees / 2, 1 - rest))
