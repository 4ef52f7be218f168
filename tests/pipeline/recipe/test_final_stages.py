"""Token shards hold what the recipe says: nothing is changed or dropped behind them, their card tells their own way,
and they outlive their stage."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.plan.plan import make_plan
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.shards.reader import open_shards
from gristmill.shards.verify import verify
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import go, lines, save

OWN = """
from typing import ClassVar
from gristmill.stages.stage import Applied, Global, Map, Rewrite, Rule, Verdict

class Masks(Rewrite):
    def rewrite(self, batch):
        return Applied(batch, Verdict.keep(len(batch)))

class Short(Rule):
    def verdict(self, signals):
        return Verdict.keep(len(signals))

class Anything(Map):
    def apply(self, batch):
        return Applied(batch, Verdict.keep(len(batch)))

class Whole(Global):
    def run(self, docs, flow):
        return docs

class Looks(Whole):
    drops: ClassVar[bool] = False

class Rewrites(Looks):
    rewrites: ClassVar[bool] = True

class Exports(Looks):
    columns: ClassVar[tuple[str, ...]] = ("uid", "token_ids")
    final: ClassVar[bool] = True
"""


def recipe_of(folder: Path, stages: list[str], sources: str = "  a: {jsonl: {path: in}}\n") -> Path:
    save(folder / "own.py", OWN)
    return save(
        folder / "r.yaml", f"name: r\nsources:\n{sources}stages:\n" + "".join(f"  - {stage}\n" for stage in stages)
    )


def complaints(folder: Path, stages: list[str]) -> list[str]:
    path = recipe_of(folder, stages)
    with pytest.raises(RecipeError) as error:
        make_plan(recipes.load(path))
    return [line.removeprefix(f"{path}:") for line in str(error.value).splitlines()]


@pytest.mark.parametrize(
    ("stage", "what"),
    [
        ("personal_data", "personal_data changes texts"),
        ("exact_dedup", "exact_dedup drops documents"),
        ("substring_dedup", "substring_dedup changes texts"),
        ("mix", "mix drops documents"),
        ("sample: {rate: 0.5}", "sample drops documents"),
        ("own.py:Masks", "masks changes texts"),
        ("own.py:Anything", "anything changes texts"),
        ("own.py:Short", "short drops documents"),
        ("own.py:Whole", "whole drops documents"),
        ("own.py:Rewrites", "rewrites changes texts"),
    ],
)
@pytest.mark.parametrize("final", ["pack", "own.py:Exports"])
def test_nothing_is_changed_or_dropped_after_shards_are_written(
    tmp_path: Path, stage: str, what: str, final: str
) -> None:
    called = final.rpartition(":")[2].lower()
    assert complaints(tmp_path, ["tokenize", final, stage, "write"]) == [
        f"7: {what} after {called} (line 6), which has written its files without that: put it before tokenize (line 5)"
    ]


@pytest.mark.parametrize(
    ("stage", "called"),
    [
        ("personal_data", "personal_data"),
        ("paragraph_dedup", "paragraph_dedup"),
        ("own.py:Masks", "masks"),
        ("own.py:Anything", "anything"),
    ],
)
def test_texts_are_not_changed_between_their_tokens_and_the_shards(tmp_path: Path, stage: str, called: str) -> None:
    says = f"6: {called} changes texts between tokenize (line 5) and pack (line 8), which would write the tokens of the old texts: put it before tokenize"
    assert complaints(tmp_path, ["tokenize", stage, "order", "pack"]) == [says]


def test_every_stage_in_a_wrong_place_is_told_at_once(tmp_path: Path) -> None:
    said = complaints(tmp_path, ["tokenize", "personal_data", "pack", "exact_dedup", "repair"])
    assert [line.split(" after ")[0].split(" between ")[0] for line in said] == [
        "6: personal_data changes texts",
        "8: exact_dedup drops documents",
        "9: repair changes texts",
    ]


@pytest.mark.parametrize(
    "stages",
    [
        ["personal_data", "tokenize", "exact_dedup", "mix", "order", "pack", "write"],
        ["tokenize", "pack", "text_signals", "own.py:Looks", "write"],
        ["tokenize", "personal_data", "tokenize: {name: again}", "pack"],
        ["tokenize", "pack", "sample: {rate: 0.1}", "pack: {name: small}"],  # a second, smaller set
        ["tokenize", "personal_data", "write"],
        ["tokenize", "own.py:Exports", "own.py:Looks"],
    ],
)
def test_any_other_order_is_allowed(tmp_path: Path, stages: list[str]) -> None:
    assert make_plan(recipes.load(recipe_of(tmp_path, stages))).nodes


def test_a_stage_that_drops_must_not_declare_that_it_drops_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_here(monkeypatch)
    lines(tmp_path / "in" / "a.jsonl", ["one", "one", "two"])
    save(
        tmp_path / "liar.py",
        "from typing import ClassVar\nfrom gristmill.stages.dedup.exact import ExactDedup\n\nclass Liar(ExactDedup):\n    drops: ClassVar[bool] = False\n",
    )
    with pytest.raises(RunFailed, match=r"liar dropped 1 documents, and it declares that it drops none"):
        go(recipe_of(tmp_path, ["liar.py:Liar"]), tmp_path / "out")


SOURCES = "  a: {jsonl: {path: in}}\n  late: {jsonl: {path: late}, stages: [repair], join: last}\n"
BEFORE = ["write: {name: early}", "personal_data", "tokenize: {vocab_size: 300}"]
AFTER = ["text_signals: {name: last}", "write"]


def test_the_card_tells_the_way_of_these_shards_and_shards_outlive_their_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_here(monkeypatch)
    out, shards = tmp_path / "out", tmp_path / "out" / "shards"
    lines(tmp_path / "in" / "a.jsonl", [f"Write to ann{n}@example.org about the {n} words." for n in range(40)])
    lines(tmp_path / "late" / "b.jsonl", ["Not in any shard."])
    with_pack = [*BEFORE, "pack: {row_length: 64, window_tokens: 4096}", *AFTER]
    summary, _ = go(recipe_of(tmp_path, with_pack, SOURCES), out)
    assert summary.alarms == []
    card = (shards / "README.md").read_text().replace("\\_", "_")
    table = [
        line.split("|")[1].strip()
        for line in card.split("## Filters")[1].split("##")[0].splitlines()
        if line.startswith("| ")
    ]
    table.remove("---")
    assert table == ["stage", "a", "personal_data", "tokenize", "pack"]
    assert "late" not in card and "text_signals" not in card and "- personal_data:" in card

    files = {path: path.read_bytes() for path in shards.rglob("*") if path.is_file()}
    early = {path: path.read_bytes() for path in (out / "early").rglob("*.parquet")}
    assert len(files) >= 5 and early
    without = [*BEFORE[1:], *AFTER]
    summary, _ = go(recipe_of(tmp_path, without, SOURCES), out)
    kept = {path: path.read_bytes() for path in [*shards.rglob("*"), *(out / "early").rglob("*")] if path.is_file()}
    assert kept == files | early and verify(shards / "64") == [] and len(open_shards(shards / "64"))
    assert [alarm.split(" (")[0] for alarm in summary.alarms] == [
        "early is no longer in the recipe; its results in early/",
        "pack is no longer in the recipe; its results in shards/",
    ]
    assert f"`gristmill maintain clean {out} --unused` removes them" in summary.alarms[1]

    ask = CliRunner().invoke
    assert (
        f"would remove {len(kept)} files"
        in ask(app, ["maintain", "clean", str(out), "--unused", "--no-shuffle", "--dry-run"]).output
        and shards.exists()
    )
    assert f"removed {len(kept)} files" in ask(app, ["maintain", "clean", str(out), "--unused", "--no-shuffle"]).output
    assert not list(shards.rglob("*.arrow")) and list((out / "write").rglob("*.parquet"))
    summary, anew = go(recipe_of(tmp_path, without, SOURCES), out)
    assert summary.alarms == [] and not anew
