"""When a mix that a fit proposes should not be trusted: how sure its predicted loss is, how far it lies from the runs,
whether it beats the best of them, and whether larger runs agree.

**Interval** (`interval`): cross-validation+ (Barber et al. 2021, Annals of Statistics 49): of each run the prediction
that the fit without it makes for the mix, plus and minus that run's own left-out error; the interval is between
quantiles of those. For a mix drawn as the runs were it holds the loss of a new run in about 90 % of cases, and never in
less than 80 %. A mix chosen because its prediction is lowest is not drawn so: its prediction is lower than the truth on
average. So the interval is a floor to doubt, and the distance says how far the mix is from those it is about.

**Distance** (`nearest_runs`): half the sum of absolute differences of weights, the share of the tokens that would have
to move to another source. It is compared with the distance of each mix that was run from its own nearest neighbour.

**The best run** is the mix of least mean loss over its runs among those within the caps. A loss measured beats a loss
predicted: unless the interval lies below it, the advice is to take that run's mix.

**Larger runs** (`larger_runs`): the rank correlation of the fit's predictions with the losses of larger runs, with its
interval (Fisher's, with the variance of Bonett and Wright 2000). A straight line from predictions to losses of larger
runs gives the loss expected there.

Shapes: R runs, N sources, T tasks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gristmill.kernels.base.types import Floats
from gristmill.mixing.weights.ablations import (
    LEAST_CORRELATION,
    Ablations,
    LeftOut,
    Predict,
    mix_of_runs,
    rank_correlation,
)

CONFIDENCE = 0.9  # of intervals
FAR = 0.95  # of runs' mixes have a nearer neighbour
SHOWN = 3  # of the nearest runs
WITHIN = 1e-3  # over a cap: weights in tables are rounded

Facts = dict[str, Any]


def interval(left: LeftOut, losses_RT: Floats, task_weights_T: Floats, mix_N: Floats) -> tuple[float, float] | None:
    """Of the loss that a new run on this mix would have; None where runs are too few for any."""
    error_R = np.abs((losses_RT - left.predicted_RT) @ task_weights_T)
    predicted_R = left.at(mix_N) @ task_weights_T
    return _plus_minus(predicted_R, error_R)


def _plus_minus(predicted_R: Floats, error_R: Floats) -> tuple[float, float] | None:
    runs = len(error_R)
    rank = math.ceil(CONFIDENCE * (runs + 1))
    if rank > runs:
        return None
    return float(np.sort(predicted_R - error_R)[runs - rank]), float(np.sort(predicted_R + error_R)[rank - 1])


def distances(weights_RN: Floats, mix_N: Floats) -> Floats:
    """Half the sum of absolute differences: 0 for the same mix, 1 where no source is shared (R)."""
    distance_R: Floats = np.abs(weights_RN - mix_N).sum(axis=1) / 2
    return distance_R


def nearest_runs(table: Ablations, mix_N: Floats) -> tuple[Facts, list[str]]:
    """How far the mix is from the runs, and warnings where predictions of it extrapolate."""
    _, first_M = np.unique(mix_of_runs(table.weights_RN), return_index=True)
    mixes_MN = table.weights_RN[first_M]
    own_M = np.array([np.partition(distances(mixes_MN, row), 1)[1] for row in mixes_MN])
    distance_M = distances(mixes_MN, mix_N)
    nearest = int(distance_M.argmin())
    farther = float((own_M < distance_M[nearest]).mean())
    facts = {
        "run": table.runs_R[int(first_M[nearest])],
        "distance": float(distance_M[nearest]),
        "farther_than": farther,
    }
    warnings = []
    if farther >= FAR:
        warnings.append(
            f"the nearest run ({facts['run']}) would have to move {distance_M[nearest]:.0%} of its tokens to be this "
            f"mix; {farther:.0%} of the mixes that were run are nearer to another: its prediction is a guess"
        )
    most_N = mixes_MN.max(axis=0)
    beyond = [
        f"{name!r} ({weight:.1%}, at most {most:.1%} in any run)"
        for name, weight, most in zip(table.sources, mix_N, most_N, strict=True)
        if weight > most > 0 and weight - most > WITHIN
    ]
    warnings += [f"the mix has more than any run had of {', '.join(beyond)}"] if beyond else []
    return facts, warnings


def best_run(table: Ablations, task_weights_T: Floats, caps_N: Floats) -> Facts | None:
    """The mix of least mean loss over its runs among those within the caps."""
    mix_R = mix_of_runs(table.weights_RN)
    loss_R = table.losses_RT @ task_weights_T
    loss_M = np.bincount(mix_R, loss_R) / np.bincount(mix_R)
    _, first_M = np.unique(mix_R, return_index=True)
    fits_M = np.all(table.weights_RN[first_M] <= caps_N + WITHIN, axis=1)
    if not fits_M.any():
        return None
    best = int(np.where(fits_M, loss_M, np.inf).argmin())
    first = int(first_M[best])
    return {
        "run": table.runs_R[first],
        "runs": int((mix_R == best).sum()),
        "loss": float(loss_M[best]),
        "weights": dict(zip(table.sources, table.weights_RN[first].tolist(), strict=True)),
    }


def advise(
    table: Ablations, task_weights_T: Floats, left: LeftOut, mix_N: Floats, predicted: float, caps_N: Floats
) -> tuple[Facts, list[str]]:
    """The mix beside the runs that were measured: facts, and warnings that say what to do instead."""
    nearest, warnings = nearest_runs(table, mix_N)
    sure = interval(left, table.losses_RT, task_weights_T, mix_N)
    best = best_run(table, task_weights_T, caps_N)
    facts: Facts = {"interval": None if sure is None else list(sure), "nearest_run": nearest, "best_run": best}
    if best is None:
        return {**facts, "advice": "mix"}, [*warnings, "no run's mix is within the caps: there is no run to beat"]
    if sure is not None and sure[1] < best["loss"]:
        return {**facts, "advice": "mix"}, warnings
    told = "too few runs for an interval" if sure is None else f"{sure[0]:.4f} to {sure[1]:.4f}"
    worse = "worse" if predicted >= best["loss"] else "not better beyond error"
    warnings.append(
        f"by its prediction of {predicted:.4f} ({told}) this mix is {worse} than the best run "
        f"({best['run']}: {best['loss']:.4f}, measured): take the mix of run {best['run']}, or confirm this one with "
        "several seeds"
    )
    return {**facts, "advice": "run"}, warnings


def larger_runs(
    larger: Ablations, table: Ablations, task_weights_T: Floats, law: Predict, mix_N: Floats
) -> tuple[Facts, list[str]]:
    """How well a fit to small runs ranks larger ones, and what those near the mix gave. Sources are the same."""
    shared = [task for task in table.tasks if task in larger.tasks]
    if not shared:
        raise ValueError(
            f"no task of the larger runs ({', '.join(larger.tasks)}) counts here: expected {', '.join(table.tasks)}"
        )
    if larger.sources != table.sources:
        odd = sorted(set(larger.sources) ^ set(table.sources))
        raise ValueError(f"the larger runs must be mixes of the same sources; in one table alone: {', '.join(odd)}")
    here, there = ([of.tasks.index(task) for task in shared] for of in (table, larger))
    weights_T = task_weights_T[here] / task_weights_T[here].sum()
    predicted_RT, losses_RT = law(larger.weights_RN)[:, here], larger.losses_RT[:, there]
    predicted_R, loss_R = predicted_RT @ weights_T, losses_RT @ weights_T
    correlation = rank_correlation(predicted_R, loss_R)
    low, high = _fisher(correlation, len(loss_R))
    distance_R = distances(larger.weights_RN, mix_N)
    place_R = np.argsort(np.argsort(loss_R, kind="stable"), kind="stable") + 1
    mix_here = float((law(mix_N[None])[:, here] @ weights_T)[0])
    expected, sure = _along_a_line(predicted_R, loss_R, mix_here)
    best = int(loss_R.argmin())
    facts: Facts = {
        "runs": len(loss_R),
        "tasks": shared,
        "rank_correlation": correlation,
        "rank_correlation_interval": [low, high],
        "rank_correlation_by_task": {
            task: rank_correlation(predicted_RT[:, t], losses_RT[:, t]) for t, task in enumerate(shared)
        },
        "expected_loss": expected,
        "interval": None if sure is None else list(sure),
        "best_run": {
            "run": larger.runs_R[best],
            "loss": float(loss_R[best]),
            "distance": float(distance_R[best]),
            "predicted_place": int((predicted_R < predicted_R[best]).sum()) + 1,
        },
        "nearest_runs": [
            {
                "run": larger.runs_R[r],
                "distance": float(distance_R[r]),
                "loss": float(loss_R[r]),
                "place": int(place_R[r]),
            }
            for r in np.argsort(distance_R, kind="stable")[:SHOWN].tolist()
        ],
    }
    warnings = []
    if correlation < LEAST_CORRELATION:
        warnings.append(
            f"the fit ranks the {len(loss_R)} larger runs with a correlation of {correlation:.2f} ({low:.2f} to "
            f"{high:.2f}), under {LEAST_CORRELATION}: the best mix of small runs need not be theirs"
        )
    if mix_here < predicted_R.min():
        warnings.append(
            f"this mix is predicted to be better than all larger runs, the nearest of which would have to move "
            f"{distance_R.min():.0%} of its tokens: the {expected:.4f} expected at their size is an extrapolation"
        )
    if sure is None or sure[1] >= loss_R[best]:
        told = "" if sure is None else f" ({sure[0]:.4f} to {sure[1]:.4f})"
        warnings.append(
            f"at the larger size {expected:.4f}{told} is expected of this mix, and run {larger.runs_R[best]} had "
            f"{loss_R[best]:.4f}: take that run's mix, or confirm this one there"
        )
    return facts, warnings


def _fisher(correlation: float, runs: int) -> tuple[float, float]:
    if runs < 4 or abs(correlation) >= 1:
        return (-1.0, 1.0) if runs < 4 else (correlation, correlation)
    half = 1.96 * math.sqrt((1 + correlation**2 / 2) / (runs - 3))
    middle = math.atanh(correlation)
    return math.tanh(middle - half), math.tanh(middle + half)


def _along_a_line(predicted_R: Floats, loss_R: Floats, at: float) -> tuple[float, tuple[float, float] | None]:
    """The larger loss that goes with a prediction, by least squares; its interval from runs left out one at a time."""

    def value(x_R: Floats, y_R: Floats, x: float) -> float:
        away_R = x_R - x_R.mean()
        square = float(away_R @ away_R)
        slope = float(away_R @ y_R) / square if square > 0 else 0.0
        return float(y_R.mean()) + slope * (x - float(x_R.mean()))

    at_R, error_R = np.empty(len(loss_R)), np.empty(len(loss_R))
    for r in range(len(loss_R)):
        rest = np.arange(len(loss_R)) != r
        at_R[r] = value(predicted_R[rest], loss_R[rest], at)
        error_R[r] = abs(loss_R[r] - value(predicted_R[rest], loss_R[rest], float(predicted_R[r])))
    return value(predicted_R, loss_R, at), _plus_minus(at_R, error_R)
