"""`--budget`: a run stops before it costs more, keeps what is finished, and resumes with a higher one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gristmill.pipeline.engine.budget import Budget
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.errors import OverBudget
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.recipe.recipe import Prices
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.records import Result, Task
from tests.pipeline.crawls import texts
from tests.pipeline.runs import Counting, lines, save, tree

RECIPE = """
name: r
sources: {a: {jsonl: {path: in}}}
parts: {files: 1, small_file: 1}
stages: [exact_dedup, write]
prices: {core_hour: 3600}
"""


def task(name: str, kind: str = "partition") -> Task:
    return Task(kind=kind, task=name, node="n", key=name, cost=1, out="")


def test_what_is_in_flight_counts_at_the_mean_of_its_kind() -> None:
    budget = Budget(10, Prices(core_hour=3600))
    assert budget.room_for([[task("a")], [task("b")]]) == 1, "the first tells what tasks cost"
    budget.counts(task("a"), Result(seconds=2.0))
    assert budget.room_for([[task(name)] for name in "bcdefgh"]) == 4, "2 are spent, 4 times 2 fit beside them"
    budget.counts(task("b"), Result(seconds=1.0))
    assert budget.spent == 3 and not budget.allows([task("f")])
    budget.counts(task("c"), Result(seconds=0.0))
    assert budget.allows([task("f")]), "what cost less than was expected leaves room"
    assert budget.allows([task("f")]), "and one that is sent again is no other"


@pytest.mark.run
def test_a_run_stops_and_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    for n in range(12):
        lines(tmp_path / "in" / f"{n}.jsonl", texts(20 + n))
    recipe = recipes.load(save(tmp_path / "r.yaml", RECIPE))
    run(recipe, str(tmp_path / "whole"), Where(1), Counting())
    cost = json.loads((tmp_path / "whole" / "run.json").read_text())["cost"]["amount"]
    stopped, spent = 0, 0.0
    for share in (0.2, 0.5, 0.8, 50):
        try:
            run(recipe, str(tmp_path / "out"), Where(1), Counting(), budget=cost * share)
        except OverBudget as error:
            stopped += 1
            record = json.loads((tmp_path / "out" / "run.json").read_text())
            assert record["status"] == "interrupted" and "the same command with a higher --budget" in record["error"]
            assert error.exit_code == 4 and "USD of the budget of" in str(error)
            assert spent <= record["cost"]["amount"]
            spent = record["cost"]["amount"]
    assert stopped >= 1
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "done"
    assert tree(tmp_path / "out", "write") == tree(tmp_path / "whole", "write") and tree(tmp_path / "out", "write")
