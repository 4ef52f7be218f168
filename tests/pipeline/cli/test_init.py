"""`gristmill init`: what it writes runs as it is, and with the lines that it leaves switched off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gristmill.pipeline.cli.init import LIKE, RECIPES, start_recipe
from gristmill.pipeline.demo.crawl import write_crawl
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.recipe import recipe as recipes
from tests.pipeline.runs import go

MIXES = [name for name in LIKE if name.startswith("mix_")]


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crawl")
    write_crawl(folder)
    (folder / "demo.yaml").unlink()
    return folder


def stages_of(recipe: Path) -> dict[str, int]:
    """Run a recipe; documents kept by stage."""
    summary, _ = go(recipe, recipe.parent / "out")
    return {stage.name: stage.count.kept for stage in summary.record.stages}


def test_every_shipped_recipe_is_offered() -> None:
    assert sorted(LIKE) == sorted(path.stem for path in RECIPES.glob("*.yaml")) and len(MIXES) == 4


def test_what_is_switched_off_runs_when_it_is_switched_on(crawl: Path, tmp_path: Path) -> None:
    start_recipe(crawl, tmp_path / "r.yaml")
    text = (tmp_path / "r.yaml").read_text()
    assert "# - minhash_dedup: {threshold: 0.8}    # near-duplicates" in text and "are switched off: each drops" in text
    (tmp_path / "r.yaml").write_text(text.replace("  # - ", "  - "))
    stages = stages_of(tmp_path / "r.yaml")
    for name in (
        "keep_languages",
        "gopher_quality",
        "personal_data",
        "exact_dedup",
        "minhash_dedup",
        "tokenize",
        "pack",
    ):
        assert name in stages
    assert [*stages.values()][-1] > 50


@pytest.mark.parametrize("name", MIXES)
def test_a_mix_runs_on_a_crawl_alone(name: str, crawl: Path, tmp_path: Path) -> None:
    words = start_recipe(crawl, tmp_path / "r.yaml", name)
    assert "Left out, for" in words and "wikipedia" in words.partition("Left out")[2]
    stages = stages_of(tmp_path / "r.yaml")
    assert [*stages][-3:] == ["mix", "order", "pack"]
    assert [*stages.values()][-1] > 50


def test_the_sources_of_a_mix_are_the_folders_of_their_names(crawl: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "web_filtered").symlink_to(crawl)
    for name in ("wikipedia", "github_code"):
        (data / name).mkdir()
        rows = [
            {"text": f"{name} {number}: " + "all kinds of words in a row. " * (number % 9 + 1)} for number in range(90)
        ]
        (data / name / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = start_recipe(data, tmp_path / "r.yaml", "mix_code")
    assert "Sources: github_code, web_filtered, wikipedia. Left out, for" in words
    loaded = recipes.load(tmp_path / "r.yaml").resolved()
    assert {*loaded["sources"]} == {"github_code", "web_filtered", "wikipedia"}
    [mix] = [stage["mix"] for stage in loaded["stages"] if "mix" in stage]
    assert mix["method"] == {"given": {"weights": {"github_code": 0.3, "web_filtered": 0.25, "wikipedia": 0.05}}}
    (data / "wikipedia" / "more.parquet").write_bytes(b"")
    with pytest.raises(RecipeError, match="wikipedia: files for jsonl and parquet; a source of a mix has one kind"):
        start_recipe(data, tmp_path / "other.yaml", "mix_code")
