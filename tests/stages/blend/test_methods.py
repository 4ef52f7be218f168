"""Every method through one door: mixes within caps, the same in any order of sources, errors where there is too little,
and plain facts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from gristmill.mixing.weights import utilimax
from gristmill.mixing.weights.supply import ShortSupply, Supply
from gristmill.mixing.weights.unimax import unimax
from gristmill.mixing.weights.utility import Utilities
from gristmill.stages.blend.methods import (
    AnyMethod,
    Given,
    LogLinear,
    Method,
    MostUtility,
    Proportional,
    Regmix,
    Temperature,
    Unimax,
    Utilimax,
    choose,
)
from gristmill.stages.one_of import kinds_in, name_of
from tests.mixing.runs_of_a_law import Truth
from tests.stages.blend.tables_as_csv import save_ablations, save_utilities

TRUTH = Truth(runs=40, noise=0.05)
RANDOM = np.random.default_rng(2)
TABLE = Utilities(
    TRUTH.sources, ("x", "y", "noise", "flat"), RANDOM.random((5, 4)) * [1, 1, 0.01, 0], np.full((5, 4), 0.05)
)
NAMES = [*kinds_in(AnyMethod), "regmix of trees"]
every_method = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Method]:
    folder = tmp_path_factory.mktemp("tables")
    utilities = save_utilities(folder / "utilities.csv", TABLE)
    runs = save_ablations(folder / "runs.csv", TRUTH.table())
    made: list[Method] = [
        Given(weights={"s0": 1, "s1": 2, "s2": 1, "s3": 3, "s4": 1}),
        Proportional(),
        Temperature(temperature=1.5),
        Unimax(),
        Utilimax(utilities_file=utilities, aversion=0.1),
        MostUtility(utilities_file=utilities, task_weights={"x": 2.0, "y": 1.0}),
        Regmix(ablations_file=runs, candidates=2000, regressor="ridge"),
        LogLinear(ablations_file=runs),
    ]
    trees = Regmix(ablations_file=runs, candidates=2000, task_weights={"t0": 1.0}, regressor="trees")
    return {name_of(method): method for method in made} | {"regmix of trees": trees}


def changed(method: Method, **settings: Any) -> Method:
    """Checked, unlike a copy."""
    return type(method)(**method.model_dump() | settings)


def supply(fill: float = 0.15, order: list[int] | None = None) -> Supply:
    return Supply.of(TRUTH.tokens(order), 4 * fill)


@every_method
def test_a_mix_within_caps_with_plain_facts(name: str, methods: dict[str, Method]) -> None:
    mix = choose(supply(), methods[name])
    supply().check_mix(mix.weights_N)
    assert np.allclose(mix.epochs_N, 0.6 * mix.weights_N / TRUTH.shares_N)
    facts = json.loads(json.dumps(mix.facts, allow_nan=False))
    assert facts == mix.facts and facts["method"] == name.split(" ")[0]
    assert [source["weight"] for source in facts["sources"]] == mix.weights_N.tolist() and facts["sources"][0][
        "source"
    ] == "s0"


@every_method
def test_permuting_sources_permutes_weights(name: str, methods: dict[str, Method]) -> None:
    order = [3, 0, 4, 2, 1]
    before, after = choose(supply(), methods[name]), choose(supply(order=order), methods[name])
    assert np.allclose(after.weights_N, before.weights_N[order], atol=1e-9)
    assert [source["source"] for source in after.facts["sources"]] == [f"s{i}" for i in order]


@every_method
def test_an_infeasible_budget_is_an_error(name: str, methods: dict[str, Method]) -> None:
    with pytest.raises(ShortSupply):
        choose(supply(fill=1.1), methods[name])


@pytest.mark.parametrize("name", ["unimax", "utilimax", "most_utility", "regmix", "log_linear"])
def test_a_budget_of_all_there_is_takes_all_there_is(name: str, methods: dict[str, Method]) -> None:
    assert np.allclose(choose(supply(fill=1.0), methods[name]).epochs_N, 4.0, atol=1e-6)


def test_all_methods_are_here(methods: dict[str, Method]) -> None:
    assert set(methods) == set(NAMES) and len(NAMES) == 9
    titles = [kind.title for kind in kinds_in(AnyMethod).values() if issubclass(kind, Method)]
    assert len(set(titles)) == len(titles) == 8


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("most_utility", {"task_weights": {"z": 1.0}}, "no task 'z'; there are 'x', 'y', 'noise', 'flat'"),
        ("log_linear", {"task_weights": {"z": 1.0}}, "no task 'z'; there are 't0', 't1', 't2'"),
        ("log_linear", {"prior": {"s0": 0.0}}, "one number at least must be above 0"),
        ("regmix", {"best": 0}, "greater than or equal to 1"),
        ("regmix", {"best": 7, "candidates": 6}, "best is 7 of 6 candidates"),
        ("utilimax", {"task_weights": {"x": 1.0}}, "Extra inputs"),
        ("utilimax", {"utilities_file": "nowhere.csv"}, "there is no file nowhere.csv"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    name: str, settings: dict[str, Any], said: str, methods: dict[str, Method]
) -> None:
    with pytest.raises(ValidationError, match=said):
        changed(methods[name], **settings)


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("most_utility", {"task_weights": {"noise": 1.0}}, "tells sources apart"),
        ("log_linear", {"prior": {"s0": 1.0}}, "prior: none given for 's1'"),
    ],
)
def test_settings_that_do_not_go_with_the_supply_are_an_error(
    name: str, settings: dict[str, Any], said: str, methods: dict[str, Method]
) -> None:
    with pytest.raises(ValueError, match=said):
        choose(supply(), changed(methods[name], **settings))


def test_a_table_must_speak_of_every_source(methods: dict[str, Method], tmp_path: Path) -> None:
    few = save_utilities(tmp_path / "few.csv", TABLE.of_sources(("s0", "s1")))
    with pytest.raises(ValueError, match="utilities: none given for 's2'"):
        choose(supply(), changed(methods["utilimax"], utilities_file=few))


def test_tasks_of_noise_are_dropped_and_said_so(methods: dict[str, Method]) -> None:
    facts = choose(supply(), methods["utilimax"]).facts
    assert facts["tasks"] == ["x", "y"] and [task["task"] for task in facts["dropped_tasks"]] == ["noise", "flat"]
    assert "under 2 standard errors" in facts["dropped_tasks"][0]["reason"] and facts["flagged_tasks"] == []
    assert "noise" in facts["warnings"][0]


def test_tasks_of_noise_stay_where_they_are_only_flagged(methods: dict[str, Method]) -> None:
    facts = choose(supply(), changed(methods["utilimax"], noise="flag")).facts
    assert facts["tasks"] == ["x", "y", "noise"] and [task["task"] for task in facts["flagged_tasks"]] == ["noise"]
    assert [task["task"] for task in facts["dropped_tasks"]] == ["flat"]
    as_given = choose(supply(), changed(methods["utilimax"], noise="flag", scale="as_given")).facts
    assert len(as_given["tasks"]) == 4 and as_given["distance"] > facts["distance"]


def test_tasks_that_all_are_noise_are_an_error(methods: dict[str, Method], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no task tells the sources apart.*unimax"):
        choose(
            supply(),
            changed(
                methods["utilimax"],
                utilities_file=save_utilities(tmp_path / "u.csv", TABLE.of_tasks(("noise", "flat"))),
            ),
        )


def test_utilities_without_errors_say_that_noise_was_not_tested(methods: dict[str, Method], tmp_path: Path) -> None:
    facts = choose(
        supply(),
        changed(
            methods["utilimax"],
            utilities_file=save_utilities(tmp_path / "u.csv", replace(TABLE, errors_NT=np.zeros((5, 4)))),
        ),
    ).facts
    assert facts["tasks"] == ["x", "y", "noise"] and "without standard errors" in facts["warnings"][-1]


def test_the_frontier_holds_the_mix_that_was_taken(monkeypatch: pytest.MonkeyPatch, methods: dict[str, Method]) -> None:
    solved: list[float] = []
    solve = utilimax._solve
    monkeypatch.setattr(
        utilimax,
        "_solve",
        lambda table, caps, penalty, even: solved.append(penalty) or solve(table, caps, penalty, even),
    )
    facts = choose(supply(), changed(methods["utilimax"], aversion=0.2)).facts
    points = {point["aversion"]: point for point in facts["frontier"]}
    assert len(points) == 9 == len(solved) and facts["gap"] < 1e-8
    assert all(points[0.2][name] == facts[name] for name in ("aversion", "distance", "risk", "gap"))
    assert points[0.2]["largest_weight"] == max(source["weight"] for source in facts["sources"])
    distances = [point["distance"] for point in facts["frontier"]]
    assert distances == sorted(distances) and facts["controls"]["unimax"]["distance"] > facts["distance"]


@pytest.mark.parametrize("name", ["regmix", "regmix of trees", "log_linear"])
def test_a_fitted_mix_is_better_than_the_controls_by_the_law_itself(name: str, methods: dict[str, Method]) -> None:
    mix = choose(supply(), methods[name])
    tasks = [0] if name == "regmix of trees" else [0, 1, 2]

    def loss(weights: Any) -> float:
        return float(TRUTH.losses(weights[None])[0, tasks].mean())

    assert loss(mix.weights_N) < min(loss(TRUTH.shares_N), loss(unimax(supply())))
    assert mix.facts["rank_correlation"] > 0.8 and len(mix.facts["rank_correlation_by_task"]) == len(tasks)
    assert mix.facts["predicted_loss"] < mix.facts["controls"]["proportional"]["predicted_loss"]


def test_the_seed_alone_decides_candidates(methods: dict[str, Method]) -> None:
    first, again = (choose(supply(), methods["regmix"]).weights_N for _ in range(2))
    other = choose(supply(), methods["regmix"], seed=1).weights_N
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_a_source_that_no_run_has_seen_is_named(tmp_path: Path) -> None:
    truth = Truth(runs=40)
    truth.weights_RN[:, 2] = 0
    truth.weights_RN /= truth.weights_RN.sum(axis=1, keepdims=True)
    truth.losses_RT = truth.losses(truth.weights_RN)
    facts = choose(supply(), LogLinear(ablations_file=save_ablations(tmp_path / "runs.csv", truth.table()))).facts
    assert any("no run has seen 's2'" in warning for warning in facts["warnings"])
