"""The table of techniques names files, keys, commands and tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from typer.main import get_command

from gristmill.pipeline.cli.app import app
from gristmill.stages.stage import snake_case

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "techniques.md"
SPAN = re.compile(r"`([^`]+)`")
WITH_SETTINGS = ("pipeline", "stages", "classifiers", "mixing", "trainer/run", "trainer/parallel", "shards")


def rows() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").partition("## Left out")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [row for row in cells if row[0] not in ("technique", "---")]


def words_of_settings() -> set[str]:
    """Names of stages and of fields, and the words that they take."""
    words: set[str] = set()
    for folder in WITH_SETTINGS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    words |= {node.name, snake_case(node.name)}
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    words.add(node.target.id)
                elif (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier()) or (
                    isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--")
                ):
                    words.add(node.value)
    return words


def is_command(words: list[str]) -> bool:
    command = get_command(app)
    for word in words:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            return False
    return True


def test_the_table_is_there() -> None:
    assert len(rows()) > 60 and all(len(row) == 4 and all(row) for row in rows())
    left_out = PAGE.read_text(encoding="utf-8").partition("## Left out")[2]
    assert sum(line.startswith("| ") for line in left_out.splitlines()) >= 2 + 8


@pytest.mark.parametrize("column", [1, 3], ids=["code", "tests"])
def test_files_exist(column: int) -> None:
    for row in rows():
        paths = SPAN.findall(row[column])
        assert paths, row[0]
        for path in paths:
            assert (ROOT / path).exists(), f"{row[0]}: no {path}"
            assert column == 1 or "def test_" in (ROOT / path).read_text(encoding="utf-8")


def test_keys_and_commands_exist() -> None:
    known = words_of_settings()
    for row in rows():
        for span in SPAN.findall(row[2]):
            if span.startswith("gristmill "):
                assert is_command(span.split()[1:]), f"{row[0]}: no command {span}"
            elif "/" in span:
                assert (ROOT / span).is_file(), f"{row[0]}: no {span}"
            else:
                unknown = [word for word in re.findall(r"--[\w-]+|\w+", span) if word not in known]
                if span != "--profile":  # of a script
                    assert not unknown, f"{row[0]}: `{span}`: no such setting: {', '.join(unknown)}"
