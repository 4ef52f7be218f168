"""Run tasks in a worker: plain data in, plain data out. Failures come back as words, never as pickles."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from gristmill.kernels.base.compiled import take_over
from gristmill.pipeline.engine.shared_folder import Install, check_inputs, check_install, check_seen
from gristmill.pipeline.errors import (
    STAGE_ERRORS,
    DamagedFile,
    GristmillError,
    RunFailed,
    in_words,
    of_storage,
    refusal,
)
from gristmill.pipeline.processes import (
    PRELOAD,
    bind_to_cores,
    close_forkserver_fd,
    end_with_parent,
    kill_descendants,
    reset_peak_memory,
)
from gristmill.pipeline.report_data.rejects import run_samples
from gristmill.pipeline.report_data.scores import run_scores
from gristmill.pipeline.report_data.survey import SURVEY_STEPS, run_survey
from gristmill.pipeline.shuffle.shuffle import run_round
from gristmill.pipeline.store.partitions import parts_of
from gristmill.pipeline.store.records import (
    FOR_REPORTS,
    ConformTask,
    Failure,
    LookTask,
    MapTask,
    NumbersTask,
    Result,
    RoundTask,
    Task,
)
from gristmill.pipeline.store.serialize import dumps
from gristmill.pipeline.store.storage import REQUESTS, requests_since
from gristmill.pipeline.tasks.isolation import (
    BatchLocation,
    Breadcrumb,
    CrashPolicy,
    LastBreadcrumb,
    exit_if_forked,
    run_isolated,
)
from gristmill.pipeline.tasks.map_task import run_map_task
from gristmill.pipeline.tasks.rewrites import run_conform_task, run_numbers
from gristmill.stages.stage import CannotRun, Map

if TYPE_CHECKING:
    from distributed import Worker

TOO_MUCH = ("offset overflow", "array cannot contain more than", "input array too large")  # words of Arrow

# The answer of a worker that finds the breadcrumb of one that died before it.
DIED = Failure(message="a worker died over it before")
NOTES = "gristmill"  # the topic under which workers say something for people
REPORT_STEPS = {"samples": run_samples, "scores": run_scores} | dict.fromkeys(SURVEY_STEPS, run_survey)


@dataclass(frozen=True)
class Terms:
    """How a worker is to go about the tasks that it is given."""

    isolated: bool = False  # in child processes, because the task killed its worker before
    location: BatchLocation | None = None  # where that worker died, if that is known
    breadcrumb: Path | None = None  # the file that says what is about to be done
    watch: bool = False  # end the process when a stage hangs
    # For workers of other machines:
    nonce: str | None = None  # a file that they must see
    install: Install | None = None  # what the driver has installed


def answer(topic: str, key: str, tasks: list[Task], terms: Terms) -> None:
    """The results of some tasks, as an event: a result of Dask's own would cost its scheduler a request to this worker,
    and the driver another to the scheduler."""
    from distributed import get_worker  # Dask is slow to import

    try:
        results = run_tasks(tasks, terms)
    except KeyboardInterrupt:  # a stage's own, for Ctrl-C comes to the driver: passed on, it would end each new worker
        trace = traceback.format_exc()
        results = [Failure(message="a stage raised KeyboardInterrupt", trace=trace)]
    get_worker().log_event(topic, [key, dumps(results).decode()])


def run_tasks(tasks: Sequence[Task], terms: Terms = Terms()) -> list[Result]:
    """The results of some tasks, in order; after a failure the rest is left undone."""
    # of the fork server that this process was forked from
    unprepared: list[str] = getattr(sys.modules.get(PRELOAD), "failures", [])
    if unprepared:
        return [Failure(message=unprepared[0])]
    take_over()
    try:
        check_machine(tasks, terms)
    except RunFailed as error:
        return [Failure(message=str(error))]
    path = terms.breadcrumb
    if path is not None and LastBreadcrumb.read(path) is not None:  # a scheduler that allows failures sent it again
        return [DIED]
    results: list[Result] = []
    with contextlib.ExitStack() as stack:
        crash = CrashPolicy(None if path is None else Breadcrumb(path), watch=terms.watch)
        if crash.breadcrumb is not None:
            stack.callback(crash.breadcrumb.close)
        for task in tasks:
            if crash.breadcrumb is not None:
                crash.breadcrumb.begin(task.task)
            sent = dict(REQUESTS)
            result = run_task(task, crash, terms)
            results.append(replace(result, requests=requests_since(sent)))
            if isinstance(result, Failure) and (result.damaged or task.kind not in FOR_REPORTS):
                break
    return results


def check_machine(tasks: Sequence[Task], terms: Terms) -> None:
    """RunFailed where this machine lacks what the driver's has."""
    if terms.nonce is not None:
        check_seen(terms.nonce)
    if terms.install is not None:
        check_install(terms.install)
        for task in tasks:
            check_inputs(task)


