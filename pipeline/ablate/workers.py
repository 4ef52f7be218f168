"""Jobs spread over workers: one process a GPU, or processes of the CPU with a few threads each, by Dask; or one after
another in this process.

A Dask scheduler that is there already may have workers on other machines. They see the plan's files and OUT under the
same paths; those with a GPU say `--resources "GPU=1"` and see one GPU. Where any says so, only these are given work.
Jobs that are at work when the driver ends are stopped by a new start of their workers, if these have a nanny; else they
go on, and their folders are locked until they end.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypedDict

from gristmill.pipeline.ablate.work import failure
from gristmill.pipeline.engine.cluster import (
    CONNECT,
    GPU_RESOURCE,
    LocalWorkers,
    client_of,
    client_of_own,
    local_cluster,
)
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.processes import cores_here, gpus_here
from gristmill.pipeline.train.records import Job, JobResult
from gristmill.pipeline.train.work import RESULT

THREADS = 2  # of a worker on the CPU, unless asked
DEATHS = 1  # of workers over one job, before it is given up
ARRIVES = 60.0  # seconds that a file written elsewhere may take to be seen here
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
SETTINGS: Mapping[str, object] = {
    "distributed.scheduler.allowed-failures": DEATHS,
    "distributed.worker.memory.terminate": False,  # a model's memory is not Dask's to judge
    "distributed.worker.daemon": False,  # compilers of kernels are processes of their own
}

if TYPE_CHECKING:
    from distributed import Client, Future

Work = Callable[[Job], JobResult]


@dataclass(frozen=True)
class Crew:
    """`processes` 0: here, one after another. A process on a GPU each where there are `gpus`, or on as many as a run
    has ranks (`0,1`). With a `scheduler`, of its workers."""

    processes: int
    threads: int
    gpus: tuple[str, ...] = ()
    scheduler: str | None = None

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"


def crew_of(workers: int | None, scheduler: str | None = None, ranks: int = 1) -> Crew:
    """As many workers as asked, or a GPU for each rank of each, or one for every two cores; or those that are there
    already."""
    if scheduler is not None:
        if ranks > 1:
            raise RecipeError(f"ranks: {ranks}: workers of a scheduler have a GPU each; leave --scheduler out")
        if workers == 0:
            raise RecipeError("--workers 0 runs in this process, --scheduler elsewhere; take one of them")
        with client_of(scheduler, CONNECT, SETTINGS) as client:
            return _of_these(client.scheduler_info()["workers"], workers, scheduler)
    gpus = tuple(gpus_here())
    if gpus and ranks > len(gpus):
        raise RecipeError(f"ranks: {ranks}: this machine has {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}, one a rank")
    gpus = tuple(",".join(gpus[first : first + ranks]) for first in range(0, len(gpus) - ranks + 1, ranks))
    cores = cores_here()
    count = workers if workers is not None else len(gpus) or max(1, cores // max(THREADS, ranks))
    if gpus and count > len(gpus):
        count = len(gpus)  # two runs on one GPU take each other's memory
    return Crew(count, max(1, cores // max(1, count)), gpus[:count] if count else gpus[:1])


class WorkerInfo(TypedDict):
    """What a scheduler says of a worker."""

    resources: dict[str, float]
    nthreads: int


def _of_these(there: dict[str, WorkerInfo], asked: int | None, scheduler: str) -> Crew:
    """All with a GPU, or all if none has one."""
    with_gpu = {address: worker for address, worker in there.items() if worker["resources"].get(GPU_RESOURCE)}
    chosen = with_gpu or there
    if not chosen:
        raise RunFailed(
            f"{scheduler}: no worker has come to this scheduler yet; start some (dask worker {scheduler} --nthreads 1)"
        )
    count = min(asked or len(chosen), len(chosen))
    return Crew(
        count, min(worker["nthreads"] for worker in chosen.values()), tuple(sorted(with_gpu))[:count], scheduler
    )


class Team:
    """Does jobs, in the block of its context; processes are started at the first that needs one, and stay for the
    next."""

    def __init__(self, crew: Crew, work: Work) -> None:
        self.crew, self.work = crew, work
        self._stack = contextlib.ExitStack()
        self._client: Client | None = None
        self._at_work: dict[Future, Job] = {}

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._at_work and self.crew.scheduler:
            _stopped(self._client, list(self._at_work))
        self._stack.close()

    def done(self, jobs: Sequence[Job], begins: Callable[[Job], None]) -> Iterator[tuple[Job, JobResult]]:
        """Each job with what came of it, in the order in which they end. `begins` is told of a job as it is handed
        over."""
        if self.crew.processes == 0:
            for job in jobs:
                begins(job)
                yield job, self.work(job)
        elif jobs:
            if self._client is None:
                self._client = self._stack.enter_context(client_for(self.crew))
            yield from self._by_dask(self._client, jobs, begins)

    def _by_dask(
        self, client: Client, jobs: Sequence[Job], begins: Callable[[Job], None]
    ) -> Iterator[tuple[Job, JobResult]]:
        from distributed import KilledWorker, as_completed

        waiting = list(jobs)
        resources = {GPU_RESOURCE: 1} if self.crew.gpus else None

        def hand_over() -> Future:
            job = waiting.pop(0)
            begins(job)
            future = client.submit(self.work, job, pure=False, resources=resources)
            self._at_work[future] = job
            return future

        queue = as_completed([hand_over() for _ in range(min(self.crew.processes, len(waiting)))])
        for future in queue:
            job = self._at_work.pop(future)
            error = future.exception()
            if error is None:
                result = future.result()
                if self.crew.scheduler and "failed" not in result and not _arrived(Path(job["folder"]) / RESULT):
                    result = failure(
                        job,
                        f"its worker has done it, but {job['folder']} is not visible here:"
                        " workers and this machine must share that folder",
                    )
            elif isinstance(error, KilledWorker):
                result = failure(
                    job,
                    "its worker died (killed by the system for memory?); run the same command to resume from its last"
                    " checkpoint",
                )
            else:
                result = failure(job, f"{type(error).__name__}: {error}")
            if waiting:
                queue.add(hand_over())
            yield job, result


def _stopped(client: Client, futures: list[Future]) -> None:
    """Takes back what has not begun, and ends the workers that are in the middle of a job, for a thread cannot be
    stopped: their nannies start others. (Asked to restart a worker, Dask starts the other and often leaves the process
    of the first at its work.)"""
    with contextlib.suppress(Exception):  # the scheduler is gone, say: locks keep others out of the folders
        keys, there = {future.key for future in futures}, client.scheduler_info(n_workers=-1)["workers"]
        busy = [
            address for address, held in client.processing().items() if keys & set(held) and there[address].get("nanny")
        ]
        client.cancel(futures, force=True)
        if busy:
            client.run(_end, workers=busy, wait=False)


async def _end() -> None:  # a coroutine, for nobody can wait for its answer
    os._exit(1)


def _arrived(path: Path) -> bool:
    """Folders of other machines are looked at anew only from time to time."""
    latest = time.monotonic() + ARRIVES
    while not path.is_file():
        if time.monotonic() > latest:
            return False
        time.sleep(0.5)
    return True


def client_for(crew: Crew) -> AbstractContextManager[Client]:
    """A Dask client of the crew's scheduler, or of workers that are started here for the time of a block."""
    if crew.scheduler:
        return client_of(crew.scheduler, CONNECT, SETTINGS)
    variables = dict.fromkeys(VARIABLES, str(crew.threads))
    workers = LocalWorkers(crew.processes, gpus=crew.gpus or None, environment=variables)
    return client_of_own(lambda: local_cluster(workers), SETTINGS)
