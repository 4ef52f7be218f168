"""A global stage is one file, and one line where it comes with the mill: its figures, its tokens and its complaints reach
run.json, the terminal and report.html without a word of it in the engine."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from gristmill import stages
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.look.overview import overview
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.stage_view import render_stage, stage_view
from gristmill.pipeline.recipe import recipe as recipes, registry
from gristmill.pipeline.report import build_report
from gristmill.pipeline.report_data.figures import kept_figures
from gristmill.stages.figures import (
    Block,
    FactList,
    Samples,
    Sentence,
    StageFigures,
    Table,
    TextPair,
    TokenCounts,
    Warnings,
    count_bars,
)
from gristmill.stages.stage import Stage
from gristmill.stages.stub import STUB, stub
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import go, lines, save

ROOT = Path(__file__).parents[2]

LENGTHS = """
from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from gristmill.stages.checks import Complaint
from gristmill.stages.figures import FactList, StageFigures, Table, TokenCounts
from gristmill.stages.stage import Global


class LengthClasses(Global):
    \"\"\"Count documents by how many words they have.\"\"\"

    widths: Annotated[list[int], Field(description="of the classes, in words")] = [2, 4]

    drops: ClassVar[bool] = False

    def check_recipe(self, context):
        if len(context.sources) > len(self.widths):
            return [Complaint(f"a width for each of {', '.join(context.sources)}", ("widths",))]
        return []

    def run(self, docs, flow):
        rows = flow.gather(flow.map(self.count, docs, columns=("uid", "text"), by="key"))
        words = rows["words"].to_pylist()
        flow.report("lengths", {str(width): sum(n <= width for n in words) for width in self.widths})
        flow.report("words", sum(words))
        return docs

    def count(self, docs):
        words = pc.list_value_length(pc.utf8_split_whitespace(docs["text"]))
        return pa.table({"key": docs["uid"], "words": pc.cast(words, pa.int64())})

    @classmethod
    def figures(cls, report):
        if "lengths" not in report:
            return None
        rows = [(f"up to {width}", str(count)) for width, count in report["lengths"].items()]
        table = Table.of("Words <of> documents", ("words", "documents"), rows)
        return StageFigures("How long documents are", [FactList("", [("words", str(report["words"]))]), table])

    @classmethod
    def token_counts(cls, report):
        return TokenCounts({"notes": report["words"]}) if "words" in report else None
