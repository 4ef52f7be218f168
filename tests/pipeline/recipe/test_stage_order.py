"""Stages stand in the order in which documents meet them, whichever source is named first."""

from __future__ import annotations

from pathlib import Path

from gristmill.pipeline.look.run_folder import record_so_far
from gristmill.pipeline.plan.plan import in_one_order, make_plan
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.store.run_records import RunRecord
from tests.pipeline.runs import save

RECIPE = """
name: two_ways
sources:
  books: {jsonl: {path: books}}
  web: {jsonl: {path: web}, stages: [repair, gopher_repetition]}
stages: [gopher_quality, write]
"""


def test_what_only_a_later_source_passes_stands_before_what_it_shares(tmp_path: Path) -> None:
    plan = make_plan(recipes.load(save(tmp_path / "r.yaml", RECIPE)))
    names = [name for name, _ in plan.stage_order()]
    assert names[:2] == ["books", "web"] and names[-1] == "write"
    assert names.index("repair") < names.index("gopher_repetition") < names.index("gopher_quality")
    assert all(names.index("repair") < names.index(name) for name in names if name.startswith("text_signals"))


def test_a_run_that_goes_on_has_the_same_order() -> None:
    nodes = [
        {"name": "books", "kind": "map", "source": "books", "stages": ["gopher_quality"]},
        {"name": "web", "kind": "map", "source": "web", "stages": ["repair", "gopher_quality"]},
        {"name": "write", "kind": "map", "source": None, "stages": ["write"]},
    ]
    found = record_so_far({"nodes": nodes}, RunRecord(), "running")
    assert [stage.name for stage in found.stages] == ["books", "web", "repair", "gopher_quality", "write"]


def test_every_stage_is_there_once_even_where_segments_disagree() -> None:
    assert in_one_order([["a", "c"], ["b", "c", "d"], [], ["d", "e"]]) == ["a", "b", "c", "d", "e"]
    assert in_one_order([["a", "b"], ["b", "a"]]) == ["a", "b"]
    assert in_one_order([]) == []
