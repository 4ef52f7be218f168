"""A program that runs recipes by `gristmill.run` or `Recipe.run` finds its own process as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.runs import lines, save

pytestmark = pytest.mark.run

PROGRAM = """
import concurrent.futures, json, logging, multiprocessing, os, signal, sys, threading, time, warnings
from multiprocessing import context, forkserver, popen_forkserver, resource_tracker, spawn, util
import dask, distributed.utils, psutil, pyarrow
import numpy  # its warnings filters are its own

import gristmill

MODULES = (context, forkserver, popen_forkserver, resource_tracker, spawn, util, multiprocessing,
           os, signal, threading, warnings, logging, distributed.utils)


KEPT = ("threads", "children", "descriptors", "logger", "dask")  # libraries load these once, and keep them


def double(number):
    return 2 * number


def logging_of(logger):
    return [logger.level, logger.disabled, logger.propagate, repr(logger.filters), repr(logger.handlers)]


def state():
    return {
        **{f"{module.__name__}.{name}": f"{id(value)}" for module in MODULES for name, value in vars(module).items()
           if callable(value) or isinstance(value, bool)},
        "start methods": sorted(map(str, context._concrete_contexts)),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "preloaded": forkserver._forkserver._preload_modules,
        "warnings": list(map(repr, warnings.filters)),
        **{f"signal {number}": repr(signal.getsignal(number)) for number in signal.valid_signals()},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        **{f"${name}": value for name, value in os.environ.items()},
        "dask": json.dumps(dask.config.config, default=str, sort_keys=True),
        "logger root": logging_of(logging.root),
        **{f"logger {name}": logging_of(logger) for name, logger in logging.root.manager.loggerDict.items()
           if isinstance(logger, logging.Logger)},
        "hooks": [repr(hook) for hook in (sys.excepthook, sys.unraisablehook, threading.excepthook)],
        "folder": os.getcwd(),
        "path": list(sys.path),
        "limits": [dask.config.get("temporary-directory"), sys.getrecursionlimit(), sys.getswitchinterval()],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "children": sorted(child.pid for child in psutil.Process().children(recursive=True)),
        "descriptors": sorted(name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")),
    }


def changes(before, after):
    names = {**before, **after}
    return {name: [before.get(name), after.get(name)] for name in names if before.get(name) != after.get(name)}


if __name__ == "__main__":
    recipe, out = sys.argv[1:]
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        assert pool.map(double, [1, 2]) == [2, 4]
        before = {name: value for name, value in state().items() if not name.startswith(KEPT)}
        texts = pyarrow.table({"text": ["a text", "another text"]})
        gristmill.Recipe(texts, ["exact_dedup"]).run(f"{out}/first", workers=1)
        before |= {name: value for name, value in state().items() if name.startswith(KEPT)}
        with concurrent.futures.ThreadPoolExecutor(1) as aside:
            pooled = aside.submit(lambda: [pool.map(double, [number]) for number in range(100) if not time.sleep(0.02)])
            own = aside.submit(lambda: multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(0,)))
            gristmill.run(recipe, out=f"{out}/second", workers=1)
            assert pooled.result() == [[2 * number] for number in range(100)]
            own.result().start()
            own.result().join()
            assert own.result().exitcode == 0
            own.result().close()
        until = time.monotonic() + 5  # threads that have nothing more to do end soon
        while changes(before, state()) and time.monotonic() < until:
            time.sleep(0.1)
        print(json.dumps(changes(before, state())))
        assert pool.map(double, [3]) == [6]
"""


def test_nothing_in_the_process_of_a_program_is_changed_by_its_runs(tmp_path: Path) -> None:
    docs = lines(tmp_path / "docs.jsonl", ["one text of many words", "another text of many words"])
    recipe = save(
        tmp_path / "r.yaml",
        f"name: r\nsources:\n  docs: {{jsonl: {{path: {docs}}}}}\nstages: [exact_dedup, write]\n",
    )
    program = save(tmp_path / "program.py", PROGRAM)
    ended = subprocess.run(
        [sys.executable, str(program), str(recipe), str(tmp_path / "out")],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    changed = json.loads(ended.stdout.splitlines()[-1])
    assert changed == {}, changed
    assert ended.stderr == ""
