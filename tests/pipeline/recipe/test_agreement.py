"""report.html, run.json, `gristmill inspect` and the Parquet files of a run say the same numbers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from shutil import copytree

import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.demo.crawl import write_crawl
from gristmill.pipeline.look.overview import overview
from gristmill.pipeline.look.run_folder import RunFolder
from tests.pipeline.recipe.agreement import disagreements
from tests.pipeline.runs import go, lines, save, sentences

RECIPE = """
name: two
sources:
  crawl: {warc: {path: "*.warc.gz"}, stages: [extract]}
  notes: {jsonl: {path: notes.jsonl}}
stages:
  - keep_languages: {languages: [en], at_least: 0.2}
  - gopher_repetition
  - repair
  - gopher_quality: {min_words: 40}
  - exact_dedup
  - minhash_dedup: {threshold: 0.7}
  - write
"""


def inspected(out: Path) -> dict[str, object]:
    said = CliRunner().invoke(app, ["inspect", str(out), "--json"])
    assert said.exit_code == 0, said.output
    return dict(json.loads(said.output))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The crawl of the demo, with its rejects of every kind, beside a source of another form."""
    folder = tmp_path_factory.mktemp("agreement")
    write_crawl(folder)
    chance = random.Random(9)
    notes = [
        f"This is the note that they have of day {n}. {' '.join(sentences(chance, n % 12, 25))}" for n in range(60)
    ]
    lines(folder / "notes.jsonl", notes + notes[8:12])
    go(save(folder / "two.yaml", RECIPE), folder / "out", workers=2)
    return folder / "out"


def test_a_run_of_two_sources_agrees_in_every_place(out: Path) -> None:
    record = json.loads((out / "run.json").read_text())
    dropped = {stage["name"] for stage in record["stages"] if stage["dropped"]}
    assert {"crawl", "gopher_quality", "exact_dedup", "minhash_dedup"} <= dropped
    assert all(its["kept"] for its in record["stages"][-1]["sources"].values())
    assert disagreements(out, inspected(out)) == []


def test_the_demo_agrees_in_every_place(tmp_path: Path) -> None:
    write_crawl(tmp_path)
    go(tmp_path / "demo.yaml", tmp_path / "out", workers=2)
    assert disagreements(tmp_path / "out", inspected(tmp_path / "out")) == []


def test_a_number_that_is_off_by_one_is_found(out: Path, tmp_path: Path) -> None:
    """The check can fail: one count in each of the places."""
    copytree(out, tmp_path / "out")
    good = inspected(out)
    bad = json.loads(json.dumps(good))
    bad["funnel"][-1]["left"] += 1
    bad["totals"]["kept"] += 1
    assert any("inspect" in line for line in disagreements(out, bad))
    page = tmp_path / "out/report.html"
    record = json.loads((out / "run.json").read_text())
    kept = record["stages"][-1]["kept"]
    cell = 'data-head="kept">{:,}</td>'
    page.write_text(page.read_text().replace(cell.format(kept), cell.format(kept + 1)))
    assert any("report.html" in line for line in disagreements(tmp_path / "out", good))
    next((tmp_path / "out/stages/minhash_dedup/rejects").iterdir()).unlink()
    with pytest.raises(AssertionError):
        disagreements(tmp_path / "out", good)


def test_the_terminal_shows_what_the_report_shows(out: Path) -> None:
    seen = overview(RunFolder(out))
    said = CliRunner().invoke(app, ["inspect", str(out)]).output
    for stage in seen.run.stages:
        assert f"{stage.count.kept:,}" in said and stage.name in said
    assert all(f"alarm: {alarm}"[:60] in said.replace("\n", " ") for alarm in seen.run.alarms) and seen.run.alarms
    assert [level.left for level in seen.funnel.levels if level.stage == "write"] == [
        stage.kept for stage in (seen.run.stages[-1].sources[name] for name in ("crawl", "notes"))
    ]
    assert {cost.stage for cost in seen.costs} == {stage.name for stage in seen.run.stages} and seen.totals.peak_memory
