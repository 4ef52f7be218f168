"""A part that killed its worker, worked on in a child process that may die: the document at fault is found and
quarantined.

The child leaves a trail (`care.py`). When it dies, the batch that it died on is searched: a child goes there at once,
through no other batch, and tries row by row. A row on which two die is condemned (one may have been somebody's kill),
and then all of the part is done without it.
"""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from gristmill.kernels.base.files import write_whole
from gristmill.pipeline.errors import STAGE_ERRORS, GristmillError, RunFailed, in_words
from gristmill.pipeline.leg.care import Care, Last, Place, SearchEnded, Spot, Trail
from gristmill.pipeline.leg.map_task import run_map_task
from gristmill.pipeline.processes.lifetime import end_with_parent, how_it_ended
from gristmill.pipeline.store.records import MapTask, Result

MOST_DEATHS = 96
STRIKES = 2
LONG = 2.0  # seconds over one document that are worth a word
MOST_WORDS = 5
EVERY = 0.1
TOO_LONG = "took too long"


class Orders(TypedDict):
    """What the child is to do."""

    task: MapTask
    search: Place | None
    row: int | None
    one_by_one: list[Place]
    condemned: list[tuple[int, str, int, str]]  # a spot, and what it did
    memory: int | None


@dataclass
class _Search:
    """What is known of the documents of a part that kill."""

    place: Place | None  # to look for a row there
    row: int | None = None  # that killed once, and is tried alone
    condemned: dict[Spot, str] = field(default_factory=dict)
    one_by_one: set[Place] = field(default_factory=set)
    strikes: Counter[Spot] = field(default_factory=Counter)
    unclear: Counter[Place | None] = field(default_factory=Counter)  # deaths for which no row was to blame


def grind_carefully(task: MapTask, memory: int | None, place: Place | None, note: Callable[[str], None]) -> Result:
    """The result of a map task, whatever its documents do to the process that works on them. `place`
    is where a worker died over it, if that is known; `note` tells the person who waits."""
    search = _Search(place)
    over = f"part {task['key']} of {task['node']}"
    how, last = "", None
    for _ in range(MOST_DEATHS):
        answer, how, last = _try(task, memory, search, note)
        if answer is not None and "failed" in answer:
            raise RunFailed(answer["failed"])
        if answer is not None and "searched" not in answer:
            return answer
        if answer is not None and search.place is not None:  # all its rows live
            if search.row is None:
                search.one_by_one.add(search.place)
            search.place = search.row = None
        elif last is None or last.place is None:
            search.place = search.row = None
            search.unclear[None] += 1
        elif last.row is None:
            search.unclear[last.place] += 1
            search.place, search.row = (None if last.place in search.one_by_one else last.place), None
        else:
            spot = (*last.place, last.row)
            search.unclear.pop(last.place, None)
            search.strikes[spot] += STRIKES if how == TOO_LONG else 1  # of which somebody's kill is no sign
            if search.strikes[spot] >= STRIKES:
                search.condemned[spot] = f"killed the worker: {how}"
                search.place = search.row = None
                note(f"{last.place[1]}: {last.document} {_did(how)}; it is quarantined")
            else:
                search.place, search.row = last.place, last.row
                note(f"{last.place[1]}: {last.document} of {over} {_did(how)}; trying it once more")
        if search.unclear and max(search.unclear.values()) > STRIKES:
            break
    where = last.in_words() if last is not None and last.place is not None else "while reading"
    raise RunFailed(
        f"{task['node']}: part {task['key']} kills every process that works on it; the last one {how} {where}"
    )


# Modules are found where this process finds them, and last in the folder where the run was started.
START = """
import json, sys
folder, path = sys.argv[1:]
sys.path[:] = json.loads(path)
from gristmill.pipeline.engine.careful import main
main(folder)
"""


def command(folder: str) -> list[str]:
    """How the child is started. `-P`: without the current folder before all others."""
    return [sys.executable, "-P", "-c", START, folder, json.dumps([*sys.path, ""])]


def _did(how: str) -> str:
    return how if how == TOO_LONG else f"killed its process ({how})"


def _try(
    task: MapTask, memory: int | None, search: _Search, note: Callable[[str], None]
) -> tuple[Result | None, str, Last | None]:
    """A child at work: its answer, or how it died and where."""
    with tempfile.TemporaryDirectory(prefix="gristmill-") as name:
        folder = Path(name)
        orders: Orders = {
            "task": task,
            "search": search.place,
            "row": search.row,
            "one_by_one": sorted(search.one_by_one),
            "condemned": [(*spot, how) for spot, how in sorted(search.condemned.items())],
            "memory": memory,
        }
        (folder / "orders.json").write_text(json.dumps(orders))
        # none of its children keeps us waiting
        child = subprocess.Popen(
            command(name), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            code = _wait(child, folder / "trail", note if search.place is not None else None)
        except BaseException:
            child.kill()
            raise
        if (folder / "answer.json").exists():
            answer: Result = json.loads((folder / "answer.json").read_text())
            return answer, "", None
        last = Last.of(folder / "trail")
        return None, how_it_died(code, last), last


def _wait(child: subprocess.Popen[bytes], trail: Path, note: Callable[[str], None] | None) -> int:
    """How the child ended. Of a document over which it has been for long a word is said before it is given up."""
    named: set[int | None] = {None}
    row, since = None, time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(EVERY)
        last = Last.of(trail) if note is not None else None
        if last is None or last.row != row or last.place is None:
            row, since = last.row if last is not None else None, time.monotonic()
        elif note is not None and time.monotonic() - since > LONG and row not in named and len(named) <= MOST_WORDS:
            named.add(row)
            note(f"{last.place[1]}: at {last.document} for {LONG:.0f} s")


def how_it_died(code: int, last: Last | None) -> str:
    # faulthandler ends a process that hangs with code 1, as others may; but it says so
    return TOO_LONG if code == 1 and last is not None and last.hung else how_it_ended(code)


def main(name: str) -> None:
    """The child's side."""
    folder = Path(name)
    end_with_parent()
    orders: Orders = json.loads((folder / "orders.json").read_text())
    task = orders["task"]
    trail = Trail(folder / "trail")
    trail.begins(task["task"])
    if orders["memory"]:
        # RLIMIT_DATA counts private writable memory only: mapped models and files are not held against a document
        resource.setrlimit(resource.RLIMIT_DATA, (orders["memory"], orders["memory"]))
    care = Care(
        trail,
        {(batch, stage, row): how for batch, stage, row, how in orders["condemned"]},
        None if orders["search"] is None else (orders["search"][0], orders["search"][1]),
        orders["row"],
        frozenset((batch, stage) for batch, stage in orders["one_by_one"]),
        watch=True,
    )
    answer: Result
    try:
        answer = run_map_task(task, care)
    except SearchEnded:
        answer = {"searched": True}
    except GristmillError as error:
        answer = {"failed": str(error)}
    except OSError as error:
        answer = {"failed": f"{task['node']}, {task['key']}: {in_words(error, task['out'])}"}
    except MemoryError:
        raise  # the document at hand is too much for this process: that is a death
    except STAGE_ERRORS as error:  # a fault of ours or of a stage's, for which no document is to be blamed
        answer = {"failed": f"{task['node']}, {task['key']}: {type(error).__name__}: {error}"}
    write_whole(folder / "answer.json", json.dumps(answer).encode(), durable=False)
