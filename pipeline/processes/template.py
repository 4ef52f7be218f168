"""Workers of this machine are forked from one process, the template, that has loaded their stages: once, while the
driver makes its plan.

The template is a fork server as the standard library has it, with modules to import before it serves
(`pipeline/processes/template_loads.py`). Stages are loaded and kernels compiled in it once, not in each worker, and a
worker that died is back in a tenth of a second. It begins before the driver has read the recipe. All of it saves time
and nothing else: a worker loads whatever its template has not.

The driver may be a user's program that uses multiprocessing too, so the template is a server of our own and not the
standard library's only one. Dask finds it as a start method of multiprocessing, registered while a run lasts (`held`).
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import cache
from multiprocessing import (
    context,
    forkserver,
    popen_forkserver,
    popen_spawn_posix,
    process,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from pathlib import Path
from queue import Empty
from typing import Any

from gristmill.pipeline.processes import lifetime

FORKED, SPAWNED = "gristmill-forked", "gristmill-spawned"  # start methods, for Dask's setting
POSSIBLE = sys.platform == "linux"  # elsewhere libraries of the system do not survive a fork; workers are spawned there
LOADS = "gristmill.pipeline.processes.template_loads"
DASKS = ("__DASK_PARENT_PID", "PYTHONHASHSEED")  # variables that Dask sets
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


class Template:
    """The process's only server, and the number of runs that use it."""

    def __init__(self) -> None:
        self.server = forkserver.ForkServer()
        self.server.set_forkserver_preload([LOADS])
        self.holders = 0
        self.lock = threading.Lock()


@cache
def _template() -> Template:
    return Template()


def begin(recipe: Path) -> None:
    """Start the template for the stages of a recipe, if none is there; returns at once."""
    if not POSSIBLE:
        return
    resource_tracker.ensure_running()  # it unblocks signals
    wanted = {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()} | {
        RECIPE: str(recipe.resolve())
    }
    with environment(wanted), interrupts_held():
        _template().server.ensure_running()


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Register our start methods while a block has workers. The template ends with the last such block."""
    template = _template()
    with template.lock:
        template.holders += 1
        context._concrete_contexts.update({FORKED: _Forked(), SPAWNED: _Spawned()})  # type: ignore[attr-defined]
    try:
        yield
    finally:
        with template.lock:
            template.holders -= 1
            last = template.holders == 0
            if last:
                for name in (FORKED, SPAWNED):
                    del context._concrete_contexts[name]  # type: ignore[attr-defined]
        if last:
            end()


def end() -> None:
    """End the template, the workers that are left, and the processes that stages left behind, which it adopted."""
    number = pid()
    if number is not None:
        descendants = lifetime.descendants(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        _template().server._stop()  # type: ignore[attr-defined]
        lifetime.end(descendants)


def pid() -> int | None:
    """The template's process, if there is one."""
    number: int | None = _template().server._forkserver_pid  # type: ignore[attr-defined]
    return number


class Queue:
    """A queue from one process to another. Unlike multiprocessing's it has no semaphore, which a restarted resource
    tracker would not know."""

    def __init__(self, ctx: context.BaseContext) -> None:
        self._reader, self._writer = ctx.Pipe(duplex=False)

    def put(self, item: object) -> None:
        self._writer.send(item)

    def get(self) -> Any:
        return self._reader.recv()

    def get_nowait(self) -> Any:
        if not self._reader.poll():
            raise Empty
        return self._reader.recv()

    def close(self) -> None:
        """Nothing: the other process may not have read yet. Both ends close with this object."""

    def join_thread(self) -> None:
        """Nothing: `put` has sent everything."""


class _ForkedPopen(popen_forkserver.Popen):
    """The standard library's, with our server in place of its own."""

    def _launch(self, process_obj: process.BaseProcess) -> None:
        data = _pickled(self, process_obj)
        self.sentinel, to_child = _template().server.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        kept = os.dup(to_child)  # the child ends when this process has
        self.finalizer = util.Finalize(self, util.close_fds, (kept, self.sentinel))  # type: ignore[attr-defined]
        with os.fdopen(to_child, "wb") as pipe:
            pipe.write(data)
        self.pid = forkserver.read_signed(self.sentinel)


class _SpawnedPopen(popen_spawn_posix.Popen):
    """The standard library's, but for `_pickled`."""

    def _launch(self, process_obj: process.BaseProcess) -> None:
        tracker = resource_tracker.getfd() or 0
        passed: list[int] = self._fds  # type: ignore[attr-defined]
        passed.append(tracker)
        data = _pickled(self, process_obj)
        self.sentinel, of_child = os.pipe()
        from_us, to_child = os.pipe()
        self.finalizer = util.Finalize(self, util.close_fds, (self.sentinel, to_child))  # type: ignore[attr-defined]
        try:
            command = spawn.get_command_line(tracker_fd=tracker, pipe_handle=from_us)
            self.pid = util.spawnv_passfds(os.fsencode(spawn.get_executable()), command, [*passed, from_us, of_child])
        finally:
            os.close(from_us)
            os.close(of_child)
        with os.fdopen(to_child, "wb", closefd=False) as pipe:
            pipe.write(data)


def _pickled(popen: popen_forkserver.Popen | popen_spawn_posix.Popen, process_obj: process.BaseProcess) -> memoryview:
    """A process object for its child, which does not import the main script: stages reach workers as plain data, and a
    script that calls `run` without `if __name__ == "__main__":` would start its run again in each worker."""
    facts, buffer = spawn.get_preparation_data(process_obj.name), io.BytesIO()
    context.set_spawning_popen(popen)
    try:
        reduction.dump({key: each for key, each in facts.items() if not key.startswith("init_main")}, buffer)
        reduction.dump(process_obj, buffer)
    finally:
        context.set_spawning_popen(None)
    return buffer.getbuffer()


class _ForkedProcess(context.ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: process.BaseProcess) -> _ForkedPopen:
        return _ForkedPopen(process_obj)


class _SpawnedProcess(context.SpawnProcess):
    @staticmethod
    def _Popen(process_obj: process.BaseProcess) -> _SpawnedPopen:
        return _SpawnedPopen(process_obj)


class _Forked(context.ForkServerContext):
    _name = FORKED
    Process = _ForkedProcess

    def Queue(self, maxsize: int = 0) -> Queue:  # type: ignore[override]
        return Queue(self)


class _Spawned(context.SpawnContext):
    _name = SPAWNED
    Process = _SpawnedProcess

    def Queue(self, maxsize: int = 0) -> Queue:  # type: ignore[override]
        return Queue(self)


@contextlib.contextmanager
def environment(wanted: dict[str, str]) -> Iterator[None]:
    """Variables for a process that is started in the block."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        _restore(before)


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def environment_kept(*names: str) -> Iterator[None]:
    """Restore variables after a block: Dask sets them in this process for the workers that it starts."""
    before = {name: os.environ.get(name) for name in (*DASKS, *names)}
    try:
        yield
    finally:
        _restore(before)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C is the driver's alone: a process that is started in the block never sees it, and the driver sees it after
    the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