def run_task(task: Task, crash: CrashPolicy | None = None, terms: Terms = Terms()) -> Result:
    """The result of a task, or why there is none, with the seconds that it took."""
    start, crash = time.perf_counter(), crash or CrashPolicy()
    reset_peak_memory()
    try:
        with exit_if_forked():
            if isinstance(task, MapTask) and not terms.isolated:
                result: Result = run_map_task(task, crash)
            elif isinstance(task, MapTask):
                result = run_isolated(run_map_task, task, memory_limit(), terms.location, note)
            elif isinstance(task, ConformTask):
                result = run_conform_task(task)
            elif isinstance(task, NumbersTask):
                result = run_numbers(task)
            elif isinstance(task, LookTask):
                with crash.watching(Map.patience):
                    result = REPORT_STEPS[task.step](task)
            else:
                result = run_round(cast(RoundTask, task))
    except STAGE_ERRORS as error:
        result = failure_of(task, error)
    return replace(result, seconds=round(time.perf_counter() - start, 4))


def failure_of(task: Task, error: BaseException) -> Failure:
    """Why a task has no result, in words; called while its error is handled."""
    what = f"{named_in(task)}, {task.kind} {task.key}"
    if isinstance(error, CannotRun):
        return Failure(message=f"{named_in(task)}: {error}")
    if isinstance(error, DamagedFile):
        return Failure(message=str(error), damaged=error.path)
    if isinstance(error, GristmillError):
        return Failure(message=str(error), error=type(error).__name__)
    if isinstance(error, OSError):
        return Failure(message=f"{what}: {in_words(error, task.out)}")
    if isinstance(error, pa.ArrowInvalid | pa.ArrowCapacityError) and any(words in str(error) for words in TOO_MUCH):
        return Failure(message=f"{what}: {too_much(task, error)}", trace=traceback.format_exc())
    if of_storage(error):
        return Failure(message=f"{what}: {refusal(error) or error}")
    # a fault of ours or of a stage's: reported with its trace, and the run stops
    return Failure(message=f"{what}: {type(error).__name__}: {error}", trace=traceback.format_exc())


def too_much(task: Task, error: Exception) -> str:
    """What to say of a task that met the 2 GB that Arrow can count in one column: which files are too large, and what
    helps."""
    stored = {span.path for part in parts_of(task) for span in part.inputs if span.path}
    files = sorted(stored | {span.file.path for span in (task.files if isinstance(task, MapTask) else ())})
    named = f" ({', '.join(files[:3])}{f' and {len(files) - 3:,} more' if len(files) > 3 else ''})" if files else ""
    return (
        f"the documents of one part{named} are too much for one column, which holds 2 GB ({error}); split large files, "
        "or where the format can be split (a compressed .jsonl only if it has many frames) or files are small take a smaller "
        "`parts: {max_bytes: ...}`"
    )


def named_in(task: Task) -> str:
    """The node of a task, with the file and class of a global stage of a user's own."""
    address = task.stage["stage"] if isinstance(task, RoundTask) else ""
    return f"{task.node} ({Path(address).name})" if ".py:" in address else task.node


def note(message: str) -> None:
    """Tell the person who waits for the run something, from a worker."""
    if (worker := this_worker()) is not None:
        worker.log_event(NOTES, message)


def memory_limit() -> int | None:
    """What this worker may hold, if it is a Dask worker with a limit."""
    worker = this_worker()
    return None if worker is None else int(worker.memory_manager.memory_limit or 0) or None


def this_worker() -> Worker | None:
    from distributed import get_worker  # Dask is slow to import

    try:
        return get_worker()
    except ValueError:  # this process is none
        return None


def dask_setup(worker: Worker) -> None:
    """Preloaded by every local worker: leave Ctrl-C to the driver, end with it, stay on the cores that it gave."""
    bind_to_cores()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.register_at_fork(after_in_child=close_forkserver_fd)
    end_with_parent()


def dask_teardown(worker: Worker) -> None:
    """What stages have left at work ends with their worker."""
    kill_descendants()
