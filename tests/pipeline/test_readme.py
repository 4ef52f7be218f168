"""What the README shows works as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from runs import go, lines, save, written

from pipeline import recipe as recipes
from pipeline import registry

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def block(language: str, starts: str) -> str:
    found = [b for b in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if b.startswith(starts)]
    assert len(found) == 1
    return str(found[0])


def test_the_recipe_loads(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    save(tmp_path / "lists" / "adult.txt.gz", "blocked.example\n")
    loaded = recipes.load(save(tmp_path / "recipe.yaml", block("yaml", "name:")))
    assert [s.called for s in loaded.steps][:3] == ["url_rules", "extract", "keep_languages"] and len(loaded.sources) == 2


def test_the_stage_of_your_own_runs(tmp_path: Path) -> None:
    save(tmp_path / "my_rules.py", block("python", "# my_rules.py"))
    stages = [s for s in yaml.safe_load(block("yaml", "stages:"))["stages"] if s != "extract"]
    lines(tmp_path / "in" / "a.jsonl", ["A quiet sentence about nothing.", "A LOUD SENTENCE ABOUT EVERYTHING."])
    recipe = {"name": "mine", "sources": {"a": {"jsonl": {"path": "in"}}}, "stages": [*stages, "write"]}
    summary, _ = go(save(tmp_path / "recipe.yaml", yaml.safe_dump(recipe)), tmp_path / "out")
    assert [text for _, text in written(tmp_path / "out")] == ["A quiet sentence about nothing."]
    assert {s["name"]: s["dropped"] for s in summary.record["stages"]}["not_shouting"] == {"shouting": 1}


def test_recipes_name_stages_that_are_there() -> None:
    named = set(re.findall(r"^  - ([a-z_]+)", block("yaml", "name:"), re.MULTILINE))
    assert named and named <= set(registry.names())
