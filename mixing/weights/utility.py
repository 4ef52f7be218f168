"""How much each source helps each task: from losses, scores or a judge's marks to utilities in [0, 1] with standard
errors.

Per task the worst source is 0 and the best 1 (min-max over sources, U = (max - loss) / (max - min); how Held et al.
2025 normalise is not published in what we could read). Min-max turns a task on which all sources are equally good into
pure noise of full range, so tasks are tested first (`noisy_tasks`). The usual rule, a range of at least 2 standard
errors, is not enough: of 16 equal sources the range is 3.5 standard errors on average. So Cochran's Q (1954) also tests
whether the differences exceed chance.

Shapes: N sources, T tasks, D documents.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gristmill.kernels.base.types import Floats, Integers


@dataclass(frozen=True)
class Utilities:
    """A table of sources x tasks, higher is better, with the standard error of each entry (0 where it is known
    exactly)."""

    sources: tuple[str, ...]
    tasks: tuple[str, ...]
    values_NT: Floats
    errors_NT: Floats

    def __post_init__(self) -> None:
        shape = (len(self.sources), len(self.tasks))
        for what, table in (("values", self.values_NT), ("standard errors", self.errors_NT)):
            if table.shape != shape:
                raise ValueError(
                    f"{what} of shape {table.shape}; expected {shape} for {shape[0]} sources and {shape[1]} tasks"
                )
            if not np.all(np.isfinite(table)):
                i, t = np.argwhere(~np.isfinite(table))[0]
                raise ValueError(
                    f"{what}: source {self.sources[i]!r}, task {self.tasks[t]!r} is {table[i, t]}; expected a finite "
                    "number"
                )
        if np.any(self.errors_NT < 0):
            raise ValueError("standard errors must be 0 or more")
        for what, names in (("source", self.sources), ("task", self.tasks)):
            if len(set(names)) < len(names):
                raise ValueError(
                    f"a {what} is named twice: {sorted({name for name in names if names.count(name) > 1})}"
                )

    def of_tasks(self, tasks: tuple[str, ...]) -> Utilities:
        picked = [self.tasks.index(task) for task in tasks]
        return replace(self, tasks=tasks, values_NT=self.values_NT[:, picked], errors_NT=self.errors_NT[:, picked])

    def of_sources(self, sources: tuple[str, ...]) -> Utilities:
        picked = [self.sources.index(source) for source in sources]
        return replace(self, sources=sources, values_NT=self.values_NT[picked], errors_NT=self.errors_NT[picked])


@dataclass(frozen=True)
class NoisyTask:
    """Why a task does not separate sources. `chance`: how likely equal sources would differ this much (1 if they do not
    differ)."""

    task: str
    reason: str
    range: float
    error: float
    chance: float


def noisy_tasks(utilities: Utilities, least_range: float = 2.0, largest_chance: float = 0.05) -> list[NoisyTask]:
    """Tasks whose range is 0, below `least_range` standard errors, or likely by chance (more than `largest_chance`)."""
    noisy = []
    for t, task in enumerate(utilities.tasks):
        values_N, errors_N = utilities.values_NT[:, t], utilities.errors_NT[:, t]
        spread = float(values_N.max() - values_N.min())
        error = float(np.sqrt(np.mean(errors_N**2)))
        chance = chance_of_spread(values_N, errors_N)
        if spread == 0:
            reason = "all sources are equal"
        elif spread < least_range * error:
            reason = f"a range of {spread:.4g} is under {least_range:g} standard errors of {error:.4g}"
        elif chance > largest_chance:
            reason = f"equal sources would differ as much in {chance:.1%} of cases"
        else:
            continue
        noisy.append(NoisyTask(task, reason, spread, error, chance))
    return noisy


def chance_of_spread(values_N: Floats, errors_N: Floats) -> float:
    """Cochran's Q against chi-square of N - 1 degrees. Exact sources (error 0) that differ leave nothing to chance."""
    if values_N.max() == values_N.min():
        return 1.0
    exact = errors_N == 0
    if exact.any():
        exact_N = values_N[exact]
        if exact_N.max() != exact_N.min():
            return 0.0
        center, degrees = float(exact_N[0]), int((~exact).sum())
    else:
        trust_N = (errors_N / errors_N.min()) ** -2
        center, degrees = float(trust_N @ values_N / trust_N.sum()), len(values_N) - 1
    q = float(np.sum(((values_N[~exact] - center) / errors_N[~exact]) ** 2))
    return chi_square_tail(q, degrees)


