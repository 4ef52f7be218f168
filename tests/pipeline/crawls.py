"""Tiny inputs, recipes and stages of a user's own, and ways to run gristmill on them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.cli import app as cli

RUN = [sys.executable, "-m", "gristmill.pipeline.cli.app"]
BOOM = """
import os, signal, time
from typing import ClassVar
from gristmill.stages.stage import Annotate

class Boom(Annotate):
    patience: ClassVar[float] = 1.5

    def annotate(self, batch):
        if any("{mark}" in text for text in batch.column("text").to_pylist()):
            {deed}
        return {{}}
"""
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


class Said:
    """How a command ended and what it said, on one stream and the other."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
        assert "Traceback" not in out + err, out + err

    def one_line(self, code: int, *parts: str) -> str:
        """One clear message with all of the parts in it, and this exit code."""
        assert self.code == code, (self.code, self.out, self.err)
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, self.err
        assert all(part in lines[0] for part in parts), (lines[0], parts)
        return lines[0]


def jsonl(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(
            json.dumps({"text": t, "url": f"https://example.org/{path.stem}/{i}"}) + "\n" for i, t in enumerate(texts)
        )
    )
    return path


def texts(count: int, mark_at: int | None = None) -> list[str]:
    return [f"document number {i}, and nothing else{' MARK' if i == mark_at else ''}" for i in range(count)]


def noise(seed: int, size: int) -> str:
    """Text that does not compress below three quarters."""
    return "".join(
        random.Random(seed).choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", k=size)
    )


def recipe(
    folder: Path, text: str | None = None, stages: str = "[write]", path: str = "docs.jsonl", more: str = ""
) -> Path:
    """recipe.yaml: as given, or one source of JSON lines and these stages."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "recipe.yaml"
    file.write_text(
        text
        if text is not None
        else f"name: tiny\n{more}sources:\n  docs:\n    jsonl: {{path: {path}}}\nstages: {stages}\n"
    )
    return file


def stage_file(folder: Path, deed: str, mark: str = "MARK") -> None:
    """my_rules.py:Boom does its deed when it sees the mark."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "my_rules.py").write_text(BOOM.format(mark=mark, deed=deed))


def inside(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: object) -> Said:
    """The command line in this process; for what ends before any worker starts."""
    monkeypatch.setattr(sys, "argv", ["gristmill", *map(str, args)])
    monkeypatch.setenv("COLUMNS", "400")  # paths of tests are long, and messages are one line each
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    said = capsys.readouterr()
    return Said(code, said.out, said.err)


def outside(*args: object, before: Callable[[], None] | None = None, timeout: float = 90) -> Said:
    """The command line in a process of its own."""
    done = subprocess.run(
        [*RUN, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        preexec_fn=before,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def without_roots_key() -> None:
    """From the next exec on, file permissions hold for root too (the owner's bits of root's own files are what counts)."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)
    libc.prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH, 0, 0, 0)


def permissions_hold(folder: Path) -> bool:
    """Can a child be kept out of a file on this machine?"""
    closed = folder / "closed"
    closed.write_text("x")
    closed.chmod(0)
    done = subprocess.run(["cat", str(closed)], capture_output=True, check=False, preexec_fn=without_roots_key)
    closed.unlink()
    return done.returncode != 0


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Callable[[str], None]]:
    """A file system of so many bytes at a folder; calling the result makes it larger."""
    folder.mkdir()

    def mount(size: str, *flags: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"{','.join([*flags, ''])}size={size}", "tmpfs", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )

    try:
        done = mount(size)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
    try:
        yield lambda size: mount(size, "remount").check_returncode()
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def run_json(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "run.json").read_text()))


def entry(out: Path, name: str) -> dict[str, Any]:
    return next(e for e in run_json(out)["stages"] if e["name"] == name)


def written(out: Path) -> list[str]:
    """The texts of what was written, in order of text."""
    return sorted(t for file in (out / "write").glob("*.parquet") for t in pq.read_table(file)["text"].to_pylist())


def rejected(out: Path, stage: str) -> list[dict[str, Any]]:
    tables = [pq.read_table(file) for file in sorted((out / "stages" / stage / "rejects").glob("*.parquet"))]
    return list(pa.concat_tables(tables).to_pylist()) if tables else []


def left_over(folder: Path) -> list[str]:
    """Half-written files."""
    return [os.fspath(p) for p in folder.rglob(".*.tmp")]
