"""What a user's stage starts ends with the run, however that ends; what it forks does nothing a second time; what it
cannot prepare stops the run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.pipeline.crawls import RUN, jsonl, outside, recipe, rejected, run_json, texts, written

pytestmark = pytest.mark.run

FORKS = """
import os, subprocess, time
from pathlib import Path
from typing import ClassVar
from gristmill.stages.stage import Rewrite, Applied, Verdict

def note(name, pid):
    (Path({folder!r}) / name).write_text(str(pid))

class Forks(Rewrite):
    slow: float = 0
    needs: ClassVar = ("text",)

    def rewrite(self, batch):
        if os.fork() == 0:
            note("forked", os.getpid())
            time.sleep(600)
        note("started", subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
        child = os.fork()
        if child == 0:
            os.setsid()
            if os.fork() == 0:
                note("daemon", os.getpid())
                time.sleep(600)
            os._exit(0)
        os.waitpid(child, 0)
        if os.fork() == 0:
            note("returned", os.getpid())
            if batch["text"][0].as_py().endswith("0, and nothing else"):
                raise ValueError("that the parent does not raise")
        time.sleep(self.slow)
        return Applied(batch, Verdict.keep(len(batch)).drop([i == 3 for i in range(len(batch))], "fourth"))
"""
NAMES = {"forked", "started", "daemon", "returned"}
PREPARES = """
import os
from gristmill.stages.stage import Rule, Verdict
class Prepares(Rule):
    def prepare(self):
        {deed}
    def verdict(self, signals):
        return Verdict.keep(len(signals))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "pids").mkdir()
    (tmp_path / "forks.py").write_text(FORKS.format(folder=str(tmp_path / "pids")))
    jsonl(tmp_path / "docs.jsonl", texts(20))
    yield tmp_path
    for process in started(tmp_path).values():
        with contextlib.suppress(psutil.Error):
            process.kill()


def started(folder: Path) -> dict[str, psutil.Process]:
    found = {}
    for path in (folder / "pids").iterdir():
        if path.read_text() and psutil.pid_exists(int(path.read_text())):
            found[path.name] = psutil.Process(int(path.read_text()))
    return found


def alive(folder: Path) -> set[str]:
    return {name for name, process in started(folder).items() if process.status() != psutil.STATUS_ZOMBIE}


def all_end(folder: Path) -> bool:
    """Whether all have ended. A process that is killed may still be there for a moment."""
    until = time.monotonic() + 10
    while alive(folder) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(folder)


def test_what_a_stage_leaves_behind_ends_with_the_run_and_did_nothing_twice(folder: Path) -> None:
    said = outside("run", recipe(folder, stages="['forks.py:Forks', write]"), "--out", folder / "out", "--workers", 1)
    assert said.code == 0, said.err
    assert {path.name for path in (folder / "pids").iterdir()} == NAMES, "all were started"
    assert all_end(folder), alive(folder)
    [source, forks, write] = run_json(folder / "out")["stages"]
    assert (source["kept"], forks["dropped"], forks["quarantined"], write["kept"]) == (20, {"fourth": 1}, 0, 19)
    assert len(written(folder / "out")) == 19 and [row["reason"] for row in rejected(folder / "out", "forks")] == [
        "fourth"
    ]


def test_what_a_stage_leaves_behind_ends_with_a_run_that_is_killed(folder: Path) -> None:
    file = recipe(folder, stages="\n  - forks.py:Forks: {slow: 60}\n  - write")
    command = [*RUN, "run", str(file), "--out", str(folder / "out"), "--workers", "1"]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while {path.name for path in (folder / "pids").iterdir()} != NAMES and time.monotonic() < until:
        time.sleep(0.05)
    assert alive(folder) >= {"forked", "started", "daemon"}
    driver.kill()
    driver.wait()
    assert all_end(folder), alive(folder)


@pytest.mark.parametrize(
    ("deed", "says"),
    [
        ("raise ValueError('no \\x1b[2J')", "prepare() failed: ValueError: no ␛[2J"),
        ("os._exit(3)", "prepare() ended its process (ended with code 3)"),
        ("os.kill(os.getpid(), 9)", "prepare() ended its process (died of SIGKILL)"),
    ],
)
def test_a_stage_that_cannot_be_prepared_stops_the_run_and_is_named(tmp_path: Path, deed: str, says: str) -> None:
    jsonl(tmp_path / "docs.jsonl", texts(20))
    (tmp_path / "mine.py").write_text(PREPARES.format(deed=deed))
    said = outside(
        "run", recipe(tmp_path, stages="['mine.py:Prepares', write]"), "--out", tmp_path / "out", "--workers", 1
    )
    said.one_line(1, f"prepares (mine.py:Prepares): {says}")
    assert not list((tmp_path / "out").glob("stages/*/rejects/*"))


@pytest.mark.xfail(sys.version_info >= (3, 14), reason="a worker is started twice, and a line says so", strict=False)
def test_a_resource_tracker_that_is_killed_while_workers_start_is_no_matter(folder: Path) -> None:
    command = [*RUN, "run", str(recipe(folder)), "--out", str(folder / "out"), "--workers", "2"]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    killed = False
    while not killed and driver.poll() is None:
        children, workers = {}, []
        with contextlib.suppress(psutil.Error):  # one has ended in between
            children = {" ".join(child.cmdline()): child for child in psutil.Process(driver.pid).children()}
            workers = [child for line, child in children.items() if "forkserver" in line and child.children()]
        for line, child in children.items():
            if workers and "resource_tracker" in line:
                os.kill(child.pid, 9)
                killed = True
        time.sleep(0.01)
    _, err = driver.communicate(timeout=60)
    assert killed and driver.returncode == 0 and err == "", err
    assert len(written(folder / "out")) == 20
