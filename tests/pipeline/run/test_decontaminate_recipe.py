"""The recipe that takes benchmarks out of web text, carried out with its comments taken away."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.plan.signals import with_measures
from gristmill.pipeline.recipe import recipe as recipes
from tests.pipeline.runs import go, lines, save, written

RECIPE = Path(__file__).parents[3] / "recipes" / "decontaminate.yaml"
QUESTION = (
    "Weng earns 12 dollars an hour for babysitting. Yesterday she just did 50 minutes of it; how much did she earn?"
)
PROSE = [
    f"Page {n} tells of the mill in the valley, of its {n + 3} wheels and of all who worked there when grain was cheap."
    for n in range(6)
]

STAGES = """
  - benchmark_overlap: &sought
      benchmarks_path: bench
      benchmarks: [{name: sums, path: sums.parquet, fields: [question]}]
  - decontaminate
"""
CUT = """
  - cut_contamination: {benchmarks_path: bench, benchmarks: [{name: sums, path: sums.parquet, fields: [question]}], margin: 10, shortest_piece: 20}
"""


def made(folder: Path, stages: str) -> Path:
    (folder / "bench").mkdir()
    pq.write_table(pa.table({"question": [QUESTION, "Too short."]}), folder / "bench" / "sums.parquet")
    lines(folder / "in" / "a.jsonl", [*PROSE, f"{PROSE[0]} {QUESTION.lower()} {PROSE[1]}"])
    return save(folder / "recipe.yaml", f"name: d\nsources:\n  s:\n    jsonl: {{path: in}}\nstages:{stages}  - write\n")


def rejected(out: Path) -> list[dict[str, object]]:
    return [row for path in sorted(out.glob("stages/*/rejects/*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_a_document_with_an_item_goes_and_its_reject_says_which_and_where(tmp_path):
    recipe = made(tmp_path, STAGES)
    go(recipe, tmp_path / "out")
    assert sorted(text for _, text in written(tmp_path / "out")) == sorted(PROSE)
    (row,) = rejected(tmp_path / "out")
    start = len(PROSE[0]) + 1
    assert (row["stage"], row["reason"]) == ("decontaminate", "contaminated")
    assert row["detail"] == f"sums/0/question: 100% (9 n-grams), bytes {start}-{start + len(QUESTION) - 1}"


def test_other_benchmarks_in_the_same_place_are_sought_anew(tmp_path):
    recipe = made(tmp_path, STAGES)
    go(recipe, tmp_path / "out")
    assert go(recipe, tmp_path / "out")[1].total() == 0
    pq.write_table(pa.table({"question": [PROSE[3]]}), tmp_path / "bench" / "sums.parquet")
    go(recipe, tmp_path / "out")
    assert [row["detail"][:18] for row in rejected(tmp_path / "out")] == ["sums/0/question: 1"]
    assert len(written(tmp_path / "out")) == 6 and PROSE[3] not in {text for _, text in written(tmp_path / "out")}


def test_the_place_is_cut_and_the_rest_stays(tmp_path):
    recipe = made(tmp_path, CUT)
    go(recipe, tmp_path / "out")
    kept = [text for _, text in written(tmp_path / "out")]
    (cut,) = [text for text in kept if text not in PROSE]
    assert len(kept) == 7 and re.fullmatch(r"Page 0 .*grain\n\nof the mill .* cheap\.", cut, re.DOTALL)
    assert rejected(tmp_path / "out") == []


def test_what_is_sought_holds_after_a_rewrite_too(tmp_path):
    recipe = recipes.load(made(tmp_path, STAGES + "  - repair\n  - decontaminate: {name: once_more, at_least: any}\n"))
    steps = [step for step in with_measures(recipe).steps if step.stage.recipe_name() == "benchmark_overlap"]
    assert len(steps) == 2 and steps[0].stage.benchmarks == steps[1].stage.benchmarks


def test_the_rule_alone_asks_for_the_stage_that_measures(tmp_path):
    recipe = recipes.load(made(tmp_path, "\n  - decontaminate\n"))
    with pytest.raises(RecipeError, match="put benchmark_overlap before it"):
        with_measures(recipe)


def test_the_recipe_with_its_comments_taken_away(tmp_path):
    text = RECIPE.read_text().split("  #\n")[0].replace("# Benchmarks are", "## Benchmarks are")
    text = re.sub(r"(?m)^  # ( *(?:- |benchmark))", r"  \1", text) + "  - write\n"
    for path in (
        "gsm8k/main/test-0.parquet",
        "mmlu/all/test-0.parquet",
        "ai2_arc/ARC-Easy/test-0.parquet",
        "ai2_arc/ARC-Challenge/test-0.parquet",
    ):
        (tmp_path / "benchmarks" / path).parent.mkdir(parents=True)
        row = {"question": QUESTION, "answer": PROSE[0], "choices": PROSE[1:3], "id": "one"}
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "benchmarks" / path)
    (tmp_path / "benchmarks" / "HumanEval.jsonl.gz").write_bytes(b"")
    recipe = recipes.load(save(tmp_path / "recipe.yaml", text))
    assert [step.called for step in recipe.steps] == [
        "keep_languages",
        "gopher_quality",
        "benchmark_overlap",
        "decontaminate",
        "write",
    ]
    assert [benchmark.name for benchmark in recipe.steps[2].stage.benchmarks] == ["gsm8k", "mmlu", "arc", "humaneval"]