"""
RECIPE = """
name: hooks
sources: {notes: {jsonl: {path: notes.jsonl}}}
stages: [ADDRESS, write]
"""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One file, and one line in the list of stages."""
    save(tmp_path / "length_classes.py", LENGTHS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(stages.HOMES, "LengthClasses", "length_classes")
    registry.names.cache_clear()
    registry.built_in.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    sys.modules.pop("length_classes", None)
    registry.names.cache_clear()
    registry.built_in.cache_clear()


def run(folder: Path, address: str) -> Path:
    lines(folder / "notes.jsonl", ["one", "one two", "one two three", "one two three four five"])
    go(save(folder / "hooks.yaml", RECIPE.replace("ADDRESS", address)), folder / "out")
    return folder / "out"


def check_what_is_seen(out: Path) -> None:
    report = json.loads((out / "stages" / "length_classes" / "report.json").read_text())
    assert report["lengths"] == {"2": 2, "4": 3} and report["words"] == 11
    entry = json.loads((out / "run.json").read_text())["stages"][1]
    assert entry["about"] == "Count documents by how many words they have." and entry["docs_in"] == entry["kept"] == 4
    file = io.StringIO()
    Console(file=file, width=120).print(render_stage(stage_view(RunFolder(out), "length_classes")))
    shown = " ".join(file.getvalue().split())
    assert "words 11 Words <of> documents words documents up to 2 2 up to 4 3" in shown
    page = (out / "report.html").read_text()
    assert build_report(RunFolder(out)) == page
    assert page.count("Words &lt;of&gt; documents") == 2  # its caption, and its label
    assert "How long documents are" in page and "Words <of>" not in page
    assert overview(RunFolder(out)).funnel.levels[-1].tokens == 11


def test_a_stage_in_a_file_of_the_users_shows_its_figures_though_the_file_is_gone(tmp_path: Path) -> None:
    own = save(tmp_path / "mine.py", LENGTHS)
    out = run(tmp_path, "'mine.py:LengthClasses'")
    own.unlink()
    registry.class_from_source.cache_clear()
    check_what_is_seen(out)
    report = json.loads((out / "stages" / "length_classes" / "report.json").read_text())
    assert report["figures"]["title"] == "How long documents are"


def test_a_stage_of_ours_is_one_file_and_one_line(registered: Path) -> None:
    out = run(registered, "length_classes")
    check_what_is_seen(out)
    report = json.loads((out / "stages" / "length_classes" / "report.json").read_text())
    assert not {"figures", "token_counts"} & report.keys()  # they are made anew each time
    assert "length_classes" in recipes.schema()["$defs"]


def test_what_a_stage_says_of_the_recipe_names_its_setting(tmp_path: Path) -> None:
    save(tmp_path / "mine.py", LENGTHS)
    text = RECIPE.replace("ADDRESS", "{'mine.py:LengthClasses': {widths: []}}")
    with pytest.raises(RecipeError, match=r"hooks.yaml:4: .*widths: a width for each of notes"):
        recipes.load(save(tmp_path / "hooks.yaml", text))


def test_figures_that_fail_cost_the_figures_alone(tmp_path: Path) -> None:
    save(tmp_path / "mine.py", LENGTHS.replace('report["lengths"].items()', 'report["length"].items()'))
    out = run(tmp_path, "'mine.py:LengthClasses'")
    assert json.loads((out / "run.json").read_text())["status"] == "done"
    assert "figures" not in json.loads((out / "stages" / "length_classes" / "report.json").read_text())


def test_figures_do_not_count_in_fingerprints() -> None:
    from gristmill.pipeline.recipe.fingerprint import code_of_module

    for name in ("blend.mix", "tokens.pack", "tokens.tokenize", "dedup.minhash", "judge.judge"):
        modules = code_of_module(f"gristmill.stages.{name}")
        assert "gristmill.stages.stage" in modules
        assert [module for module in modules if module.endswith((".figures", ".formatting"))] == []


def test_every_block_goes_into_report_json_and_back() -> None:
    table = Table.of("t", ("a", "b"), [("x", "1")], bars=[0.5], note="n")
    blocks: list[Block] = [
        FactList("t", [("a", "b")]), Warnings(["w"]), table, Sentence("s"),
        count_bars("c", "h", [("a", 1)], 2),
        TextPair("1", None, "a", "2", None, "b", "0.900"),
        Samples("t", [("x", [("1", "https://a.example", "text")])]),
    ]  # fmt: skip
    figures = StageFigures("title", blocks)
    again = StageFigures.from_data(json.loads(json.dumps(figures.as_data())))
    assert json.dumps(again.as_data()) == json.dumps(figures.as_data())
    assert [type(block) for block in again.blocks] == [type(block) for block in blocks]


def test_only_stages_from_outside_leave_their_figures_in_report_json() -> None:
    from gristmill.stages.dedup.exact import ExactDedup

    class Own(ExactDedup):
        @classmethod
        def token_counts(cls, report: object) -> TokenCounts | None:
            return TokenCounts({"a": 1}, {"a": 4.0})

    report = {"clusters": [[2, 3]]}
    assert kept_figures(ExactDedup, report) == {}
    kept = kept_figures(Own, report)
    assert kept["figures"]["title"] == "Clusters of duplicates"
    assert kept["token_counts"] == {"by_source": {"a": 1}, "bytes_per_token": {"a": 4.0}}


def test_stages_without_figures_show_none() -> None:
    silent = [kind for kind in registry.built_in().values() if kind.figures.__func__ is Stage.figures.__func__]  # type: ignore[attr-defined]
    assert len(silent) > 20
    assert all(kind.figures({}) is None for kind in registry.built_in().values())


def test_type_checkers_read_the_same_list_of_stages() -> None:
    assert len(stages.HOMES) > 40
    assert STUB.read_text(encoding="utf-8") == stub(), "python -m gristmill.stages.stub writes it anew"


EXAMPLE_IMPORTS = """
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.stages.dedup.survivors import members
from gristmill.stages.figures import FactList, Report, StageFigures
from gristmill.stages.flow import Dataset, Flow
from gristmill.stages.stage import Global
from gristmill.stages.text.sites import sites_of

"""


def test_the_stage_that_contributing_shows_runs_and_is_in_the_report(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    save(tmp_path / "own.py", EXAMPLE_IMPORTS + code)
    urls = ["https://a.example/1", "https://www.a.example/2", "https://b.example/1", None, "N/A", "n/a"]
    rows = [{"text": "word " * (n + 1), "url": url} for n, url in enumerate(urls)]
    (tmp_path / "in").mkdir()
    save(tmp_path / "in" / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    stages = "stages: [own.py:LongestOfSite, write]\n"
    recipe = save(tmp_path / "r.yaml", "name: r\nsources: {a: {jsonl: {path: in, url: url}}}\n" + stages)
    summary, _ = go(recipe, tmp_path / "out")
    [entry] = [stage for stage in summary.record.to_json()["stages"] if stage["name"] == "longest_of_site"]
    assert entry["kept"] == 5 and entry["dropped"] == {"shorter_of_site": 1}
    [facts] = (tmp_path / "out" / "stages").glob("longest_of_site/report.json")
    assert json.loads(facts.read_text(encoding="utf-8"))["largest"] == 2
    assert "documents of the largest" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
