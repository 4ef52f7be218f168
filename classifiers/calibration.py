"""How sure a judge is of its labels: the temperature at which held-out labels are likeliest."""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.types import Array


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
