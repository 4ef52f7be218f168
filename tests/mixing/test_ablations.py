"""Tables of runs, and the rank correlation of runs left out."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs_of_a_law import Truth

from mixing.ablations import Ablations, left_out, rank_correlation, ranks, trust
from mixing.regmix import ridge


def trusted(table: Ablations) -> dict[str, Any]:
    predicted = left_out(table.weights_RN, table.losses_RT, ridge)
    even = np.full(len(table.tasks), 1 / len(table.tasks))
    return trust(table, even, predicted, predicted @ even)


@given(st.lists(st.tuples(st.integers(-3, 3), st.floats(-5, 5)), min_size=2, max_size=30))
def test_rank_correlation_is_scipys(pairs: list[tuple[int, float]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    a, b = np.array(pairs, np.float64).T
    assert np.array_equal(ranks(a), stats.rankdata(a)) and np.array_equal(ranks(b), stats.rankdata(b))
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
    else:
        assert rank_correlation(a, b) == 0.0


def test_the_order_of_runs_sources_and_tasks_changes_nothing() -> None:
    truth = Truth()
    random = np.random.default_rng(3)
    runs, sources, tasks = random.permutation(48), random.permutation(5), random.permutation(3)
    other = Ablations.of(
        tuple(truth.sources[i] for i in sources), tuple(truth.tasks[t] for t in tasks),
        truth.weights_RN[np.ix_(runs, sources)], truth.losses_RT[np.ix_(runs, tasks)],
    )  # fmt: skip
    table = truth.table()
    assert table.sources == other.sources and table.tasks == other.tasks
    assert np.allclose(table.weights_RN, other.weights_RN, rtol=1e-15) and np.array_equal(table.losses_RT, other.losses_RT)


@pytest.mark.parametrize("runs", [10, 32, 33, 75])
def test_no_run_is_predicted_by_a_fit_that_has_seen_it(runs: int) -> None:
    table = Truth(runs=runs).table()
    asked = []

    def fit(weights_RN, losses_RT):  # type: ignore[no-untyped-def]
        seen = {tuple(row) for row in weights_RN}

        def predict(mixes_KN):  # type: ignore[no-untyped-def]
            assert not seen & {tuple(row) for row in mixes_KN}
            asked.extend(tuple(row) for row in mixes_KN)
            return np.repeat(mixes_KN[:, :1], losses_RT.shape[1], axis=1)

        return predict

    predicted = left_out(table.weights_RN, table.losses_RT, fit)
    assert sorted(asked) == sorted(map(tuple, table.weights_RN)) and len(asked) == runs
    assert np.array_equal(predicted[:, 0], table.weights_RN[:, 0])


def test_a_fit_of_noise_is_not_trusted_though_in_sample_it_looks_good() -> None:
    truth = Truth(runs=30, sources=12)
    truth.losses_RT = np.random.default_rng(0).normal(3, 0.1, truth.losses_RT.shape)
    table = truth.table()
    in_sample = rank_correlation(ridge(table.weights_RN, table.losses_RT)(table.weights_RN)[:, 0], table.losses_RT[:, 0])
    facts = trusted(table)
    assert in_sample > 0.5 and facts["rank_correlation_by_task"]["t0"] < 0.4 and facts["rank_correlation"] < 0.4
    assert "do not trust this mix" in facts["warnings"][0] and "t0" in facts["warnings"][1] and facts["runs"] == 30


def test_a_fit_of_a_law_is_trusted() -> None:
    facts = trusted(Truth().table())
    assert facts["rank_correlation"] > 0.9 and set(facts["rank_correlation_by_task"]) == {"t0", "t1", "t2"}
    assert facts["warnings"] == [] and facts["left_out"] == "every 10th run"


def test_only_the_tasks_that_count_are_fitted() -> None:
    table = Truth().table()
    assert table.counted(None)[0] is table and np.allclose(table.counted(None)[1], 1 / 3)
    counted, weights = table.counted({"t2": 3, "t0": 1, "t1": 0})
    assert counted.tasks == ("t0", "t2") and weights.tolist() == [0.25, 0.75]
    assert np.array_equal(counted.losses_RT, table.losses_RT[:, [0, 2]])
    for wrong in ({"x": 1.0}, {"t0": 0.0}, {"t0": -1.0}, {"t0": float("nan")}):
        with pytest.raises(ValueError, match="task"):
            table.counted(wrong)


@pytest.mark.parametrize(
    ("weights", "losses", "said"),
    [
        ([[0.5, 0.5]] * 3, [[1.0]] * 3, "3 runs"),
        ([[0.5, 0.5]] * 3 + [[0.5, 0.6]], [[1.0]] * 4, "run 4: weights must be 0 or more and sum to 1; these sum to 1.1"),
        ([[0.5, 0.5]] * 3 + [[-0.5, 1.5]], [[1.0]] * 4, "run 4"),
        ([[0.5, 0.5]] * 4, [[1.0]] * 3 + [[np.inf]], "run 4: the loss at 't'"),
        ([[0.5, 0.5]] * 4, [[1.0, 1.0]] * 4, "1 tasks"),
    ],
)
def test_nonsense_is_refused(weights: list[list[float]], losses: list[list[float]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Ablations.of(("a", "b"), ("t",), np.array(weights), np.array(losses))
