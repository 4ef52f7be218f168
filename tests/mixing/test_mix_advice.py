"""The kernel regression, and when the mix that a fit proposes should not be trusted."""

import numpy as np
import pytest

from gristmill.kernels.base.types import Floats
from gristmill.mixing.weights.ablations import Ablations, leave_out, left_out, rank_correlation
from gristmill.mixing.weights.advice import advise, best_run, distances, interval, larger_runs, nearest_runs
from gristmill.mixing.weights.kernel import _solve, kernel
from gristmill.mixing.weights.regmix import ridge
from tests.mixing.runs_of_a_law import Truth

EVEN = np.full(3, 1 / 3)


def test_the_kernel_ranks_a_bent_loss_better_than_a_line_does() -> None:
    random = np.random.default_rng(0)
    weights, unseen = random.dirichlet(np.full(6, 0.5), 120), random.dirichlet(np.full(6, 0.5), 200)

    def losses(mixes: Floats) -> Floats:  # one saturates, one is best in the middle, and four say nothing
        return np.stack([3 - np.sqrt(mixes[:, 0]), 4 - np.abs(mixes[:, 1] - 0.2)], axis=1)

    noisy = losses(weights) + 0.02 * random.normal(size=(120, 2))
    by_kernel, by_ridge = kernel(weights, noisy)(unseen), ridge(weights, noisy)(unseen)
    for t in range(2):
        truth = losses(unseen)[:, t]
        assert rank_correlation(by_kernel[:, t], truth) > max(0.97, rank_correlation(by_ridge[:, t], truth))


def test_the_left_out_error_is_that_of_fits_without_the_mix() -> None:
    random = np.random.default_rng(1)
    features, targets = random.normal(size=(12, 3)), random.normal(size=(12, 1))
    counts = random.integers(1, 4, 12).astype(np.float64)
    [found] = _solve(features, targets, counts, np.ones(3), (2.0,))

    def plain(noise: float) -> float:
        distance = np.sqrt(((features[:, None] - features[None]) ** 2).sum(axis=2)) / 2
        all_of_it = (1 + np.sqrt(3) * distance) * np.exp(-np.sqrt(3) * distance)
        errors = []
        for out in range(12):
            rest = np.arange(12) != out
            inner = all_of_it[np.ix_(rest, rest)] + np.diag(noise / counts[rest])
            errors.append(targets[out, 0] - all_of_it[out, rest] @ np.linalg.solve(inner, targets[rest, 0]))
        return float(counts @ np.square(errors) / counts.sum())

    assert found.error == pytest.approx(min(plain(noise) for noise in (1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 1.0)), rel=1e-6)


def test_runs_of_one_mix_are_one_point_of_the_kernel() -> None:
    table = Truth(runs=20, noise=0.1).table()
    once = kernel(table.weights_RN, table.losses_RT)(table.weights_RN)
    twice = kernel(np.repeat(table.weights_RN, 2, axis=0), np.repeat(table.losses_RT, 2, axis=0))(table.weights_RN)
    assert rank_correlation(once[:, 0], twice[:, 0]) > 0.95


def test_a_source_that_never_varies_and_losses_that_do_not_are_no_trouble() -> None:
    weights = np.array([[a, 0.6 - a, 0.4, 0.0] for a in np.linspace(0, 0.6, 8)])
    losses = np.stack([np.full(8, 2.0), 3 - weights[:, 0]], axis=1)
    predicted = kernel(weights, losses)(np.array([[0.3, 0.3, 0.4, 0.0], [0.3, 0.3, 0.0, 0.4]]))
    assert np.isfinite(predicted).all() and np.allclose(predicted[:, 0], 2.0)
    assert predicted[0, 1] == pytest.approx(2.7, abs=0.02) and predicted[0, 1] == pytest.approx(predicted[1, 1])


def test_intervals_hold_the_loss_of_a_new_run() -> None:
    held, asked = 0, 0
    for seed in range(8):
        truth = Truth(runs=40, noise=0.3, seed=seed)
        table = truth.table()
        left = leave_out(table.weights_RN, table.losses_RT, ridge)
        random = np.random.default_rng(seed + 100)
        new = np.array([random.dirichlet(random.uniform(0.5, 5) * 5 * truth.shares_N) for _ in range(20)])
        exact = truth.losses(new)
        new_losses = exact + 0.3 * truth.losses(truth.weights_RN).std(axis=0) * random.normal(size=exact.shape)
        for mix, loss in zip(new, new_losses @ EVEN, strict=True):
            sure = interval(left, table.losses_RT, EVEN, mix)
            assert sure is not None
            held, asked = held + (sure[0] <= loss <= sure[1]), asked + 1
    assert asked == 160 and 0.82 <= held / asked <= 0.98


def test_few_runs_give_no_interval() -> None:
    table = Truth(runs=8).table()
    left = leave_out(table.weights_RN, table.losses_RT, ridge)
    assert interval(left, table.losses_RT, EVEN, table.weights_RN[0]) is None


def test_left_out_predictions_are_the_same_either_way() -> None:
    table = Truth(runs=12).table()
    left = leave_out(table.weights_RN, table.losses_RT, ridge)
    assert np.array_equal(left.predicted_RT, left_out(table.weights_RN, table.losses_RT, ridge))
    assert len(left.laws) == 12 and left.at(table.weights_RN[3])[3] == pytest.approx(left.predicted_RT[3])


