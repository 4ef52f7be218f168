"""The mix of most utility under a token budget: maximise sum w u with 0 <= w <= cap, sum w = 1 (a fractional knapsack;
Dantzig 1957).

Filling sources from the best down, each to its epoch cap, is exact: no solver is needed. Sources of equal utility share
their part as evenly as their caps allow, so that the answer does not depend on their order. The linear programme stakes
everything on the best estimates, right or wrong; UtiliMax (utilimax.py) also counts the risk.

It is often written with the constraint sum(w * size) <= budget beside sum(w) = 1. That bounds the *mean size of a
source*, and has no solution whenever every source is larger than the budget, the common case. In weights of training
tokens the budget is spent by definition, and size enters through the caps: budget * w <= epochs * size.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.types import Floats
from gristmill.mixing.weights.simplex import nearest_mix
from gristmill.mixing.weights.supply import Supply


def most_utility(supply: Supply, utility_N: Floats) -> Floats:
    if utility_N.shape != supply.tokens_N.shape or not np.all(np.isfinite(utility_N)):
        raise ValueError("one finite utility for each source is needed")
    supply.check_budget()
    return fill_best_first(utility_N, supply.caps_N)


def fill_best_first(utility_N: Floats, caps_N: Floats) -> Floats:
    weights_N, remaining = np.zeros(len(caps_N)), 1.0
    for value in -np.unique(-utility_N):
        equals = utility_N == value
        room = float(caps_N[equals].sum())
        if room < remaining:
            weights_N[equals] = caps_N[equals]
            remaining -= room
            continue
        if remaining > 0:
            weights_N[equals] = remaining * nearest_mix(np.zeros(int(equals.sum())), caps_N[equals] / remaining)
        break
    return weights_N
