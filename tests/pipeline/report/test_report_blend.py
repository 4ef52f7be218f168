"""Of tokens, mix, order and rows the report and the terminal show what the stages told, and names of sources stay text."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from gristmill.mixing.weights.ablations import Ablations
from gristmill.mixing.weights.supply import Supply
from gristmill.mixing.weights.utility import Utilities
from gristmill.pipeline.cli.app import app
from gristmill.pipeline.formatting import as_percent, as_short
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.stage_view import render_stage, stage_view
from gristmill.pipeline.report import build_report
from gristmill.pipeline.report.charts import Axis
from gristmill.pipeline.report.stage_sections import blocks_of
from gristmill.pipeline.report_data.figures import figures_of
from gristmill.stages.blend.figures import curriculum_of
from gristmill.stages.blend.methods import Regmix, Utilimax, choose
from gristmill.stages.figures import MOST, Table
from gristmill.stages.tokens.figures import length_group, lengths
from tests.pipeline.look.outfolder import HOSTILE, entry, run as run_of, save
from tests.pipeline.runs import go, lines, save as save_text, sentences
from tests.stages.blend.tables_as_csv import save_ablations, save_utilities

RECIPE = """
name: blend
sources:
  tales: {jsonl: {path: tales}}
  rhymes: {jsonl: {path: rhymes}}
  lists: {jsonl: {path: lists}}
stages:
  - tokenize: {vocab_size: 400}
  - mix: {method: {utilimax: {utilities_file: utilities.csv, aversion: 0.2}}, budget: 9000, max_epochs: 8}
  - order: {by: mtld, schedule: {stages: {stages: 3}}, sources: {lists: {by: tokens, schedule: ascending, descending: true}}}
  - pack: {row_length: [64, 256], window_tokens: 4096, license: cc0-1.0}
