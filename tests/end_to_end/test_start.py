"""The first commands of a user: `doctor` proposes a recipe only where there is one; a folder is no recipe; what only
reads recipes waits for no engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import RecipeError

pytestmark = pytest.mark.run

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


ENGINES = {
    "dask", "distributed", "httpx2", "llvmlite", "lxml", "numba", "pandas", "pypdfium2", "resiliparse", "scipy",
    "sklearn", "tokenizers", "torch", "trafilatura", "transformers", "vllm",
}  # fmt: skip
LOADED = """
import sys
from gristmill.pipeline.cli.app import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
PLAN = """
name: r
sources: {a: {jsonl: {path: in}}, b: {html: {path: in}, stages: [extract: {engine: trafilatura}]}}
stages: [gopher_quality, c4_lines, personal_data, minhash_dedup, tokenize: {vocab_size: 512}, pack: {row_length: 64}]
"""


@pytest.mark.parametrize("command", [["--help"], ["maintain", "schema"], ["plan", "r.yaml"]], ids=" ".join)
def test_a_recipe_is_read_without_an_engine(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "in/b.html").write_text("<p>two")
    (tmp_path / "r.yaml").write_text(PLAN)
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout, done.stderr
    modules = {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}
    assert "typer" in modules and modules & ENGINES == set()