def chi_square_tail(q: float, degrees: int) -> float:
    """P(chi-square > q): known for 1 and 2 degrees, and two more degrees add one term (Abramowitz and Stegun 26.4.4 and
    26.4.5)."""
    if q <= 0:
        return 1.0
    tail = math.erfc(math.sqrt(q / 2)) if degrees % 2 else math.exp(-q / 2)
    for k in range(1 if degrees % 2 else 2, degrees, 2):
        tail += math.exp(k / 2 * math.log(q / 2) - q / 2 - math.lgamma(k / 2 + 1))
    return min(tail, 1.0)


def scaled(utilities: Utilities) -> Utilities:
    """Per task the worst source 0 and the best 1; errors in the same unit. Drop noisy tasks first; a task without any
    range is an error."""
    low_T, high_T = utilities.values_NT.min(axis=0), utilities.values_NT.max(axis=0)
    flat = [task for task, low, high in zip(utilities.tasks, low_T, high_T, strict=True) if low == high]
    if flat:
        raise ValueError(
            f"all sources are equal at {', '.join(map(repr, flat))}: no scale from 0 to 1. Drop these tasks"
        )
    range_T = high_T - low_T
    return replace(
        utilities, values_NT=(utilities.values_NT - low_T) / range_T, errors_NT=utilities.errors_NT / range_T
    )


def judged(
    sources: tuple[str, ...], tasks: tuple[str, ...], source_D: Integers, tokens_D: Floats, marks_DT: Floats
) -> Utilities:
    """A judge's marks in [0, 1] on a random sample of documents (MEDU): the mean mark of a *token* of each source.

    Mixes are in tokens, and long documents are not marked as short ones are, so marks are weighted by length. That is a
    ratio of two means; its standard error is the linearised one (Cochran 1977, section 6.4), which for equal lengths is
    std / sqrt(documents).
    """
    if marks_DT.shape != (len(source_D), len(tasks)) or tokens_D.shape != (len(source_D),):
        raise ValueError(f"marks of shape {marks_DT.shape} for {len(source_D)} documents and {len(tasks)} tasks")
    if not (np.all(marks_DT >= 0) and np.all(marks_DT <= 1)):
        raise ValueError("marks must lie in [0, 1]; leave out documents whose mark could not be read, and count them")
    if not (np.all(np.isfinite(tokens_D)) and np.all(tokens_D > 0)):
        raise ValueError("every document needs a number of tokens above 0")
    values_NT = np.zeros((len(sources), len(tasks)))
    errors_NT = np.zeros_like(values_NT)
    for i, source in enumerate(sources):
        in_source = source_D == i
        documents = int(in_source.sum())
        if documents < 2:
            raise ValueError(f"{documents} marked documents of {source!r}; at least 2 are needed for a standard error")
        weight_D1 = tokens_D[in_source, None]
        whole = math.fsum(weight_D1.ravel())
        values_NT[i] = totals(weight_D1 * marks_DT[in_source]) / whole
        squares_T = totals((weight_D1 * (marks_DT[in_source] - values_NT[i])) ** 2) / whole**2
        errors_NT[i] = np.sqrt(squares_T * documents / (documents - 1))
    return Utilities(sources, tasks, values_NT, errors_NT)


def totals(values_DT: Floats) -> Floats:
    """The sum of each column, rounded once: a product of matrices is another in its last bit on another processor."""
    return np.array([math.fsum(column) for column in values_DT.T])
