"""The list of commands, examples in their help, old names, how one is added, and stages that `new` begins."""

from __future__ import annotations

import os
import runpy
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from gristmill.pipeline.cli import doctor
from gristmill.pipeline.cli.app import COMMANDS, GROUPS, OLD_NAMES, app, program, registration
from gristmill.pipeline.cli.command import PANELS, Group
from gristmill.pipeline.cli.doctor import next_steps
from gristmill.pipeline.cli.new import Kind, new
from gristmill.pipeline.errors import RecipeError

TOP: Any = typer.main.get_command(app)


def command_of(path: str) -> Any:
    group, _, name = path.rpartition(" ")
    return (TOP.commands[group] if group else TOP).commands[name]


def short(command: Any) -> str:
    return " ".join(command.help.split("\n\n")[0].split()).rstrip(".")


def test_each_command_is_a_line_of_the_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert len(TOP.commands) == 18
    for path in COMMANDS:
        group, _, name = path.rpartition(" ")
        lines = CliRunner().invoke(app, [*group.split(), "--help"]).output.splitlines()
        assert [line for line in lines if line.split()[:1] == [name] and short(command_of(path)) in line], path
        assert max(map(len, lines)) <= 80
    lines = CliRunner().invoke(app, ["--help"]).output.splitlines()
    for name in GROUPS:
        assert [line for line in lines if line.split()[:1] == [name] and short(TOP.commands[name]) in line], name
    assert [line.rstrip(":") for line in lines if line.rstrip(":") in PANELS] == list(PANELS)


@pytest.mark.parametrize("path", COMMANDS)
def test_examples_are_commands(path: str) -> None:
    examples = registration(path).examples
    assert examples
    for example in examples:
        words = shlex.split(example.partition(" > ")[0].partition(" < ")[0])
        called = " ".join(words[:2]) if words[0] in GROUPS else words[0]
        command_of(called).make_context(called, words[len(called.split()) :])
        assert called == path or example.startswith("run recipe.yaml --sample")  # what `estimate` reads


ADDED = '''
from gristmill.pipeline.cli.command import LOOK, Command
from gristmill.pipeline.cli.options import OutPath


def count(out: OutPath) -> None:
    """Count what is there."""
    print(f"counted {out}")


COMMAND = Command(count, LOOK, ("count out/mine",))
'''


@pytest.mark.parametrize("path", ["count", "maintain count"])
def test_a_command_is_its_file_and_a_line(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gristmill.pipeline.cli as home

    (tmp_path / f"{path.replace(' ', '_')}.py").write_text(ADDED)
    monkeypatch.setattr(home, "__path__", [*home.__path__, str(tmp_path)])
    with_it = program((*COMMANDS, path))
    group = path.split()[:-1]
    assert CliRunner().invoke(with_it, [*path.split(), "out/a"]).stdout == "counted out/a\n"
    assert "Count what is there" in CliRunner().invoke(with_it, [*group, "--help"]).stdout
    page = CliRunner().invoke(with_it, [*path.split(), "--help"]).stdout
    assert "Usage: gristmill" in page.replace("Usage: root", "Usage: gristmill") and " OUT\n" in page
    assert "Examples:\n  gristmill count out/mine\n" in page
    assert CliRunner().invoke(app, [*path.split(), "out/a"]).exit_code == 2
    monkeypatch.delitem(sys.modules, f"gristmill.pipeline.cli.{path.replace(' ', '_')}")


@pytest.mark.parametrize("name", [*OLD_NAMES, "judge judges/mine"])
def test_an_old_name_is_answered_with_the_new_one_and_not_run(name: str) -> None:
    said = CliRunner().invoke(app, [*name.split(), "out", "--dry-run"])
    assert isinstance(said.exception, RecipeError) and said.exception.exit_code == 2 and said.stdout == ""
    old, _, new = str(said.exception).partition(" is now: gristmill ")
    assert old == f"gristmill {name}" and "\n" not in new
    path = next(path for path in COMMANDS if f"{new} ".startswith(f"{path} "))
    options = {option for parameter in command_of(path).params for option in parameter.opts}
    assert {word for word in new.split() if word.startswith("--")} <= options


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
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object() if name in there else None)
    monkeypatch.setenv("COLUMNS", "160")
    for gpus, energy in (([], "no GPU here"), (["H100"], "ready")):
        monkeypatch.setattr(doctor, "gpu_names", lambda gpus=gpus: gpus)
        said = {
            line[:30].strip(): line[30:].strip() for line in CliRunner().invoke(app, ["doctor"]).output.splitlines()
        }
        assert said["the energy of GPUs"] == energy, said
        blocks = next(line for name, line in said.items() if name.startswith("blocks of DataTrove"))
        assert blocks.startswith("some need tldextract, fasteners, ahocorasick, ftfy: pip install"), blocks


def test_a_command_that_is_terminated_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "invoke", lambda self, ctx: os.kill(os.getpid(), signal.SIGTERM))
    ended = CliRunner().invoke(app, ["plan", "recipe.yaml"])
    assert ended.exit_code == 130 and ended.output == "interrupted; give the same command again\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
