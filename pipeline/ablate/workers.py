"""Jobs spread over worker processes of this machine, one a GPU or a few threads of the CPU each; or one after another
in this process.

A worker reads jobs, a line of JSON each, and answers each with its result, so that packages are loaded and kernels
compiled once for all of them:

    python -m gristmill.pipeline.ablate.workers
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from types import TracebackType

from gristmill.pipeline.ablate.work import carry_out, failure
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.processes import cores_here, end_with_parent, gpus_here
from gristmill.pipeline.train.records import Job, JobResult

THREADS = 2  # of a worker on the CPU, unless asked
STOPS = 30.0  # seconds that a worker may take to leave a checkpoint
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

Work = Callable[[Job], JobResult]


@dataclass(frozen=True)
class Crew:
    """`processes` 0: here, one after another. A process on a GPU each where there are `gpus`, or on as many as a run
    has ranks (`0,1`)."""

    processes: int
    threads: int
    gpus: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"


def crew_of(workers: int | None, ranks: int = 1) -> Crew:
    """As many workers as asked, or a GPU for each rank of each, or one for every two cores."""
    gpus = tuple(gpus_here())
    if gpus and ranks > len(gpus):
        raise RecipeError(f"ranks: {ranks}: this machine has {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}, one a rank")
    gpus = tuple(",".join(gpus[first : first + ranks]) for first in range(0, len(gpus) - ranks + 1, ranks))
    cores = cores_here()
    count = workers if workers is not None else len(gpus) or max(1, cores // max(THREADS, ranks))
    if gpus and count > len(gpus):
        count = len(gpus)  # two runs on one GPU take each other's memory
    return Crew(count, max(1, cores // max(1, count)), gpus[:count] if count else gpus[:1])


class Team:
    """Does jobs, in the block of its context. A worker is started for the first job that needs it, and stays for the
    next."""

    def __init__(self, crew: Crew, work: Work = carry_out) -> None:
        self.crew, self.work = crew, work
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(crew.processes):
            self._free.put(number)
        self._workers: dict[int, subprocess.Popen[str]] = {}
        self._threads = ThreadPoolExecutor(max(1, crew.processes))

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        workers = list(self._workers.values())
        for worker in workers:
            worker.send_signal(signal.SIGTERM)  # a run that is being trained leaves a checkpoint
        for worker in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(STOPS)
            worker.kill()
            worker.wait()

    def done(self, jobs: Sequence[Job], begins: Callable[[Job], None]) -> Iterator[tuple[Job, JobResult]]:
        """Each job with what came of it, in the order in which they end. `begins` is told of a job as it is handed
        over."""
        if self.crew.processes == 0:
            for job in jobs:
                begins(job)
                yield job, self.work(job)
            return
        futures = {self._threads.submit(self._by_worker, job, begins): job for job in jobs}
        for future in as_completed(futures):
            yield futures[future], future.result()

    def _by_worker(self, job: Job, begins: Callable[[Job], None]) -> JobResult:
        number = self._free.get()
        try:
            begins(job)
            worker = self._worker(number)
            if worker.stdin is None or worker.stdout is None:
                raise RuntimeError("a worker without pipes")
            try:
                worker.stdin.write(f"{json.dumps(job)}\n")
                worker.stdin.flush()
                result: JobResult = json.loads(worker.stdout.readline())
            except (OSError, ValueError):  # it has ended
                worker.kill()
                worker.wait()
                again = "run the same command to resume from its last checkpoint"
                return failure(job, f"its worker died (killed by the system for memory?); {again}")
            return result
        finally:
            self._free.put(number)

    def _worker(self, number: int) -> subprocess.Popen[str]:
        worker = self._workers.get(number)
        if worker is None or worker.poll() is not None:
            environment = os.environ | dict.fromkeys(VARIABLES, str(self.crew.threads))
            if self.crew.gpus:
                environment["CUDA_VISIBLE_DEVICES"] = self.crew.gpus[number]
            command = [sys.executable, "-m", "gristmill.pipeline.ablate.workers"]
            # In a session of its own: Ctrl-C comes to the driver alone, which ends it.
            worker = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                start_new_session=True,
            )
            self._workers[number] = worker
        return worker


def serve() -> int:
    """A worker's life. What libraries print goes to standard error."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        for line in sys.stdin:
            print(json.dumps(carry_out(json.loads(line))), file=answers, flush=True)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    code = serve()
    sys.stderr.flush()
    os._exit(code)  # threads of libraries may keep an interpreter that ends in order
