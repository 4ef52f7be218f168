"""UtiliMax: the optimum, by its own conditions, by a grid, and beside other solvers."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.kernels.base.types import Floats
from gristmill.mixing.weights.budget import most_utility
from gristmill.mixing.weights.supply import ShortSupply, Supply
from gristmill.mixing.weights.unimax import unimax
from gristmill.mixing.weights.utilimax import Tilt, frontier, utilimax

AVERSIONS = [0.0, 1e-4, 0.01, 0.1, 1.0, 3.0]
seeds = st.integers(0, 2**32 - 1)


def problem(seed: int, most_sources: int = 12, most_tasks: int = 8) -> tuple[Supply, Floats]:
    random = np.random.default_rng(seed)
    sources, tasks = int(random.integers(1, most_sources + 1)), int(random.integers(1, most_tasks + 1))
    sizes = random.lognormal(0, 2, sources)
    supply = Supply.of({f"s{i}": size for i, size in enumerate(sizes)}, sizes.sum() * 4 * random.uniform(0.01, 1), 4.0)
    return supply, random.choice([0.0, 0.25, 0.5, 0.75, 1.0], (sources, tasks)) if seed % 3 == 0 else random.random(
        (sources, tasks)
    )


def objective(utility: Floats, weights: Floats, aversion: float) -> float:
    return float(np.linalg.norm(utility.T @ weights - 1) + aversion * len(weights) * weights @ weights)


def value(tilt: Tilt) -> float:
    return tilt.distance + tilt.aversion * tilt.risk


def test_two_sources_by_hand() -> None:
    # one task, utilities 1 and 0: minimise (1 - a) + 2c (a^2 + (1 - a)^2), so a = 1/2 + 1 / (8c)
    supply = Supply.of({"good": 1e9, "bad": 1e9}, 1.0)
    for aversion, expected in ((1.0, 0.625), (0.5, 0.75), (0.25, 1.0), (0.1, 1.0)):
        assert utilimax(supply, np.array([[1.0], [0.0]]), aversion).weights_N[0] == pytest.approx(expected, abs=1e-9)


def test_the_bold_mix_lies_in_one_source_and_aversion_1_near_unimax() -> None:
    random = np.random.default_rng(0)
    utility, supply = random.random((7, 5)), Supply.of({str(i): 1e9 for i in range(7)}, 1.0)
    largest = [tilt.weights_N.max() for tilt in frontier(supply, utility, [0, 0.1, 0.3, 1, 3])]
    assert largest == sorted(largest, reverse=True)
    assert largest[0] > 0.5 and abs(largest[-1] - 1 / 7) < 0.05


@given(seeds, st.sampled_from(AVERSIONS[1:]), st.floats(0, 1))
def test_equal_utilities_give_unimax(seed: int, aversion: float, utility: float) -> None:
    supply, table = problem(seed)
    assert np.allclose(utilimax(supply, np.full_like(table, utility), aversion).weights_N, unimax(supply), atol=1e-6)


@settings(deadline=None)
@given(seeds, st.sampled_from(AVERSIONS))
def test_it_is_a_mix_within_caps_with_no_gap(seed: int, aversion: float) -> None:
    supply, utility = problem(seed)
    tilt = utilimax(supply, utility, aversion)
    supply.check_mix(tilt.weights_N)
    assert value(tilt) == pytest.approx(objective(utility, tilt.weights_N, aversion), abs=1e-12)
    assert tilt.gap < 1e-8


@settings(deadline=None)
@given(seeds, st.sampled_from(AVERSIONS[1:]))
def test_no_weight_would_rather_move(seed: int, aversion: float) -> None:
    supply, utility = problem(seed)
    weights = utilimax(supply, utility, aversion).weights_N
    residual = utility.T @ weights - 1
    if np.linalg.norm(residual) < 1e-6:
        return  # the distance has no slope there
    slope = utility @ residual / np.linalg.norm(residual) + 2 * aversion * len(weights) * weights
    takers, givers = weights < supply.caps_N - 1e-7, weights > 1e-7
    if takers.any():
        assert slope[givers].max() <= slope[takers].min() + 1e-4 * (1 + aversion * len(weights))


@settings(deadline=None)
@given(seeds, st.sampled_from(AVERSIONS), st.randoms(use_true_random=False))
def test_the_order_of_sources_and_tasks_changes_nothing(seed: int, aversion: float, random) -> None:  # type: ignore[no-untyped-def]
    supply, utility = problem(seed)
    rows, columns = list(range(utility.shape[0])), list(range(utility.shape[1]))
    random.shuffle(rows)
    random.shuffle(columns)
    other = Supply.of({supply.names[i]: supply.tokens_N[i] for i in rows}, supply.budget, 4.0)
    before, after = utilimax(supply, utility, aversion), utilimax(other, utility[np.ix_(rows, columns)], aversion)
    assert value(after) == pytest.approx(value(before), abs=1e-7)
    if aversion >= 0.01:
        assert np.allclose(after.weights_N, before.weights_N[rows], atol=1e-6)


@settings(deadline=None, max_examples=30)
@given(seeds)
def test_along_the_frontier_distance_rises_and_risk_falls(seed: int) -> None:
    supply, utility = problem(seed)
    tilts = frontier(supply, utility)
    assert [tilt.aversion for tilt in tilts] == [0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
    for bold, careful in itertools.pairwise(tilts):
        assert careful.distance >= bold.distance - 1e-7 and careful.risk <= bold.risk + 1e-6


@settings(deadline=None, max_examples=20)
@given(seeds, st.sampled_from(AVERSIONS))
def test_no_mix_of_a_grid_is_better(seed: int, aversion: float) -> None:
    supply, utility = problem(seed, most_sources=3, most_tasks=4)
    sources = len(supply.names)
    found = value(utilimax(supply, utility, aversion))
    steps = np.linspace(0, 1, 51)
    for head in itertools.product(steps, repeat=sources - 1):
        mix = np.array([*head, 1 - sum(head)])
        if mix[-1] >= 0 and np.all(mix <= supply.caps_N):
            assert found <= objective(utility, mix, aversion) + 1e-8


@pytest.mark.parametrize("seed", range(12))
def test_no_worse_than_scipy(seed: int) -> None:
    minimize = pytest.importorskip("scipy.optimize").minimize
    supply, utility = problem(seed)
    for aversion in AVERSIONS:
        peer = minimize(
            lambda w, aversion=aversion: objective(utility, w, aversion),
            unimax(supply),
            method="SLSQP",
            bounds=[(0, cap) for cap in supply.caps_N],
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        )
        assert value(utilimax(supply, utility, aversion)) <= peer.fun + 1e-7


@pytest.mark.parametrize("seed", range(12))
def test_equal_to_cvxpy(seed: int) -> None:
    cvxpy = pytest.importorskip("cvxpy")
    supply, utility = problem(seed)
    for aversion in AVERSIONS:
        w = cvxpy.Variable(len(supply.names))
        cost = cvxpy.norm(utility.T @ w - 1, 2) + aversion * len(supply.names) * cvxpy.sum_squares(w)
        peer = cvxpy.Problem(cvxpy.Minimize(cost), [w >= 0, w <= supply.caps_N, cvxpy.sum(w) == 1]).solve(
            solver="CLARABEL"
        )
        tilt = utilimax(supply, utility, aversion)
        assert value(tilt) == pytest.approx(peer, abs=2e-6)
        if aversion >= 0.1:
            assert np.allclose(tilt.weights_N, w.value, atol=1e-4)


def test_a_source_that_meets_every_task_is_taken_whole_by_the_bold() -> None:
    supply = Supply.of({"all": 1e9, "some": 1e9, "none": 1e9}, 1.0)
    tilt = utilimax(supply, np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]), 0.0)
    assert tilt.distance < 1e-8 and np.allclose(tilt.weights_N, [1, 0, 0], atol=1e-6)


def test_sources_that_are_all_but_equal_settle_too() -> None:
    supply = Supply(("a", "b", "c"), np.array([0.627, 1.686, 4.671]), 3.322, np.full(3, 4.0))
    tilt = utilimax(supply, np.array([[0.72490888], [0.72506174], [0.56495389]]), 0.0)
    assert tilt.weights_N == pytest.approx([0, 1, 0], abs=1e-6) and tilt.gap < 1e-8


@settings(deadline=None)
@given(seeds)
def test_with_one_task_and_no_aversion_it_is_the_linear_programme(seed: int) -> None:
    supply, utility = problem(seed, most_tasks=1)
    mix = utilimax(supply, utility, 0.0).weights_N
    assert mix @ utility[:, 0] == pytest.approx(most_utility(supply, utility[:, 0]) @ utility[:, 0], abs=1e-7)


def test_a_budget_that_cannot_be_filled_is_an_error() -> None:
    with pytest.raises(ShortSupply, match="cannot be filled"):
        utilimax(Supply.of({"a": 1.0, "b": 1.0}, 100.0), np.ones((2, 1)))


@pytest.mark.parametrize(
    "utility", [np.ones((3, 1)), np.ones((2, 0)), np.array([[1.0], [np.nan]]), np.array([[1.0], [1.5]])]
)
def test_nonsense_is_refused(utility: Floats) -> None:
    with pytest.raises(ValueError):
        utilimax(Supply.of({"a": 1.0, "b": 1.0}, 1.0), utility)


def test_a_thousand_sources_and_a_hundred_tasks_take_under_two_seconds() -> None:
    random = np.random.default_rng(0)
    sizes = random.lognormal(0, 2, 1000)
    supply = Supply.of({str(i): size for i, size in enumerate(sizes)}, sizes.sum(), 4.0)
    utility = random.random((1000, 100))
    start = time.process_time()
    tilt = utilimax(supply, utility)
    assert time.process_time() - start < 2
    assert tilt.gap < 1e-8
