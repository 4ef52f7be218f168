"""Recipes for one language, for tiers of quality, for code and for mathematics: each runs on a crawl, with the judges
that its comments tell you to train, and does what it is for."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.cli.init import LIKE, start_recipe
from gristmill.pipeline.demo.crawl import compress, response, write_crawl
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.recipe import recipe as recipes
from tests.pipeline.runs import WORDS, go, save

RECIPES = Path(__file__).parents[3] / "recipes"
JUDGES = {
    "fineweb2": [],
    "nemotron_cc": ["edu_of_one", "edu_of_other", "oh25_eli5"],
    "dclm_full": ["oh25_eli5"],
    "web_code": ["code"],
    "web_math": ["math"],
}
ORDERS = {
    "fineweb2": "extract keep_languages minhash_dedup gopher_repetition fineweb_quality gopher_quality repair personal_data",
    "nemotron_cc": "extract keep_languages repair exact_dedup minhash_dedup substring_dedup edu_of_one edu_of_other"
    " oh25_eli5 tokenize quantile_buckets",
    "dclm_full": "extract repair keep_languages gopher_quality gopher_repetition refinedweb_lines refinedweb_quality"
    " bloom_dedup judge threshold",
    "web_code": "extract keep_languages judge keep_where url_dedup exact_dedup minhash_dedup gopher_repetition"
    " personal_data",
    "web_math": "extract keep_languages judge keep_where long_enough url_dedup exact_dedup minhash_dedup",
}
PUBLISHED = ["dclm_full", "fineweb", "fineweb2", "nemotron_cc"]
PARTS = {  # of a page: as a judge reads them, and in HTML
    "code": (
        "```\ndef f{0}(n):\n    return [n * k for k in range({0})]\n```",
        "<pre><code>def f{0}(n):\n    return [n * k for k in range({0})]\n</code></pre>",
    ),
    "math": (
        "Let $x_{{{0}}} = \\frac{{{0}}}{{n + {0}}}$ be the sum of the series, so that it converges by the integral test.",
        "<p>Let <math alttext='x_{{{0}}} = \\frac{{{0}}}{{n + {0}}}'><mi>x</mi></math> be the sum of the series, so that it"
        " converges by the integral test.</p>",
    ),
}


def prose(number: int) -> str:
    return " ".join(WORDS[(number * k + k * k) % len(WORDS)] for k in range(3, 33)) + f" in the year {1700 + number}."


def judge_of(kind: str, folder: Path) -> Path:
    """A small judge that finds pages with such parts among prose and pages with the others."""
    other = next(name for name in PARTS if name != kind)
    rows = []
    for i in range(80):
        for name, label in ((kind, 1), (other, 0), ("", 0)):
            parts = [PARTS[name][0].format(100 * i + k) for k in range(6)] if name else [prose(900 + i)] * 6
            text = "\n\n".join(f"{prose(500 + 6 * i + k)}\n\n{part}" for k, part in enumerate(parts))
            rows.append({"text": text, "label": label})
    table = folder / "table.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = folder / "judge.yaml"
    plan.write_text("out: judge\nkind: linear\nlabelled: {files: table.jsonl}\nhold_out: 0.2\n")
    made = CliRunner().invoke(app, ["judge", "train", str(plan)])
    assert made.exit_code == 0, made.output
    return folder / "judge"


@pytest.fixture(scope="module")
def judges(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    code, formulas = (judge_of(kind, tmp_path_factory.mktemp(kind)) for kind in PARTS)
    return {"code": code, "math": formulas, "edu_of_one": code, "edu_of_other": formulas, "oh25_eli5": code}


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's, and pages with code and formulas."""
    folder = tmp_path_factory.mktemp("crawl")
    write_crawl(folder)
    pages = []
    for kind, (_, part) in PARTS.items():
        for i in range(12):
            body = "".join(f"<p>{prose(6 * i + k)}</p>{part.format(6 * i + k)}" for k in range(6))
            title = f"{kind} {i}"
            html = f"<html><head><title>{title}</title></head><body><article><h1>{title}</h1>{body}</article></body></html>"
            pages.append(response(f"https://{kind}{i}.example/", html.encode()))
    (folder / "more.warc.gz").write_bytes(b"".join(compress(page.data) for page in pages))
    return folder


