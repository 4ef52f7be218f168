"""`gristmill forget` that loses its life to kill -9 at any of its steps on disk; the same command ends it with the
folder that a call which was left alone leaves.

A step is a file that is synced, renamed, linked or removed. Equal must be every file of the run's folder, byte for
byte, but for the journal, whose stamps are of files; there all else must be equal. No draft may be left, the run must verify,
and no stretch of 32 bytes of a forgotten document may be anywhere that only it held.
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gristmill.pipeline.cli.maintain_verify import check_files
from gristmill.pipeline.look.token_sets import faults_of
from gristmill.pipeline.store.storage import Store
from tests.pipeline.forget.forgetting import contents, documents, make_run, places, windows

SLICE = 2
EACH = 4  # of so many documents one is forgotten
PATIENCE = 300.0  # seconds
STEPS = ("replace", "unlink", "rename", "rmdir")
# Runs the command; kills it before the step whose number the environment has, and says how many there were.
DRIVER = f"""
import os, signal, sys
from pathlib import Path
count, last = 0, int(os.environ["LAST_STEP"])
def counted(function):
    def step(*given, **named):
        global count
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*given, **named)
    return step
for name in {STEPS!r}:
    setattr(Path, name, counted(getattr(Path, name)))
os.fsync = counted(os.fsync)
from gristmill.pipeline.cli import app
try:
    app.main()
finally:
    print(count, file=sys.stderr)
"""


@dataclass(frozen=True)
class Undisturbed:
    base: Path
    folder: Path
    theirs: frozenset[bytes]
    steps: int


def command(out: Path, last: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", DRIVER, "forget", str(out), "--list", str(out.parent / "ids.txt"), "--json"],
        env=os.environ | {"LAST_STEP": str(last)}, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


@functools.cache
def undisturbed(shared: Path) -> Undisturbed:
    base = shared / "base"
    base.mkdir()
    out = make_run(base)
    rows = documents(out)
    gone = rows[::EACH]
    (base / "ids.txt").write_text("".join(f"{row['uid']:016x}\n" for row in gone))
    others = [row for path in sorted((out / "partitions").iterdir()) for row in read_texts(path)]
    uids = {row["uid"] for row in gone}
    theirs = windows(str(row["text"]) for row in gone) - windows(r["text"] for r in others if r["uid"] not in uids)
    shutil.copytree(base, shared / "undisturbed")
    done = command(shared / "undisturbed/out", 0)
    if done.returncode:
        raise RuntimeError(done.stderr)
    steps = int(done.stderr.split()[-1])
    return Undisturbed(base, shared / "undisturbed/out", frozenset(theirs), steps)


def read_texts(segment: Path) -> list[dict[str, Any]]:
    paths = segment.glob("*.documents.parquet")
    return [row for path in paths for row in pq.read_table(path, columns=["uid", "text"]).to_pylist()]


def case(number: int, rng: random.Random, folder: Path) -> dict[str, float]:
    left_alone = undisturbed(folder.parent)
    shutil.copytree(left_alone.base, folder, dirs_exist_ok=True)
    out = folder / "out"
    kills = 0
    for _ in range(rng.choice((1, 1, 2))):  # some lose it twice
        killed = command(out, rng.randint(1, left_alone.steps))
        kills += killed.returncode == -signal.SIGKILL
    done = command(out, 0)
    if done.returncode:
        raise AssertionError(done.stderr[-2000:])
    differences = compare(left_alone.folder, out)
    assert not differences, differences[:5]
    files = check_files(Store(str(out)))
    faults = files.faults + [str(fault) for _, _, some in faults_of(str(out)) for fault in some]
    assert files.there > 10 and not faults, faults[:5]
    assert not (found := places(contents(out), set(left_alone.theirs))), found
    return {"kills": kills, "files": files.there, "max_steps": left_alone.steps}


def compare(left: Path, right: Path) -> list[str]:
    """Files that differ, or are in one folder alone."""
    names = sorted(
        {path.relative_to(top).as_posix() for top in (left, right) for path in top.rglob("*") if path.is_file()}
    )
    assert len(names) > 40
    return [name for name in names if name != ".lock" and content(left, name) != content(right, name)]


def content(top: Path, name: str) -> Any:
    path = top / name
    if not path.is_file():
        return None
    if name == "journal/tasks.jsonl":
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        bare = [{k: v for k, v in entry.items() if k not in ("stamps", "checksum")} for entry in entries]
        return sorted({json.dumps(entry, sort_keys=True) for entry in bare if entry})
    return path.read_bytes().replace(str(top).encode(), b"OUT")