def test_a_mix_far_from_all_runs_is_said_to_be_a_guess() -> None:
    random = np.random.default_rng(0)
    near_even = random.dirichlet(np.full(3, 60.0), 30)
    table = Ablations.of(("a", "b", "c"), ("t",), near_even, near_even[:, :1], [f"run-{r}" for r in range(30)])
    assert distances(np.array([[0.5, 0.5, 0.0]]), np.array([0.0, 0.5, 0.5])).tolist() == [0.5]
    facts, warnings = nearest_runs(table, np.array([0.9, 0.1, 0.0]))
    assert facts["farther_than"] == 1.0 and facts["distance"] > 0.3 and facts["run"].startswith("run-")
    assert len(warnings) == 2 and "is a guess" in warnings[0] and "'a' (90.0%, at most" in warnings[1]
    facts, warnings = nearest_runs(table, table.weights_RN[4])
    assert facts == {"run": table.runs_R[4], "distance": 0.0, "farther_than": 0.0} and warnings == []


def test_where_no_mix_is_better_than_the_best_run_its_mix_is_advised() -> None:
    random = np.random.default_rng(0)
    weights = random.dirichlet(np.ones(3), 40)
    losses = 3 + 0.2 * random.normal(size=(40, 1))  # noise: no mix is better than another
    table = Ablations.of(("a", "b", "c"), ("t",), weights, losses, [f"run-{r}" for r in range(40)])
    left = leave_out(table.weights_RN, table.losses_RT, ridge)
    law, mix = ridge(table.weights_RN, table.losses_RT), np.array([1 / 3, 1 / 3, 1 / 3])
    facts, warnings = advise(table, np.ones(1), left, mix, float(law(mix[None])[0, 0]), np.ones(3))
    best = f"run-{int(losses[:, 0].argmin())}"
    assert facts["advice"] == "run" and facts["best_run"]["run"] == best
    assert facts["best_run"]["loss"] == pytest.approx(losses.min()) and f"take the mix of run {best}" in warnings[-1]


def test_a_mix_better_than_all_runs_beyond_error_is_left_in_peace() -> None:
    random = np.random.default_rng(0)
    weights = random.dirichlet(np.full(3, 3.0), 60)
    table = Ablations.of(("a", "b", "c"), ("t",), weights, 3 - weights[:, :1] + 0.001 * random.normal(size=(60, 1)))
    left = leave_out(table.weights_RN, table.losses_RT, ridge)
    mix = np.array([0.99, 0.005, 0.005])
    facts, warnings = advise(
        table, np.ones(1), left, mix, float(ridge(table.weights_RN, table.losses_RT)(mix[None])[0, 0]), np.ones(3)
    )
    assert facts["advice"] == "mix" and not any("take the mix" in warning for warning in warnings)
    assert any("more than any run had of 'a'" in warning for warning in warnings)  # better, and yet a guess


def test_the_best_run_is_one_within_the_caps_by_the_mean_of_its_seeds() -> None:
    weights = np.array([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5], [0.2, 0.8], [0.0, 1.0]])
    losses = np.array([[1.0], [2.0], [1.6], [1.7], [3.0]])
    table = Ablations.of(("a", "b"), ("t",), weights, losses, list("vwxyz"))
    free, capped = (best_run(table, np.ones(1), np.array(caps)) for caps in ([1.0, 1.0], [0.3, 0.9]))
    assert free is not None and capped is not None
    assert (free["run"], free["runs"], free["loss"]) == ("v", 2, 1.5)
    assert (capped["run"], capped["loss"], capped["weights"]) == ("y", 1.7, {"a": 0.2, "b": 0.8})
    assert best_run(table, np.ones(1), np.array([0.1, 0.6])) is None


def test_larger_runs_confirm_a_ranking_or_do_not() -> None:
    truth = Truth(runs=40)
    table, mix = truth.table(), truth.shares_N
    law = ridge(table.weights_RN, table.losses_RT)
    agreeing = Ablations.of(truth.sources, truth.tasks, truth.weights_RN[:20], truth.losses_RT[:20] - 0.5)
    facts, _ = larger_runs(agreeing, table, EVEN, law, mix)
    low, high = facts["rank_correlation_interval"]
    assert facts["runs"] == 20 and low < facts["rank_correlation"] < high and facts["rank_correlation"] > 0.9
    assert facts["expected_loss"] == pytest.approx(float(truth.losses(mix[None])[0].mean()) - 0.5, abs=0.1)
    assert len(facts["nearest_runs"]) == 3 and facts["best_run"]["predicted_place"] <= 3
    turned = Ablations.of(truth.sources, ("t1",), truth.weights_RN[:20], 9 - truth.losses_RT[:20, 1:2])
    facts, warnings = larger_runs(turned, table, EVEN, law, mix)
    assert facts["tasks"] == ["t1"] and facts["rank_correlation"] < -0.9
    assert "need not be theirs" in warnings[0] and len(warnings) == 2
    with pytest.raises(ValueError, match="no task of the larger runs"):
        larger_runs(
            Ablations.of(truth.sources, ("x",), truth.weights_RN, truth.losses_RT[:, :1]), table, EVEN, law, mix
        )
    other = Ablations.of(("s9", *truth.sources[1:]), truth.tasks, truth.weights_RN, truth.losses_RT)
    with pytest.raises(ValueError, match="in one table alone: s0, s9"):
        larger_runs(other, table, EVEN, law, mix)