"""
UTILITIES = """\
source,facts,facts_se,rhythm,rhythm_se,luck,luck_se
tales,0.4,0.02,0.5,0.02,0.5,0.2
rhymes,0.1,0.02,0.9,0.02,0.6,0.2
lists,0.9,0.02,0.2,0.02,0.4,0.2
"""
STAGES = ("tokenize", "mix", "order", "pack")
NAMES = (HOSTILE, "<img src=x onerror=alert(1)>", "plain")


class Tables(HTMLParser):
    """The tables of a page by caption, as rows of cells; and every tag, with its attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: list[tuple[str, list[list[str]]]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.cell, self.track = "", "", False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append(("", []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        if tag in ("th", "td", "caption"):
            self.cell, self.track = "", dict(attrs).get("class") == "track"

    def handle_endtag(self, tag: str) -> None:
        if tag == "caption":
            self.tables[-1] = (self.cell.strip(), self.tables[-1][1])
        elif tag in ("th", "td") and not self.track:
            self.tables[-1][1][-1].append(self.cell.strip())

    def handle_data(self, data: str) -> None:
        self.text += data
        self.cell += data

    def rows(self, caption: str) -> list[list[str]]:
        """Without the heads, and without the column of bars."""
        found = [rows for title, rows in self.tables if title == caption]
        assert len(found) == 1, (caption, [title for title, _ in self.tables])
        return [row[: len([head for head in found[0][0] if head])] for row in found[0][1:]]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blend")
    chance = random.Random(0)
    for source, documents in (("tales", 90), ("rhymes", 30), ("lists", 30)):
        lines(folder / source / "0.jsonl", sentences(chance, documents, 150))
    (folder / "utilities.csv").write_text(UTILITIES)
    go(save_text(folder / "blend.yaml", RECIPE), folder / "out")
    return folder / "out"


def told(out: Path, stage: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "stages" / stage / "report.json").read_text())
    return found


def page(stage: str, told: Mapping[str, Any]) -> Tables:
    figures = figures_of(stage, told)
    assert figures is not None
    return Tables(str(blocks_of(figures)))


def test_the_report_shows_what_a_real_run_told(out: Path) -> None:
    shown = Tables(build_report(RunFolder(out)))
    tokens = told(out, "tokenize")
    assert shown.rows("Bytes per token, by source") == [
        [name, f"{its['documents']:,}", f"{its['tokens']:,}", f"{its['bytes_per_token']:.3f}"]
        for name, its in tokens["bytes_per_token_by_source"].items()
    ]
    assert tokens["tokenizer"]["hash"] in shown.text and "150 of 150 documents (100.0%) come back" in shown.text
    mix = told(out, "mix")["mix"]
    given = {row[0]: row for row in shown.rows("What each source gives, in tokens")}
    assert set(given) == {"tales", "rhymes", "lists"}
    for source, drawn in zip(mix["sources"], mix["drawn"], strict=True):
        row = given[source["source"]]
        assert row[1] == f"{drawn['there']:,.0f}" and row[3:5] == [f"{drawn['wanted']:,}", f"{drawn['drawn']:,}"]
        assert row[5:] == [f"{source['epochs']:.2f}", as_percent(source["cap"]), as_percent(source["weight"])]
    assert sum(float(row[-1].rstrip("%")) for row in given.values()) == pytest.approx(100, abs=0.02)
    assert [row[:2] for row in shown.rows("Tasks that do not tell sources apart")] == [["luck", "dropped"]]
    order = told(out, "order")["order"]
    for its in order["curricula"]:
        assert (
            its["promise"] in shown.text
            and its["advice"] in shown.text
            and f"{its['correlation']:.4f} by design" in shown.text
        )
    packing = told(out, "pack")["packing"]
    assert [row[:6] for row in shown.rows("Rows")] == [
        [
            f"{its['row_length']}",
            "best_fit",
            f"{its['rows']:,}",
            as_percent(its["fill"]),
            f"{its['padding']:,}",
            f"{its['cut']:,}",
        ]
        for its in packing["sets"]
    ]
    assert [row[6] for row in shown.rows("Rows")] == [
        as_percent(its["rows"] / its["fewest_rows"] - 1) for its in packing["sets"]
    ]
    documents = sum(int(row[1]) for row in shown.rows("Documents by length, copies counted"))
    assert documents == packing["sets"][0]["documents"] == sum(its["documents"] for its in packing["sources"].values())
    assert {row[0]: row[2] for row in shown.rows("What rows hold of each source, copies counted")} == {
        name: f"{its['tokens']:,}" for name, its in packing["sources"].items()
    }


def test_the_signal_falls_where_the_highest_come_first(out: Path) -> None:
    rows = {
        row[0]: row
        for row in Tables(build_report(RunFolder(out))).rows("The signal at each tenth of the tokens, in order of rank")
    }
    assert rows["all others"][1] == "mtld" and rows["source=lists"][1] == "tokens"
    values = [float(value.replace(",", "")) for value in rows["source=lists"][2:]]
    assert len(values) == 11 and values == sorted(values, reverse=True) and values[-1] > 0
    assert [float(value) for value in rows["all others"][2:]] == sorted(
        float(value) for value in rows["all others"][2:]
    )


def test_a_group_goes_by_the_curriculum_of_its_source() -> None:
    curricula = [{"source": ""}, {"source": "web"}, {"source": "web de"}]
    groups = {
        "": "",
        "source=web": "web",
        "source=web language=en": "web",
        "source=web de": "web de",
        "source=webs": "",
        "language=en": "",
    }
    assert {group: curriculum_of(curricula, group)["source"] for group in groups} == groups


@pytest.mark.parametrize("stage", STAGES)
def test_the_terminal_shows_the_same_numbers(out: Path, stage: str) -> None:
    file = io.StringIO()
    Console(file=file, width=250, force_terminal=False).print(render_stage(stage_view(RunFolder(out), stage)))
    words = " ".join(file.getvalue().split())
    shown = figures_of(stage, told(out, stage))
    tables = [rows for caption, rows in page(stage, told(out, stage)).tables if caption]
    assert (
        shown is not None
        and len(tables) == sum(1 for block in shown.blocks if isinstance(block, Table) or hasattr(block, "table")) > 0
    )
    for row in (row for rows in tables for row in rows[1:]):
        assert " ".join(cell for cell in row if cell) in words, row


@pytest.mark.parametrize(
    ("stage", "key"), [("tokenize", "tokenizer"), ("mix", "mix"), ("order", "order"), ("pack", "packing")]
)
def test_json_has_what_was_told_and_nothing_twice(out: Path, stage: str, key: str) -> None:
    found = json.loads(CliRunner().invoke(app, ["inspect", str(out), stage, "--json"]).output)
    assert found["told"][key] == told(out, stage)[key]
    assert not set(found["told"]) & {"name", "docs_in", "samples", "sources", "seconds"}
    assert stage_view(RunFolder(out), "mix", "not_drawn").told == {}


def hostile_reports() -> dict[str, dict[str, Any]]:
    """What each stage would tell of sources, tasks and tokens with hostile names."""
    supply = Supply.of(dict(zip(NAMES, (100.0, 300.0, 600.0), strict=True)), 500.0, 4.0)
    tasks = (f"task {HOSTILE}", f"noise {HOSTILE}")
    table = Utilities(NAMES, tasks, np.array([[0.1, 0.5], [0.9, 0.5], [0.4, 0.51]]), np.full((3, 2), 0.02))
    with TemporaryDirectory() as folder:
        file = save_utilities(Path(folder, "u.csv"), table)
        facts = choose(supply, Utilimax(utilities_file=file, aversion=0.25)).facts
    drawn = [{"wanted": 10, "drawn": 10, "taking_part": 100, "there": 100} for _ in NAMES]
    count = {"documents": 3, "tokens": 70, "bytes_per_token": 4.0}
    tokenizer = {
        "name": HOSTILE,
        "hash": "ab",
        "vocab_size": 9,
        "dtype": "uint16",
        "bos_id": None,
        "eos_id": 0,
        "pad_id": 1,
        "around": ["eos"],
    }
    curriculum = {
        "schedule": "random",
        "by": HOSTILE,
        "descending": False,
        "promise": HOSTILE,
        "advice": "",
        "correlation": 0.0,
    }
    made = {
        "rows": 9,
        "fill": 0.99999,
        "padding": 1,
        "documents": 9,
        "pieces": 9,
        "cut": 0,
        "fewest_rows": 9,
        "bytes": 900,
        "shards": 1,
    }
    return {
        "tokenize": {
            "tokenizer": tokenizer | {"eos_token": HOSTILE, "pad_token": None}, "tokens": 210, "bytes_per_token": None,
            "bytes_per_token_by_language": {HOSTILE: count}, "bytes_per_token_by_source": dict.fromkeys(NAMES, count),
            "round_trip": {"checked": 3, "restored": 2, "changed": ["00000000deadbeef"]},
        },
        "mix": {"mix": {**facts, "by": [HOSTILE], "drawn": drawn}},
        "order": {"order": {
            "curricula": [{"source": name} | curriculum for name in ("", *NAMES)], "segments": 1, "sampled": 4, "sampled_without_signal": 1,
            "deciles": {f"source={name}": [0.5] * 11 for name in NAMES},
        }},
        "pack": {"packing": {
            "tokens": 210, "windows": 1, "folder": "shards", "license": HOSTILE, "sources": {name: {"documents": 1, "tokens": 70} for name in NAMES},
            "document_lengths": [0, 3], "sets": [{"row_length": 64, "packer": "best_fit"} | made],
        }},
    }  # fmt: skip


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    reports = hostile_reports()
    stages = [
        entry(name, "global", "", {"crawl": {"docs_in": 1, "kept": 1, "dropped": {}, "quarantined": 0}})
        for name in reports
    ]
    save(tmp_path / "run.json", run_of(stages))
    for its in stages:
        save(tmp_path / "stages" / its["name"] / "report.json", its | reports[its["name"]])
    html = build_report(RunFolder(tmp_path))
    shown = Tables(html)
    assert (
        "img" not in {tag for tag, _ in shown.tags} and [tag for tag, _ in shown.tags].count("script") == 2
    )  # its own
    assert not [name for _, attributes in shown.tags for name in attributes if name.startswith("on") or name == "src"]
    assert html.count("&lt;script&gt;alert") >= 20 and html.count("&lt;img src=x onerror") >= 5
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", html)
    assert (
        "00000000deadbeef" in shown.text
        and "2 of 3 documents (66.7%)" in shown.text
        and "1 of 4 documents" in shown.text
    )
    file = io.StringIO()
    for name in reports:
        Console(file=file, width=400, force_terminal=False).print(render_stage(stage_view(RunFolder(tmp_path), name)))
    assert (
        "\x1b" not in file.getvalue()
        and "\u202e" not in file.getvalue()
        and file.getvalue().count("[bold]markup[/bold]") >= 20
    )


def test_the_frontier_and_what_to_beat_are_a_table() -> None:
    found = hostile_reports()["mix"]
    shown = page("mix", found)
    tilts, controls = found["mix"]["frontier"], found["mix"]["controls"]
    rows = {row[0]: row for row in shown.rows("Distance against risk")}
    assert len(tilts) == 9 and len(rows) == len(tilts) + len(controls)
    assert [row[-2:] for row in list(rows.values())[:9]] == [
        [f"{tilt['distance']:.4f}", f"{tilt['risk']:.4f}"] for tilt in tilts
    ]
    assert [name for name in rows if "chosen" in name] == ["aversion 0.25 (chosen)"]
    assert {name: rows[name][-2:] for name in controls} == {
        name: [f"{its['distance']:.4f}", f"{its['risk']:.4f}"] for name, its in controls.items()
    }


@pytest.mark.parametrize(
    "values", [[1.0], [1.0, 1.0], [0.0, 1e-12], [0.5, 3.37], [-2.0, 5.0], [1e-7, 3e-7], [1e9, 1e9 + 3]]
)
def test_an_axis_holds_all_its_values_between_round_ticks(values: list[float]) -> None:
    axis = Axis.of(values, 0.0, 100.0)
    assert axis.low <= min(values) and axis.high >= max(values) and 2 <= len(axis.ticks) <= 8
    assert all(0 <= float(axis.at(value)) <= 100 for value in values)


def test_a_fitted_mix_says_how_far_it_is_to_be_trusted(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    weights_RN = chance.dirichlet(np.ones(3), 20)
    losses_RT = np.stack([3 - weights_RN @ [0.9, 0.1, 0.3], chance.random(20)], axis=1)
    ablations = Ablations.of(("a", "b", "c"), ("skill", "luck"), weights_RN, losses_RT)
    supply = Supply.of({"a": 100.0, "b": 300.0, "c": 600.0}, 90.0)
    file = save_ablations(tmp_path / "runs.csv", ablations)
    larger = save_ablations(tmp_path / "larger.csv", ablations)
    regmix = Regmix(ablations_file=file, confirmed_file=larger, regressor="ridge", candidates=2000, best=10)
    facts = choose(supply, regmix).facts
    drawn = [{"wanted": 30, "drawn": 30, "taking_part": 3, "there": 300} for _ in "abc"]
    shown = page("mix", {"mix": {**facts, "by": ["source"], "drawn": drawn}})
    trusted = {name: float(value) for name, value in shown.rows("How well runs that were left out are ranked")}
    by_task = facts["rank_correlation_by_task"]
    expected = {"all that counts": facts["rank_correlation"], "skill": by_task["skill"], "luck": by_task["luck"]}
    assert trusted == pytest.approx(expected, abs=5e-4) and trusted["skill"] > 0.9 > trusted["luck"]
    assert facts["warnings"] and [warning for warning in facts["warnings"] if warning not in shown.text] == []
    assert {name: float(loss) for name, loss in shown.rows("Beside the mixes to beat")} == pytest.approx(
        {"this mix": facts["predicted_loss"]}
        | {name: its["predicted_loss"] for name, its in facts["controls"].items()},
        abs=5e-5,
    )
    near = shown.rows("Larger runs near this mix")
    assert len(near) in (4, 5) and near[1][0] == facts["larger_runs"]["nearest_runs"][0]["run"]
    assert facts["advice"] == "run" and "take its mix: " in shown.text
    assert f"{facts['best_run']['run']}: {facts['best_run']['loss']:.4f}, measured" in shown.text
    assert "1.0% of the tokens take part" in shown.text  # a proxy: told by those that do not


def test_lengths_are_grouped_by_powers_of_two() -> None:
    assert [length_group(k) for k in (1, 2, 3, 11, 31)] == [
        "1",
        "2 to 3",
        "4 to 7",
        "1,024 to 2,047",
        "1,073,741,824 or more",
    ]
    counts = [0] * 32
    counts[2], counts[4] = 5, 10
    assert lengths(counts).rows == [("2 to 3", "5", "33.3%"), ("4 to 7", "0", "0.0%"), ("8 to 15", "10", "66.7%")]
    assert [row for [[row]] in lengths(counts).bars] == [(0.5, "kept-shape"), (0.0, "kept-shape"), (1.0, "kept-shape")]


def test_a_long_table_says_how_long_it_is() -> None:
    whole = Table.of("Sources", ("source",), [(str(i),) for i in range(1234)], bars=[0.5] * 1234)
    first = whole.first()
    assert (
        len(first.rows) == len(first.bars) == MOST
        and first.title == "Sources (the first 50 of 1,234; report.json has all)"
    )
    assert first.first() == first


def test_other_stages_have_no_such_section() -> None:
    assert figures_of("gopher_quality", {"clusters": [[2, 1]]}) is None
    assert figures_of("mix", {}) is None and figures_of("", {"mix": {}}) is None


def test_shares_that_are_nearly_all_or_nothing_do_not_look_so() -> None:
    shares = (0, 1e-9, 0.5, 0.99999, 1, 1.5, -0.25, -1e-9)
    assert [as_percent(share) for share in shares] == [
        "0.00%",
        "<0.01%",
        "50.00%",
        ">99.99%",
        "100.00%",
        "150.00%",
        "−25.00%",
        "0.00%",
    ]
    assert [as_short(value) for value in (0, 0.01234, 12.345, 1234.5, -98765)] == [
        "0",
        "0.0123",
        "12.3",
        "1,234",
        "−98,765",
    ]
