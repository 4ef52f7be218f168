"""Make Dask clusters: processes of this machine, a scheduler that is already there, or a cluster described in a file.

The only place that does, for runs and ablations alike. Stages that want a GPU (`Stage.gpu`) are sent only to workers
with Dask's resource `GPU`: local ones get one GPU each, or as many as a stage shares a model over; GPU workers of
others say `--resources "GPU=1"`, and see the GPUs that they were started with.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import yaml

from gristmill.kernels.common.extras import install
from gristmill.pipeline import processes
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.json_types import JSON, JSONObject
from gristmill.pipeline.processes import assign_cores, cores_here, gpus_here, nodes_here
from gristmill.pipeline.recipe.memory_limit import check_memory

if TYPE_CHECKING:
    from distributed import Client, Scheduler, SpecCluster
    from distributed.deploy.cluster import Cluster
    from tornado.httputil import HTTPServerRequest

GPU_RESOURCE = "GPU"
LOOPBACK = "127.0.0.1"
STARTS = 3
ASK_AGAIN = 5_000.0  # milliseconds
ADDRESS = re.compile(r"([a-z]+://)?[^/]+:\d+/?|inproc://.+")
CONNECT = 10.0  # seconds for a scheduler to answer
LOGGERS = (
    "distributed",
    "distributed.nanny",
    "distributed.worker",
    "distributed.scheduler",
    "distributed.core",
    "distributed.client",
    "distributed.comm",
    "tornado.application",
    "asyncio",  # a worker that is stopped while it starts
)


class Closable(Protocol):
    def close(self, timeout: float) -> None: ...


Connection = TypeVar("Connection", bound=Closable)


@dataclass(frozen=True)
class Where:
    """Where tasks run, as the command line says it."""

    workers: int | None = None
    memory: str = "auto"
    scheduler: str | None = None
    cluster: str | None = None
    gpus: int = 0  # that a worker has where a stage wants any

    @property
    def inline(self) -> bool:
        """Whether tasks run in this process, without workers."""
        return self.workers == 0

    @property
    def forked(self) -> bool:
        """Whether the workers are processes of this machine, forked from a server."""
        return not self.inline and not self.elsewhere

    @property
    def elsewhere(self) -> bool:
        """Whether the workers may be on other machines."""
        return bool(self.scheduler or self.cluster)

    @property
    def count(self) -> int:
        return 1 if self.inline else self.workers or cores_here()

    def check(self) -> None:
        """Raise for what is wrong before anything is begun."""
        if self.workers is not None and self.workers < 0:
            raise RecipeError(f"workers: {self.workers}; at least 1 was expected, or 0 to run in this process")
        if self.inline and self.elsewhere:
            raise RecipeError("workers: 0 runs in this process, a scheduler or a cluster elsewhere; take one of them")
        if self.cluster:
            settings_in(Path(self.cluster))
        if self.scheduler and not ADDRESS.fullmatch(self.scheduler):
            raise RecipeError(f"--scheduler {self.scheduler}: an address was expected, such as tcp://host:8786")
        if self.scheduler and self.scheduler.startswith("tls://"):
            check_tls(self.scheduler)
        try:
            check_memory(self.memory)
        except ValueError as error:
            raise RecipeError(f"--memory {self.memory}: {error}") from error

    def check_reaches(self, address: str, who: str = "") -> None:
        """Raise where workers are other processes, and an address is of this one's memory."""
        in_this_process = self.inline or (self.scheduler is not None and self.scheduler.startswith("inproc://"))
        if address.startswith("memory://") and not in_this_process:
            raise RecipeError(
                f"{who}{address}: memory:// is of one process, and each worker is another; "
                "name a folder, or an object store such as s3://"
            )


def check_tls(scheduler: str) -> None:
    """Dask's own configuration says which certificates to use; without them its client waits, and says that no
    scheduler answers."""
    import dask

    for name in ("ca-file", "client.cert", "client.key"):
        path = dask.config.get(f"distributed.comm.tls.{name}", None)
        variable = f"DASK_DISTRIBUTED__COMM__TLS__{name.upper().replace('-', '_').replace('.', '__')}"
        if not path:
            raise RecipeError(f"--scheduler {scheduler}: TLS needs certificates; {variable} is not set (a file)")
        if "\n" not in path and not Path(path).is_file():  # it may be the certificate itself
            raise RecipeError(f"--scheduler {scheduler}: {variable}: no such file: {path}")


