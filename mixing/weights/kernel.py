"""Loss from mix by kernel regression that learns which sources each task depends on.

A Gaussian process's mean by Matérn's kernel of smoothness 3/2 on the square roots of the weights, where a step of a
small weight counts more than the same step of a large one. The scale of each source is learnt task by task, from the
squared gradient of the previous fit (recursive feature machines: Radhakrishnan et al. 2024, Science 383, the diagonal
case). Length and noise are those of the least error of mixes left out one at a time, which needs no refit: the residual
over the diagonal of the inverse. Runs of one mix are one point, as sure as there are runs. Numpy alone.

On RegMix's own runs (512 of 1M parameters, 17 sources, 13 tasks; benchmarks/tokens/real_mixtures.py) it ranks runs of
1M, 60M and 1B that it has not seen better than LightGBM; docs/mixing.md has the table. Square roots and the smoothness
were chosen by the error of left-out runs of 1M, not by the larger runs.

A fit solves 5 eigenvalue problems of the number of mixes for all tasks together and up to 9 for each.

Shapes: R runs, M mixes, N sources, T tasks, K mixes to predict.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gristmill.kernels.base.types import Floats
from gristmill.mixing.weights.ablations import Predict, mix_of_runs

ROOT3 = float(np.sqrt(3.0))
LENGTHS = (1.0, 2.0, 4.0, 8.0, 16.0)  # in spreads of a source, first round
NOISES = (1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 1.0)  # of a run's variance, relative to that of the losses
ROUNDS = 3  # of learning the relevance of sources
LEAST_RELEVANCE = 1e-3  # of the mean: no source is ruled out for good
BLOCK = 4096  # mixes predicted at once


@dataclass(frozen=True)
class Fitted:
    """One task's fit: the relevance of each source, the length, the coefficient of each mix, the left-out error."""

    error: float
    relevance_N: Floats
    length: float
    coefficient_M: Floats


def kernel(weights_RN: Floats, losses_RT: Floats) -> Predict:
    """The fit; `Predict` takes mixes (K, N) to losses (K, T)."""
    mix_R = mix_of_runs(weights_RN)
    _, first_M = np.unique(mix_R, return_index=True)
    count_M = np.bincount(mix_R).astype(np.float64)
    losses_MT = np.zeros((len(first_M), losses_RT.shape[1]))
    np.add.at(losses_MT, mix_R, losses_RT)
    losses_MT /= count_M[:, None]
    roots_MN = np.sqrt(weights_RN[first_M])
    center_N, spread_N = roots_MN.mean(axis=0), roots_MN.std(axis=0)
    spread_N = np.where(spread_N > 1e-9, spread_N, np.inf)  # a source that never varies says nothing
    center_T = count_M @ losses_MT / count_M.sum()
    scale_T = np.maximum(losses_MT.std(axis=0), 1e-300)
    features_MN = (roots_MN - center_N) / spread_N
    tasks = _fit_tasks(features_MN, (losses_MT - center_T) / scale_T, count_M)

    def predict(mixes_KN: Floats) -> Floats:
        losses_KT = np.empty((len(mixes_KN), len(tasks)))
        for start in range(0, len(mixes_KN), BLOCK):
            features_BN = (np.sqrt(mixes_KN[start : start + BLOCK]) - center_N) / spread_N
            for t, fitted in enumerate(tasks):
                distance_BM = _distances(features_BN, features_MN, fitted.relevance_N) / fitted.length
                losses_KT[start : start + BLOCK, t] = _matern(distance_BM) @ fitted.coefficient_M
        predicted_KT: Floats = center_T + scale_T * losses_KT
        return predicted_KT

    return predict


def _fit_tasks(features_MN: Floats, targets_MT: Floats, count_M: Floats) -> list[Fitted]:
    """All sources alike first, where one eigenvalue problem serves all tasks; then each task by its own relevance."""
    alike_N = np.ones(features_MN.shape[1])
    best: list[Fitted] = _solve(features_MN, targets_MT, count_M, alike_N, LENGTHS)
    for t, target_M in enumerate(targets_MT.T):
        for _ in range(ROUNDS):
            relevance_N = _relevance(features_MN, best[t])
            lengths = (best[t].length / 2, best[t].length, best[t].length * 2)
            [found] = _solve(features_MN, target_M[:, None], count_M, relevance_N, lengths)
            if found.error >= best[t].error * (1 - 1e-9):
                break
            best[t] = found
    return best


def _solve(
    features_MN: Floats, targets_MT: Floats, count_M: Floats, relevance_N: Floats, lengths: tuple[float, ...]
) -> list[Fitted]:
    """Of each task the length and noise of the least mean squared error of mixes left out one at a time."""
    distance_MM, root_M = _distances(features_MN, features_MN, relevance_N), np.sqrt(count_M)
    best: list[Fitted] = []
    for length in lengths:
        values_M, vectors_MM = np.linalg.eigh(root_M[:, None] * _matern(distance_MM / length) * root_M)
        turned_MT, square_MM = vectors_MM.T @ (root_M[:, None] * targets_MT), vectors_MM**2
        for noise in NOISES:
            inverse_M = 1 / (np.maximum(values_M, 0.0) + noise)
            solved_MT = vectors_MM @ (inverse_M[:, None] * turned_MT)
            residual_MT = solved_MT / ((square_MM @ inverse_M) * root_M)[:, None]
            error_T = count_M @ residual_MT**2 / count_M.sum()
            found = [
                Fitted(float(error), relevance_N, length, root_M * solved_MT[:, t]) for t, error in enumerate(error_T)
            ]
            best = [
                new if new.error < old.error * (1 - 1e-9) else old
                for new, old in zip(found, best or found, strict=True)
            ]
    return best


def _relevance(features_MN: Floats, fitted: Fitted) -> Floats:
    """The mean squared gradient of the fit along each source, at the mixes that were run; its mean is 1."""
    distance_MM = _distances(features_MN, features_MN, fitted.relevance_N) / fitted.length
    slope_MM = -3 * np.exp(-ROOT3 * distance_MM) * fitted.coefficient_M / fitted.length**2
    gradient_MN = (features_MN * slope_MM.sum(axis=1)[:, None] - slope_MM @ features_MN) * fitted.relevance_N
    square_N = (gradient_MN**2).mean(axis=0)
    if not square_N.any():
        return np.ones(len(square_N))
    square_N = square_N / square_N.mean() + LEAST_RELEVANCE
    relevance_N: Floats = square_N / square_N.mean()
    return relevance_N


def _matern(distance: Floats) -> Floats:
    value: Floats = (1 + ROOT3 * distance) * np.exp(-ROOT3 * distance)
    return value


def _distances(a_KN: Floats, b_MN: Floats, relevance_N: Floats) -> Floats:
    root_N = np.sqrt(relevance_N)
    a_KN, b_MN = a_KN * root_N, b_MN * root_N
    square_KM = (a_KN**2).sum(axis=1)[:, None] + (b_MN**2).sum(axis=1) - 2 * (a_KN @ b_MN.T)
    distance_KM: Floats = np.sqrt(np.maximum(square_KM, 0.0))
    return distance_KM
