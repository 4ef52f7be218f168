"""What the README shows works as it stands."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

import gristmill
from gristmill.pipeline.cli.app import app
from gristmill.pipeline.recipe import recipe as recipes, registry
from gristmill.shards.batch import Batch
from gristmill.stages import TextSignals
from gristmill.stages.stage import Rule
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import go, lines, save, sentences, written

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")


def block(language: str, starts: str) -> str:
    found = [b for b in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if b.startswith(starts)]
    assert len(found) == 1
    return str(found[0])


def test_the_recipe_loads(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    save(tmp_path / "lists" / "adult.txt.gz", "blocked.example\n")
    loaded = recipes.load(save(tmp_path / "recipe.yaml", block("yaml", "name: my-crawl")))
    assert [s.called for s in loaded.steps][:3] == ["url_rules", "extract", "keep_languages"] and len(
        loaded.sources
    ) == 2


def test_the_first_recipe_loads(tmp_path: Path) -> None:
    loaded = recipes.load(save(tmp_path / "web.yaml", block("yaml", "name: web")))
    assert [step.called for step in loaded.steps][-2:] == ["minhash_dedup", "write"]


def test_the_stage_of_your_own_runs(tmp_path: Path) -> None:
    save(tmp_path / "my_rules.py", block("python", "# my_rules.py"))
    stages = [s for s in yaml.safe_load(block("yaml", "stages:"))["stages"] if s != "extract"]
    lines(tmp_path / "in" / "a.jsonl", ["A quiet sentence about nothing.", "A LOUD SENTENCE ABOUT EVERYTHING."])
    recipe = {"name": "mine", "sources": {"a": {"jsonl": {"path": "in"}}}, "stages": [*stages, "write"]}
    summary, _ = go(save(tmp_path / "recipe.yaml", yaml.safe_dump(recipe)), tmp_path / "out")
    assert [text for _, text in written(tmp_path / "out")] == ["A quiet sentence about nothing."]
    assert {s["name"]: s["dropped"] for s in summary.record.to_json()["stages"]}["not_shouting"] == {"shouting": 1}


def test_recipes_name_stages_that_are_there() -> None:
    named = set(re.findall(r"^  - ([a-z_]+)", block("yaml", "name: my-crawl"), re.MULTILINE))
    assert named and named <= set(registry.names())


@pytest.fixture(scope="module")
def run_of_two_lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What README's recipe leaves, but small: rows of 16 and 32 for those of 2,048 and 8,192."""
    folder = tmp_path_factory.mktemp("readme")
    lines(folder / "in" / "a.jsonl", sentences(random.Random(0), 60, 40))
    stages = "  - tokenize: {vocab_size: 300}\n  - pack: {row_length: [16, 32], window_tokens: 1024}\n"
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        go(
            save(folder / "r.yaml", f"name: r\nsources: {{a: {{jsonl: {{path: in}}}}}}\nstages:\n{stages}"),
            folder / "out",
        )
    return folder / "out"


