"""From scores to what they are worth: curves fitted on held-out texts, isotonic (Ayer et al. 1955) or logistic (Platt
1999), in numpy.

A judge's score ranks; whether 0.8 means that four of five such texts are good is another question. Curves rise, so that
they never change the order of two texts; isotonic ones may make them equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gristmill.classifiers.card import Json
from gristmill.classifiers.metrics import calibration_error, reliability
from gristmill.kernels.base.types import Array

MOST_STEPS = 200  # of Newton's method
SMALLEST = 1e-7  # a probability from which a logit is made


@dataclass(frozen=True)
class Isotonic:
    """Piecewise linear between the knots, level outside."""

    scores: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, scores: Array) -> Array:
        return np.interp(np.asarray(scores, np.float64), self.scores, self.values)

    def as_json(self) -> Json:
        return {"scores": list(self.scores), "values": list(self.values)}


@dataclass(frozen=True)
class Platt:
    """1 / (1 + exp(-(slope * x + offset))), where x is the logit of a score between 0 and 1."""

    slope: float
    offset: float

    def __call__(self, scores: Array) -> Array:
        return _sigmoid(self.slope * _logit(scores) + self.offset)

    def as_json(self) -> Json:
        return {"slope": self.slope, "offset": self.offset}


def fit_isotonic(scores: Array, values: Array) -> Isotonic:
    """The rising steps nearest to the values (pools of adjacent violators), with a knot at each end of a step."""
    if not len(scores):
        raise ValueError("no scores to fit a curve to")
    points, place, counts = np.unique(np.asarray(scores, np.float64), return_inverse=True, return_counts=True)
    sums = np.bincount(place.reshape(-1), np.asarray(values, np.float64))
    pools: list[tuple[float, float, int, int]] = []  # sum, weight, first and last point
    for i in range(len(points)):
        pool = (float(sums[i]), float(counts[i]), i, i)
        while pools and pools[-1][0] / pools[-1][1] >= pool[0] / pool[1]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1], before[2], pool[3])
        pools.append(pool)
    knots: list[tuple[float, float]] = []
    for total, weight, first, last in pools:
        knots += [(float(points[i]), total / weight) for i in dict.fromkeys((first, last))]
    return Isotonic(tuple(x for x, _ in knots), tuple(y for _, y in knots))


def fit_platt(scores: Array, good: Array) -> Platt:
    """By maximum likelihood with Platt's targets, (n + 1) / (n + 2) and 1 / (n + 2): none is ever certain. The slope is
    never below 0."""
    good = np.asarray(good, np.bool_)
    positives, negatives = int(good.sum()), int((~good).sum())
    target = np.where(good, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    x = _logit(scores)
    features = np.stack([x, np.ones_like(x)], axis=1)
    parameters = np.array([0.0, np.log((positives + 1) / (negatives + 1))])
    loss = _cross_entropy(features @ parameters, target)
    for _ in range(MOST_STEPS):
        chance = _sigmoid(features @ parameters)
        gradient = features.T @ (chance - target)
        hessian = (features * (chance * (1 - chance))[:, None]).T @ features + 1e-9 * np.eye(2)
        step, size = np.linalg.solve(hessian, gradient), 1.0
        while size > 1e-10 and _cross_entropy(features @ (parameters - size * step), target) > loss:
            size /= 2
        parameters = parameters - size * step
        now = _cross_entropy(features @ parameters, target)
        if not loss - now > 1e-12 * max(loss, 1.0):
            break
        loss = now
    if parameters[0] < 0:  # scores that say the contrary are not turned round: then they say nothing
        return Platt(0.0, float(np.log((positives + 1) / (negatives + 1))))
    return Platt(float(parameters[0]), float(parameters[1]))


def fit_sharpness(chances_NC: Array, truth: Array) -> float:
    """The factor on logits (the inverse of a temperature; Guo et al. 2017) by which the true labels are likeliest.
    Likelihood has one peak in it, so that a golden section finds it; between 1/20 and 50."""
    logs = np.log(np.maximum(np.asarray(chances_NC, np.float64), 1e-30))
    rows = np.arange(len(truth))

    def loss(power: float) -> float:
        scaled = np.exp(power) * logs
        top = scaled.max(axis=1)
        return float((top + np.log(np.exp(scaled - top[:, None]).sum(axis=1)) - scaled[rows, truth]).mean())

    low, high, golden = float(np.log(1 / 20)), float(np.log(50)), (5**0.5 - 1) / 2
    for _ in range(40):
        step = golden * (high - low)
        low, high = (low, low + step) if loss(high - step) < loss(low + step) else (high - step, high)
    return float(np.exp((low + high) / 2))


def probability_error(good: Array, chances: Array) -> Json:
    """Expected calibration error over deciles, and Brier's score."""
    good, chances = np.asarray(good, np.float64), np.asarray(chances, np.float64)
    return {
        "calibration_error": calibration_error(reliability(good > 0, chances)),
        "brier": float(((chances - good) ** 2).mean()),
    }


def _logit(scores: Array) -> Array:
    chances = np.clip(np.asarray(scores, np.float64), SMALLEST, 1 - SMALLEST)
    return np.asarray(np.log(chances / (1 - chances)))


def _sigmoid(x: Array) -> Array:
    return np.asarray(np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x)))))


def _cross_entropy(logits: Array, target: Array) -> float:
    return float((np.logaddexp(0, logits) - target * logits).sum())
