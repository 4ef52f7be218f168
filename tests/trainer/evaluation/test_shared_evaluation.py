"""Ranks share an evaluation, and what they say together is what one says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from gristmill.trainer.evaluation.scoring import balance_shares
from tests.trainer.parallel.layouts import Evaluated, Layout, evaluated, together

LAYOUTS = {
    "each has the model": Layout(),
    "cut over the ranks": Layout(zero=3),
    "cut, in bf16": Layout("bf16", zero=2),
    "fp16": Layout("fp16", zero=1),
    "layers shared": Layout(tensor=2),
    "blocks shared": Layout("bf16", pipeline=2),
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    assert together(tuple(Evaluated(name, layout) for name, layout in LAYOUTS.items()), folder) == [0, 0]
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_two_ranks_find_what_one_finds(ranks: Path, name: str) -> None:
    layout = LAYOUTS[name]
    first, second = (json.loads((ranks / f"{name}.{rank}.json").read_text()) for rank in range(2))
    alone = evaluated(Layout(layout.precision))
    assert first == second and len(first["nats"]) == 40 and min(first["nats"]) > 0
    if layout.tensor > 1 or layout.pipeline > 1:  # sums of halves, or rounded between stages; both do all of it
        assert first["nats"] == pytest.approx(alone["nats"], rel=1e-5) and first["passes"] == alone["passes"]
        return
    assert first["nats"] == alone["nats"] and first["few"] == alone["few"]
    assert alone["passes"] == 16 and first["passes"] == 9  # of 15 packs and of 1; what is left over is done twice


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 9))
def test_everything_is_dealt_once_and_evenly(costs: list[int], count: int) -> None:
    shares = balance_shares(costs, count)
    assert sorted(number for share in shares for number in share) == list(range(len(costs))) and len(shares) == count
    sums = [sum(costs[number] for number in share) for share in shares]
    assert max(sums) - min(sums) <= max(costs, default=0)
