"""The log-linear law: found again from its runs, and its best mix held against other solvers."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.kernels.base.types import Floats
from gristmill.mixing.weights.ablations import rank_correlation
from gristmill.mixing.weights.log_linear import HUBER, PULL, Law, capped_softmax, fit_law, objective, propose
from gristmill.mixing.weights.supply import Supply
from gristmill.mixing.weights.unimax import unimax
from tests.mixing.runs_of_a_law import Truth

seeds = st.integers(0, 2**32 - 1)
KLS = [0.003, 0.05, 1.0]


def problem(seed: int, most_sources: int = 10) -> tuple[Law, Floats, Floats, Floats]:
    random = np.random.default_rng(seed)
    sources, tasks = int(random.integers(1, most_sources + 1)), int(random.integers(1, 7))
    sizes = random.lognormal(0, 1.5, sources)
    caps = np.minimum(4 * sizes / (sizes.sum() * 4 * random.uniform(0.01, 1)), 1.0)
    law = Law(random.random(tasks), random.normal(0, random.choice([0.3, 2.0]), (tasks, sources)))
    return law, random.dirichlet(np.ones(tasks)), sizes / sizes.sum(), caps


def test_the_law_is_found_again_from_exact_runs() -> None:
    truth = Truth(runs=60)
    law = fit_law(truth.weights_RN, truth.losses_RT)
    mixes = np.random.default_rng(1).dirichlet(np.ones(5), 50)
    assert np.abs(law(mixes) - truth.losses(mixes)).max() < 0.01 * np.ptp(truth.losses(mixes))


@pytest.mark.parametrize("seed", range(12))
def test_the_fit_is_no_worse_than_scipys(seed: int) -> None:
    optimize, special = pytest.importorskip("scipy.optimize"), pytest.importorskip("scipy.special")
    truth = Truth(runs=(24, 48)[seed % 2], sources=3 + seed % 4, tasks=1, noise=(0.02, 0.1, 0.3)[seed % 3], seed=seed)
    weights_RN, losses_R = truth.weights_RN, truth.losses_RT[:, 0]
    spread = 1.4826 * float(np.median(np.abs(losses_R - np.median(losses_R))))

    def loss(at_P: Floats) -> float:
        off_N = at_P[:-1] - at_P[:-1].mean()
        residual_R = (np.exp(weights_RN @ at_P[:-1]) + np.exp(at_P[-1]) - losses_R) / spread
        return float(special.huber(HUBER, residual_R).sum() + PULL * len(losses_R) / 2 * off_N @ off_N)

    law = fit_law(weights_RN, losses_R[:, None])
    ours_P = np.append(law.slope_TN[0], np.log(max(law.floor_T[0], 1e-9)))
    starts = [ours_P, *(np.append(np.zeros(len(ours_P) - 1), np.log(s * losses_R.min())) for s in (0.1, 0.5, 0.9))]
    peers = [optimize.minimize(loss, start, method="BFGS", options={"gtol": 1e-7}).fun for start in starts]
    assert loss(ours_P) <= min(peers) * (1 + 1e-6)


def test_runs_that_went_wrong_bend_nothing() -> None:
    truth = Truth(runs=60, noise=0.02)
    truth.losses_RT[[3, 20, 41, 55]] *= [[3.0], [0.2], [10.0], [2.0]]
    law = fit_law(truth.weights_RN, truth.losses_RT)
    mixes = np.random.default_rng(1).dirichlet(np.ones(5), 50)
    assert np.abs(law(mixes) - truth.losses(mixes)).max() < 0.12 * np.ptp(truth.losses(mixes))


@pytest.mark.parametrize("times", [10, 1e4, 1e-4])
def test_one_run_far_away_does_not_turn_the_law_round(times: float) -> None:
    for seed in range(20):
        random = np.random.default_rng(seed)
        sources = int(random.integers(3, 8))
        weights_RN, slope_N = random.dirichlet(np.ones(sources), 4 * sources), random.normal(0, 0.5, (sources, 1))
        losses_RT = np.exp(weights_RN @ slope_N) + 0.5 + random.normal(0, 0.002, (4 * sources, 1))
        losses_RT[random.integers(4 * sources)] *= times
        others_KN = random.dirichlet(np.ones(sources), 200)
        assert rank_correlation(fit_law(weights_RN, losses_RT)(others_KN)[:, 0], (others_KN @ slope_N)[:, 0]) > 0.9, (
            seed
        )


def test_fewer_runs_than_sources_still_give_a_law() -> None:
    truth = Truth(runs=8, sources=20)
    law = fit_law(truth.weights_RN, truth.losses_RT)
    assert np.allclose(law(truth.weights_RN), truth.losses_RT, rtol=0.05)


def test_equal_losses_are_a_flat_law_and_losses_below_0_are_refused() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(3), 9)
    assert np.allclose(fit_law(weights, np.full((9, 1), 2.5))(weights), 2.5)
    with pytest.raises(ValueError, match="above 0"):
        fit_law(weights, np.zeros((9, 1)))


@settings(deadline=None)
@given(seeds, st.sampled_from(KLS))
def test_the_proposal_is_a_mix_within_caps_with_no_gap(seed: int, kl: float) -> None:
    law, a, prior, caps = problem(seed)
    found = propose(law, a, prior, caps, kl)
    assert (
        abs(found.weights_N.sum() - 1) < 1e-12
        and np.all(found.weights_N >= 0)
        and np.all(found.weights_N <= caps + 1e-12)
    )
    assert found.value == pytest.approx(objective(law, a, prior, kl, found.weights_N), abs=1e-9)
    assert found.gap < 1e-8 * (1 + found.value)


@settings(deadline=None)
@given(seeds, st.sampled_from(KLS), st.randoms(use_true_random=False))
def test_the_order_of_sources_and_tasks_changes_nothing(seed: int, kl: float, random) -> None:  # type: ignore[no-untyped-def]
    law, a, prior, caps = problem(seed)
    rows, columns = list(range(len(a))), list(range(len(prior)))
    random.shuffle(rows)
    random.shuffle(columns)
    other = propose(
        Law(law.floor_T[rows], law.slope_TN[np.ix_(rows, columns)]), a[rows], prior[columns], caps[columns], kl
    )
    assert np.allclose(other.weights_N, propose(law, a, prior, caps, kl).weights_N[columns], atol=1e-4)
    assert other.value == pytest.approx(propose(law, a, prior, caps, kl).value, abs=1e-8)


@pytest.mark.parametrize("seed", range(12))
def test_equal_to_cvxpy(seed: int) -> None:
    cvxpy = pytest.importorskip("cvxpy")
    law, a, prior, caps = problem(seed)
    for kl in KLS:
        w = cvxpy.Variable(len(prior))
        cost = a @ cvxpy.exp(law.slope_TN @ w) + kl * cvxpy.sum(cvxpy.rel_entr(w, prior))
        cvxpy.Problem(cvxpy.Minimize(cost), [w >= 0, w <= caps, cvxpy.sum(w) == 1]).solve(solver="CLARABEL")
        peer = objective(law, a, prior, kl, np.maximum(w.value, 0))  # its weights fall short of 0 by rounding
        assert propose(law, a, prior, caps, kl).value == pytest.approx(peer, abs=3e-6)


@pytest.mark.parametrize("seed", range(12))
def test_no_worse_than_scipy(seed: int) -> None:
    minimize = pytest.importorskip("scipy.optimize").minimize
    law, a, prior, caps = problem(seed)
    even = unimax(Supply.of({str(i): cap for i, cap in enumerate(caps)}, 1.0, 1.0))
    for kl in KLS:
        peer = minimize(
            lambda w, kl=kl: objective(law, a, prior, kl, np.maximum(w, 0)),
            even,
            method="SLSQP",
            bounds=[(0, cap) for cap in caps],
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        )
        mine = propose(law, a, prior, caps, kl)
        assert mine.value <= peer.fun + 1e-7 or abs(peer.x.sum() - 1) > 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_no_mix_of_a_grid_is_better(seed: int) -> None:
    law, a, prior, caps = problem(seed, most_sources=3)
    found = propose(law, a, prior, caps, 0.05).value
    looked = 0
    for head in itertools.product(np.linspace(0, 1, 41), repeat=len(prior) - 1):
        mix = np.array([*head, 1 - sum(head)])
        if mix[-1] >= 0 and np.all(mix <= caps):
            looked += 1
            assert found <= objective(law, a, prior, 0.05, mix) + 1e-9
    assert looked or len(prior) > 1


def test_a_law_that_says_nothing_leaves_the_prior() -> None:
    prior = np.array([0.2, 0.3, 0.5])
    assert np.allclose(
        propose(Law(np.zeros(1), np.zeros((1, 3))), np.ones(1), prior, np.ones(3), 0.05).weights_N, prior
    )
    capped = propose(Law(np.zeros(1), np.zeros((1, 3))), np.ones(1), prior, np.array([1, 1, 0.25]), 0.05).weights_N
    assert np.allclose(capped, [0.3, 0.45, 0.25])


def test_a_larger_kl_keeps_nearer_to_the_prior() -> None:
    law, a, prior, caps = (
        Law(np.zeros(1), np.array([[-2.0, 0.0, 1.0]])),
        np.ones(1),
        np.array([0.2, 0.3, 0.5]),
        np.ones(3),
    )
    first = [propose(law, a, prior, caps, kl).weights_N[0] for kl in (0.01, 0.1, 1.0, 100.0)]
    assert first == sorted(first, reverse=True) and first[0] > 0.99 and abs(first[-1] - 0.2) < 0.01


def test_a_source_of_prior_0_gets_nothing_and_what_is_left_must_suffice() -> None:
    law = Law(np.zeros(1), np.zeros((1, 3)))
    assert propose(law, np.ones(1), np.array([0.0, 0.5, 0.5]), np.ones(3), 0.05).weights_N[0] == 0
    with pytest.raises(ValueError, match="cannot fill the budget"):
        propose(law, np.ones(1), np.array([0.0, 0.5, 0.5]), np.array([1.0, 0.4, 0.4]), 0.05)
    with pytest.raises(ValueError, match="kl"):
        propose(law, np.ones(1), np.ones(3) / 3, np.ones(3), 0.0)


@given(st.integers(1, 40), st.integers(0, 20), seeds)
def test_sources_whose_caps_fill_the_budget_leave_nothing_for_others(filled: int, more: int, seed: int) -> None:
    logs = 100.0 * np.random.default_rng(seed).permutation(filled + more)
    mix = capped_softmax(logs, np.full(filled + more, 1 / filled))
    best = np.argsort(-logs)[:filled]
    assert abs(mix.sum() - 1) < 1e-12 and np.allclose(mix[best], 1 / filled) and np.count_nonzero(mix > 1e-12) == filled


def test_two_of_eight_equal_sources_are_proposed_where_two_at_their_caps_are_best() -> None:
    caps, prior, a = np.full(8, 0.5), np.full(8, 1 / 8), np.full(2, 0.5)
    pairs = [np.isin(np.arange(8), pair) / 2 for pair in itertools.combinations(range(8), 2)]
    for seed in range(40):
        law = Law(np.zeros(2), 4 * np.random.default_rng(seed).normal(size=(2, 8)))
        found = propose(law, a, prior, caps, 0.001)
        assert found.value <= min(objective(law, a, prior, 0.001, pair) for pair in pairs) + 1e-9 and found.gap >= -1e-9


@pytest.mark.parametrize("gap", [-0.01, 0.01, np.nan])
def test_a_gap_that_cannot_be_or_is_too_wide_is_refused(gap: float, monkeypatch: pytest.MonkeyPatch) -> None:
    law, a, prior, caps = problem(3)
    monkeypatch.setattr("gristmill.mixing.weights.log_linear._climb", lambda *_: (prior, 1.0, gap))
    with pytest.raises(ArithmeticError, match="a gap of"):
        propose(law, a, prior, caps, 0.05)


@given(st.lists(st.tuples(st.floats(-600, 600), st.floats(1e-6, 1)), min_size=1, max_size=12))
def test_a_capped_softmax_sums_to_one_at_one_level(pairs: list[tuple[float, float]]) -> None:
    logs, caps = np.array(pairs).T
    caps = np.minimum(caps + max(0.0, 1.001 - caps.sum()), 1.001)
    mix = capped_softmax(logs, caps)
    assert abs(mix.sum() - 1) < 1e-9 and np.all(mix <= caps)
    free = (mix < caps) & (mix > 1e-300)
    if free.any():
        levels = logs[free] - np.log(mix[free])
        assert np.ptp(levels) < 1e-6
        assert np.all(logs[mix >= caps] - np.log(caps[mix >= caps]) >= levels.max() - 1e-6)
