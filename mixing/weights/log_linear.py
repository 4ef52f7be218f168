"""A law fitted to ablations, and the mix that is best by it: loss = exp(c) + exp(k . w) for each task (Ye et al. 2025,
arXiv 2403.16952; Olmix, arXiv 2602.12237, whose proposer and caps these are).

    minimise  sum_t a_t exp(k_t . w)  +  kl * KL(w || prior)      with 0 <= w <= epochs * tokens / budget, sum w = 1

a_t are the weights of tasks, in sum 1. The KL term keeps the mix near the prior (the token shares, unless another is
given) where the law has little to say; Olmix takes 0.05 to 0.1.

The fit: Huber's loss (1964), so that an outlying run has little influence, by Levenberg-Marquardt from several floors
exp(c) (the one parameter in which the problem is not nearly convex). The floors are fixed, so nothing is random. Each k
is shrunk slightly towards its mean, which decides where there are fewer runs than sources. Why not scipy's: on 200
tables that follow a law `least_squares` and L-BFGS-B end at the same losses in two to three times the time. On 290 of
noise, or with a run far away, they end lower on 3 and 5, and higher on 2, on one of which the law turns round.

The mix: for slopes g the best w of g.w + kl KL(w || prior) is exactly min(cap, prior exp(-g / kl) / Z). So the dual has
one number a task, d(l) = sum_t [l_t - l_t log(l_t / a_t)] + min_w [l'Kw + kl KL(w || prior)], which Newton's method
maximises. The gap between the objective and d bounds what any other mix could gain; it comes with the answer. scipy's
SLSQP comes as near to the objective, without a bound, in 0.9 s for 100 sources and in 31 s for 300; this takes 0.001 s.

Shapes: R runs, N sources, T tasks, P = N + 1 parameters, K mixes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gristmill.kernels.base.types import Floats

FLOORS = (0.0, 0.5, 0.8, 0.95)  # of the least loss, where fits start
HUBER = 0.3  # of the spread of a task's losses: beyond it a residual counts linearly
FAR = 4.0  # spreads from the median: what lies beyond has no say in where fits start
PULL = 1e-4
STEPS = 200
SMALL_GAP = 1e-10  # relative to 1 + the objective
LARGEST_GAP = 1e-6


@dataclass(frozen=True)
class Law:
    """loss_t(w) = floor_t + exp(k_t . w)."""

    floor_T: Floats
    slope_TN: Floats

    def __call__(self, mixes_KN: Floats) -> Floats:
        losses: Floats = self.floor_T + np.exp(np.minimum(mixes_KN @ self.slope_TN.T, 300.0))
        return losses


@dataclass(frozen=True)
class Proposal:
    """A mix, its objective, and the most by which that could still fall."""

    weights_N: Floats
    value: float
    gap: float


def fit_law(weights_RN: Floats, losses_RT: Floats) -> Law:
    if np.any(losses_RT <= 0):
        raise ValueError("a log-linear law is of losses above 0 (bits per byte, 1 - accuracy); some are not")
    laws = [_fit_task(weights_RN, losses_RT[:, t]) for t in range(losses_RT.shape[1])]
    return Law(np.array([floor for floor, _ in laws]), np.array([slope_N for _, slope_N in laws]))


def _fit_task(weights_RN: Floats, losses_R: Floats) -> tuple[float, Floats]:
    spread = 1.4826 * float(np.median(np.abs(losses_R - np.median(losses_R)))) or float(losses_R.std())
    if spread <= 1e-12 * float(losses_R.max()):
        return 0.0, np.full(weights_RN.shape[1], float(np.log(losses_R.mean())))
    least, floor_found = np.inf, 0.0
    slope_N: Floats = np.zeros(weights_RN.shape[1])
    # least squares give the start, and one run far away would lead them where Huber's loss finds no way back
    middle = float(np.median(losses_R))
    usual_R = np.clip(losses_R, max(middle - FAR * spread, float(losses_R.min())), middle + FAR * spread)
    for share in FLOORS:
        floor = share * float(usual_R.min())
        start_P = np.append(
            _straight(weights_RN, np.log(usual_R - floor)), np.log(max(floor, 1e-3 * float(usual_R.min())))
        )
        value, at_P = _descend(weights_RN, losses_R, spread, start_P)
        if value < least * (1 - 1e-9):
            least, floor_found, slope_N = value, float(np.exp(at_P[-1])), at_P[:-1]
    return floor_found, slope_N


def _straight(weights_RN: Floats, logs_R: Floats) -> Floats:
    """Least squares of the logarithms, shrunk to their mean."""
    mean = float(logs_R.mean())
    gram_NN = weights_RN.T @ weights_RN + 1e-6 * len(logs_R) * np.eye(weights_RN.shape[1])
    slope_N: Floats = mean + np.asarray(np.linalg.solve(gram_NN, weights_RN.T @ (logs_R - mean)), np.float64)
    return slope_N


def _descend(weights_RN: Floats, losses_R: Floats, spread: float, at_P: Floats) -> tuple[float, Floats]:
    """Levenberg-Marquardt on Huber's loss of residuals in units of the spread, by reweighting."""
    sources = weights_RN.shape[1]
    middle_NN = np.eye(sources) - 1 / sources
    pull = PULL * len(losses_R)

    def look(at_P: Floats) -> tuple[float, Floats, Floats]:
        with np.errstate(over="ignore", invalid="ignore"):
            curve_R = np.exp(weights_RN @ at_P[:-1])
            residual_R = (curve_R + np.exp(at_P[-1]) - losses_R) / spread
            size_R = np.abs(residual_R)
            huber = np.where(size_R <= HUBER, size_R**2 / 2, HUBER * (size_R - HUBER / 2)).sum()
            value = float(huber + pull / 2 * (at_P[:-1] @ middle_NN @ at_P[:-1]))
        return value if np.isfinite(value) else np.inf, residual_R, curve_R

    value, residual_R, curve_R = look(at_P)
    damping = 1e-3
    for _ in range(STEPS):
        slope_RP = np.hstack([curve_R[:, None] * weights_RN, np.full((len(losses_R), 1), np.exp(at_P[-1]))]) / spread
        weight_R = np.minimum(1.0, HUBER / np.maximum(np.abs(residual_R), 1e-300))
        hessian_PP = slope_RP.T @ (weight_R[:, None] * slope_RP)
        hessian_PP[:-1, :-1] += pull * middle_NN
        gradient_P = slope_RP.T @ (weight_R * residual_R)
        gradient_P[:-1] += pull * (middle_NN @ at_P[:-1])
        scale_P = np.diag(hessian_PP) + 1e-12 * (1 + np.trace(hessian_PP))
        while damping < 1e12:
            new_P = at_P - np.linalg.solve(hessian_PP + damping * np.diag(scale_P), gradient_P)
            new_value, new_residual_R, new_curve_R = look(new_P)
            if new_value < value:
                break
            damping *= 8
        else:
            break
        settled = value - new_value < 1e-8 * value
        at_P, value, residual_R, curve_R = new_P, new_value, new_residual_R, new_curve_R
        damping = max(damping / 5, 1e-12)
        if settled:
            break
    return value, at_P


