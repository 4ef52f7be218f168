"""Small runs on known mixes, and how well a fit to them ranks runs that it has not seen.

A table of runs: the weights each was trained on and its loss at each task (lower is better; a score in [0, 1] counts as
the loss 1 - score). A fit is worth what it predicts about *other* mixes, so each fit comes with the rank correlation
between losses and predictions of left-out runs; in-sample correlation says nothing. A mix is left out with all its
runs: a fit that has seen one of its seeds has seen the mix. No mixer we know of separates mixes within about two points
of accuracy at 1B: that is seed noise, and a confirmation run decides.

Shapes: R runs, N sources, T tasks, K mixes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gristmill.kernels.base.types import Floats, Integers
from gristmill.mixing.weights.spearman import spearman

SUM_TOLERANCE = 1e-3  # weights in tables are rounded
LEAST_CORRELATION = 0.8
FEWEST_MIXES = 4
SAME_DIGITS = 9  # decimals of weights by which runs are of one mix: float64 loses less on the way
LEAVE_ONE_OUT = 32  # up to this many mixes each is left out alone; more are left out by tenths
FOLDS = 10


Predict = Callable[[Floats], Floats]  # mixes (K, N) -> losses (K, T)
Fit = Callable[[Floats, Floats], Predict]  # weights (R, N), losses (R, T) -> the law


@dataclass(frozen=True)
class Ablations:
    """Runs in a fixed order (of sources, tasks and runs by name and number), so that the order of the input does not
    matter."""

    sources: tuple[str, ...]
    tasks: tuple[str, ...]
    weights_RN: Floats
    losses_RT: Floats
    runs_R: tuple[str, ...]  # names

    @classmethod
    def of(
        cls,
        sources: tuple[str, ...],
        tasks: tuple[str, ...],
        weights_RN: Floats,
        losses_RT: Floats,
        run_names: Sequence[str] | None = None,
    ) -> Ablations:
        """Runs without names are numbered from 1 as they come."""
        weights_RN, losses_RT = np.asarray(weights_RN, np.float64), np.asarray(losses_RT, np.float64)
        runs = len(weights_RN)
        if (
            weights_RN.shape != (runs, len(sources))
            or losses_RT.shape != (runs, len(tasks))
            or not sources
            or not tasks
        ):
            raise ValueError(
                f"weights of shape {weights_RN.shape} and losses of shape {losses_RT.shape} for {len(sources)} sources "
                f"and {len(tasks)} tasks"
            )
        for what, names in (("source", sources), ("task", tasks)):
            if len(set(names)) < len(names):
                raise ValueError(
                    f"a {what} is named twice: {sorted({name for name in names if names.count(name) > 1})}"
                )
        sums_R = weights_RN.sum(axis=1)
        for r in range(runs):
            if (
                not np.all(np.isfinite(weights_RN[r]))
                or np.any(weights_RN[r] < 0)
                or abs(sums_R[r] - 1) > SUM_TOLERANCE
            ):
                raise ValueError(f"run {r + 1}: weights must be 0 or more and sum to 1; these sum to {sums_R[r]:g}")
            if not np.all(np.isfinite(losses_RT[r])):
                raise ValueError(
                    f"run {r + 1}: the loss at {tasks[int(np.argmin(np.isfinite(losses_RT[r])))]!r} is not a finite "
                    "number"
                )
        columns, rows = (
            sorted(range(len(sources)), key=lambda i: sources[i]),
            sorted(range(len(tasks)), key=lambda t: tasks[t]),
        )
        weights_RN, losses_RT = (weights_RN / sums_R[:, None])[:, columns], losses_RT[:, rows]
        mixes = len(np.unique(mix_of_runs(weights_RN)))
        if mixes < FEWEST_MIXES:
            raise ValueError(
                f"{mixes} different mixes in {runs} runs; "
                f"a fit that can be checked needs {FEWEST_MIXES} at the least, and one for each source to be worth much"
            )
        named = [str(r + 1) for r in range(runs)] if run_names is None else list(run_names)
        _, name_R = np.unique(named, return_inverse=True)
        order = np.lexsort(np.hstack([name_R[:, None], losses_RT[:, ::-1], weights_RN[:, ::-1]]).T)
        return cls(
            tuple(sources[i] for i in columns),
            tuple(tasks[t] for t in rows),
            weights_RN[order],
            losses_RT[order],
            tuple(named[r] for r in order),
        )

    def counted(self, given: dict[str, float] | None) -> tuple[Ablations, Floats]:
        """The weights of tasks, in sum 1: equal where none are given; 0 for a task that is not named."""
        if given is None:
            return self, np.full(len(self.tasks), 1 / len(self.tasks))
        unknown = sorted(set(given) - set(self.tasks))
        if unknown:
            raise ValueError(
                f"no task {', '.join(map(repr, unknown))} among the ablations; there are "
                f"{', '.join(map(repr, self.tasks))}"
            )
        weights_T = np.array([given.get(task, 0.0) for task in self.tasks], np.float64)
        if not np.all(np.isfinite(weights_T)) or np.any(weights_T < 0) or not weights_T.any():
            raise ValueError("weights of tasks must be finite, 0 or more, and not all 0")
        counts_T = weights_T > 0
        tasks = tuple(task for task, counts in zip(self.tasks, counts_T, strict=True) if counts)
        return replace(self, tasks=tasks, losses_RT=self.losses_RT[:, counts_T]), weights_T[counts_T] / weights_T.sum()


def mix_of_runs(weights_RN: Floats) -> Integers:
    """The number of each run's mix (R), from 0, in the order of their weights."""
    _, mix_R = np.unique(np.round(weights_RN, SAME_DIGITS), axis=0, return_inverse=True)
    return mix_R.reshape(-1)


