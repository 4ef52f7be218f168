"""What docs/coming_from.md shows: every recipe on it can be planned, and blocks of others run in a recipe as they do
alone."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.dry_run import foresee
from gristmill.stages.others import datatrove
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import go, lines, save, written

PAGE = (Path(__file__).parents[3] / "docs" / "coming_from.md").read_text(encoding="utf-8")
RECIPES = {
    yaml.safe_load(text)["name"]: text for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
}
FILTERS, FORMATTERS = "datatrove.pipeline.filters", "datatrove.pipeline.formatters"


def test_each_rival_has_its_recipe() -> None:
    assert {*RECIPES} == {
        "with-datatrove",
        "with-nemo",
        "from-datatrove",
        "from-nemo",
        "from-dolma",
        "from-data-juicer",
    }
    for tool in ("DataTrove", "NeMo Curator", "Dolma", "Data-Juicer"):
        assert (
            re.search(rf"^## A (pipeline|recipe) of {tool}$", PAGE, re.MULTILINE) and f"| {tool} | Gristmill |" in PAGE
        )


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_on_the_page_can_be_planned(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        datatrove, "packages_missing", lambda *_: []
    )  # not all that the page uses is installed for tests
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>A mill by the river.</p>"
    head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: https://a.example/\r\nContent-Type: application/http\r\nContent-Length: {len(page)}\r\n\r\n"
    for folder in ("crawl", "lists", "docs/documents"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "crawl/a.warc.gz").write_bytes(gzip.compress(head.encode() + page + b"\r\n\r\n"))
    for file in ("domains", "banned_words"):
        (tmp_path / f"lists/{file}.txt").write_text("blocked.example\n")
    lines(tmp_path / "docs/documents/a.jsonl", ["A mill by the river."])
    lines(tmp_path / "docs/a.jsonl", ["A mill by the river."])
    loaded = recipes.load(save(tmp_path / "recipe.yaml", RECIPES[name]))
    foreseen = [each.name for each in foresee(loaded, str(tmp_path / "out"))]
    assert len(loaded.steps) >= 3 and loaded.steps[-1].called == "write" and len(foreseen) >= 2


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tasks are done in the test's own process."""
    work_here(monkeypatch)
    yield


def recipe_of(folder: Path, texts: list[str], *stages: dict[str, Any]) -> Path:
    lines(folder / "in/a.jsonl", texts)
    recipe = {"name": "r", "sources": {"a": {"jsonl": {"path": "in"}}}, "stages": [*stages, "write"]}
    return save(folder / "r.yaml", yaml.safe_dump(recipe))


def fates(out: Path, stage: str) -> dict[str, tuple[str, str | None]]:
    """The text of each document that a stage rejected, with reason and detail."""
    rows = [
        row
        for path in (out / "stages" / stage / "rejects").rglob("*.parquet")
        for row in pq.read_table(path).to_pylist()
    ]
    return {row["text"]: (row["reason"], row["detail"]) for row in rows}


def test_a_filter_and_a_formatter_of_datatrove_run_in_a_recipe_with_the_verdicts_that_they_give_alone(
    tmp_path: Path, here: None
) -> None:
    from datatrove.data import Document
    from datatrove.pipeline.filters import C4QualityFilter
    from datatrove.pipeline.formatters import SymbolLinesFormatter

    settings = {"filter_no_terminal_punct": False, "min_num_sentences": -1, "min_words_per_line": 3}
    texts = [f"The mill number {n} stands there.\n=====\nshort\nIts wheel turns [{n}] slowly." for n in range(40)]
    texts += [f"A lorem ipsum text of {n} words." for n in range(5)] + [
        f"Some code of {n} lines {{ here" for n in range(4)
    ]
    summary, _ = go(
        recipe_of(
            tmp_path,
            texts,
            {"datatrove": {"block": f"{FORMATTERS}:SymbolLinesFormatter"}},
            {"datatrove": {"block": f"{FILTERS}:C4QualityFilter", "settings": settings}},
        ),
        tmp_path / "out",
    )
    documents = [Document(text=text, id=str(n)) for n, text in enumerate(texts)]
    alone = [document.text for document in C4QualityFilter(**settings).run(SymbolLinesFormatter().run(iter(documents)))]
    assert sorted(text for _, text in written(tmp_path / "out")) == sorted(alone) and len(alone) == 40
    stages = {stage["name"]: stage for stage in summary.record.to_json()["stages"]}
    assert stages["symbol_lines_formatter"]["kept"] == 49
    assert stages["c4_quality_filter"]["dropped"] == {"lorem_ipsum": 5, "curly_bracket": 4}
    assert len(fates(tmp_path / "out", "c4_quality_filter")) == 9


def test_a_document_that_breaks_a_block_is_quarantined_and_the_others_go_on(tmp_path: Path, here: None) -> None:
    texts = ["good", "a bomb", "bad", *(f"good {n}" for n in range(20)), "====", "bomb again"]
    heuristic = "nemo_curator.stages.text.filters.heuristic:MeanWordLengthFilter"
    recipe = recipe_of(
        tmp_path,
        texts,
        {"datatrove": {"block": "blocks_of_ours:Broken"}},
        {"datatrove": {"block": f"{FORMATTERS}:SymbolLinesFormatter"}},
        {"nemo": {"filter": heuristic, "settings": {"min_mean_word_length": 3}}},
    )
    summary, _ = go(recipe, tmp_path / "out")
    stages = {stage["name"]: stage for stage in summary.record.to_json()["stages"]}
    assert (stages["broken"]["quarantined"], stages["broken"]["dropped"]) == (2, {"bad_n": 1})
    broken = fates(tmp_path / "out", "broken")
    assert broken["bad"] == ("bad_n", "bad_3") and "RuntimeError: it went off" in str(broken["a bomb"][1])
    assert stages["mean_word_length_filter"]["quarantined"] == 1  # empty by now: they divide by its words
    low = stages["mean_word_length_filter"]["dropped"]["mean_word_length_filter"]
    assert low == 10 and stages["write"]["kept"] == 11  # "good 0" to "good 9" have words of 2.5 characters


def test_a_wrong_block_is_an_error_of_the_recipe_with_its_line(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, ["a"], {"datatrove": {"block": f"{FILTERS}:RegxFilter"}})
    with pytest.raises(
        RecipeError, match=r"r.yaml:\d+: stages\[0\]\.datatrove.*has no RegxFilter; did you mean RegexFilter\?"
    ):
        recipes.load(recipe)


def test_a_filter_before_the_extractor_is_refused_and_the_extractor_is_not(tmp_path: Path) -> None:
    text = "name: r\nsources: {a: {html: {path: in}}}\nstages:\n  - datatrove: {block: 'BLOCK'}\n  - write\n"
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.html").write_text("<p>A mill</p>")
    extractor = save(tmp_path / "a.yaml", text.replace("BLOCK", "blocks_of_ours:FirstParagraph"))
    assert len(foresee(recipes.load(extractor), str(tmp_path / "out"))) >= 1
    with pytest.raises(RecipeError, match="broken reads text, but a gives pages"):
        foresee(
            recipes.load(save(tmp_path / "b.yaml", text.replace("BLOCK", "blocks_of_ours:Broken"))),
            str(tmp_path / "out"),
        )
