"""What `gristmill plan` calls up to date is not repeated by the run after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import go, lines, save, shared_texts, written

RECIPE = """\
name: r
keep: KEEP
parts: {files: 1, small_file: 0}
sources: {a: {jsonl: {path: a}}, b: {jsonl: {path: b}}}
stages: [exact_dedup, write]
"""


@pytest.mark.parametrize("keep", ["all", "signals", "nothing"])
def test_work_whose_files_were_not_kept_is_not_called_up_to_date(
    keep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_here(monkeypatch)
    shared_texts(tmp_path / "a", files=2)
    shared_texts(tmp_path / "b", files=1, own=3)
    recipe, out = save(tmp_path / "r.yaml", RECIPE.replace("KEEP", keep)), tmp_path / "out"
    go(recipe, out)

    def why() -> dict[str, str]:
        foreseen = CliRunner().invoke(app, ["plan", str(recipe), "--out", str(out), "--json"])
        return {node["name"]: node["why"] for node in json.loads(foreseen.stdout)}

    assert set(why().values()) == {"up to date"}
    lines(tmp_path / "b/g.jsonl", ["a text of its own"])
    said = why()
    assert said["b"] == "1 new part"
    _, anew = go(recipe, out)
    assert (said["a"] == "up to date") == (anew["a", "stages"] == 0) == (keep == "all")
    assert "not kept" in said["a"] or keep == "all"
    assert len(written(out)) == 2 * 5 + 3 + 1  # files of b begin with texts of a
