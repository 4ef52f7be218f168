"""A part that killed its worker, tried again in a child process that may die: the document at fault is found and quarantined.

The child writes down what it is about to do before each stage and batch. When it dies, the batch it died on goes row by row;
a row on which it dies twice is condemned (once may have been somebody's kill), and the rest of the part goes on without it.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pipeline.decide import run_decide
from pipeline.errors import GristmillError, RunFailed, in_words
from pipeline.leg import Care, Result, Task, grind
from pipeline.lifetime import end_with_parent

MOST_DEATHS = 64
STRIKES = 2


def grind_carefully(task: Task, memory: int | None = None) -> Result:
    """The result of a leg or its rules on a part, whatever its documents do to the process that works on them."""
    one_by_one: set[int] = set()
    condemned: dict[tuple[int, str, int], str] = {}
    strikes: dict[tuple[int, str, int], int] = {}
    said = ""
    for _ in range(MOST_DEATHS):
        with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
            orders = {
                "task": task,
                "one_by_one": sorted(one_by_one),
                "condemned": [[*place, how] for place, how in sorted(condemned.items())],
                "folder": folder,
                "memory": memory,
            }
            (Path(folder) / "orders.json").write_text(json.dumps(orders))
            child = subprocess.run(command(folder), stdin=subprocess.DEVNULL, capture_output=True, check=False)
            answer = Path(folder) / "answer.json"
            if answer.exists():
                found: dict[str, Any] = json.loads(answer.read_text())
                if "failed" in found:
                    raise RunFailed(found["failed"])
                return found
            how = how_it_died(child.returncode, child.stderr)
            trace = Path(folder) / "trace"
            last = json.loads(trace.read_text()) if trace.exists() else None
        said = f"{how} at {last}" if last else f"{how} while reading"
        if last is None:
            strikes[(-1, "", -1)] = strikes.get((-1, "", -1), 0) + 1
            if strikes[(-1, "", -1)] > STRIKES:
                break
        elif last["row"] is None:
            one_by_one.add(last["batch"])
        else:
            place = (last["batch"], last["stage"], last["row"])
            strikes[place] = strikes.get(place, 0) + 1
            if strikes[place] >= STRIKES:
                condemned[place] = f"killed the worker: {how}"
    raise RunFailed(f"{task['leg']}: part {task['key']} kills every process that works on it; the last one {said}")


# The packages of this program come from beside this file; a `stages/` in the folder where the run was started is the user's own. After them
# modules are found where this process finds them.
OURS = ("kernels", "mixing", "shards", "trainer", "classifiers", "stages", "pipeline")
START = f"""
import json, sys
folder, home, path = sys.argv[1:]
sys.path.insert(0, home)
import {", ".join(OURS)}
del sys.path[0]
sys.path += [place for place in json.loads(path) if place not in sys.path]
from pipeline.careful import main
main(folder)
"""


def command(folder: str) -> list[str]:
    """How the child is started. `-P`: without the current folder before all others."""
    home = Path(__file__).resolve().parent.parent
    return [sys.executable, "-P", "-c", START, folder, str(home), json.dumps([*sys.path, ""])]


def how_it_died(code: int, said: bytes) -> str:
    if code < 0:
        return f"died of {signal.Signals(-code).name}"
    # faulthandler ends a process that hangs with code 1, as others may; but it says so
    return "took too long" if code == 1 and b"Timeout (" in said else f"ended with code {code}"


def main(folder: str) -> None:
    """The child's side."""
    end_with_parent()
    orders = json.loads((Path(folder) / "orders.json").read_text())
    trace = Path(folder) / "trace"

    def about_to(batch: int, stage: str, row: int | None) -> None:
        trace.write_text(json.dumps({"batch": batch, "stage": stage, "row": row}))

    if orders["memory"]:
        # RLIMIT_DATA counts private writable memory only: mapped models and files are not held against a document
        resource.setrlimit(resource.RLIMIT_DATA, (orders["memory"], orders["memory"]))
    care = Care(about_to, frozenset(orders["one_by_one"]), {(b, s, r): how for b, s, r, how in orders["condemned"]}, watch=True)
    try:
        carry_out = {"leg": grind, "decide": run_decide}[orders["task"]["kind"]]
        answer: dict[str, Any] = carry_out(orders["task"], care)
    except GristmillError as error:
        answer = {"failed": str(error)}
    except OSError as error:
        answer = {"failed": f"{orders['task']['node']}, {orders['task']['key']}: {in_words(error, orders['task']['out'])}"}
    except MemoryError:
        raise  # the document at hand is too much for this process: that is a death
    except Exception as error:  # a fault of ours or of a stage's, for which no document is to be blamed
        answer = {"failed": f"{orders['task']['node']}, {orders['task']['key']}: {type(error).__name__}: {error}"}
    (Path(folder) / "answer.tmp").write_text(json.dumps(answer))
    (Path(folder) / "answer.tmp").replace(Path(folder) / "answer.json")
