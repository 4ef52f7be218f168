"""From a model's answers to marks: the label that a reasoned answer ends with, or the expected mark of all labels'
probabilities.

Marks are Great 1, Good 0.75, Okay 0.5, Poor 0.25, Useless 0. How a label is found in a reasoned answer:
`classifiers/llm/last_score.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gristmill.classifiers.llm.last_score import last_score
from gristmill.classifiers.llm.model import Answer
from gristmill.classifiers.rating.prompts import LABELS
from gristmill.kernels.base.types import Floats, Integers
from gristmill.mixing.weights.spearman import spearman

MARKS = np.array([1.0, 0.75, 0.5, 0.25, 0.0])
UNREAD = -1


def label_of(answer: Answer, labels: tuple[str, ...] = LABELS) -> tuple[int, str]:
    """The label's number and no failure, or UNREAD and the kind of failure."""
    label, failure = last_score(answer, labels)
    return (UNREAD, failure) if failure else (labels.index(label), "")


def probabilities_of(answer: Answer, labels: tuple[str, ...] = LABELS) -> tuple[Floats | None, str]:
    """Of the labels in sum 1, and no failure; or the kind of failure."""
    if answer.failure:
        return None, answer.failure
    if answer.logprobs is None or len(answer.logprobs) != len(labels):
        return None, "no_labels"
    logs = np.array(answer.logprobs)
    if not np.all(np.isfinite(logs)):
        return None, "no_labels"
    weights = np.exp(logs - logs.max())
    return weights / weights.sum(), ""


@dataclass(frozen=True)
class Agreement:
    """Of two readings of the same documents. `confusion[i][j]`: documents with label i by the first and j by the
    second.

    `kappa` is Cohen's (1960), `weighted_kappa` counts a miss by its squared distance (Cohen 1968); `rank_correlation`
    is Spearman's, of marks, and 0 where either says the same of all.
    """

    documents: int
    exact: float
    kappa: float
    weighted_kappa: float
    rank_correlation: float
    mean_difference: float  # of marks, the second less the first
    confusion: tuple[tuple[int, ...], ...]


def agreement(
    first: Integers, second: Integers, first_marks: Floats, second_marks: Floats, labels: int = len(LABELS)
) -> Agreement:
    """Of labels by number, in their order. Documents that either reading failed at (UNREAD) are left out."""
    both = (first != UNREAD) & (second != UNREAD)
    if both.sum() < 2:
        raise ValueError(f"{int(both.sum())} documents with both readings; at least 2 are needed")
    table = np.zeros((labels, labels), np.int64)
    np.add.at(table, (first[both], second[both]), 1)
    apart = np.subtract.outer(np.arange(labels), np.arange(labels))
    return Agreement(
        documents=int(both.sum()),
        exact=float(np.trace(table) / table.sum()),
        kappa=_kappa(table, (apart != 0).astype(np.float64)),
        weighted_kappa=_kappa(table, apart.astype(np.float64) ** 2),
        rank_correlation=spearman(first_marks[both], second_marks[both]) or 0.0,
        mean_difference=float(np.mean(second_marks[both] - first_marks[both])),
        confusion=tuple(tuple(int(count) for count in row) for row in table),
    )


def _kappa(table: Integers, disagreement: Floats) -> float:
    """1 less what they disagree over what chance would; 1 where chance could not disagree either."""
    seen = table / table.sum()
    expected = np.outer(seen.sum(axis=1), seen.sum(axis=0))
    chance = float((expected * disagreement).sum())
    return 1.0 - float((seen * disagreement).sum()) / chance if chance > 0 else 1.0
