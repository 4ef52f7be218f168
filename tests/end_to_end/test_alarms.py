"""Alarms and shares count what a stage dropped, also where it makes documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from tests.pipeline.runs import save
from tests.stages.extract.test_views import page

pytestmark = pytest.mark.usefixtures("here")


def test_a_stage_that_makes_documents_does_not_hide_what_it_drops(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(10):
        html = page(6) if number < 4 else b"<html><body></body></html>"  # of which two views are made, or none
        (tmp_path / "in" / f"{number}.html").write_bytes(html)
    extract = "extract: {views: [full, precise]}"
    recipe = save(
        tmp_path / "r.yaml", f"name: r\nsources: {{a: {{html: {{path: in}}}}}}\nstages: [{extract}, one_view, write]\n"
    )
    shown = CliRunner().invoke(app, ["run", str(recipe), "--out", str(tmp_path / "out"), "--workers", "1", "--strict"])
    assert "extract dropped 60% of a (6 of 10)" in shown.output
    assert shown.exit_code != 0
    [extracted] = [
        s for s in json.loads((tmp_path / "out" / "run.json").read_text())["stages"] if s["name"] == "extract"
    ]
    assert (extracted["docs_in"], extracted["made"], extracted["kept"]) == (10, 4, 8)
