"""RegMix (Liu et al., ICLR 2025, arXiv 2407.01492): boosted trees learn loss from mix, and the mean of the mixes with
the best predictions wins.

Candidates are drawn around the token shares p, r ~ Dirichlet(u p) with u from 0.1 to 5, as the paper draws its runs;
one that breaks an epoch cap is moved to the nearest mix that keeps it, and the mean of mixes within caps is within
caps. The paper takes LightGBM and the best 100; here it is scikit-learn's histogram trees, of few leaves since runs are
few, on one thread: the same runs and seed give the same mix on any number of cores. `ridge` is the paper's linear
baseline (rank correlation about 90 % where trees had 98 %); it needs no further package. Trees do not extrapolate
beyond the runs they have seen, and need hundreds of runs: on 128 runs from a log-linear law with some noise (24
sources) trees rank left-out runs with a correlation of 0.76, ridge 0.98 and the law itself 0.99
(benchmarks/tokens/mixers.py). On real losses see the figures that come with the mix.

Shapes: R runs, N sources, T tasks, K candidates.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.types import Floats
from gristmill.kernels.common.extras import install
from gristmill.mixing.weights.ablations import Fit, Predict
from gristmill.mixing.weights.simplex import nearest_mixes
from gristmill.mixing.weights.supply import ROUNDING, Supply

LOOSEST, TIGHTEST = 0.1, 5.0  # u
RIDGE = 1e-4  # for each run, in squared weight


def trees(seed: int) -> Fit:
    """Gradient-boosted trees, one model a task."""
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        raise ImportError(
            f"RegMix's trees need scikit-learn, {install('train')}, or take the regressor ridge ({error})"
        ) from error

    def fit(weights_RN: Floats, losses_RT: Floats) -> Predict:
        models = [
            HistGradientBoostingRegressor(
                max_iter=100, learning_rate=0.1, max_leaf_nodes=8,
                min_samples_leaf=max(2, min(20, len(weights_RN) // 20)),
                l2_regularization=1e-3, early_stopping=False, random_state=seed % 2**32,
            )
            for _ in range(losses_RT.shape[1])
        ]  # fmt: skip
        center_T, scale_T = losses_RT.mean(axis=0), np.maximum(losses_RT.std(axis=0), 1e-300)
        with threadpool_limits(limits=1):
            for t, model in enumerate(models):
                model.fit(weights_RN, (losses_RT[:, t] - center_T[t]) / scale_T[t])

        def predict(mixes_KN: Floats) -> Floats:
            with threadpool_limits(limits=1):
                losses_KT: Floats = center_T + scale_T * np.stack([model.predict(mixes_KN) for model in models], axis=1)
            return losses_KT

        return predict

    return fit


def ridge(weights_RN: Floats, losses_RT: Floats) -> Predict:
    """Linear regression, shrunk to the mean loss."""
    center_N, center_T = weights_RN.mean(axis=0), losses_RT.mean(axis=0)
    away_RN = weights_RN - center_N
    gram_NN = away_RN.T @ away_RN + RIDGE * len(weights_RN) * np.eye(weights_RN.shape[1])
    slope_NT = np.linalg.solve(gram_NN, away_RN.T @ (losses_RT - center_T))
    return lambda mixes_KN: center_T + (mixes_KN - center_N) @ slope_NT


def draw_candidates(supply: Supply, number: int, seed: int) -> Floats:
    """Mixes around the token shares, each within caps (K, N)."""
    supply.check_budget()
    random = np.random.default_rng([seed % 2**64, number])
    has_N = supply.tokens_N > 0
    strength_KN = random.uniform(LOOSEST, TIGHTEST, (number, 1)) * (supply.tokens_N[has_N] / supply.tokens_N.sum())
    # a gamma variable of small shape is below the smallest float; its logarithm is not: log G(a) = log G(a + 1) +
    # log(uniform) / a
    logs_KN = np.log(random.standard_gamma(strength_KN + 1)) + np.log1p(-random.random(strength_KN.shape)) / strength_KN
    shares_KN = np.exp(logs_KN - logs_KN.max(axis=1, keepdims=True))
    mixes_KN = np.zeros((number, len(supply.names)))
    mixes_KN[:, has_N] = shares_KN / shares_KN.sum(axis=1, keepdims=True)
    caps_N = supply.caps_N
    over_K = np.any(mixes_KN > caps_N, axis=1)
    mixes_KN[over_K] = nearest_mixes(mixes_KN[over_K], caps_N)
    return mixes_KN


def best_mean(mixes_KN: Floats, losses_K: Floats, best: int, caps_N: Floats) -> Floats:
    """The mean of the mixes of least predicted loss."""
    order = np.argsort(losses_K, kind="stable")[:best]
    mean_N: Floats = np.minimum(mixes_KN[order].mean(axis=0), caps_N)
    if mean_N.sum() < 1 - ROUNDING:
        raise ArithmeticError("candidates do not sum to 1")
    mean_N /= mean_N.sum()
    return mean_N
