"""Each command in the docstring of a benchmark is one that its own parser takes. Nothing is measured: a script ends
where it has parsed its arguments."""

from __future__ import annotations

import argparse
import ast
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").rglob("*.py"))
COMMAND = re.compile(r"(?:python|torchrun .*?) -m (benchmarks[\w.]+)(.*)")
OPTIONAL = re.compile(r"\[([^\[\]]*)\]")  # as in `[--times 3]` and `[--calls | --path]`


class Parsed(Exception):
    """A script has its arguments."""


def commands_of(docstring: str) -> list[tuple[str, list[str]]]:
    """The module and the arguments of each; what is optional is given, of alternatives the first."""
    found: list[tuple[str, list[str]]] = []
    lines = docstring.splitlines()
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if not indent or " -m benchmarks." not in line:
            continue
        whole = line.strip()
        for more in lines[number + 1 :]:
            if len(more) - len(more.lstrip()) <= indent or " -m benchmarks." in more:
                break
            whole += f" {more.strip()}"
        for one in whole.split(" && "):
            match = COMMAND.search(re.split(r" {2,}", one)[0])
            assert match, one
            words = OPTIONAL.sub(lambda group: group[1].split(" | ")[0], match[2])
            assert "[" not in words and "]" not in words, f"brackets that do not close: {one}"
            given = [word.split("|")[0].removesuffix("...") for word in shlex.split(words) if word != "..."]
            found.append((match[1], ["1" if word == "N" else word for word in given]))
    return found


COMMANDS = [
    (path, module, arguments)
    for path in SCRIPTS
    for module, arguments in commands_of(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
]


def file_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def test_most_benchmarks_say_how_they_are_run() -> None:
    assert len({path for path, _, _ in COMMANDS}) > 70
    assert all(file_of(module).is_file() for _, module, _ in COMMANDS)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [(module, arguments) for _, module, arguments in COMMANDS if "ArgumentParser(" in file_of(module).read_text()],
    ids=lambda value: value if isinstance(value, str) else " ".join(value)[:40],
)
def test_the_parser_takes_the_command(
    module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parse, check = argparse.ArgumentParser.parse_args, argparse.ArgumentParser._check_value

    def check_value(self: argparse.ArgumentParser, action: argparse.Action, value: Any) -> None:
        if not (isinstance(value, str) and value.isupper()):  # else a word for one of the choices, as in `--only NAME`
            check(self, action, value)

    def parse_alone(self: argparse.ArgumentParser, *given: Any) -> Any:
        parse(self, *given)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_alone)
    monkeypatch.setattr(argparse.ArgumentParser, "_check_value", check_value)
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    monkeypatch.chdir(ROOT)
    with pytest.raises(Parsed):
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit:
            pytest.fail(f"{' '.join(arguments)}: {capsys.readouterr().err.strip().splitlines()[-1]}")
