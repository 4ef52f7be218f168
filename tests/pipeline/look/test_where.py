"""`tune` on a cell: documents by values of their signals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.tune import Change, conditions_of, recipe_lines, tune
from tests.pipeline.runs import go, save

TOPICS = ["science", "art, music", None]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cells")
    rows = [
        {"text": f"{n} " + "the mill and king with " * (n % 7 + 1), "topic": TOPICS[n % 3], "score": n % 5}
        for n in range(210)
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = """\
name: cells
sources: {web: {jsonl: {path: a.jsonl}}}
stages:
- from_meta: {texts: [topic], numbers: [score]}
- gopher_quality: {min_words: 12}
- quantile_buckets: {by: [score], buckets: 5, tiers: {low: 2, high: 5}}
"""
    go(save(folder / "recipe.yaml", recipe), folder / "out")
    return folder / "out"


def test_tune_counts_the_documents_of_a_cell_alone(out: Path) -> None:
    setting = ["gopher_quality.min_words=25"]
    whole = tune(RunFolder(out), setting).total
    cells = [
        tune(RunFolder(out), setting, where=where) for where in ("topic=science", '"topic=art, music"', "topic=(none)")
    ]
    assert [cell.total.documents for cell in cells] == [70, 70, 70] and whole.documents == 210
    words = {n: 1 + 5 * (n % 7 + 1) for n in range(210)}
    for k, cell in enumerate(cells):
        own = [words[n] for n in range(210) if n % 3 == k]
        assert cell.total.before == sum(count >= 12 for count in own) and cell.total.after == sum(
            count >= 25 for count in own
        )
        assert {moved.side for moved in cell.moved} == {"dropped"}
    assert sum(cell.total.newly_dropped for cell in cells) == whole.newly_dropped > 0
    both = tune(RunFolder(out), setting, where="topic=science, score=1")
    assert both.total.documents == sum(n % 3 == 0 and n % 5 == 1 for n in range(210)) == 14
    assert tune(RunFolder(out), setting, where="topic=sciences").total.documents == 0


def test_tune_gives_the_lines_for_the_recipe(out: Path) -> None:
    changed = ["gopher_quality.min_words=25", "gopher_quality.max_hash_ratio=0.2"]
    assert recipe_lines(tune(RunFolder(out), changed, where="topic=science").changes) == [
        "  - gopher_quality: {min_words: 25, max_hash_ratio: 0.2}"
    ]
    nested = [Change("a", "by.en.min", 1, 2), Change("a", "by.de.min", 1, None), Change("b", "x", [1], [2, 3])]
    assert recipe_lines(nested) == ["  - a: {by: {en: {min: 2}, de: {min: null}}}", "  - b: {x: [2, 3]}"]
    with pytest.raises(
        RecipeError, match=r"quantile_buckets is no rule .*; change tiers\.low in the recipe and run it again"
    ):
        tune(RunFolder(out), ["quantile_buckets.tiers.low=3"])


def test_a_signal_that_is_not_there_is_an_error(out: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean topic"):
        tune(RunFolder(out), ["gopher_quality.min_words=25"], where="topics=science")
    with pytest.raises(RecipeError, match="SIGNAL=VALUE was expected"):
        tune(RunFolder(out), ["gopher_quality.min_words=25"], where="science")


@given(st.text(max_size=60))
def test_any_text_is_conditions_or_a_complaint(text: str) -> None:
    try:
        conditions = conditions_of(text)
    except ValueError:
        return
    assert all(name and isinstance(value, str) for name, value in conditions.items()) and len(conditions) <= 8
