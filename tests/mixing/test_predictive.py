"""Documents from the losses of several models: equal to the plain definitions, and a planted truth is found."""

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from gristmill.kernels.base.types import Floats
from gristmill.mixing.predictive import best_share, correlations, match, pairs_left_out, ranks

FEW = st.integers(0, 4).map(float)
TABLES = st.integers(2, 6).flatmap(
    lambda models: st.tuples(
        arrays(np.float64, (models, 5), elements=FEW), arrays(np.float64, (models, 2), elements=FEW)
    )
)


def correlation_plain(losses: list[float], scores: list[float]) -> float:
    def rank(values: list[float], value: float) -> float:
        return sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2

    likely = [-loss for loss in losses]
    pairs = list(itertools.product(range(len(losses)), repeat=2))
    found = sum(np.sign(scores[k] - scores[m]) * (rank(likely, likely[k]) - rank(likely, likely[m])) for k, m in pairs)
    most = sum(np.sign(scores[k] - scores[m]) * (a - b) for k, m in pairs for a, b in [places(scores, k, m)])
    return float(found / most) if most else 0.0


def places(scores: list[float], k: int, m: int) -> tuple[int, int]:
    order = sorted(range(len(scores)), key=lambda i: scores[i])
    return order.index(k), order.index(m)


def match_plain(losses: list[float], scores: list[float]) -> float:
    hits = []
    for k, m in itertools.combinations(range(len(losses)), 2):
        if scores[k] != scores[m]:
            better, worse = (k, m) if scores[k] > scores[m] else (m, k)
            hits.append(1.0 if losses[better] < losses[worse] else 0.5 if losses[better] == losses[worse] else 0.0)
    return sum(hits) / len(hits) if hits else 0.5


@given(TABLES)
def test_both_estimators_are_their_definitions(tables: tuple[Floats, Floats]) -> None:
    losses, scores = tables
    by_correlation, by_match = correlations(losses, scores), match(losses, scores)
    assert by_correlation.shape == by_match.shape == (5,)
    for d in range(5):
        column = losses[:, d].tolist()
        expected = [correlation_plain(column, scores[:, t].tolist()) for t in range(2)]
        assert by_correlation[d] == pytest.approx(np.mean(expected), abs=1e-12)
        assert by_match[d] == pytest.approx(np.mean([match_plain(column, scores[:, t].tolist()) for t in range(2)]))


@given(TABLES, st.randoms(use_true_random=False))
def test_the_order_of_models_changes_nothing(tables: tuple[Floats, Floats], random) -> None:  # type: ignore[no-untyped-def]
    losses, scores = tables
    order = list(range(len(losses)))
    random.shuffle(order)
    for estimator in (correlations, match):
        assert np.allclose(estimator(losses, scores), estimator(losses[order], scores[order]))


def test_the_ends_of_the_scale() -> None:
    losses = np.array([[1.0, 3.0, 2.0], [2.0, 2.0, 2.0], [3.0, 1.0, 2.0]])
    scores = np.array([[0.9], [0.5], [0.1]])
    assert correlations(losses, scores).tolist() == [1.0, -1.0, 0.0]
    assert match(losses, scores).tolist() == [1.0, 0.0, 0.5]
    assert ranks(np.array([[2.0], [1.0], [2.0]]))[:, 0].tolist() == [1.5, 0.0, 1.5]


def planted(models: int, seed: int, signal: float) -> tuple[Floats, Floats, Floats]:
    """Skill lowers the loss of the first 100 of 1,000 documents; another talent, of no use, that of the next 100."""
    random = np.random.default_rng(seed)
    skill, talent = random.normal(size=models), random.normal(size=models)
    losses = 1 + 0.05 * random.normal(size=(models, 1000))
    losses[:, :100] -= signal * skill[:, None]
    losses[:, 100:200] -= 3 * signal * talent[:, None]
    scores = np.stack([skill + 0.2 * random.normal(size=models) for _ in range(3)], axis=1)
    return losses, scores, random.uniform(100, 1000, 1000)


@pytest.mark.parametrize("estimator", ["correlation", "match"])
def test_planted_documents_are_chosen_and_predict_models_left_out(estimator: str) -> None:
    losses, scores, sizes = planted(16, 0, 0.1)
    values = {"correlation": correlations, "match": match}[estimator](losses, scores)
    chosen = best_share(values, sizes, 0.1)
    assert chosen[:100].sum() / chosen.sum() > 0.85 and 80 < chosen.sum() < 130
    checked = pairs_left_out(losses, scores, sizes, estimator, 0.1)
    assert 110 < checked.pairs <= 120 and checked.chosen > 0.85 > checked.all_documents + 0.1


def test_without_any_truth_models_left_out_are_predicted_by_chance() -> None:
    checks = [pairs_left_out(*planted(12, seed, 0.0), "correlation", 0.1) for seed in range(6)]
    assert (
        all(55 < check.pairs <= 66 for check in checks)
        and abs(np.mean([check.chosen for check in checks]) - 0.5) < 0.15
    )


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="same scores"):
        pairs_left_out(np.ones((4, 3)), np.ones((4, 1)), np.ones(3), "match", 0.5)
    for losses, scores in ((np.ones((3, 2)), np.ones((4, 1))), (np.full((3, 2), np.nan), np.ones((3, 1)))):
        with pytest.raises(ValueError, match="expected"):
            correlations(losses, scores)
