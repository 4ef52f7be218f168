"""Processes of this machine: cores and GPUs that they may use, memory, which process is which and whether it lives,
signals, clean ends, and the fork server that workers are forked from.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import platform
import resource
import signal
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from multiprocessing import (
    connection,
    context,
    forkserver,
    parent_process,
    popen_forkserver,
    process,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from pathlib import Path
from queue import Empty
from types import FrameType
from typing import Any, TypedDict

import psutil

# --- cores ------------------------------------------------------------------------------------------------------------

NODES = Path("/sys/devices/system/node")
CORES = "GRISTMILL_CORES"  # variable: the cores that a worker binds itself to, `3` or `0,1,2,3`


def cores_here() -> int:
    """How many cores this process may use: those it is bound to, and no more than its container is given time on."""
    from dask.system import cpu_count  # Dask is slow to import

    return int(cpu_count())


# Where memory is in several nodes (NUMA), each local worker is bound to a core, or to the cores of one node, so that
# its memory is on that node: Linux takes a page from the node of the core that touches it first. With one node nothing
# is bound: the system's scheduler does better.


def nodes_here(root: Path = NODES, allowed: set[int] | None = None) -> list[list[int]]:
    """The cores of each node that this process may use; nodes without one (memory alone, or closed to it) are left
    out."""
    allowed = os.sched_getaffinity(0) if allowed is None else allowed
    nodes = []
    for path in sorted(root.glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
        with contextlib.suppress(OSError, ValueError):
            cores = sorted(allowed & set(cores_in((path / "cpulist").read_text())))
            if cores:
                nodes.append(cores)
    return nodes


def cores_in(text: str) -> Iterator[int]:
    """Parse a list as Linux writes it: `0-3,8-11`."""
    for span in text.strip().split(",") if text.strip() else ():
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1)


def assign_cores(workers: int, nodes: list[list[int]]) -> list[str | None]:
    """The cores of each worker: node after node, a core each while there are enough; else all cores of its node."""
    if len(nodes) < 2:
        return [None] * workers
    free = [list(cores) for cores in nodes]
    alone = workers <= sum(map(len, nodes))
    assigned: list[str | None] = []
    while len(assigned) < workers:
        for node, cores in zip(nodes, free, strict=True):
            if len(assigned) < workers and (cores or not alone):
                assigned.append(str(cores.pop(0)) if alone else ",".join(map(str, node)))
    return assigned


def bind_to_cores() -> None:
    """Bind this process and its threads to the cores that its driver assigned, if it did."""
    cores = os.environ.get(CORES)
    if cores:
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended; or the cores were taken away since
                os.sched_setaffinity(int(thread.name), set(cores_in(cores)))


def describe_nodes(nodes: list[list[int]]) -> str:
    if len(nodes) < 2:
        return "one: workers are not bound to cores"
    return f"{len(nodes)}, of {', '.join(str(len(cores)) for cores in nodes)} cores: each local worker is bound to one"


# --- GPUs and memory --------------------------------------------------------------------------------------------------

NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")


def gpus_here() -> list[str]:
    """What CUDA_VISIBLE_DEVICES leaves, or all that NVIDIA's driver shows. Initializes nothing, so that this process
    can still be forked."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(i) for i in range(len(list(NVIDIA_GPUS.iterdir())))] if NVIDIA_GPUS.is_dir() else []
    names = [name.strip() for name in visible.split(",")]
    end = names.index("-1") if "-1" in names else None  # CUDA ends its list there
    return [name for name in names[:end] if name]


def reset_peak_memory() -> None:
    """Make `peak_memory` count from here on, where the system allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """The most memory that this process held since the last reset, or ever, in bytes."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# --- which process it is ----------------------------------------------------------------------------------------------
#
# Locks and records of runs name a process. It is known by its number and the clock ticks from boot to its
# start, within one boot and one pid namespace. Times of day are no help: they are derived from the clock, and move with
# it.

BOOT = Path("/proc/sys/kernel/random/boot_id")
ENDED = ("Z", "X")  # states of a process that is no more: it waits for its parent


class ProcessId(TypedDict):
    """As lock and progress files hold it."""

    host: str
    pid: int
    machine: str  # equal for processes that see each other by these numbers; empty where that is not known
    began: float  # in ticks of that machine


def this_process() -> ProcessId:
    state = _state(os.getpid())
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "machine": machine() if state is not None else "",
        "began": state[1] if state is not None else 0,
    }


