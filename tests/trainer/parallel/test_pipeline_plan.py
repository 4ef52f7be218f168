"""Schedules of pipelines: every action once, in an order that does not stand still, idle as long as the papers say."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from gristmill.trainer.model.shapes import shape_named
from gristmill.trainer.parallel.pipeline_plan import (
    Action,
    Plan,
    Schedule,
    _kept,
    _simulate,
    plan_for,
    ranks_of,
)  # fmt: skip
from gristmill.trainer.run.settings import SCHEDULES, SPLIT
from tests.trainer.tiny import memory


def even(schedule: Schedule, ranks: int) -> Plan:
    """Stages of equal work, that of a rank 1."""
    stages = len(ranks_of(schedule, ranks))
    return Plan(schedule, ranks, tuple(pairwise(range(stages + 1))), (ranks / stages,) * stages, 0.0)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_action_is_done_once_after_what_it_needs(schedule: Schedule) -> None:
    for ranks in (2, 3, 4, 7):
        for micros in (*range(1, 12), 16, 29):
            plan = even(schedule, ranks)
            orders = plan.orders(micros)
            kinds = 3 if schedule in SPLIT else 2
            assert len({action for order in orders for action in order}) == sum(map(len, orders))
            assert sum(map(len, orders)) == kinds * micros * len(plan.layers)
            done: set[Action] = set()
            at = [0] * ranks
            while any(at[rank] < len(order) for rank, order in enumerate(orders)):
                before = len(done)
                for rank, order in enumerate(orders):
                    while at[rank] < len(order) and needs(order[at[rank]], plan) <= done:
                        done.add(order[at[rank]])
                        at[rank] += 1
                assert len(done) > before
            assert all(plan.rank_of[action.stage] == rank for rank, order in enumerate(orders) for action in order)


def needs(action: Action, plan: Plan) -> set[Action]:
    kind, stage, micro = action
    if kind == "weights":
        return {Action("backward", stage, micro)}
    if kind == "forward":
        return {Action("forward", stage - 1, micro)} if stage else set()
    later = {Action("backward", stage + 1, micro)} if stage < plan.last else set()
    return {Action("forward", stage, micro)} | later


def test_idle_time_and_memory_are_those_of_the_papers() -> None:
    for ranks in (2, 4, 8):
        for micros in (ranks, 2 * ranks, 4 * ranks):
            idle = {name: _simulate(even(name, ranks), micros)[1] / (3 * micros) - 1 for name in SCHEDULES}
            bubble = (ranks - 1) / micros
            assert idle["1f1b"] == pytest.approx(bubble)
            assert idle["interleaved"] == pytest.approx(bubble / 2)
            assert idle["zb1p"] == pytest.approx(bubble / 3)
            assert idle["zbv"] <= bubble / 6 + 1e-9
            kept = {name: most_kept(even(name, ranks), micros) for name in SCHEDULES}
            assert kept["1f1b"] == kept["zb1p"] == kept["zbv"] == ranks
            assert kept["interleaved"] <= 1.5 * ranks


def most_kept(plan: Plan, micros: int) -> float:
    """Micro-batches of all of a rank's blocks."""
    most = []
    for rank, order in enumerate(plan.orders(micros)):
        kept = peak = 0
        for action in order:
            kept += action.kind == "forward"
            peak = max(peak, kept)
            kept -= action.kind == ("weights" if plan.schedule in SPLIT else "backward")
        most.append(peak / len(plan.stages(rank)))
    return max(most)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_many_micro_batches_are_foreseen_by_a_few(schedule: Schedule) -> None:
    shape = shape_named("1.3b", 50_304)
    for ranks, micros in ((2, 64), (4, 64), (4, 67), (8, 128), (8, 131)):
        plan = plan_for(shape, ranks, schedule)
        for few, all_ in zip(plan.kept(micros), _kept(plan, micros), strict=True):
            for waiting in (0, 2):  # bytes of a block that waits, over those of one that is kept
                most, needed = (max(a + waiting * b for a, b in moments) for moments in (few, all_))
                assert needed <= most <= 1.25 * needed


def test_stages_have_equal_work_and_not_equal_blocks() -> None:
    shape = shape_named("1.3b", 50_304)
    assert [b - a for a, b in plan_for(shape, 2, "1f1b").layers] == [11, 9]  # the head weighs as much as 1.6 blocks
    for ranks in (2, 3, 4, 5):
        for schedule in SCHEDULES:
            plan = plan_for(shape, ranks, schedule)
            assert plan.layers[0][0] == 0 and plan.layers[-1][1] == 20
            assert all(a < b == c for (a, b), (c, _) in pairwise(plan.layers))
            loads = [sum(plan.work[stage] for stage in plan.stages(rank)) for rank in range(ranks)]
            assert max(loads) - sum(loads) / ranks < max(plan.work) / (plan.layers[0][1] - plan.layers[0][0])


def test_a_stage_takes_less_and_the_first_keeps_most() -> None:
    shape = shape_named("1.3b", 50_304)
    plan = plan_for(shape, 4, "1f1b")
    staged: dict[str, Any] = {"passes": 16, "pipeline": 4}
    ranks = [memory(shape, 8192, **staged, pipeline_schedule="1f1b", place=rank) for rank in range(4)]
    assert memory(shape, 8192, **staged, pipeline_schedule="1f1b") == max(ranks, key=lambda rank: rank.peak) == ranks[0]
    assert ranks[0].peak < memory(shape, 8192, passes=16).peak
    held = [b - a for a, b in plan.layers]
    assert [rank.activations // rank.block for rank in ranks] == [(4 - at) * blocks for at, blocks in enumerate(held)]
    assert sum(rank.weights for rank in ranks) == memory(shape, 8192).weights
    late = memory(shape, 8192, **staged, pipeline_schedule="zbv", recompute="full")
    soon = memory(shape, 8192, **staged, pipeline_schedule="interleaved", recompute="full")
    assert late.activations > soon.activations  # what weight gradients wait for
