"""The list of commands, examples in their help, and stages that `new` begins."""

from __future__ import annotations

import runpy
import shlex
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from gristmill.pipeline.cli import upkeep
from gristmill.pipeline.cli.app import app
from gristmill.pipeline.cli.menu import MENU
from gristmill.pipeline.cli.start import Kind, new
from gristmill.pipeline.cli.upkeep import next_steps
from gristmill.pipeline.errors import RecipeError


def test_each_command_is_a_line_of_the_menu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["--help"], terminal_width=80).output
    lines = shown.splitlines()
    for name, (_, about, _) in MENU.items():
        assert [line for line in lines if f" {name} " in line and about in line], name
    assert len(MENU) == len(app.registered_commands) > 25


@pytest.mark.parametrize("name", MENU)
def test_examples_are_commands(name: str) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for example in MENU[name][2]:
        called, *args = shlex.split(example.partition(" > ")[0])
        commands[called].make_context(called, args)


@pytest.mark.parametrize("kind", Kind)
def test_a_stage_that_is_begun_passes_its_test(tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"my_new_{kind.value}"
    new("stage", name, kind, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = runpy.run_path(str(tmp_path / f"test_{name}.py"))
    [test] = [value for key, value in found.items() if key.startswith("test_")]
    test()
    assert name in sys.modules
    assert "gristmill.stages.stage" not in (tmp_path / f"{name}.py").read_text()  # only names that stay
    with pytest.raises(RecipeError, match="already"):
        new("stage", name, kind, tmp_path)
    with pytest.raises(RecipeError, match="small letters"):
        new("stage", "My-Rule", kind, tmp_path)


def test_doctor_says_what_to_do_next(tmp_path: Path) -> None:
    assert "gristmill demo" in next_steps(tmp_path)[0]
    (tmp_path / "r.yaml").write_text("name: r\nsources: {a: {jsonl: {path: in}}}\nstages: [write]\n")
    assert "run" in next_steps(tmp_path)[0] and "r.yaml" in next_steps(tmp_path)[0]
    (tmp_path / "out/r").mkdir(parents=True)
    (tmp_path / "out/r/run.json").write_text("{}")
    assert "inspect" in next_steps(tmp_path)[0]


def test_doctor_says_what_is_missing_and_calls_nothing_ready_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"pynvml", "datatrove", "spacy"}
    monkeypatch.setattr(upkeep.importlib.util, "find_spec", lambda name: object() if name in there else None)
    monkeypatch.setenv("COLUMNS", "160")
    for gpus, energy in (([], "no GPU here"), (["H100"], "ready")):
        monkeypatch.setattr(upkeep, "gpu_names", lambda gpus=gpus: gpus)
        said = {
            line[:30].strip(): line[30:].strip() for line in CliRunner().invoke(app, ["doctor"]).output.splitlines()
        }
        assert said["the energy of GPUs"] == energy, said
        blocks = next(line for name, line in said.items() if name.startswith("blocks of DataTrove"))
        assert blocks.startswith("some need tldextract, fasteners, ahocorasick, ftfy: pip install"), blocks