@dataclass(frozen=True)
class LeftOut:
    """Predictions for each run by a fit that has not seen its mix, and the fits."""

    predicted_RT: Floats
    fold_R: Integers
    laws: list[Predict]  # one a fold

    def at(self, mix_N: Floats) -> Floats:
        """What the fit that has not seen run r's mix predicts for this mix (R, T)."""
        predicted_RT: Floats = np.concatenate([law(mix_N[None]) for law in self.laws])[self.fold_R]
        return predicted_RT


def leave_out(weights_RN: Floats, losses_RT: Floats, fit: Fit) -> LeftOut:
    mix_R = mix_of_runs(weights_RN)
    fold_R = (
        mix_R if mix_R.max() < LEAVE_ONE_OUT else mix_R % FOLDS
    )  # neighbours are numbered in a row: a fold has mixes of all kinds
    predicted_RT = np.zeros_like(losses_RT)
    laws = []
    for fold in range(fold_R.max() + 1):
        out = fold_R == fold
        laws.append(fit(weights_RN[~out], losses_RT[~out]))
        predicted_RT[out] = laws[-1](weights_RN[out])
    return LeftOut(predicted_RT, fold_R, laws)


def left_out(weights_RN: Floats, losses_RT: Floats, fit: Fit) -> Floats:
    """Predictions for each run by a fit that has not seen its mix (R, T)."""
    return leave_out(weights_RN, losses_RT, fit).predicted_RT


def trust(ablations: Ablations, task_weights_T: Floats, predicted_RT: Floats, predicted_R: Floats) -> dict[str, Any]:
    """Rank correlations between losses and predictions of left-out runs, by task and of the mean that a mixer lowers;
    low ones warn."""
    overall = rank_correlation(predicted_R, ablations.losses_RT @ task_weights_T)
    by_task = {
        task: rank_correlation(predicted_RT[:, t], ablations.losses_RT[:, t]) for t, task in enumerate(ablations.tasks)
    }
    low = [f"{task} {correlation:.2f}" for task, correlation in by_task.items() if correlation < LEAST_CORRELATION]
    warnings = []
    if overall < LEAST_CORRELATION:
        warnings.append(
            f"runs left out are ranked with a correlation of {overall:.2f}, under {LEAST_CORRELATION}: "
            "do not trust this mix; add runs of other mixes"
        )
    if low:
        warnings.append(f"tasks that the fit ranks with a correlation under {LEAST_CORRELATION}: {', '.join(low)}")
    mixes = len(np.unique(mix_of_runs(ablations.weights_RN)))
    return {
        "runs": len(ablations.weights_RN),
        "mixes": mixes,
        "left_out": f"each of {mixes} mixes alone" if mixes <= LEAVE_ONE_OUT else f"every {FOLDS}th of {mixes:,} mixes",
        "rank_correlation": overall,
        "rank_correlation_by_task": by_task,
        "warnings": warnings,
    }


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman's; a fit that predicts the same for all mixes gets 0."""
    return spearman(a, b) or 0.0