def propose(law: Law, task_weights_T: Floats, prior_N: Floats, caps_N: Floats, kl: float) -> Proposal:
    """The mix of least predicted loss, near the prior. A source of prior 0 gets nothing."""
    if not (np.isfinite(kl) and kl > 0):
        raise ValueError(f"kl is {kl}; expected a finite number above 0, such as 0.05")
    used_N = (prior_N > 0) & (caps_N > 0)
    if caps_N[used_N].sum() < 1 - 1e-9:
        raise ValueError("the sources to which the prior gives something cannot fill the budget within their caps")
    counts_T = task_weights_T > 0
    inner_N, value, gap = _climb(
        law.slope_TN[np.ix_(counts_T, used_N)],
        task_weights_T[counts_T],
        np.log(prior_N[used_N] / prior_N[used_N].sum()),
        caps_N[used_N],
        kl,
    )
    if not abs(gap) <= LARGEST_GAP * (1 + abs(value)):  # below 0 either the mix or the bound is wrong
        raise ArithmeticError(f"the log-linear mix did not settle: a gap of {gap:.3g} is left")
    weights_N = np.zeros(len(prior_N))
    weights_N[used_N] = inner_N / inner_N.sum()
    return Proposal(weights_N, value, gap)


def objective(law: Law, task_weights_T: Floats, prior_N: Floats, kl: float, weights_N: Floats) -> float:
    """Predicted loss above the floors, plus the cost of the distance from the prior."""
    seen_N = weights_N > 0
    distance = (
        float(weights_N[seen_N] @ np.log(weights_N[seen_N] / prior_N[seen_N]))
        if np.all(prior_N[seen_N] > 0)
        else np.inf
    )
    return float(task_weights_T @ np.exp(law.slope_TN @ weights_N)) + kl * distance


