"""By how much an arm of an ablation differs from its control, and how sure that is: over seeds, over items, and over
both at once.

Two things vary. Another seed (weights, order, the rows that are read) gives another model; another sample of items
(documents, questions) gives another score. Arm and control of one seed share what a seed decides, and both are scored
on the same items, so differences are taken pair by pair first. Items come in clusters (documents of a host, questions
on a passage) that vary together, so the cluster is the unit. Scores are ratios (bits per byte = sum of bits / sum of
bytes; accuracy = right / asked).

**Interval.** Seeds and clusters are crossed (every seed is scored on the same items), so the variance of the mean
difference has a part of each:

    seeds_error^2 = variance of the S differences / S
    items_error^2 = sum over clusters of w^2 * residual^2 / (1 - 2w + sum of w^2)
    half width    = sqrt((t[S - 1] * seeds_error)^2 + (t[E - 1] * items_error)^2)

with w a cluster's share of all bytes, its residual in bits per byte, and E the effective number of clusters: C where
all are of one size, fewer where a few books outweigh many pages (`effective`). With C / (C - 1) and t[C - 1] in their
place, 95 % intervals over 20 clusters whose sizes spread as a lognormal of deviation 1.5 hold the truth in 82 % of
cases where seeds agree; these hold it in 99 %, and at deviation 0.8 in 97 % (92 %). The interval is Student's paired
one where only seeds vary, the clustered one of Miller (2024) where only items of like clusters do, and between them the
squares of the two half widths added (Howe 1974; Graybill and Wang 1980). Share of 4,000 intervals of "95 %" that hold
the truth (`benchmarks/training/ablation_trials.py --coverage`), by the share of the variance at this number of seeds
that comes from seeds (the rest from 60 clusters of one size):

    seeds  from seeds     here
        2          0%    95.1%
        2         50%    98.9%
        2         90%    96.5%
        2        100%    95.0%
        3          0%    95.5%
        3         50%    98.0%
        3         90%    96.0%
        3        100%    95.3%
        5          0%    95.5%
        5         50%    96.6%
        5         90%    95.5%
        5        100%    94.8%
        8          0%    95.3%
        8         50%    96.3%
        8         90%    95.7%
        8        100%    95.7%

A two-way bootstrap, the usual advice, is no help: of 3 seeds the standard deviation is short by sqrt(2/3), and 1.96
stands where 4.30 belongs.

Shapes: S seeds, I items, C clusters.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gristmill.kernels.base.types import Floats, Integers
from gristmill.mixing.verdicts.student import scipy, t_above, t_quantile

Better = Literal["lower", "higher"]

LEAST_LOG_P = math.log(1e-14)  # below it 1 - p has no digits left
LARGEST_LOG_P = math.log1p(-1e-12)


@dataclass(frozen=True)
class Paired:
    """Differences (arm minus control) as sums over the items of a cluster, and their divisors: bytes, or numbers of
    questions."""

    differences_SC: Floats
    sizes_C: Floats
    control_S: Floats  # the control's score by seed

    @property
    def by_seed(self) -> Floats:
        difference_S: Floats = self.differences_SC.sum(axis=1) / self.sizes_C.sum()
        return difference_S

    @property
    def seeds(self) -> int:
        return len(self.differences_SC)

    @property
    def clusters(self) -> int:
        return len(self.sizes_C)


@dataclass(frozen=True)
class Errors:
    """A mean difference with the standard errors due to seeds and due to items; `inf` where there is one seed or one
    cluster. `clusters` is the effective number."""

    mean: float
    seeds_error: float
    items_error: float
    seeds: int
    clusters: float

    @property
    def error(self) -> float:
        return math.hypot(self.seeds_error, self.items_error)

    def half_width(self, confidence: float) -> float:
        share = (1 + confidence) / 2
        of_seeds = t_quantile(share, self.seeds - 1) * self.seeds_error if self.seeds > 1 else math.inf
        of_items = t_quantile(share, self.clusters - 1) * self.items_error if self.clusters > 1 else math.inf
        return math.hypot(of_seeds, of_items)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        half = self.half_width(confidence)
        return self.mean - half, self.mean + half

    def chance(self) -> float:
        """p: 1 minus the confidence of the interval that just reaches 0. It is 1 where nothing differs at all, and at
        least 1e-14."""
        if self.mean == 0 or math.isinf(self.error) or self.seeds < 2 or self.clusters < 2:
            return 1.0
        if (
            self.error == 0
            # nothing varies, so there is no error: all clusters take one side by chance as often as coins do
        ):
            return float(2.0 ** (1 - self.clusters))
        if self.items_error == 0 or self.seeds_error == 0:
            degrees = (self.seeds if self.items_error == 0 else self.clusters) - 1
            return 2 * t_above(abs(self.mean) / self.error, degrees)
        return self._reaching(abs(self.mean))

    def _reaching(self, distance: float) -> float:
        """1 minus the confidence of the interval of this half width, found on log p, in which widths are nearly
        linear."""

        def excess(log_p: float) -> float:
            return self.half_width(-math.expm1(log_p)) - distance

        if excess(LEAST_LOG_P) <= 0:
            return math.exp(LEAST_LOG_P)
        if excess(LARGEST_LOG_P) >= 0:
            return 1.0
        return math.exp(scipy().optimize.brentq(excess, LEAST_LOG_P, LARGEST_LOG_P, xtol=1e-13))


def paired(arm_SI: Floats, control_SI: Floats, sizes_I: Floats, clusters_I: Sequence[Hashable] | Integers) -> Paired:
    """`arm_SI` are bits of each document or marks of each question, and `sizes_I` bytes, or ones."""
    arm_SI, control_SI, sizes_I = (np.asarray(values, np.float64) for values in (arm_SI, control_SI, sizes_I))
    if (
        arm_SI.shape != control_SI.shape
        or arm_SI.ndim != 2
        or sizes_I.shape != arm_SI.shape[1:]
        or len(clusters_I) != len(sizes_I)
    ):
        raise ValueError(
            f"an arm of shape {arm_SI.shape}, a control of {control_SI.shape}, {len(sizes_I)} sizes and "
            f"{len(clusters_I)} clusters: "
            "expected seeds x items of both, and a size and a cluster for each item"
        )
    if not arm_SI.size:
        raise ValueError("no seeds, or no items")
    for what, values in (("the arm", arm_SI), ("the control", control_SI), ("sizes", sizes_I)):
        if not np.isfinite(values).all():
            raise ValueError(f"{what}: a value that is not a finite number")
    if (sizes_I < 0).any() or sizes_I.sum() <= 0:
        raise ValueError("sizes must be 0 or more, and not all 0")
    numbers_I = numbered(clusters_I)
    clusters = int(numbers_I.max()) + 1
    differences_SC = np.stack([np.bincount(numbers_I, row, clusters) for row in arm_SI - control_SI]).astype(np.float64)
    sizes_C = np.bincount(numbers_I, sizes_I, clusters).astype(np.float64)
    return Paired(differences_SC, sizes_C, control_SI.sum(axis=1) / sizes_I.sum())


def numbered(clusters_I: Sequence[Hashable] | Integers) -> Integers:
    """The number of each item's cluster, in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    number_I: Integers = np.array([numbers.setdefault(name, len(numbers)) for name in clusters_I], np.int64)
    return number_I