def is_alive(owner: Mapping[str, object]) -> bool | None:
    """Is a process still there? None where that cannot be seen from here: it is of another machine, boot or container,
    or hidden."""
    pid = owner.get("pid")
    if not owner.get("machine") or owner["machine"] != machine() or not isinstance(pid, int) or pid < 1:
        return None
    state = _state(pid)
    if state is None:  # it has ended, or is hidden from us (`hidepid` of proc(5))
        return None if _is_there(pid) else False
    return state[0] not in ENDED and state[1] == owner.get("began")


def machine() -> str:
    """The boot and the namespaces that the numbers of processes and their times of start belong to."""
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):  # /proc is that of another namespace
            return ""
        spaces = [Path(f"/proc/self/ns/{kind}") for kind in ("pid", "time")]
        return " ".join([BOOT.read_text().strip(), *(str(space.readlink()) for space in spaces if space.is_symlink())])
    except OSError:
        return ""


def _state(pid: int) -> tuple[str, float] | None:
    """The state and start of a process; None where they cannot be read."""
    try:
        # fields 3 and 22 of proc_pid_stat(5); the name before them may hold anything
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True


# --- signals ----------------------------------------------------------------------------------------------------------

INTERRUPTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}


@contextlib.contextmanager
def single_interrupt() -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP: the first interrupts the block, later ones are ignored until it has ended.
    A second one would break off the clean-up that the first began."""
    # whoever handles a signal in a way of his own, or has it ignored (nohup), goes on doing so
    before = {number: usual for number, usual in INTERRUPTS.items() if signal.getsignal(number) is usual}
    if threading.current_thread() is not threading.main_thread() or not before:
        yield
        return

    def interrupt(_: int, frame: FrameType | None) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Leave Ctrl-C to the driver: a process that is started in the block never sees it, and the driver sees it after
    the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- clean ends -------------------------------------------------------------------------------------------------------

POLL = 0.2  # seconds
PR_SET_CHILD_SUBREAPER = 36


def end_with_parent() -> None:
    """End this process and its descendants as soon as its parent or its driver is gone: kill -9 of a run leaves nothing
    at work."""
    threading.Thread(
        target=_follow, args=(os.getppid(), threading.Event()), daemon=True, name="end-with-parent"
    ).start()


@contextlib.contextmanager
def ending_with_parent() -> Iterator[None]:
    """The same for the time of a block; after it no thread is left, so that the process can be forked."""
    done = threading.Event()
    watch = threading.Thread(target=_follow, args=(os.getppid(), done), daemon=True, name="end-with-parent")
    watch.start()
    try:
        yield
    finally:
        done.set()
        watch.join()


def _follow(parent: int, done: threading.Event) -> None:
    """The parent is the process that this one was forked from; a worker also has a driver, which asked for it."""
    driver = parent_process()
    while os.getppid() == parent and not done.is_set():
        if driver is None:
            done.wait(POLL)
        elif connection.wait([driver.sentinel], POLL):
            break
    if not done.is_set():
        kill_descendants()
        os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, which init would be: a process that a stage left behind
    can be found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """The processes below this one, or another."""
    with contextlib.suppress(psutil.Error):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def kill_descendants() -> None:
    kill(descendants())


def kill(processes: list[psutil.Process]) -> None:
    for each in processes:
        with contextlib.suppress(psutil.Error):
            each.kill()


def how_it_ended(code: int) -> str:
    """Describe an exit code, as `subprocess` and `os.waitstatus_to_exitcode` give it."""
    if code >= 0:
        return f"ended with code {code}"
    with contextlib.suppress(ValueError):
        return f"died of {signal.Signals(-code).name}"
    return f"died of signal {-code}"


# --- the fork server --------------------------------------------------------------------------------------------------
#
# Workers of this machine are forked from one process that has loaded their stages, once, while the driver makes its
# plan: a worker is there after 0.05 s, where a new process imports for more than a second, and so is the next one when
# it dies. All of it saves time and nothing else: a worker loads whatever its server has not.
#
# It is a `ForkServer` of the standard library, but not the one that `multiprocessing` itself uses. That one belongs to
# the program that calls us: it has that program's preloads, outlives a run with stages that were edited since, and
# each process forked from it imports the main script, which starts its run again if it calls `gristmill.run` without
# `if __name__ == "__main__":`. Dask takes its processes from `multiprocessing.get_context(METHOD)`. The standard
# library has no public way to add such a method, so `fork_server` puts it into the table of them while a run lasts.

METHOD = "gristmill"
PRELOAD = "gristmill.pipeline.engine.preload"  # what the server imports before it forks
RECIPE = "GRISTMILL_RECIPE"  # variable: the recipe whose stages the server loads
SET_BY_DASK = ("__DASK_PARENT_PID", "PYTHONHASHSEED")

# What a worker must find set when its process begins.
WORKER_ENVIRONMENT = {
    # Dask tells glibc to give every 64 kB back at once, which costs 6 % of the time in page faults; and a thread of a
    # worker is not the main thread, for which alone malloc grows in place.
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "1",
    # Arrow's allocator keeps what is freed for a second, and not for 10 ms: a column of the next task takes the same
    # memory, without a page fault for each 4 kB of it. Half of a worker's time in the kernel were such faults.
    "MIMALLOC_PURGE_DELAY": "1000",
    # as Dask has them: a worker is one thread
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class ForkServer(forkserver.ForkServer):
    """The process's only server of ours, and the number of blocks that use it."""

    def __init__(self) -> None:
        super().__init__()
        self.holders = 0
        self.lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        number: int | None = self._forkserver_pid  # type: ignore[attr-defined]
        return number

    def stop(self) -> None:
        self._stop()  # type: ignore[attr-defined]


