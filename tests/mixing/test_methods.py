"""Every method through one door: mixes within caps, the same in any order of sources, errors where there is too little,
and plain facts."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gristmill.mixing.methods import LOOKED_AT, METHODS, Choice, choose
from gristmill.mixing.weights import utilimax
from gristmill.mixing.weights.supply import ShortSupply, Supply
from gristmill.mixing.weights.unimax import unimax
from gristmill.mixing.weights.utility import Utilities
from tests.mixing.runs_of_a_law import Truth

TRUTH = Truth(runs=40, noise=0.05)
RANDOM = np.random.default_rng(2)
TABLE = Utilities(
    TRUTH.sources, ("x", "y", "noise", "flat"), RANDOM.random((5, 4)) * [1, 1, 0.01, 0], np.full((5, 4), 0.05)
)
CHOICES = {
    "given": Choice("given", weights={"s0": 1, "s1": 2, "s2": 1, "s3": 3, "s4": 1}),
    "proportional": Choice("proportional"),
    "temperature": Choice("temperature", temperature=1.5),
    "unimax": Choice("unimax"),
    "utilimax": Choice("utilimax", utilities=TABLE, aversion=0.1),
    "most_utility": Choice("most_utility", utilities=TABLE, task_weights={"x": 2.0, "y": 1.0}),
    "regmix": Choice("regmix", ablations=TRUTH.table(), candidates=2000, regressor="ridge"),
    "regmix of trees": Choice("regmix", ablations=TRUTH.table(), candidates=2000, task_weights={"t0": 1.0}),
    "log_linear": Choice("log_linear", ablations=TRUTH.table()),
}
every_method = pytest.mark.parametrize("name", CHOICES)


def supply(fill: float = 0.15, order: list[int] | None = None) -> Supply:
    return Supply.of(TRUTH.tokens(order), 4 * fill)


@every_method
def test_a_mix_within_caps_with_plain_facts(name: str) -> None:
    mix = choose(supply(), CHOICES[name])
    supply().check_mix(mix.weights_N)
    assert np.allclose(mix.epochs_N, 0.6 * mix.weights_N / TRUTH.shares_N)
    facts = json.loads(json.dumps(mix.facts, allow_nan=False))
    assert facts == mix.facts and facts["method"] == CHOICES[name].method
    assert [source["weight"] for source in facts["sources"]] == mix.weights_N.tolist() and facts["sources"][0][
        "source"
    ] == "s0"


@every_method
def test_permuting_sources_permutes_weights(name: str) -> None:
    order = [3, 0, 4, 2, 1]
    before, after = choose(supply(), CHOICES[name]), choose(supply(order=order), CHOICES[name])
    assert np.allclose(after.weights_N, before.weights_N[order], atol=1e-9)
    assert [source["source"] for source in after.facts["sources"]] == [f"s{i}" for i in order]


@every_method
def test_an_infeasible_budget_is_an_error(name: str) -> None:
    with pytest.raises(ShortSupply):
        choose(supply(fill=1.1), CHOICES[name])


@pytest.mark.parametrize("name", ["unimax", "utilimax", "most_utility", "regmix", "log_linear"])
def test_a_budget_of_all_there_is_takes_all_there_is(name: str) -> None:
    assert np.allclose(choose(supply(fill=1.0), CHOICES[name]).epochs_N, 4.0, atol=1e-6)


def test_all_methods_are_here() -> None:
    assert set(METHODS) == set(LOOKED_AT) == {choice.method for choice in CHOICES.values()}


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Choice("given"), "the method given needs weights"),
        (Choice("utilimax"), "needs utilities"),
        (Choice("log_linear"), "needs ablations"),
        (Choice("unimax", temperature=2.0), "the method unimax does not look at temperature"),
        (replace(CHOICES["utilimax"], task_weights={"x": 1.0}), "does not look at task_weights"),
        (replace(CHOICES["most_utility"], task_weights={"z": 1.0}), "no task 'z'"),
        (replace(CHOICES["most_utility"], task_weights={"noise": 1.0}), "tells sources apart"),
        (replace(CHOICES["regmix"], best=0), "best is 0"),
        (replace(CHOICES["log_linear"], prior={"s0": 1.0}), "prior: none given for 's1'"),
        (replace(CHOICES["utilimax"], utilities=TABLE.of_sources(("s0", "s1"))), "utilities: none given for 's2'"),
    ],
)
def test_what_is_lacking_or_idle_is_an_error(choice: Choice, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        choose(supply(), choice)


def test_tasks_of_noise_are_dropped_and_said_so() -> None:
    facts = choose(supply(), CHOICES["utilimax"]).facts
    assert facts["tasks"] == ["x", "y"] and [task["task"] for task in facts["dropped_tasks"]] == ["noise", "flat"]
    assert "under 2 standard errors" in facts["dropped_tasks"][0]["reason"] and facts["flagged_tasks"] == []
    assert "noise" in facts["warnings"][0]


def test_tasks_of_noise_stay_where_they_are_only_flagged() -> None:
    facts = choose(supply(), replace(CHOICES["utilimax"], noise="flag")).facts
    assert facts["tasks"] == ["x", "y", "noise"] and [task["task"] for task in facts["flagged_tasks"]] == ["noise"]
    assert [task["task"] for task in facts["dropped_tasks"]] == ["flat"]
    as_given = choose(supply(), replace(CHOICES["utilimax"], noise="flag", scale="as_given")).facts
    assert len(as_given["tasks"]) == 4 and as_given["distance"] > facts["distance"]


def test_tasks_that_all_are_noise_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"no task tells the sources apart.*unimax"):
        choose(supply(), replace(CHOICES["utilimax"], utilities=TABLE.of_tasks(("noise", "flat"))))


def test_utilities_without_errors_say_that_noise_was_not_tested() -> None:
    facts = choose(supply(), replace(CHOICES["utilimax"], utilities=replace(TABLE, errors_NT=np.zeros((5, 4))))).facts
    assert facts["tasks"] == ["x", "y", "noise"] and "without standard errors" in facts["warnings"][-1]


def test_the_frontier_holds_the_mix_that_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[float] = []
    solve = utilimax._solve
    monkeypatch.setattr(
        utilimax,
        "_solve",
        lambda table, caps, penalty, even: solved.append(penalty) or solve(table, caps, penalty, even),
    )
    facts = choose(supply(), replace(CHOICES["utilimax"], aversion=0.2)).facts
    points = {point["aversion"]: point for point in facts["frontier"]}
    assert len(points) == 9 == len(solved) and facts["gap"] < 1e-8
    assert all(points[0.2][name] == facts[name] for name in ("aversion", "distance", "risk", "gap"))
    assert points[0.2]["largest_weight"] == max(source["weight"] for source in facts["sources"])
    distances = [point["distance"] for point in facts["frontier"]]
    assert distances == sorted(distances) and facts["controls"]["unimax"]["distance"] > facts["distance"]


@pytest.mark.parametrize("name", ["regmix", "regmix of trees", "log_linear"])
def test_a_fitted_mix_is_better_than_the_controls_by_the_law_itself(name: str) -> None:
    choice = CHOICES[name]
    mix = choose(supply(), choice)
    tasks = [0] if choice.task_weights else [0, 1, 2]

    def loss(weights: Any) -> float:
        return float(TRUTH.losses(weights[None])[0, tasks].mean())

    assert loss(mix.weights_N) < min(loss(TRUTH.shares_N), loss(unimax(supply())))
    assert mix.facts["rank_correlation"] > 0.8 and len(mix.facts["rank_correlation_by_task"]) == len(tasks)
    assert mix.facts["predicted_loss"] < mix.facts["controls"]["proportional"]["predicted_loss"]


def test_the_seed_alone_decides_candidates() -> None:
    first, again = (choose(supply(), CHOICES["regmix"]).weights_N for _ in range(2))
    other = choose(supply(), replace(CHOICES["regmix"], seed=1)).weights_N
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_a_source_that_no_run_has_seen_is_named() -> None:
    truth = Truth(runs=40)
    truth.weights_RN[:, 2] = 0
    truth.weights_RN /= truth.weights_RN.sum(axis=1, keepdims=True)
    truth.losses_RT = truth.losses(truth.weights_RN)
    facts = choose(supply(), Choice("log_linear", ablations=truth.table())).facts
    assert any("no run has seen 's2'" in warning for warning in facts["warnings"])
