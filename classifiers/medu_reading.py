"""From a model's answers to marks: the label that a reasoned answer ends with, or the expected mark of all labels' probabilities.

Marks are Great 1, Good 0.75, Okay 0.5, Poor 0.25, Useless 0. Of a reasoned answer only its last `Final Score:` counts (a document's own,
quoted on the way, does not); no label after it, or two, is a failure, never a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from classifiers.llm import Answer
from classifiers.medu_prompts import LABELS

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

MARKS = np.array([1.0, 0.75, 0.5, 0.25, 0.0])
UNREAD = -1

SCORE_AT = re.compile(r"final[ \t]{1,3}score", re.IGNORECASE)
_ANY = "|".join(LABELS)
LABEL_AFTER = re.compile(  # a second label beside the first (`Great/Good`, `Great or Good`) is no answer
    rf"[*_`'\"]{{0,4}}[ \t]{{0,3}}[:：][\s*_`'\"\[(<]{{0,8}}({_ANY})\b(?![ \t*]{{0,4}}(?:[/|,]|or\b|and\b)[ \t*]{{0,4}}(?:{_ANY})\b)",
    re.IGNORECASE,
)
MOST_AFTER_CUT = 8  # characters after the label of an answer that was cut: more is a quotation, not an end


def label_of(answer: Answer) -> tuple[int, str]:
    """The label's number and no failure, or UNREAD and the kind of failure."""
    if answer.failure:
        return UNREAD, answer.failure
    scores = list(SCORE_AT.finditer(answer.text))
    if not scores:
        return UNREAD, "cut_short" if answer.finish == "length" else "no_score"
    label = LABEL_AFTER.match(answer.text, scores[-1].end())
    if label is None:
        return UNREAD, "no_label"
    if answer.finish == "length" and len(answer.text) - label.end() > MOST_AFTER_CUT:
        return UNREAD, "cut_short"
    return LABELS.index(label[1].capitalize()), ""


def probabilities_of(answer: Answer) -> tuple[Floats | None, str]:
    """Of the labels in sum 1, and no failure; or the kind of failure."""
    if answer.failure:
        return None, answer.failure
    if answer.logprobs is None or len(answer.logprobs) != len(LABELS):
        return None, "no_labels"
    logs = np.array(answer.logprobs)
    if not np.all(np.isfinite(logs)):
        return None, "no_labels"
    weights = np.exp(logs - logs.max())
    return weights / weights.sum(), ""


@dataclass(frozen=True)
class Agreement:
    """Of two readings of the same documents. `confusion[i][j]`: documents with label i by the first and j by the second.

    `kappa` is Cohen's (1960), `weighted_kappa` counts a miss by its squared distance (Cohen 1968); `rank_correlation` is Spearman's, of marks.
    """

    documents: int
    exact: float
    kappa: float
    weighted_kappa: float
    rank_correlation: float
    mean_difference: float  # of marks, the second less the first
    confusion: tuple[tuple[int, ...], ...]


def agreement(first: Integers, second: Integers, first_marks: Floats, second_marks: Floats) -> Agreement:
    """Documents that either reading failed at (UNREAD) are left out."""
    both = (first != UNREAD) & (second != UNREAD)
    if both.sum() < 2:
        raise ValueError(f"{int(both.sum())} documents with both readings; at least 2 are needed")
    table = np.zeros((len(LABELS), len(LABELS)), np.int64)
    np.add.at(table, (first[both], second[both]), 1)
    apart = np.subtract.outer(np.arange(len(LABELS)), np.arange(len(LABELS)))
    return Agreement(
        documents=int(both.sum()),
        exact=float(np.trace(table) / table.sum()),
        kappa=_kappa(table, (apart != 0).astype(np.float64)),
        weighted_kappa=_kappa(table, apart.astype(np.float64) ** 2),
        rank_correlation=rank_correlation(first_marks[both], second_marks[both]),
        mean_difference=float(np.mean(second_marks[both] - first_marks[both])),
        confusion=tuple(tuple(int(count) for count in row) for row in table),
    )


def _kappa(table: Integers, disagreement: Floats) -> float:
    """1 less what they disagree over what chance would; 1 where chance could not disagree either."""
    seen = table / table.sum()
    expected = np.outer(seen.sum(axis=1), seen.sum(axis=0))
    chance = float((expected * disagreement).sum())
    return 1.0 - float((seen * disagreement).sum()) / chance if chance > 0 else 1.0


def rank_correlation(first: Floats, second: Floats) -> float:
    """Spearman's, ties at their mean rank; 0 where either says the same of all."""
    a, b = _ranks(first), _ranks(second)
    a, b = a - a.mean(), b - b.mean()
    spread = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / spread if spread > 0 else 0.0


def _ranks(values: Floats) -> Floats:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[place]
