"""The time left of a run: measured by its finished tasks, and nothing before."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from gristmill.pipeline.engine.executor import InlineExecutor
from gristmill.pipeline.json_types import StageSpec
from gristmill.pipeline.plan.plan import Plan, make_plan
from gristmill.pipeline.progress.progress import NodeProgress, ProgressRecorder, Quiet
from gristmill.pipeline.progress.terminal import time_left
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.store.records import (
    MapResult,
    MapTask,
    RejectsSettings,
    Result,
    RoundKind,
    RoundTask,
    Task,
)
from gristmill.pipeline.store.storage import Store
from tests.pipeline.runs import save

TEXT = "name: a\nsources: {a: {jsonl: {path: in}}}\nstages: [exact_dedup, {sample: {rate: 0.5}}, write]\n"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Nodes: the map node `a`, the global stage `exact_dedup`, the map node `sample`."""
    return make_plan(recipes.load(save(tmp_path_factory.mktemp("plan") / "a.yaml", TEXT)))


REJECTS, SPEC = RejectsSettings(1.0, True), StageSpec(stage="s", settings={}, code=None)


def task(node: str, kind: str = "partition", cost: int = 100, round: int = 0) -> Task:
    if kind == "partition":
        return MapTask(
            task="t", node=node, key="k", cost=cost, out="", source="a", phases=(), rejects=REJECTS, batch_bytes=1
        )
    return RoundTask(
        kind=cast(RoundKind, kind), task="t", node=node, key="k", cost=cost, out="", stage=SPEC, method="m", round=round
    )


def result_of(kind: str, seconds: float) -> Result:
    return MapResult(phases=(), seconds=seconds) if kind == "partition" else Result(seconds=seconds)


class Clock(ProgressRecorder):
    """A recorder that is told of made tasks."""

    def __init__(self, plan: Plan, workers: int = 1) -> None:
        super().__init__(Quiet(), "a", plan.nodes, lambda _: [])
        self.executor = InlineExecutor(Store(""))
        self.executor.workers = workers
        self.plan = plan

    def begin(self, node: str, tasks: int, kind: str = "partition", **more: int) -> None:
        self.begins(next(each for each in self.plan.nodes if each.name == node), tasks)
        self.expects([task(node, kind, **more)] * tasks)

    def finish(self, node: str, tasks: int, seconds: float, kind: str = "partition", **more: int) -> None:
        for _ in range(tasks):
            self.finished(task(node, kind, **more), result_of(kind, seconds), anew=True)

    def node(self, name: str) -> NodeProgress:
        return next(node for node in self.facts().nodes if node.name == name)

    def left(self, name: str) -> float | None:
        return self.node(name).seconds_left


def test_nothing_is_shown_before_a_task_has_finished(plan: Plan) -> None:
    clock = Clock(plan)
    assert [node.name for node in plan.nodes] == ["a", "exact_dedup", "sample"]
    assert clock.facts().seconds_left is None and time_left(clock.facts()) == ""
    clock.begin("a", 100)
    assert clock.left("a") is None and time_left(clock.facts()) == ""
    clock.finish("a", 20, seconds=1.0)
    assert clock.left("a") == pytest.approx(80) and clock.node("a").share == pytest.approx(0.2)
    assert clock.facts().seconds_left is None, "that of the others is not known"
    assert time_left(clock.facts()) == "about 80 s left for 1 of 3 nodes"


def test_two_workers_take_half_of_the_time_but_not_over_one_task(plan: Plan) -> None:
    clock = Clock(plan, workers=2)
    clock.begin("a", 100)
    clock.finish("a", 20, seconds=1.0)
    assert clock.left("a") == pytest.approx(40)
    clock.finish("a", 79, seconds=1.0)
    assert clock.left("a") == pytest.approx(1)


def test_time_goes_by_bytes_and_by_what_tasks_took_last(plan: Plan) -> None:
    clock = Clock(plan)
    clock.begins(plan.nodes[0], 300)
    clock.expects([task("a", cost=10**6)] * 100 + [task("a", cost=10**7)] * 200)
    clock.finish("a", 100, seconds=1.0, cost=10**6)
    assert clock.left("a") == pytest.approx(2000, rel=0.01), "the others are ten times as large"
    clock.finish("a", 100, seconds=20.0, cost=10**7)
    assert clock.left("a") == pytest.approx(2000, rel=0.02), "and turn out to take twice as long for a byte"


def test_tasks_without_bytes_count_each_the_same(plan: Plan) -> None:
    clock = Clock(plan)
    clock.begin("a", 10, cost=0)
    clock.finish("a", 5, seconds=2.0, cost=0)
    assert clock.left("a") == pytest.approx(10) and clock.node("a").share == 0.5


def test_a_global_stage_shows_its_round_and_no_time(plan: Plan) -> None:
    clock = Clock(plan)
    clock.begin("exact_dedup", 10, "map", round=0)
    clock.finish("exact_dedup", 5, 2.0, "map", round=0)
    assert clock.left("exact_dedup") is None
    node = clock.node("exact_dedup")
    assert (node.round, node.round_tasks, node.round_done, node.share) == (1, 10, 5, 0.5)


def test_the_whole_is_known_once_every_node_is(plan: Plan) -> None:
    clock = Clock(plan)
    clock.begin("a", 10)
    clock.finish("a", 5, seconds=2.0)
    assert clock.facts().seconds_left is None
    clock.ends(plan.nodes[1])
    clock.begin("sample", 10)
    clock.finish("sample", 5, seconds=30.0)
    assert clock.facts().seconds_left == pytest.approx(160) and time_left(clock.facts()) == "about 2.7 min left"
    for node in plan.nodes:
        clock.ends(node)
    assert clock.facts().seconds_left is None and {node.share for node in clock.facts().nodes} == {1.0}


EVENTS = st.tuples(
    st.sampled_from(["begin", "finish"]),
    st.sampled_from(["a", "exact_dedup", "sample"]),
    st.integers(0, 5),
    st.sampled_from(["partition", "map", "drop"]),
    st.integers(0, 10**12),
    st.integers(0, 3),
    st.floats(0, 1e6),
)


@given(st.lists(EVENTS, max_size=30))
def test_whatever_happens_there_is_an_answer(plan: Plan, events: list[Any]) -> None:
    clock = Clock(plan, workers=3)
    for what, node, tasks, kind, cost, round_, seconds in events:
        if what == "begin":
            clock.begin(node, tasks, kind, cost=cost, round=round_)
        else:
            clock.finish(node, tasks, seconds, kind, cost=cost, round=round_)
        for each in clock.facts().nodes:
            assert 0 <= each.share <= 1
            assert each.seconds_left is None or (each.seconds_left >= 0 and math.isfinite(each.seconds_left))
