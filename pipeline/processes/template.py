"""Workers of this machine are forked from one process, the template, that has loaded their stages: once, while the
driver makes its plan.

The template is the standard library's fork server, with modules to import before it serves
(`pipeline/processes/template_loads.py`). Stages are loaded and kernels compiled in it once, not in each worker, and a
worker that died is back in a tenth of a second. It begins before the driver has read the recipe. All of it saves time
and nothing else: a worker loads whatever its template has not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sized
from multiprocessing import forkserver, resource_tracker, spawn
from pathlib import Path
from typing import Any

from gristmill.pipeline.processes import lifetime

UNREGISTER = resource_tracker.unregister  # the standard library's; `begin` puts ours in its place
PREPARATION = spawn.get_preparation_data  # the same; `leave_main_alone` does
WORKER = "Dask Worker process"  # how Dask names the processes of its workers
POSSIBLE = sys.platform == "linux"  # elsewhere libraries of the system do not survive a fork; workers are spawned there
LOADS = "gristmill.pipeline.processes.template_loads"
RECIPE = "GRISTMILL_TEMPLATE_RECIPE"

# What a worker must find set when its process begins.
ENVIRONMENT = {
    # Dask tells glibc to give every 64 kB back at once, which costs 6 % of the time in page faults; and a thread of a
    # worker is not the main thread, for which alone malloc grows in place.
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "1",
    # as Dask has them: a worker is one thread
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def begin(recipe: Path) -> None:
    """Start the template for the stages of a recipe, if none is there; returns at once."""
    if not POSSIBLE:
        return
    resource_tracker.unregister = unregister
    warnings.filterwarnings("ignore", message="resource_tracker: process died unexpectedly")
    resource_tracker.ensure_running()  # it unblocks signals
    forkserver.set_forkserver_preload([LOADS])
    wanted = {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()} | {
        RECIPE: str(recipe.resolve())
    }
    with environment(wanted), interrupts_held():
        forkserver.ensure_running()


def leave_main_alone() -> None:
    """Workers do not import the script that runs, as the standard library's processes do: a stage reaches them as plain
    data, and a script that calls `run` without `if __name__ == "__main__":` would begin its run again in each."""
    spawn.get_preparation_data = preparation_data


def preparation_data(name: str) -> dict[str, Any]:
    """In place of the standard library's: processes that are no workers are left as they are."""
    data = PREPARATION(name)
    return {key: each for key, each in data.items() if not (name.startswith(WORKER) and key.startswith("init_main"))}


def unregister(name: Sized, rtype: str) -> None:
    """In place of the standard library's: a resource tracker that was killed and is started anew knows nothing of what
    is given back to it, and would print a trace for each."""
    resource_tracker.ensure_running()  # first: a message that finds the old one dead is lost (Python 3.14)
    resource_tracker.register(name, rtype)
    UNREGISTER(name, rtype)


def end() -> None:
    """End the template, and with it every worker that is left and all that stages have left behind, which it has
    adopted."""
    server = forkserver._forkserver
    with server._lock:  # type: ignore[attr-defined]
        pid = server._forkserver_pid  # type: ignore[attr-defined]
        if pid is not None:
            descendants = lifetime.descendants(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            server._stop_unlocked()  # type: ignore[attr-defined]
            lifetime.end(descendants)


@contextlib.contextmanager
def environment(wanted: dict[str, str]) -> Iterator[None]:
    """Variables for a process that is started in the block."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C is the driver's alone: a process that is started in the block never sees it, and the driver sees it after
    the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
