"""Figures are those of scikit-learn, with ties and with weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gristmill.classifiers.metrics import (
    auc,
    average_precision,
    best_threshold,
    calibration_error,
    class_metrics,
    confusion,
    kappa,
    probability_metrics,
    reliability,
)

sklearn_metrics = pytest.importorskip("sklearn.metrics")

ROWS = st.lists(
    st.tuples(
        st.booleans(), st.sampled_from([0.0, 0.1, 0.1001, 0.5, 0.7, 1.0]) | st.floats(0, 1, width=32), st.integers(1, 5)
    ),
    min_size=2,
    max_size=60,
)


@given(ROWS)
def test_curves(rows):
    good, scores, weights = (np.array(column) for column in zip(*rows, strict=True))
    if good.any():
        assert math.isclose(
            average_precision(good, scores, weights),
            sklearn_metrics.average_precision_score(good, scores, sample_weight=weights),
        )
    else:
        assert math.isnan(average_precision(good, scores))
    if good.all() or not good.any():
        assert math.isnan(auc(good, scores))
        return
    assert math.isclose(
        auc(good, scores, weights), sklearn_metrics.roc_auc_score(good, scores, sample_weight=weights), abs_tol=1e-12
    )
    assert math.isclose(auc(good, scores), sklearn_metrics.roc_auc_score(good, scores), abs_tol=1e-12)


@given(ROWS)
def test_the_best_threshold_is_the_best_of_all(rows):
    good, scores, weights = (np.array(column) for column in zip(*rows, strict=True))
    threshold, f1 = best_threshold(good, scores, weights)
    of_all = {
        float(cut): sklearn_metrics.f1_score(good, scores >= cut, sample_weight=weights, zero_division=0.0)
        for cut in np.unique(scores)
    }
    assert math.isclose(f1, max(of_all.values()), abs_tol=1e-12)
    assert math.isclose(of_all[threshold], f1, abs_tol=1e-12)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=40))
def test_kappa(rows):
    truth, said, weights = (np.array(column) for column in zip(*rows, strict=True))
    table = confusion(truth, said, 4, weights)
    assert table.sum() == weights.sum()
    for quadratic, name in ((False, None), (True, "quadratic")):
        found = kappa(table, quadratic)
        if math.isnan(found):
            assert len({*truth, *said}) == 1
        else:
            expected = sklearn_metrics.cohen_kappa_score(
                truth, said, weights=name, sample_weight=weights, labels=[0, 1, 2, 3]
            )
            assert math.isclose(found, expected, abs_tol=1e-9)


@given(ROWS, st.randoms())
def test_calibration_does_not_depend_on_the_order_of_texts(rows, drawn):
    def table_of(some):
        good, scores, weights = (np.array(column) for column in zip(*some, strict=True))
        return reliability(good, scores, weights)

    shuffled = list(rows)
    drawn.shuffle(shuffled)
    first, second = table_of(rows), table_of(shuffled)
    assert [row["texts"] for row in first] == [row["texts"] for row in second]
    assert sum(row["texts"] for row in first) == len(rows)
    assert sum(row["weight"] for row in first) == sum(weight for _, _, weight in rows)
    assert math.isclose(calibration_error(first), calibration_error(second), abs_tol=1e-9)
    assert 0 <= calibration_error(first) <= 1


def test_scores_that_are_right_are_calibrated():
    drawn = np.random.default_rng(3)
    scores = drawn.random(50_000)
    good = drawn.random(50_000) < scores
    table = reliability(good, scores)
    assert [row["decile"] for row in table] == list(range(1, 11))
    assert {row["texts"] for row in table} == {5000}
    assert calibration_error(table) < 0.01
    assert calibration_error(reliability(good, scores / 2)) > 0.2


def test_what_is_not_defined_is_none_and_never_nan():
    facts = probability_metrics(np.zeros(3, bool), np.array([0.1, 0.2, 0.3], np.float32))
    assert facts["auc"] is None and facts["texts"] == 3
    facts = class_metrics(np.array([0, 0]), np.array([[0.9, 0.1], [0.8, 0.2]]), ("a", "b"))
    assert facts["auc"] == {"a": None, "b": None} and facts["accuracy"] == 1
