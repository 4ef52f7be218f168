"""Every command that README and docs show exists, with its options and as many arguments; so do targets of make,
extras of pip and programs of Python."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from gristmill.pipeline.cli.app import GROUPS, app
from tests.docs.pages import ALL, PAGES, ROOT, Block, inline

TOP: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
MAKE = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
SHELLS = [block for block in ALL if block.language in ("shell", "sh", "bash")]


def lines_of(block: Block) -> Iterator[str]:
    """One command a line, without comments and what a page says beside it."""
    for line in re.sub(r"\\\n\s*", " ", block.text).split("\n"):
        for part in re.split(r" \| | && |; ", re.split(r"\s{3,}(?=\S)|\s#\s", line.strip().removeprefix("$ "))[0]):
            yield part.strip()


def words_of(command: str) -> list[str]:
    return shlex.split(re.sub(r"[\[\]…]", " ", command), comments=True)


def complaint(command: str, whole: bool) -> str | None:
    """What is wrong with a call of gristmill; of one that is no whole call, only names are looked at."""
    _, *words = words_of(command)
    if not words or words[0] in ("--version", "--help"):
        return None
    name, *arguments = words
    if name not in TOP:
        return f"no command {name}" if re.fullmatch(r"[a-z][a-z-]*", name) else None
    command = TOP[name]
    if name in GROUPS:
        if not arguments and not whole:
            return None
        name, *arguments = [f"{name} {' '.join(arguments[:1])}", *arguments[1:]]
        command = command.commands.get(name.split()[-1])
        if command is None:
            return f"no command {name}"
    options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
    for word in arguments:
        if word.startswith("--") and word.partition("=")[0] not in options:
            return f"{name} has no {word}"
    if whole:
        try:
            command.make_context(name, arguments)
        except Exception as error:
            if not hasattr(error, "format_message"):  # typer may bring a click of its own
                raise
            return f"{name}: {error.format_message()}"
    return None


def test_commands_are_found() -> None:
    calls = [line for block in SHELLS for line in lines_of(block) if line.startswith("gristmill ")]
    assert len(calls) > 50 and len(SHELLS) > 25 and len(TOP) == 18


@pytest.mark.parametrize("block", SHELLS, ids=str)
def test_a_block_of_commands(block: Block) -> None:
    wrong = []
    for line in lines_of(block):
        words = line.split()
        if line.startswith("gristmill ") and "..." not in line:
            wrong.append(complaint(line, whole=True))
        elif words[:1] == ["make"]:
            wrong += [f"make has no {target}" for target in words[1:] if "=" not in target and target not in MAKE]
        elif "pip" in line.split(" install ")[0] and ".[" in line:
            wrong += [f"no extra {name}" for name in re.findall(r"\.\[(\w+)\]", line) if name not in EXTRAS]
        wrong += programs(line)
    assert [each for each in wrong if each] == []


def programs(line: str) -> Iterator[str]:
    """What is wrong with `python -m NAME --option`."""
    for name, rest in re.findall(r"python -m ((?:benchmarks|gristmill)[\w.]*)([^`|;#]*)", line):
        folder = ROOT.joinpath(*name.removeprefix("gristmill.").split("."))
        path = folder / "__main__.py" if folder.is_dir() else folder.with_suffix(".py")
        if name == "benchmarks.ROOM.NAME":
            continue
        if not path.is_file():
            yield f"no program {name}"
        else:
            source = "".join(other.read_text() for other in path.parent.glob("*.py"))  # some share their options
            yield from (
                f"{name} has no {o}" for o in re.findall(r"--[a-z][\w-]*", rest) if o not in source and o != "--help"
            )


@pytest.mark.parametrize("block", SHELLS, ids=str)
def test_the_shell_can_read_it(block: Block) -> None:
    text = "\n".join(
        re.split(r"\s{3,}(?=\S)", line.rstrip())[0] if line[:1] != " " else line for line in block.text.split("\n")
    )
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text(page: str) -> None:
    wrong = []
    for words in inline(page):
        if words.startswith("gristmill "):
            wrong.append(complaint(words, whole=False))
        elif re.match(r"make [a-z-]+$", words) and "make" in words:
            wrong += [f"make has no {words[5:]}" for _ in "x" if words[5:] not in MAKE]
        wrong += programs(words)
        wrong += [f"no extra {name}" for name in re.findall(r"gristmill\[(\w+)\]", words) if name not in EXTRAS]
    assert [each for each in wrong if each] == []


def test_a_wrong_command_is_seen() -> None:
    assert complaint("gristmill run recipe.yaml --limits 3", whole=False) == "run has no --limits"
    assert complaint("gristmill rnu recipe.yaml", whole=False) == "no command rnu"
    assert complaint("gristmill judge pages/ texts.parquet", whole=False) == "no command judge pages/"
    assert complaint("gristmill judge train --limit 3", whole=False) == "judge train has no --limit"
    assert "Missing" in str(complaint("gristmill run --limit 3", whole=True))
    assert complaint("gristmill run recipe.yaml --limit 3", whole=True) is None
    assert [*programs("python -m benchmarks.text.rules --no-such-thing")] == [
        "benchmarks.text.rules has no --no-such-thing"
    ]