def at(folder: Path, name: str, crawl: Path, judges: dict[str, Path]) -> Path:
    """The recipe, with its tables and judges beside it, on the crawl."""
    for judge in JUDGES[name]:
        shutil.copytree(judges[judge], folder / "judges" / judge)
    shutil.copytree(RECIPES / "multilingual", folder / "multilingual")
    text, sources = re.subn(
        r"(?m)^    warc: \{path: crawl-data.*$",
        f"    warc: {{path: {crawl}/*.warc.gz}}",
        (RECIPES / f"{name}.yaml").read_text(),
    )
    assert sources == 1
    return save(folder / "recipe.yaml", text)


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [row for path in sorted((out / "write").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


@pytest.mark.parametrize("name", JUDGES)
def test_a_recipe_says_what_it_reproduces_and_where_it_differs(name: str) -> None:
    head = (RECIPES / f"{name}.yaml").read_text().split("\nname:")[0]
    assert head.startswith("# ") and "et al." in head and "Differences, and why" in head


def test_every_published_figure_names_its_source() -> None:
    told = {path.stem: text for path in RECIPES.glob("*.yaml") if "\npublished:" in (text := path.read_text())}
    assert sorted(told) == PUBLISHED
    assert all(len(re.findall(r'(?m)^  source: ".{20,}"$', text)) == 1 for text in told.values())


def ran(name: str, folder: Path, crawl: Path, judges: dict[str, Path]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    recipe = at(folder, name, crawl, judges)
    called = [step.called for step in recipes.load(recipe).steps]
    assert [stage for stage in called if stage in ORDERS[name].split()] == ORDERS[name].split() and called[
        -1
    ] == "write"
    summary, _ = go(recipe, folder / "out")
    return rows_of(folder / "out"), summary.record.to_json()


def test_fineweb2_keeps_one_language(tmp_path: Path, crawl: Path, judges: dict[str, Path]) -> None:
    rows, record = ran("fineweb2", tmp_path, crawl, judges)
    languages = next(stage for stage in record["stages"] if stage["name"] == "keep_languages")
    assert 0 < languages["kept"] < 30 and {row["language"] for row in rows} <= {"ru"}
    assert record["recipe"]["published"]["documents"] == 10_000_000


def test_nemotron_cc_puts_every_document_into_a_tier(tmp_path: Path, crawl: Path, judges: dict[str, Path]) -> None:
    rows, record = ran("nemotron_cc", tmp_path, crawl, judges)
    assert len(rows) > 100 and {row["quality_tier"] for row in rows} >= {"low", "medium", "high"}
    assert all(0 <= row["quality_bucket"] < 20 for row in rows)
    best = [row for row in rows if row["quality_bucket"] == 19]
    assert 0 < len(best) < len(rows) / 2
    assert len({row["url"] for row in rows}) == len(rows) == record["stages"][-1]["kept"]


def test_dclm_full_keeps_the_best_tenth(tmp_path: Path, crawl: Path, judges: dict[str, Path]) -> None:
    rows, record = ran("dclm_full", tmp_path, crawl, judges)
    threshold = next(stage for stage in record["stages"] if stage["name"] == "threshold")
    assert threshold["docs_in"] > 50 and abs(threshold["kept"] - threshold["docs_in"] / 10) <= 0.5
    assert len(rows) == threshold["kept"] and all(row["quality"] is not None for row in rows)
    assert not any("threshold" in alarm for alarm in record["alarms"])  # as far as its publisher says


@pytest.mark.parametrize(("name", "mark"), [("web_code", "    return ["), ("web_math", "\\frac")])
def test_pages_with_code_or_formulas_are_found_and_keep_them(
    name: str, mark: str, tmp_path: Path, crawl: Path, judges: dict[str, Path]
) -> None:
    rows, _ = ran(name, tmp_path, crawl, judges)
    kind = name.removeprefix("web_")
    planted = [row for row in rows if row["url"].startswith(f"https://{kind}")]
    assert len(planted) >= 10 and all(row["text"].count(mark) >= 5 for row in planted)
    other = "math" if kind == "code" else "code"
    assert not [row for row in rows if row["url"].startswith(f"https://{other}")]


def test_a_shipped_recipe_is_written_for_your_files(tmp_path: Path, crawl: Path) -> None:
    here = ["--recipe", str(tmp_path / "mine.yaml")]
    said = CliRunner().invoke(app, ["init", str(crawl), "--like", "fineweb2", *here])
    assert said.exit_code == 0 and "is written for 3 .warc.gz" in said.output
    mine, shipped = recipes.load(tmp_path / "mine.yaml"), recipes.load(RECIPES / "fineweb2.yaml")
    assert [step.called for step in mine.steps] == [step.called for step in shipped.steps] and mine.name == "fineweb2"
    (source,) = mine.resolved()["sources"].values()
    assert source["warc"]["path"] == str(crawl)
    assert (tmp_path / "multilingual" / "gopher_quality.yaml").exists()


def test_texts_have_nothing_to_extract_and_a_wrong_name_says_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text(json.dumps({"text": prose(1)}) + "\n")
    for folder, name in (("für uns", "f-r-uns"), ("数据", "run")):
        shutil.copytree(tmp_path / "in", tmp_path / folder)
        start_recipe(tmp_path / folder, tmp_path / f"{name}.yaml")
        assert recipes.load(tmp_path / f"{name}.yaml").name == name
    start_recipe(tmp_path / "in", tmp_path / "r.yaml", "fineweb")
    assert "extract" not in [step.called for step in recipes.load(tmp_path / "r.yaml").steps]
    for name in LIKE:  # as `init --help` has them
        start_recipe(tmp_path / "in", tmp_path / f"{name}.yaml", name)
    with pytest.raises(RecipeError, match="did you mean fineweb"):
        start_recipe(tmp_path / "in", tmp_path / "other.yaml", "fineweb3x")
    assert not (tmp_path / "other.yaml").exists()
