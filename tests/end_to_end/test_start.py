"""The first commands of a user: `doctor` proposes a recipe only where there is one; a folder is no recipe."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import RecipeError

RECIPE = "name: r\nsources: {a: {jsonl: {path: in}}}\nstages: [write]\n"


def test_doctor_proposes_recipes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mkdocs.yml").write_text("site_name: x\nnav:\n  - stages: stages.md\n")
    (tmp_path / ".gitlab-ci.yml").write_text("stages: [build, test]\n")
    (tmp_path / "broken.yaml").write_text("stages: [\n")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "link.yml").symlink_to("nowhere")
    (tmp_path / "latin.yaml").write_bytes(b"stages: [\xff]\n")
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0 and "next: gristmill demo" in done.output
    (tmp_path / "mine.yaml").write_text(RECIPE)
    assert "next: gristmill run mine.yaml" in CliRunner().invoke(app, ["doctor"]).output


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", str(tmp_path)])
    assert isinstance(done.exception, RecipeError)
    assert str(done.exception) == f"{tmp_path}: a folder; a YAML file was expected"