def _climb(
    slope_TN: Floats, a_T: Floats, log_prior_N: Floats, caps_N: Floats, kl: float
) -> tuple[Floats, float, float]:
    def look(dual_T: Floats) -> tuple[float, Floats, float]:
        """The value of the dual, the mix that it proposes, and the objective at that mix."""
        weights_N = capped_softmax(log_prior_N - slope_TN.T @ dual_T / kl, caps_N)
        seen_N = weights_N > 0
        distance = kl * float(weights_N[seen_N] @ (np.log(weights_N[seen_N]) - log_prior_N[seen_N]))
        reach_T = slope_TN @ weights_N
        dual = float(dual_T @ (1 - np.log(dual_T / a_T)) + dual_T @ reach_T) + distance
        return dual, weights_N, float(a_T @ np.exp(reach_T)) + distance

    dual_T = a_T * np.exp(slope_TN @ capped_softmax(log_prior_N, caps_N))
    bound, weights_N, value = look(dual_T)
    best_N, least, best_bound = weights_N, value, bound
    for _ in range(STEPS):
        if least - best_bound <= SMALL_GAP * (1 + abs(least)):
            break
        rise_T = slope_TN @ weights_N - np.log(dual_T / a_T)
        free_N = (weights_N > 0) & (weights_N < caps_N)
        share_N = weights_N[free_N] / max(float(weights_N[free_N].sum()), 1e-300)
        away_TF = slope_TN[:, free_N] - (slope_TN[:, free_N] @ share_N)[:, None]
        hessian_TT = (away_TF * weights_N[free_N]) @ away_TF.T / kl + np.diag(1 / dual_T)
        step_T = np.linalg.solve(hessian_TT, rise_T)
        share = 1 / max(1.0, float(np.max(-step_T / dual_T)) / 0.95)  # the dual stays above 0
        while share > 1e-12:
            new_bound, new_weights_N, new_value = look(dual_T + share * step_T)
            if new_bound >= bound + 1e-4 * share * float(rise_T @ step_T):
                break
            share /= 2
        else:
            break
        dual_T, bound, weights_N, value = dual_T + share * step_T, new_bound, new_weights_N, new_value
        best_bound = max(best_bound, bound)
        if value < least:
            best_N, least = weights_N, value
    return best_N, least, least - best_bound


def capped_softmax(logs_N: Floats, caps_N: Floats) -> Floats:
    """min(cap, exp(log - level)) for the one level at which they sum to 1: those that reach their caps first, in the
    order in which they do."""
    order = np.argsort(-(logs_N - np.log(caps_N)), kind="stable")
    logs, caps = logs_N[order], caps_N[order]
    below = np.logaddexp.accumulate(logs[::-1])[::-1]  # of those from here on
    remaining = 1 - np.concatenate([[0.0], np.cumsum(caps[:-1])])
    with np.errstate(divide="ignore"):
        levels = below - np.log(np.maximum(remaining, 0.0))
    fits = logs - levels <= np.log(caps)  # the first that stays under its cap, and with it all after it
    full = int(np.argmax(fits)) if fits.any() else len(caps)
    weights = caps.copy()
    if full < len(caps):  # where caps leave nothing the level is infinite, and the others get 0
        weights[full:] = np.minimum(np.exp(logs[full:] - levels[full]), caps[full:])
    mix_N = np.empty(len(caps))
    mix_N[order] = weights
    return mix_N