@cache
def _server() -> ForkServer:
    return ForkServer()


def start_fork_server(recipe: Path | None, environment: Mapping[str, str] = WORKER_ENVIRONMENT) -> None:
    """Start the server, if there is none, for the stages of a recipe; returns at once."""
    resource_tracker.ensure_running()  # it unblocks signals
    wanted = {name: os.environ.get(name, value) for name, value in environment.items()}
    wanted |= {} if recipe is None else {RECIPE: str(recipe.resolve())}
    with variables_set(wanted), interrupts_blocked():
        _server().set_forkserver_preload([PRELOAD])
        _server().ensure_running()


@contextlib.contextmanager
def fork_server() -> Iterator[None]:
    """Make `METHOD` a start method of `multiprocessing` for the time of a block. The server ends with the last such
    block."""
    server, methods = _server(), context._concrete_contexts  # type: ignore[attr-defined]
    with server.lock:
        server.holders += 1
        methods[METHOD] = _Context()
    try:
        yield
    finally:
        with server.lock:
            server.holders -= 1
            last = server.holders == 0
            if last:
                del methods[METHOD]
        if last:
            stop_fork_server()


def stop_fork_server() -> None:
    """End the server, the workers that are left, and the processes that stages left behind, which it adopted."""
    pid = fork_server_pid()
    if pid is not None:
        left = descendants(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _server().stop()
        kill(left)


def fork_server_pid() -> int | None:
    return _server().pid


def close_forkserver_fd() -> None:
    """Let go of the server in a process that a stage forked from a worker: it serves until nobody holds on to it."""
    server = forkserver._forkserver
    if server._forkserver_alive_fd is not None:  # type: ignore[attr-defined]
        os.close(server._forkserver_alive_fd)  # type: ignore[attr-defined]
        server._forkserver_alive_fd = None  # type: ignore[attr-defined]


class _Popen(popen_forkserver.Popen):
    """The standard library's, with our server in place of its own, and without the main script."""

    def _launch(self, process_obj: process.BaseProcess) -> None:
        data = self._pickled(process_obj)
        self.sentinel, to_child = _server().connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        kept = os.dup(to_child)  # the child ends when this process has
        self.finalizer = util.Finalize(self, util.close_fds, (kept, self.sentinel))  # type: ignore[attr-defined]
        with os.fdopen(to_child, "wb") as pipe:
            pipe.write(data)
        self.pid = forkserver.read_signed(self.sentinel)

    def _pickled(self, process_obj: process.BaseProcess) -> memoryview:
        facts, buffer = spawn.get_preparation_data(process_obj.name), io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump({key: fact for key, fact in facts.items() if not key.startswith("init_main")}, buffer)
            reduction.dump(process_obj, buffer)
        finally:
            context.set_spawning_popen(None)
        return buffer.getbuffer()


class ForkedProcess(context.ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: process.BaseProcess) -> _Popen:
        return _Popen(process_obj)


class _Context(context.ForkServerContext):
    _name = METHOD
    Process = ForkedProcess

    def Queue(self, maxsize: int = 0) -> Queue:  # type: ignore[override]
        return Queue(self)


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


@contextlib.contextmanager
def variables_set(wanted: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for a process that is started in the block."""
    with variables_kept(*wanted):
        os.environ.update(wanted)
        yield


@contextlib.contextmanager
def variables_kept(*names: str) -> Iterator[None]:
    """Restore environment variables after a block, and those that Dask sets for the workers that it starts."""
    before = {name: os.environ.get(name) for name in (*SET_BY_DASK, *names)}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
