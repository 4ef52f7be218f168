"""The nearest mix to any vector: Euclidean projection onto {0 <= w <= cap, sum w = 1} (water-filling; Pardalos and Kovoor 1990).

The answer is clip(v - level, 0, cap) for the one level at which it sums to 1. The sum falls along straight pieces with a corner at
every v and v - cap, so the piece that crosses 1 is found by sorting the corners, and the level on it by one division: exact, O(n log n).
"""

from __future__ import annotations

import numpy as np

from mixing.supply import Floats


def nearest_mix(point_N: Floats, caps_N: Floats) -> Floats:
    """Sums to 1 if the caps do so or more; the caps themselves where they sum to less by no more than rounding."""
    corners = np.concatenate([point_N, point_N - caps_N])
    slope = np.concatenate([np.full(point_N.size, -1.0), np.full(point_N.size, 1.0)])  # of the sum, as the level falls past a corner
    order = np.argsort(-corners, kind="stable")
    corners, rises = corners[order], np.cumsum(-slope[order])
    sums = np.concatenate([[0.0], np.cumsum(rises[:-1] * -np.diff(corners))])
    last = int(np.searchsorted(sums, 1.0, side="left")) - 1  # the sum passes 1 after this corner
    if last + 1 >= sums.size:
        return caps_N.copy()
    level = corners[last] - (1.0 - sums[last]) / rises[last]
    mix_N: Floats = np.clip(point_N - level, 0.0, caps_N)
    free_N = (mix_N > 0) & (mix_N < caps_N)
    if free_N.any():  # cumulative sums lose digits where values lie far apart: one step mends it
        mix_N[free_N] = np.clip(mix_N[free_N] + (1.0 - mix_N.sum()) / free_N.sum(), 0.0, caps_N[free_N])
    return mix_N
