"""Which documents to keep, from the losses of several models on them and the models' scores on benchmarks: those on
which better models have lower losses.

Two scores of a document (or of a domain), both of ranks alone, so that neither the scale of a loss nor that of a
benchmark counts:

- `correlations`: Thrush, Potts and Hashimoto 2024 (arXiv 2409.05816). With y the benchmark and r the rank of a model's
  likelihood on the document among models, sum over pairs (k, l) of sign(y_k - y_l) (r_k - r_l), which is linear in
  ranks. Here divided by its largest value: 1 where likelihoods stand in the order of the scores, -1 in the reverse.
- `match`: PreSelect (Shum et al. 2025, arXiv 2503.00808), the share of pairs of models of which the better has the
  lower loss, over pairs whose scores differ. Equal losses count half.

`pairs_left_out` says whether that is worth anything: two models are put aside, documents are chosen by the others, and
the one with the lower loss on what was chosen should have the higher score. 0.5 is chance. The same for all documents,
without a choice, shows what the choice adds.

Shapes: M models, D documents, T tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from gristmill.kernels.base.types import Floats

FEWEST_MODELS = 4
MOST_PAIRS = 300  # left out, drawn by the seed


@dataclass(frozen=True)
class LeftOutPairs:
    """Of how many pairs of models, left out, the better was found: by what was chosen without them, and by all."""

    pairs: int
    chosen: float
    all_documents: float


def ranks(values_MD: Floats) -> Floats:
    """From 0, equal values share the mean of their ranks; column by column."""
    order_MD = np.argsort(values_MD, axis=0, kind="stable")
    ranks_MD = np.empty(values_MD.shape)
    place_M1 = np.arange(len(values_MD), dtype=np.float64)[:, None]
    np.put_along_axis(ranks_MD, order_MD, np.broadcast_to(place_M1, values_MD.shape), axis=0)
    sorted_MD = np.take_along_axis(values_MD, order_MD, axis=0)
    for d in np.flatnonzero((sorted_MD[1:] == sorted_MD[:-1]).any(axis=0)):
        _, inverse_M, count = np.unique(values_MD[:, d], return_inverse=True, return_counts=True)
        last = np.cumsum(count) - 1
        ranks_MD[:, d] = (last - (count - 1) / 2)[inverse_M]
    return ranks_MD


def correlations(losses_MD: Floats, scores_MT: Floats) -> Floats:
    """Of each document the mean over tasks, in [-1, 1]; 0 where all models are alike."""
    check(losses_MD, scores_MT)
    likely_MD = ranks(-losses_MD)
    wins_MT = np.sign(scores_MT[:, None, :] - scores_MT[None]).sum(axis=1)  # less losses, of each model
    most_T = np.sort(wins_MT, axis=0).T @ np.arange(len(scores_MT))
    found_DT = likely_MD.T @ wins_MT
    mean_D: Floats = np.divide(found_DT, most_T, out=np.zeros_like(found_DT), where=most_T > 0).mean(axis=1)
    return mean_D


def match(losses_MD: Floats, scores_MT: Floats) -> Floats:
    """Of each document the mean over tasks, in [0, 1]."""
    check(losses_MD, scores_MT)
    models, documents = losses_MD.shape
    hits_DT, pairs_T = np.zeros((documents, scores_MT.shape[1])), np.zeros(scores_MT.shape[1])
    for k, other in combinations(range(models), 2):
        better_T = np.sign(scores_MT[k] - scores_MT[other])
        lower_D = np.sign(losses_MD[other] - losses_MD[k])
        hits_DT += np.abs(better_T) * (1 + lower_D[:, None] * better_T) / 2
        pairs_T += np.abs(better_T)
    mean_D: Floats = np.divide(hits_DT, pairs_T, out=np.full_like(hits_DT, 0.5), where=pairs_T > 0).mean(axis=1)
    return mean_D


ESTIMATORS = {"correlation": correlations, "match": match}


def best_share(values_D: Floats, sizes_D: Floats, share: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The documents of the highest values that hold this share of all bytes; of equal values those that come first, so
    give them in an order that says nothing (by a hash)."""
    order = np.argsort(-values_D, kind="stable")
    before = np.cumsum(sizes_D[order]) - sizes_D[order]
    chosen = np.zeros(len(values_D), bool)
    chosen[order[before < share * sizes_D.sum()]] = True
    return chosen


def pairs_left_out(
    losses_MD: Floats, scores_MT: Floats, sizes_D: Floats, estimator: str, share: float, seed: int = 0
) -> LeftOutPairs:
    """Losses are by byte, and of chosen documents the mean is by bytes. A pair with equal mean scores says nothing."""
    check(losses_MD, scores_MT)
    standing_M = ranks(scores_MT).mean(axis=1)
    pairs = [pair for pair in combinations(range(len(losses_MD)), 2) if standing_M[pair[0]] != standing_M[pair[1]]]
    if len(pairs) > MOST_PAIRS:
        picked = np.sort(np.random.default_rng(seed).permutation(len(pairs))[:MOST_PAIRS])
        pairs = [pairs[i] for i in picked]
    hits, of_all = 0.0, 0.0
    for pair in pairs:
        rest = [m for m in range(len(losses_MD)) if m not in pair]
        chosen = best_share(ESTIMATORS[estimator](losses_MD[rest], scores_MT[rest]), sizes_D, share)
        better = float(np.sign(standing_M[pair[0]] - standing_M[pair[1]]))
        difference_D = (losses_MD[pair[1]] - losses_MD[pair[0]]) * sizes_D
        hits += (1 + better * float(np.sign(difference_D[chosen].sum()))) / 2
        of_all += (1 + better * float(np.sign(difference_D.sum()))) / 2
    if not pairs:
        raise ValueError("all models have the same scores: there is nothing to predict")
    return LeftOutPairs(len(pairs), hits / len(pairs), of_all / len(pairs))


def check(losses_MD: Floats, scores_MT: Floats) -> None:
    if losses_MD.ndim != 2 or scores_MT.ndim != 2 or len(losses_MD) != len(scores_MT) or not losses_MD.shape[1]:
        raise ValueError(f"losses of shape {losses_MD.shape} and scores of {scores_MT.shape}: expected models x others")
    if len(losses_MD) < 2 or not (np.isfinite(losses_MD).all() and np.isfinite(scores_MT).all()):
        raise ValueError("expected two models or more, and losses and scores that are finite numbers")
