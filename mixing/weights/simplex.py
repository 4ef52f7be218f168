"""The nearest mix to any vector: Euclidean projection onto {0 <= w <= cap, sum w = 1} (water-filling; Pardalos and
Kovoor 1990).

The answer is clip(v - level, 0, cap) for the one level at which it sums to 1. The sum is piecewise linear in the level,
with a corner at every v and v - cap, so the piece that crosses 1 is found by sorting the corners, and the level on it
by one division: exact, O(n log n). scipy has no such projection, and a solver would be neither exact nor fast enough
for RegMix's 100,000 candidates.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.types import Floats


def nearest_mix(point_N: Floats, caps_N: Floats) -> Floats:
    """Sums to 1 if the caps sum to at least 1; the caps themselves where they fall short by no more than rounding."""
    mix_N: Floats = nearest_mixes(point_N[None], caps_N)[0]
    return mix_N


def nearest_mixes(points_KN: Floats, caps_N: Floats) -> Floats:
    """Of many vectors at once."""
    rows = np.arange(len(points_KN))
    corners = np.concatenate([points_KN, points_KN - caps_N], axis=1)
    order = np.argsort(-corners, axis=1, kind="stable")
    corners = np.take_along_axis(corners, order, axis=1)
    rises = np.cumsum(
        np.where(order < points_KN.shape[1], 1.0, -1.0), axis=1
    )  # of the sum, as the level falls past a corner
    sums = np.cumsum(rises[:, :-1] * -np.diff(corners, axis=1), axis=1)
    last = (sums < 1.0).sum(axis=1)  # the sum passes 1 after this corner
    full = last + 1 >= corners.shape[1]
    last[full] = 0
    level = corners[rows, last] - (1.0 - np.where(last > 0, sums[rows, last - 1], 0.0)) / rises[rows, last]
    mixes_KN: Floats = np.clip(points_KN - level[:, None], 0.0, caps_N)
    mixes_KN[full] = caps_N
    free_KN = (mixes_KN > 0) & (
        mixes_KN < caps_N
    )  # cumulative sums lose digits where values lie far apart: one step mends it
    step_K = (1.0 - mixes_KN.sum(axis=1)) / np.maximum(free_KN.sum(axis=1), 1)
    step_K[full] = 0.0
    return np.where(free_KN, np.clip(mixes_KN + step_K[:, None], 0.0, caps_N), mixes_KN)
