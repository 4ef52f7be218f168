"""What a group of the lock works with: a folder, the results that it has noted, and ways to run Gristmill."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml

import gristmill
from benchmarks.pipeline.locked.values import as_json, digest, of_run, plain

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ROOT / "recipes"
# Blocks of other programs that stages name, and the classes that they extend where those programs are not installed.
BLOCKS = [str(ROOT / "tests/mimics/own"), str(ROOT / "tests/mimics")]


@dataclass
class Lock:
    """Results by name. `values`: a folder for whole values, to find out what differs where digests do."""

    group: str
    folder: Path
    workers: int
    values: Path | None = None
    crawl: Path | None = None  # WARC files of the caller's
    found: dict[str, str] = field(default_factory=dict)
    stages: set[str] = field(default_factory=set)  # that runs had, by the names of their kinds

    def note(self, name: str, value: Any) -> None:
        name = f"{self.group}/{name}"
        if name in self.found:
            raise SystemExit(f"{name} is noted twice")
        value = plain(value, self.folder)
        self.found[name] = digest(value)
        if self.values is not None:
            path = self.values / f"{name.replace('/', '~')}.json"
            path.write_text(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False))

    def run(self, name: str, recipe: Path, out: Path | None = None) -> Path:
        """Run a recipe in processes of ours, and note all that is compared of it."""
        out = out or self.folder / "runs" / name
        gristmill.run(recipe, out, workers=self.workers)
        self.look(name, out)
        return out

    def look(self, name: str, out: Path) -> None:
        self.stages |= {stage["stage"] for stage in gristmill.open_run(out).record["stages"]}
        for what, value in of_run(out, self.folder):
            self.note(f"{name}/{what}", value)

    def recipe(self, name: str, content: str | dict[str, Any]) -> Path:
        """A recipe as a file; HERE in it is the folder."""
        path = self.folder / f"{name}.yaml"
        data = content if isinstance(content, dict) else yaml.safe_load(content.replace("HERE", str(self.folder)))
        path.write_text(yaml.safe_dump(data, sort_keys=False, width=1000))
        return path

    def command(
        self, name: str, *arguments: str, expected: int | None = 0, says: bool = True, complains: bool = True
    ) -> str:
        """What a command prints; noted is that, what it complains of, and its exit code."""
        code, out, errors = called(self.folder, arguments)
        if code != expected and expected is not None:
            raise SystemExit(f"gristmill {' '.join(arguments)}: exit {code}\n{out}{errors}")
        self.note(f"{name}/exit code", code)
        if says:
            self.note(f"{name}/says", printed(out))
        if code and complains:
            self.note(f"{name}/complains", errors.splitlines())
        return out


def called(folder: Path, arguments: Sequence[str]) -> tuple[int, str, str]:
    """The command in this process, which spares its start: exit code, output, errors. Its `main` raises where the entry
    point beside it ends the process."""
    [entry] = entry_points(group="console_scripts", name="gristmill")
    command, before = import_module(entry.module).main, sys.argv
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        sys.argv = ["gristmill", *arguments]
        try:
            command()
            code: Any = 0
        except SystemExit as end:
            code = end.code or 0
        finally:
            sys.argv = before
    return code if isinstance(code, int) else 1, out.getvalue(), errors.getvalue()


def printed(text: str) -> Any:
    """As JSON, where all of it or each line is."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return text.splitlines()


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(as_json(row) + "\n" for row in rows))
    return path