def errors(paired: Paired) -> Errors:
    by_seed, size = paired.by_seed, float(paired.sizes_C.sum())
    mean, seeds = float(by_seed.mean()), paired.seeds
    of_seeds = float(by_seed.std(ddof=1)) / math.sqrt(seeds) if seeds > 1 else math.inf
    shares_C = paired.sizes_C / size
    residual_C = paired.differences_SC.mean(axis=0) / size - mean * shares_C
    clusters = effective(shares_C)
    of_items = math.sqrt(float(residual_C**2 @ _corrected(shares_C))) if clusters > 1 else math.inf
    return Errors(mean, _sure(of_seeds, mean), _sure(of_items, mean), seeds, clusters)


def effective(shares_C: Floats) -> float:
    """The number of equal clusters with the same uncertainty of the error: 1 more than the degrees of freedom of its
    square (Satterthwaite 1946; Bell and McCaffrey 2002), if each cluster has its own rate, with equal variance. C
    clusters of one size are C; empty ones count for nothing, and one that holds all is one."""
    w_C = shares_C[shares_C > 0]
    if w_C.max() > 1 - 1e-6:
        return 1.0
    a_C, W = w_C**2 * _corrected(w_C), float(w_C @ w_C)
    a0, a1, a2 = float(a_C.sum()), float(a_C @ w_C), float(a_C @ w_C**2)
    of_all = (
        W**2 * a0**2 + 2 * a0 * a2 + 2 * a1**2 - 4 * W * a0 * a1
    )  # sum over pairs of a a' cov(residual, residual')^2, as if none were with itself
    of_own = float(a_C**2 @ ((1 - 2 * w_C + W) ** 2 - (W - 2 * w_C) ** 2))
    return 1 + min(len(w_C) - 1.0, max(1.0, W**2 / (of_all + of_own)))


def _corrected(shares_C: Floats) -> Floats:
    """The factor of each squared residual: a residual attributes some of its cluster's own deviation to the mean."""
    factor_C: Floats = 1 / (1 - 2 * shares_C + shares_C @ shares_C)
    return factor_C


def _sure(error: float, mean: float) -> float:
    """Sets to zero what is only rounding between equal numbers."""
    return 0.0 if error <= 1e-14 * abs(mean) else error
