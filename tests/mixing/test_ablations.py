"""Tables of runs, and the rank correlation of runs left out."""

from typing import Any

import numpy as np
import pytest

from gristmill.mixing.weights.ablations import Ablations, Fit, left_out, mix_of_runs, rank_correlation, trust
from gristmill.mixing.weights.regmix import ridge
from tests.mixing.runs_of_a_law import Truth


def trusted(table: Ablations, fit: Fit = ridge) -> dict[str, Any]:
    predicted = left_out(table.weights_RN, table.losses_RT, fit)
    even = np.full(len(table.tasks), 1 / len(table.tasks))
    return trust(table, even, predicted, predicted @ even)


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
    assert np.allclose(table.weights_RN, other.weights_RN, rtol=1e-15) and np.array_equal(
        table.losses_RT, other.losses_RT
    )


def with_seeds(truth: Truth, seeds: int) -> Ablations:
    """Every mix run as often, with other losses each time, rows in no order."""
    random = np.random.default_rng(seeds)
    order = random.permutation(len(truth.weights_RN) * seeds)
    weights_RN, losses_RT = np.repeat(truth.weights_RN, seeds, axis=0), np.repeat(truth.losses_RT, seeds, axis=0)
    losses_RT += 1e-3 * random.normal(size=losses_RT.shape)
    return Ablations.of(truth.sources, truth.tasks, weights_RN[order], losses_RT[order])


@pytest.mark.parametrize(("mixes", "seeds"), [(10, 1), (32, 1), (33, 1), (75, 1), (4, 2), (10, 3), (10, 5), (40, 3)])
def test_no_run_is_predicted_by_a_fit_that_has_seen_its_mix(mixes: int, seeds: int) -> None:
    table = with_seeds(Truth(runs=mixes), seeds)
    asked = []

    def fit(weights_RN, losses_RT):  # type: ignore[no-untyped-def]
        seen = {tuple(row) for row in weights_RN}

        def predict(mixes_KN):  # type: ignore[no-untyped-def]
            assert not seen & {tuple(row) for row in mixes_KN}
            asked.extend(tuple(row) for row in mixes_KN)
            return np.repeat(mixes_KN[:, :1], losses_RT.shape[1], axis=1)

        return predict

    predicted = left_out(table.weights_RN, table.losses_RT, fit)
    assert sorted(asked) == sorted(map(tuple, table.weights_RN)) and len(asked) == mixes * seeds
    assert np.array_equal(predicted[:, 0], table.weights_RN[:, 0])


def nearest(weights_RN, losses_RT):  # type: ignore[no-untyped-def]
    """A fit that knows by heart what it has seen."""
    return lambda mixes_KN: losses_RT[np.abs(mixes_KN[:, None] - weights_RN[None]).sum(axis=2).argmin(axis=1)]


@pytest.mark.parametrize(("mixes", "said"), [(12, "each of 12 mixes alone"), (40, "every 10th of 40 mixes")])
def test_a_fit_that_learns_mixes_by_heart_is_not_trusted_for_their_other_seeds(mixes: int, said: str) -> None:
    truth = Truth(runs=mixes)
    truth.losses_RT = np.random.default_rng(0).normal(3, 0.1, truth.losses_RT.shape)  # a mix has its losses by chance
    table = with_seeds(truth, 3)
    by_heart = rank_correlation(
        nearest(table.weights_RN, table.losses_RT)(table.weights_RN)[:, 0], table.losses_RT[:, 0]
    )
    facts = trusted(table, nearest)
    assert by_heart > 0.99 and facts["rank_correlation"] < 0.5 and "do not trust this mix" in facts["warnings"][0]
    assert (facts["runs"], facts["mixes"], facts["left_out"]) == (3 * mixes, mixes, said)


@pytest.mark.parametrize("mixes", [12, 40])
def test_the_order_of_rows_does_not_decide_who_is_left_out_together(mixes: int) -> None:
    table = with_seeds(Truth(runs=mixes), 2)
    order = np.random.default_rng(1).permutation(2 * mixes)
    predicted = left_out(table.weights_RN, table.losses_RT, ridge)
    assert np.allclose(left_out(table.weights_RN[order], table.losses_RT[order], ridge), predicted[order], rtol=1e-9)


def test_a_mix_is_the_same_whatever_rounding_has_done_to_it() -> None:
    third = [1 / 3, 1 / 3, 1 / 3]
    weights = np.array(
        [
            [0.1 + 0.2, 0.4, 0.3],
            [0.3, 0.4, 1 - 0.7],
            third,
            [0.5, 0.5, -0.0],
            [0.5, 0.5, 0.0],
            [0.3, 0.4 + 1e-6, 0.3 - 1e-6],
        ]
    )
    assert mix_of_runs(weights).tolist() == [0, 0, 2, 3, 3, 1]


def test_a_fit_of_noise_is_not_trusted_though_in_sample_it_looks_good() -> None:
    truth = Truth(runs=30, sources=12)
    truth.losses_RT = np.random.default_rng(0).normal(3, 0.1, truth.losses_RT.shape)
    table = truth.table()
    in_sample = rank_correlation(
        ridge(table.weights_RN, table.losses_RT)(table.weights_RN)[:, 0], table.losses_RT[:, 0]
    )
    facts = trusted(table)
    assert in_sample > 0.5 and facts["rank_correlation_by_task"]["t0"] < 0.4 and facts["rank_correlation"] < 0.4
    assert "do not trust this mix" in facts["warnings"][0] and "t0" in facts["warnings"][1] and facts["runs"] == 30


def test_a_fit_of_a_law_is_trusted() -> None:
    facts = trusted(Truth().table())
    assert facts["rank_correlation"] > 0.9 and set(facts["rank_correlation_by_task"]) == {"t0", "t1", "t2"}
    assert facts["warnings"] == [] and facts["left_out"] == "every 10th of 48 mixes"


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
        ([[0.5, 0.5], [1, 0], [0, 1]], [[1.0]] * 3, "3 different mixes in 3 runs"),
        ([[0.5, 0.5], [1, 0], [0, 1]] * 3, [[1.0]] * 9, "3 different mixes in 9 runs"),
        (np.zeros((0, 2)), np.zeros((0, 1)), "0 different mixes in 0 runs"),
        (
            [[0.5, 0.5]] * 3 + [[0.5, 0.6]],
            [[1.0]] * 4,
            "run 4: weights must be 0 or more and sum to 1; these sum to 1.1",
        ),
        ([[0.5, 0.5]] * 3 + [[-0.5, 1.5]], [[1.0]] * 4, "run 4"),
        ([[0.5, 0.5]] * 4, [[1.0]] * 3 + [[np.inf]], "run 4: the loss at 't'"),
        ([[0.5, 0.5]] * 4, [[1.0, 1.0]] * 4, "1 tasks"),
    ],
)
def test_nonsense_is_refused(weights: list[list[float]], losses: list[list[float]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Ablations.of(("a", "b"), ("t",), np.array(weights), np.array(losses))
