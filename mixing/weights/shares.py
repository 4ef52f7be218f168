"""Mixes by size alone: given numbers, proportional, and temperature (Devlin et al. 2019; Conneau et al. 2020: p ~
size**(1/T)).

None of them considers epochs, so each ends in a check: a source that would repeat past its cap is an error, never a
silent repeat.
"""

from __future__ import annotations

import math

import numpy as np

from gristmill.kernels.base.types import Floats
from gristmill.mixing.weights.supply import Supply, check_same_names


def given(supply: Supply, numbers: dict[str, float]) -> Floats:
    """Numbers of any scale: 3 and 1 are 0.75 and 0.25. Every source needs one; 0 leaves it out."""
    check_same_names(supply.names, numbers, "weights")
    for name, number in numbers.items():
        if not (math.isfinite(number) and number >= 0):
            raise ValueError(f"the weight of {name!r} is {number}; expected a finite number, 0 or more")
    numbers_N = np.array([numbers[name] for name in supply.names], np.float64)
    if not numbers_N.any():
        raise ValueError("all weights are 0")
    return _checked(supply, numbers_N / numbers_N.max())


def proportional(supply: Supply) -> Floats:
    """Every token once, or all equally often: the mix without a choice."""
    return temperature(supply, 1.0)


def temperature(supply: Supply, temperature: float) -> Floats:
    """1 is proportional; above 1 small sources gain; at infinity all sources with tokens are equal."""
    if not temperature > 0:
        raise ValueError(f"the temperature is {temperature}; expected a number above 0")
    has_N = supply.tokens_N > 0
    if not has_N.any():
        raise ValueError("no source has tokens")
    logs_N = np.log(np.where(has_N, supply.tokens_N, 1.0))
    return _checked(
        supply, np.where(has_N, np.exp((logs_N - logs_N[has_N].max()) / temperature), 0.0)
    )  # the largest is 1: no overflow


def _checked(supply: Supply, shares_N: Floats) -> Floats:
    weights_N: Floats = shares_N / shares_N.sum()
    supply.check_mix(weights_N)
    return weights_N