# What every cluster of ours is told.
SETTINGS: Mapping[str, object] = {
    "distributed.scheduler.work-stealing": False,  # few tasks are in flight, so that none has to be moved
    # Tasks hold one batch and hand back a few numbers: there is nothing to spill, and a pause would only stall.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    # The profiler holds frames of the thread at work, so that what they hold is freed by the thread that watches:
    # resiliparse's trees may only be freed by the thread that made them, say so on standard error, and are leaked.
    "distributed.worker.profile.enabled": False,
    # No page here shows GPUs, and NVML stops a worker from starting where CUDA_VISIBLE_DEVICES names one that it
    # does not know.
    "distributed.diagnostics.nvml": False,
    "distributed.worker.multiprocessing-method": processes.METHOD,
    "distributed.nanny.pre-spawn-environ": {},  # the fork server has them
    # Every loop of Dask's looks at itself 50 times a second, and at the machine twice: 3 % of a core in the driver,
    # 1.6 % in each worker.
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "2s",
    # Each of Dask's connections keeps its last thousand messages, tasks in full: gigabytes at a thousand workers.
    "distributed.admin.low-level-log-length": 20,
    "distributed.comm.timeouts.connect": CONNECT,
    "logging": {"distributed": "error"},
}
OF_RUNS: Mapping[str, object] = {
    "distributed.scheduler.allowed-failures": 0,  # a worker that dies leaves a breadcrumb, and the engine reads it
    "distributed.worker.memory.terminate": 0.95,
}


def connected(where: Where, recipe: Path, patience: float = CONNECT) -> AbstractContextManager[Client]:
    """A Dask client for a run; what was started here is stopped at the end. Workers of this machine are forked from a
    server with the stages of the recipe. `patience` is for a scheduler of others that does not answer, in seconds."""
    if where.scheduler:
        return client_of(where.scheduler, patience, OF_RUNS)
    if where.cluster:
        return client_of_own(partial(from_file, Path(where.cluster), recipe), OF_RUNS)
    return client_of_own(partial(local, where, recipe), OF_RUNS)


@contextlib.contextmanager
def client_of(scheduler: str, patience: float, settings: Mapping[str, object]) -> Iterator[Client]:
    """A client of a scheduler that is there already."""
    from distributed import Client

    with dask_settings(settings):
        try:
            client = Client(scheduler, timeout=patience)
        except (OSError, TimeoutError, ValueError) as error:
            raise RunFailed(f"no scheduler answers at {scheduler}: {error}") from error
        try:
            yield client
        finally:
            _close(client)


@contextlib.contextmanager
def client_of_own(start: Callable[[], Cluster], settings: Mapping[str, object]) -> Iterator[Client]:
    """A client of a cluster that is started for the time of a block."""
    from distributed import Client

    with dask_settings(settings), processes.fork_server(), contextlib.ExitStack() as stack:
        cluster = start()
        stack.callback(_close, cluster)
        client = undisturbed(lambda: Client(cluster))
        stack.callback(_close, client)
        yield client


@contextlib.contextmanager
def dask_settings(more: Mapping[str, object]) -> Iterator[None]:
    import dask  # slow to import: a run in which nothing has changed never gets here

    kept = processes.variables_kept(*processes.WORKER_ENVIRONMENT)
    with silenced(), kept, dask.config.set({**SETTINGS, **more}):
        yield


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Keep Dask from logging, in a process that may be somebody else's: after the block its loggers are as they
    were."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    handlers = [list(logger.handlers) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level, own in zip(loggers, levels, handlers, strict=True):
            logger.setLevel(level)
            for handler in [handler for handler in logger.handlers if handler not in own]:
                logger.removeHandler(handler)


@dataclass(frozen=True)
class LocalWorkers:
    """Worker processes of this machine, one thread each."""

    count: int
    memory: str | None = None  # the limit of each
    gpus: Sequence[str] | None = None  # of the first workers; the others have none. None: whatever they see
    cores: Sequence[str | None] = ()  # that each is bound to
    environment: Mapping[str, str] = field(default_factory=dict)  # in place of `WORKER_ENVIRONMENT`

    def specs(self) -> dict[int, dict[str, Any]]:
        """The workers as Dask's `SpecCluster` takes them."""
        from distributed import Nanny

        return {number: {"cls": Nanny, "options": self._options(number)} for number in range(self.count)}

    def _options(self, number: int) -> dict[str, Any]:
        variables, resources = dict(self.environment), {}
        if self.cores and (cores := self.cores[number]) is not None:
            variables[processes.CORES] = cores
        if self.gpus is not None:
            variables["CUDA_VISIBLE_DEVICES"] = self.gpus[number] if number < len(self.gpus) else ""
            resources = {GPU_RESOURCE: 1} if number < len(self.gpus) else {}
        return {
            "host": LOOPBACK, "protocol": "tcp://", "nthreads": 1, "memory_limit": self.memory,
            "env": variables, "resources": resources, "preload": ["gristmill.pipeline.engine.worker"],
            "dashboard": False, "silence_logs": logging.CRITICAL,
        }  # fmt: skip


def local(where: Where, recipe: Path) -> SpecCluster:
    """Workers of this machine for a run."""
    gpus = gpus_of_workers(where)
    workers = LocalWorkers(where.count, where.memory, gpus or None, assign_cores(where.count, nodes_here()))
    try:
        return local_cluster(workers, recipe)
    except ValueError as error:
        raise RecipeError(f"--memory {where.memory}: {error}") from error


