"""How well scores agree with labels, on held-out texts: AUC, average precision, calibration, kappa, the best threshold.
Weighted, in numpy.

Ties count as ties: texts of one score are one step of every curve, so that no figure depends on the order of the texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.types import Array
from gristmill.mixing.weights.spearman import spearman

Json = dict[str, Any]


def auc(good: Array, scores: Array, weights: Array | None = None) -> float:
    """How often a good text has a higher score than a bad one; equal scores count half. NaN if one side is empty."""
    right, wrong, _ = _steps(good, scores, weights)
    all_right, all_wrong = right.sum(), wrong.sum()
    if all_right == 0 or all_wrong == 0:
        return float("nan")
    return float((right * (all_wrong - np.cumsum(wrong) + wrong / 2)).sum() / (all_right * all_wrong))


def auc_of_length(good: Array, texts: pa.Array, weights: Array | None = None) -> float | None:
    """The AUC that length in characters has alone, longer or shorter being better: a judge that is no better learnt it.
    None if one side is empty."""
    found = auc(good, pc.fill_null(pc.utf8_length(texts), 0).to_numpy(zero_copy_only=False), weights)
    return max(found, 1 - found) if np.isfinite(found) else None


def average_precision(good: Array, scores: Array, weights: Array | None = None) -> float:
    """Precision at each score, from the highest down, weighted by the recall that it adds. NaN without a good text."""
    right, wrong, _ = _steps(good, scores, weights)
    if right.sum() == 0:
        return float("nan")
    kept = np.cumsum(right) + np.cumsum(wrong)
    precision = np.divide(np.cumsum(right), kept, out=np.zeros_like(kept), where=kept > 0)
    return float((precision * right).sum() / right.sum())


def best_threshold(good: Array, scores: Array, weights: Array | None = None) -> tuple[float, float]:
    """The score from which on texts are called good so that F1 is highest, and this F1; the highest such score among
    equals."""
    right, wrong, values = _steps(good, scores, weights)
    f1 = 2 * np.cumsum(right) / np.maximum(right.sum() + np.cumsum(right) + np.cumsum(wrong), 1e-300)
    best = int(np.argmax(f1))
    return float(values[best]), float(f1[best])


def reliability(good: Array, scores: Array, weights: Array | None = None, bins: int = 10) -> list[Json]:
    """By decile of the scores: how many texts, their mean score, and the share that is good. Equal scores share a
    bin."""
    weights = np.ones(len(scores)) if weights is None else np.asarray(weights, np.float64)
    scores, good = np.asarray(scores, np.float64), np.asarray(good, np.bool_)
    _, group = np.unique(scores, return_inverse=True)
    of_group = np.bincount(group, weights)
    middle = (np.cumsum(of_group) - of_group / 2) / weights.sum() if len(scores) else of_group
    bin_of = np.minimum((middle * bins).astype(np.int64), bins - 1)[group]
    table = []
    for number in range(bins):
        here = (bin_of == number) & (weights > 0)
        if here.any():
            of_texts = weights[here] / weights[here].sum()
            table.append(
                {
                    "decile": number + 1,
                    "texts": int(here.sum()),
                    "weight": float(weights[here].sum()),
                    "score": float(scores[here] @ of_texts),
                    "good": float(good[here] @ of_texts),
                }
            )
    return table


def calibration_error(table: list[Json]) -> float:
    """Expected calibration error (Naeini et al. 2015) of a table of `reliability`: how far the share that is good lies
    from the score."""
    whole = sum(row["weight"] for row in table)
    return (
        float(sum(row["weight"] * abs(row["score"] - row["good"]) for row in table) / whole) if whole else float("nan")
    )


def confusion(truth: Array, predicted: Array, classes: int, weights: Array | None = None) -> Array:
    """float64_CC: weight of the texts of each true class (rows) by what was said of them."""
    flat = np.asarray(truth, np.int64) * classes + np.asarray(predicted, np.int64)
    return np.bincount(flat, weights, minlength=classes * classes).astype(np.float64).reshape(classes, classes)


def kappa(table_CC: Array, quadratic: bool = False) -> float:
    """Cohen's kappa of a confusion table; `quadratic` for classes in an order, where far off is worse. NaN if all agree
    on one class."""
    classes = len(table_CC)
    distance = (
        np.subtract.outer(np.arange(classes), np.arange(classes)).astype(np.float64) ** 2
        if quadratic
        else 1 - np.eye(classes)
    )
    by_chance = np.outer(table_CC.sum(axis=1), table_CC.sum(axis=0)) / max(table_CC.sum(), 1e-300)
    expected = (distance * by_chance).sum()
    return float(1 - (distance * table_CC).sum() / expected) if expected > 0 else float("nan")


def probability_metrics(good: Array, scores: Array, weights: Array | None = None) -> Json:
    """All of the above for a head that says P(good). What is not defined (one class alone) is None."""
    table = reliability(good, scores, weights)
    threshold, f1 = best_threshold(good, scores, weights)
    predicted = np.asarray(scores) >= threshold
    return _json(
        {
            "texts": len(scores),
            "good": int(np.asarray(good, np.bool_).sum()),
            "auc": auc(good, scores, weights),
            "average_precision": average_precision(good, scores, weights),
            "calibration_error": calibration_error(table),
            "best_threshold": threshold,
            "f1": f1,
            "kappa": kappa(confusion(good, predicted, 2, weights)),
            "kappa_at_half": kappa(confusion(good, np.asarray(scores) >= 0.5, 2, weights)),
            "reliability": table,
        }
    )


def class_metrics(truth: Array, probabilities_NC: Array, labels: tuple[str, ...], weights: Array | None = None) -> Json:
    """For a head of classes: accuracy, kappa (plain, and quadratic by the order of the labels), and AUC of each class
    against the others."""
    predicted = probabilities_NC.argmax(axis=1)
    table = confusion(truth, predicted, len(labels), weights)
    of_classes = [auc(truth == c, probabilities_NC[:, c], weights) for c in range(len(labels))]
    defined = [value for value in of_classes if np.isfinite(value)]
    return _json(
        {
            "texts": len(truth),
            "accuracy": float(np.trace(table) / table.sum()) if table.sum() else float("nan"),
            "kappa": kappa(table),
            "kappa_quadratic": kappa(table, quadratic=True),
            "auc": dict(zip(labels, of_classes, strict=True)),
            "auc_mean": float(np.mean(defined)) if defined else float("nan"),
            "confusion": table.tolist(),
        }
    )


def label_metrics(truth: Array, probabilities_NC: Array, labels: tuple[str, ...], weights: Array | None = None) -> Json:
    """For a head of labels without an order: accuracy, F1 of each label and their mean, kappa, AUC of each label, and
    how far the probability of the likeliest label lies from how often it is right.

    F1 is of labels that a text has or was given; a label with neither has none, and is not in the mean.
    """
    facts = class_metrics(truth, probabilities_NC, labels, weights)
    table = np.array(facts["confusion"]).reshape(len(labels), len(labels))
    said = table.sum(axis=0) + table.sum(axis=1)
    f1 = np.divide(2 * table.diagonal(), said, out=np.full(len(labels), np.nan), where=said > 0)
    predicted = probabilities_NC.argmax(axis=1)
    rows = reliability(predicted == truth, probabilities_NC.max(axis=1, initial=0), weights)
    del facts["kappa_quadratic"]
    return facts | _json(
        {
            "macro_f1": float(np.nanmean(f1)) if np.isfinite(f1).any() else float("nan"),
            "f1": dict(zip(labels, f1.tolist(), strict=True)),
            "texts_of": dict(zip(labels, np.bincount(truth, minlength=len(labels)).tolist(), strict=True)),
            "calibration_error": calibration_error(rows),
            "reliability": rows,
        }
    )


def regression_metrics(truth: Array, predicted: Array, weights: Array | None = None) -> Json:
    """Squared error and rank correlation (which does not look at weights)."""
    return _json(
        {
            "texts": len(truth),
            "mean_squared_error": float(np.average((predicted - truth) ** 2, weights=weights)),
            "spearman": spearman(truth, predicted),
        }
    )


def _steps(good: Array, scores: Array, weights: Array | None) -> tuple[Array, Array, Array]:
    """Weight of the good and of the bad texts at each different score, from the highest down, and these scores."""
    weights = np.ones(len(scores)) if weights is None else np.asarray(weights, np.float64)
    good = np.asarray(good, np.bool_)
    values, group = np.unique(-np.asarray(scores, np.float64), return_inverse=True)
    right = np.bincount(group[good], weights[good], minlength=len(values)).astype(np.float64)
    wrong = np.bincount(group[~good], weights[~good], minlength=len(values)).astype(np.float64)
    return right, wrong, -values


def _json(facts: Json) -> Json:
    """NaN is no JSON."""
    return {
        key: None
        if isinstance(value, float) and not np.isfinite(value)
        else _json(value)
        if isinstance(value, dict)
        else value
        for key, value in facts.items()
    }