def test_the_loop_that_trains_on_shards_runs_and_ends(run_of_two_lengths: Path) -> None:
    code = block("python", "import gristmill\n\nshards = ")
    listed = re.findall(r"\w+", re.sub(r"\(.*?\)", "", code.split("# batch.rows: ")[1].split("\n")[0]))
    assert len(listed) > 3
    seen: list[Batch] = []

    def step(batch: Batch) -> None:
        assert all(len(getattr(batch.rows, name)) for name in listed)
        seen.append(batch)

    small = code.replace("out/my-crawl/shards/2048", f"{run_of_two_lengths}/shards/16").replace(
        "batch_rows=512", "batch_rows=4"
    )
    names: dict[str, Any] = {"rank": 0, "world": 1, "step": step}
    exec(small, names)
    assert [batch.rows.input_ids.shape for batch in seen] == [(4, 16)] * (len(names["shards"]) // 4) and len(seen) > 3


def test_the_examples_on_shards_run(run_of_two_lengths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    page = (Path(__file__).parents[3] / "docs" / "shards.md").read_text(encoding="utf-8")
    reading, training = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "out").symlink_to(run_of_two_lengths)
    (tmp_path / "shards").symlink_to(run_of_two_lengths / "shards" / "16")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    small = (("shards/2048", "shards/16"), ("rows(0, 64)", "rows(0, 2)"), ("range(64)", "range(8)"))
    for shown, here in small:
        assert shown in reading
        reading = reading.replace(shown, here)
    exec(reading, names)
    assert names["block"].shape == (2, 16) and len(names["row"].input_ids) == 16 and names["names"][0] == "a"
    assert 0 < names["lengths"].sum() <= 16 and len(names["uids"]) == len(names["lengths"])
    for places in (3, 6):  # the second run resumes
        exec(
            training.replace("batch_rows=8", "batch_rows=2").replace("num_workers=2", "num_workers=0"),
            {"__name__": "__main__"},
        )
        state = yaml.safe_load((tmp_path / "state.json").read_text())
        assert 2 * places in state.values(), state


def test_the_lines_for_python_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [f"<article><p>{'A mill grinds grain into flour, and the miller is at it. ' * 9}</p></article>"] * 2
    lines(tmp_path / "pages.jsonl", pages)
    monkeypatch.chdir(tmp_path)
    work_here(monkeypatch)
    html = "<title>Mills</title><article><h1>Mills</h1>" + "<p>A mill grinds grain into flour, slowly.</p>" * 9
    table = pa.table({"html": [*pages, "<p>few words</p>"], "text": ["a", "a", "b"]})
    code = block("python", "import gristmill\nfrom gristmill.stages").replace('Warc(path="crawl/*.warc.gz")', "table")
    names: dict[str, Any] = {"html": html, "url": "https://a.example/", "frame": table, "table": table.select(["html"])}
    assert '"crawl": table' in code
    exec(code.replace("Extract(), ", "").replace('"crawl": table', '"crawl": table.rename_columns(["text"])'), names)
    assert [stage["kept"] for stage in names["run"].record["stages"] if stage["name"] == "exact_dedup"] == [2]
    assert len(names["texts"]) == 1 and names["page"].title == "Mills" and names["unique"].num_rows == 2


def test_the_public_names_are_sorted_and_there() -> None:
    assert sorted(gristmill.__all__) == gristmill.__all__ == dir(gristmill)
    assert all(getattr(gristmill, name) is not None for name in gristmill.__all__)
    assert {name for name in ("Recipe", "run", "open_run", "extract", "open_shards", "Loader") if name in README}


def test_the_export_of_a_run_with_two_row_lengths(run_of_two_lengths: Path, tmp_path: Path) -> None:
    [command] = re.findall(r"`gristmill (export OUT DEST [^`]*)`", README)
    [length] = re.findall(r"row_length: \[(\d+), ", README)
    words = (
        command.replace("OUT", str(run_of_two_lengths))
        .replace("DEST", str(tmp_path / "m"))
        .replace(length, "16")
        .split()
    )
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "m" / "tokens.bin").stat().st_size > 1000


def test_the_stage_of_your_own_runs_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "my_rules.py", block("python", "# my_rules.py"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rules", raising=False)  # that of another page
    [expression] = re.findall(r"in a notebook:\s`(.*?)`", README)
    names: dict[str, Any] = {"table": pa.table({"text": ["A quiet sentence.", "A LOUD SENTENCE."]})}
    exec("import gristmill\nfrom my_rules import NotShouting", names)
    assert eval(expression, names)["text"].to_pylist() == ["A quiet sentence."]


def test_the_lines_on_anchors_are_a_recipe(tmp_path: Path) -> None:
    anchor, merged = re.findall(r"for anchors: `(.*?)`, then `(.*?)`", README)[0]
    text = f"name: r\n{anchor.replace('…', 'jsonl: {path: in}')}\nsources:\n  {merged}\n"
    assert [s.reader.address for s in recipes.load(save(tmp_path / "r.yaml", text)).sources] == ["jsonl"]


def test_agreement_is_quoted_with_the_units_it_was_measured_with() -> None:
    rules = (Path(__file__).parents[3] / "docs" / "rules.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (Gopher quality|Gopher repetition|FineWeb) \| ([\d.]+) %, [^|]* \| ([\d.]+) %", rules, re.MULTILINE
    )
    assert len(rows) == 3 and "2,973 of 2,973 kept or dropped alike (100 %)" in rules  # C4
    [theirs] = [line for line in README.splitlines() if "units: datatrove" in line]
    assert f"| {min(float(row[1]) for row in rows)} to 100 % |" in theirs
    [default] = [line for line in README.splitlines() if line.startswith("| the same by default")]
    assert all(f"{name} {share} %" in default for name, _, share in rows)


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("fineweb", "datatrove"),
        ("dolma", "whitespace"),
        ("dclm", "uax29"),
        ("refinedweb", "uax29"),
        ("multilingual", "uax29"),
    ],
)
def test_published_recipes_say_how_they_cut_words_before_any_rule_counts_them(name: str, units: str) -> None:
    stages = recipes.load(Path(__file__).parents[3] / "recipes" / f"{name}.yaml").steps
    counting = [isinstance(step.stage, Rule) and "words" in " ".join(step.stage.needs) for step in stages]
    said = [
        place for place, step in enumerate(stages) if isinstance(step.stage, TextSignals) and step.stage.units == units
    ]
    assert len(said) == 1 and any(counting) and said[0] < counting.index(True)