def gpus_of_workers(where: Where) -> list[str]:
    """The GPUs of each local worker that has any, as CUDA_VISIBLE_DEVICES names them."""
    here, each = gpus_here() if where.gpus else [], where.gpus
    if each > 1 and len(here) < each:
        raise RecipeError(
            f"a stage shares its model over {each} GPUs (`tensor_parallel`); this machine has {len(here)}"
        )
    whole = range(0, len(here) - each + 1, each) if each else ()
    return [",".join(here[first : first + each]) for first in whole][: where.count]


def local_cluster(workers: LocalWorkers, recipe: Path | None = None) -> SpecCluster:
    """Start workers of this machine, which answer on loopback alone."""
    processes.start_fork_server(recipe, workers.environment or processes.WORKER_ENVIRONMENT)
    for tries_left in reversed(range(STARTS)):
        try:
            return undisturbed(lambda: _started(workers))
        except RuntimeError as error:  # Dask gives up when a worker is killed before it has said hello
            if not tries_left:
                raise RunFailed(
                    f"the workers do not start: they end before they are ready, {STARTS} times over "
                    f"({error.__cause__ or error})"
                ) from error
    raise AssertionError(STARTS)


def _started(workers: LocalWorkers) -> SpecCluster:
    from distributed import Scheduler, SpecCluster

    scheduler = {
        "host": LOOPBACK,
        "protocol": "tcp://",
        "port": 0,
        "dashboard": False,
        "dashboard_address": f"{LOOPBACK}:0",
    }
    cluster = SpecCluster(workers.specs(), {"cls": Scheduler, "options": scheduler}, silence_logs=logging.CRITICAL)
    if has_dashboard():
        cluster.scheduler.http_application.add_application(DashboardOnDemand(cluster.scheduler))
    return cluster


def undisturbed(connect: Callable[[], Connection]) -> Connection:
    """Finish connecting before Ctrl-C ends the program, and close the connection then: Dask interrupted in between
    leaves workers behind. Ctrl-C interrupts only the main thread, so this takes another."""
    with ThreadPoolExecutor(1) as thread:
        connection = thread.submit(connect)
        try:
            return connection.result()
        except KeyboardInterrupt:
            with contextlib.suppress(Exception):
                _close(connection.result())
            raise


def has_dashboard() -> bool:
    """Is the package there that draws Dask's dashboard (the extra `dashboard`)?"""
    return importlib.util.find_spec("bokeh") is not None


class DashboardOnDemand:
    """Put up Dask's dashboard when somebody first asks the scheduler for a page: it takes 0.4 s to import, and changes
    how the process formats warnings."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.is_up = False

    def find_handler(self, request: HTTPServerRequest, **_: JSON) -> None:
        """None: the dashboard stands behind this one and is asked next."""
        if not self.is_up:
            self.is_up = True
            from distributed.dashboard.scheduler import connect

            connect(self.scheduler.http_application, self.scheduler.http_server, self.scheduler)


KINDS = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "sge": "SGECluster",
    "lsf": "LSFCluster",
    "oar": "OARCluster",
    "htcondor": "HTCondorCluster",
}


def settings_in(path: Path) -> tuple[str, int, JSONObject]:
    """What a cluster file says: its type, the number of jobs, and what is the type's own."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such cluster file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from error
    if not isinstance(settings, dict) or str(settings.get("type")) not in KINDS:
        raise RecipeError(f"{path}: `type` is missing or unknown; there are {', '.join(KINDS)}")
    kind, jobs = settings.pop("type"), settings.pop("jobs", 1)
    if not isinstance(jobs, int) or jobs < 1:
        raise RecipeError(f"{path}: jobs: a number above 0 was expected, not {jobs!r}")
    if importlib.util.find_spec("dask_jobqueue") is None:
        raise RecipeError(f"{path}: {kind} needs dask-jobqueue: {install('cluster')}")
    return kind, jobs, settings


def from_file(path: Path, recipe: Path) -> Cluster:
    """A dask-jobqueue cluster from YAML: `type: slurm`, `jobs: 20`, and the settings of dask-jobqueue's class."""
    kind, jobs, settings = settings_in(path)
    import dask_jobqueue

    try:
        cluster = getattr(dask_jobqueue, KINDS[kind])(**settings)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{path}: {KINDS[kind]} does not take these settings: {error}") from error
    cluster.scale(jobs=jobs)
    keep_up(cluster, jobs)
    return cluster


def keep_up(cluster: Cluster, jobs: int) -> None:
    """Jobs that are lost (cancelled, past their time, on a node that went down) are asked for again: Dask forgets one
    `distributed.deploy.lost-worker-timeout` (15 s) after its last worker left."""
    from tornado.ioloop import PeriodicCallback

    again = cluster.periodic_callbacks["lost jobs"] = PeriodicCallback(lambda: cluster.scale(jobs=jobs), ASK_AGAIN)
    cluster.loop.add_callback(again.start)  # Dask stops it with the cluster


def _close(connection: Closable) -> None:
    with contextlib.suppress(Exception):  # whatever is gone already cannot be closed, and the result is on disk
        connection.close(timeout=5)
