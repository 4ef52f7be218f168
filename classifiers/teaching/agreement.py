"""How well a student says what its teacher said: rank correlation, AUC at each cut of the marks, kappa by class; and
how far judges that differ in their seed alone agree.

Marks are the teacher's, on any scale; cuts part them into classes: class c has marks from cut c - 1 on and below cut c.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from gristmill.classifiers.card import Head, Json
from gristmill.classifiers.metrics import auc, confusion, kappa
from gristmill.kernels.base.types import Array
from gristmill.mixing.weights.spearman import spearman


def classes_of(marks: Array, cuts: Sequence[float]) -> Array:
    """int64_N; a mark at a cut is in the class above it."""
    return np.searchsorted(np.asarray(cuts, np.float64), np.asarray(marks, np.float64), side="right").astype(np.int64)


def agreement(marks: Array, scores: Array, predicted: Array, cuts: Sequence[float], labels: Sequence[str]) -> Json:
    """`scores` rise with what the student thinks of a text, `predicted` is the class that it puts it in."""
    truth = classes_of(marks, cuts)
    table_CC = confusion(truth, predicted, len(labels))
    return {
        "texts": len(marks),
        "spearman": spearman(marks, scores),
        "auc_at": [{"cut": float(cut), "auc": finite(auc(np.asarray(marks) >= cut, scores))} for cut in cuts],
        "accuracy": finite(float(np.trace(table_CC) / table_CC.sum())) if len(marks) else None,
        "kappa": finite(kappa(table_CC)),
        "kappa_weighted": finite(kappa(table_CC, quadratic=True)),
        "kappa_by_class": {label: finite(kappa(_one_against_rest(table_CC, c))) for c, label in enumerate(labels)},
        "confusion": table_CC.astype(int).tolist(),  # rows: the teacher's class, columns: the student's
    }


def spread_over_seeds(seed: int, head: Head, metrics: Sequence[Json], outputs: Sequence[Array]) -> Json:
    """Of judges of one seed after another, trained on the same texts: their figures, and how far each two agree, by
    their outputs for texts that none of them was trained on. Of labels without an order: the share of texts with the
    same label."""
    shared = [
        name
        for name in metrics[0]
        if name != "auc_of_length" and all(isinstance(each.get(name), float) for each in metrics)
    ]  # one that is undefined for one seed has no spread; length knows of no seed
    apart: dict[str, list[float | None]]
    if head.kind == "labels":
        said = [each.argmax(axis=1) for each in outputs]
        apart = {"same_label": [float((a == b).mean()) for a, b in combinations(said, 2)]}
    else:
        scores = [each @ np.arange(head.width) if head.kind == "classes" else each for each in outputs]
        best = max(1, len(outputs[0]) // 10)
        tenths = [set(np.lexsort((np.arange(len(each)), -each))[:best].tolist()) for each in scores]
        apart = {
            "spearman": [spearman(a, b) for a, b in combinations(scores, 2)],
            "same_best_tenth": [len(a & b) / best for a, b in combinations(tenths, 2)],
        }
    return {
        "seeds": list(range(seed, seed + len(metrics))),
        "texts": len(outputs[0]),
        "figures": {name: [each[name] for each in metrics] for name in shared},
        "pairs": apart,
    }


def _one_against_rest(table_CC: Array, c: int) -> Array:
    hit, row, column = table_CC[c, c], table_CC[c].sum(), table_CC[:, c].sum()
    return np.array([[table_CC.sum() - row - column + hit, column - hit], [row - hit, hit]])


def finite(value: float) -> float | None:
    """NaN is no JSON."""
    return value if np.isfinite(value) else None
