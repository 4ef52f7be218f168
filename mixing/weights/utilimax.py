"""UtiliMax: near the best utility at every task, without staking everything on few estimates (Held et al. 2025, arXiv
2501.11747).

    minimise ||U'w - 1||_2 + aversion * N * ||w||_2^2     with 0 <= w <= epochs * tokens / budget, sum w = 1

The distance is not squared. N makes the risk of the even mix 1, of a single source N. Where utilities are equal, the
answer is UniMax. The distance grows with the root of the number of tasks and the risk does not: one `aversion` is
stricter on five tasks than on fifty, and 1 stays near UniMax. So see the `frontier`. The coefficient N and aversion = 1
are a public implementation's reading of the paper.

The solver. With ||r|| = max z'r over ||z|| <= 1 the dual is a concave function of one number a task, d(z) =
min_w [z'(U'w - 1) + aversion N ||w||^2], and the minimising w is `nearest_mix(-U z / (2 aversion N))`. At the optimum
the residual is r = s z, with s = ||r||. For a fixed s, z solves r(w(z)) = s z by Newton's method: the left side is
piecewise linear, so the last step is exact. s itself is found as in trust-region methods (More and Sorensen 1983).
Where the aversion is too small for that, proximal steps (Rockafellar 1976) lead there. The gap between f(w) and d(z)
bounds what any other mix could gain; it comes with the answer.

Why not a package. Measured (benchmarks/tokens/mixers.py): 1,000 sources x 100 tasks in 0.01 s at aversion 0.001 to 1
and 0.07 s at 0, and within 2 s on tables of low rank or of few distinct values; cvxpy with Clarabel takes 0.3 s and
more. scipy's SLSQP finds weights within 7e-7 only, gives no bound, takes 5 s for 300 sources x 30 tasks against 0.01 s,
and has not settled after 450 s for 1,000 x 100.

Shapes: N sources, T tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gristmill.kernels.base.types import Floats
from gristmill.mixing.weights.budget import fill_best_first
from gristmill.mixing.weights.simplex import nearest_mix
from gristmill.mixing.weights.supply import Supply
from gristmill.mixing.weights.unimax import unimax

EASY_PENALTY = 0.1  # aversion * N at which Newton's method is quick; below it, proximal steps
STEPS = 100
PROXIMAL_STEPS = 500
EVEN_STEPS = 20  # of one length
SMALL_GAP = 1e-9  # relative to 1 + the objective: settled
LARGEST_GAP = 1e-6  # beyond this the answer is refused


@dataclass(frozen=True)
class Tilt:
    """A mix with its distance ||U'w - 1||, its risk N ||w||^2 (1 is even), and the most that the objective could still
    fall."""

    weights_N: Floats
    aversion: float
    distance: float
    risk: float
    gap: float


def utilimax(supply: Supply, utility_NT: Floats, aversion: float = 1.0) -> Tilt:
    if utility_NT.ndim != 2 or utility_NT.shape[0] != len(supply.names) or utility_NT.shape[1] == 0:
        raise ValueError(
            f"utilities of shape {utility_NT.shape}; expected {len(supply.names)} sources and at least one task"
        )
    if not np.all(np.isfinite(utility_NT)) or np.any(utility_NT > 1):
        raise ValueError("utilities must be finite and at most 1, the ideal; `utility.scaled` makes them so")
    if not (np.isfinite(aversion) and aversion >= 0):
        raise ValueError(f"aversion is {aversion}; expected a finite number, 0 or more")
    even_N = unimax(supply)  # also says when the budget cannot be filled
    weights_N, gap = _solve(utility_NT.astype(np.float64), supply.caps_N, aversion * len(even_N), even_N)
    weights_N = weights_N / weights_N.sum()
    distance = float(np.linalg.norm(utility_NT.T @ weights_N - 1))
    risk = float(len(weights_N) * weights_N @ weights_N)
    if gap > LARGEST_GAP * (1 + distance + aversion * risk):
        raise ArithmeticError(f"UtiliMax did not settle: a gap of {gap:.3g} is left.")
    return Tilt(weights_N, float(aversion), distance, risk, gap)


def frontier(
    supply: Supply, utility_NT: Floats, aversions: Iterable[float] = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
) -> list[Tilt]:
    """What a little less distance costs in risk, from the boldest mix to the most even one: the distance rises, the
    risk falls."""
    return [utilimax(supply, utility_NT, aversion) for aversion in sorted(set(aversions))]


def _solve(utility_NT: Floats, caps_N: Floats, penalty: float, even_N: Floats) -> tuple[Floats, float]:
    """The weights and the gap. A small penalty is met by steps: a larger one, on the way from the last answer."""
    weights_N = even_N
    s = float(np.linalg.norm(utility_NT.T @ even_N - 1))
    z_T = (utility_NT.T @ even_N - 1) / max(s, 1e-300)
    best_N, least, best_bound = even_N, math.inf, -math.inf
    for step in range(PROXIMAL_STEPS):
        strength = max(penalty, EASY_PENALTY * 0.5 ** (step // EVEN_STEPS))  # near ties want longer and longer steps
        center_N = weights_N * (1 - penalty / strength)
        farthest = s + penalty * float(weights_N @ weights_N)  # a step never raises the objective
        s, z_T = _meet(utility_NT, caps_N, strength, center_N, farthest, z_T)
        weights_N = nearest_mix(center_N - utility_NT @ z_T / (2 * strength), caps_N)
        s = float(np.linalg.norm(utility_NT.T @ weights_N - 1))
        value = s + penalty * float(weights_N @ weights_N)
        best_bound = max(best_bound, _bound(utility_NT, caps_N, penalty, z_T))
        if value < least:
            best_N, least = weights_N, value
        if least - best_bound <= SMALL_GAP * (1 + least):
            break
    return best_N, least - best_bound


def _meet(
    utility_NT: Floats, caps_N: Floats, penalty: float, center_N: Floats, farthest: float, z_T: Floats
) -> tuple[float, Floats]:
    """The distance s at which z has length 1, or less at s = 0, where every task can be met exactly."""
    smallest = 1e-13 * math.sqrt(utility_NT.shape[1])
    low, high = 0.0, max(farthest, smallest)
    s = high
    for _ in range(STEPS):
        z_T, hessian_TT = _at_distance(utility_NT, caps_N, penalty, center_N, s, z_T)
        length = float(np.linalg.norm(z_T))
        if abs(length - 1) < 1e-14 or (length < 1 and s <= smallest) or high - low <= 1e-15 * high:
            break
        low, high = (s, high) if length > 1 else (low, s)
        if length < 1e-50:  # met exactly, whatever s is
            break
        slope = (
            float(z_T @ np.linalg.solve(hessian_TT, z_T)) / length**3
        )  # of 1 / length, which is nearly straight in s
        newton = s + (1 - 1 / length) / max(slope, 1e-300)
        if low < newton < high:
            s = newton
        else:
            s = (low + high) / 2 if low > 0 else max(high / 1000, smallest)
    return s, z_T


def _at_distance(
    utility_NT: Floats, caps_N: Floats, penalty: float, center_N: Floats, s: float, z_T: Floats
) -> tuple[Floats, Floats]:
    """The z with U'w(z) - 1 = s z, which minimises s/2 ||z||^2 - d(z), and the second derivative there."""

    def look(z_T: Floats) -> tuple[float, Floats, Floats]:
        gains_N = utility_NT @ z_T
        weights_N = nearest_mix(center_N - gains_N / (2 * penalty), caps_N)
        moved_N = weights_N - center_N
        value = s / 2 * z_T @ z_T + z_T.sum() - weights_N @ gains_N - penalty * moved_N @ moved_N
        return float(value), s * z_T + 1 - utility_NT.T @ weights_N, weights_N

    value, slope_T, weights_N = look(z_T)
    for _ in range(STEPS):
        free = (weights_N > 0) & (weights_N < caps_N)
        spread_FT = utility_NT[free] - utility_NT[free].mean(axis=0) if free.any() else utility_NT[:0]
        hessian_TT = spread_FT.T @ spread_FT / (2 * penalty)
        hessian_TT.flat[:: len(z_T) + 1] += max(s, 1e-12)
        size = float(np.linalg.norm(slope_T))
        step_T = -np.linalg.solve(hessian_TT, slope_T)
        share = 1.0
        while share > 1e-12:
            new_value, new_slope_T, new_weights_N = look(z_T + share * step_T)
            falls = new_value <= value + 1e-4 * share * float(slope_T @ step_T)
            if (
                falls or float(np.linalg.norm(new_slope_T)) < 0.5 * size
            ):  # near the end values no longer differ, slopes do
                break
            share /= 2
        else:
            break
        if float(np.linalg.norm(new_slope_T)) >= size and new_value >= value:
            break
        z_T, value, slope_T, weights_N = z_T + share * step_T, new_value, new_slope_T, new_weights_N
        if float(np.linalg.norm(slope_T)) <= 1e-15 * np.sqrt(len(z_T)):
            break
    return z_T, hessian_TT


def _bound(utility_NT: Floats, caps_N: Floats, penalty: float, z_T: Floats) -> float:
    """No mix has a smaller objective than this, whatever z is (weak duality)."""
    z_T = z_T / max(1.0, float(np.linalg.norm(z_T)))
    gains_N = utility_NT @ z_T
    weights_N = nearest_mix(gains_N / (-2 * penalty), caps_N) if penalty > 0 else fill_best_first(-gains_N, caps_N)
    return float(weights_N @ gains_N + penalty * weights_N @ weights_N - z_T.sum())
