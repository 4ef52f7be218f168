"""What a worker is asked to do: a few tasks, plain data in, plain data out. Failures come back as words, never as
pickles."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from gristmill.pipeline.engine.careful import grind_carefully
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
from gristmill.pipeline.leg.care import Care, Last, Place, Trail
from gristmill.pipeline.leg.conform import run_conform_task
from gristmill.pipeline.leg.map_task import run_map_task
from gristmill.pipeline.leg.numbers import run_numbers
from gristmill.pipeline.leg.side_by_side import run_pages
from gristmill.pipeline.processes.kernel_packs import Offer, take
from gristmill.pipeline.processes.lifetime import (
    end_descendants,
    end_with_parent,
    let_go_of_the_template,
    no_way_back_for_forks,
)
from gristmill.pipeline.processes.memory import forget_peak
from gristmill.pipeline.processes.nodes import bind
from gristmill.pipeline.processes.template import LOADS
from gristmill.pipeline.report_data.samples import run_samples
from gristmill.pipeline.report_data.scores import run_scores
from gristmill.pipeline.report_data.survey import run_survey
from gristmill.pipeline.shuffle.shuffle import run_round
from gristmill.pipeline.store.partitions import parts_of
from gristmill.pipeline.store.records import FOR_REPORTS, HeldTask, LookTask, Result, Task
from gristmill.pipeline.store.storage import REQUESTS, requests_since
from gristmill.stages.stage import CannotRun, Map

if TYPE_CHECKING:
    from distributed import Worker

TOO_MUCH = ("offset overflow", "array cannot contain more than", "input array too large")  # words of Arrow

DIED: Result = {"died": True}  # the answer of a worker that finds the trail of one that died before it
NOTES = "gristmill"  # the topic under which workers say something for people
LOOKS = {"samples": run_samples, "scores": run_scores}  # all other steps are of surveys


def answer(topic: str, key: str, how: dict[str, Any]) -> None:
    """The results of some tasks, as an event: a result of Dask's own would cost its scheduler a request to this worker,
    and the driver another to the scheduler."""
    from distributed import get_worker  # Dask is slow to import

    try:
        results = run_tasks(**how)
    except KeyboardInterrupt:  # a stage's own, for Ctrl-C comes to the driver: passed on, it would end each new worker
        trace = traceback.format_exc()
        results = [{"failed": "a stage raised KeyboardInterrupt", "error": "RunFailed", "trace": trace}]
    get_worker().log_event(topic, [key, json.dumps(results)])


def run_tasks(
    tasks: list[Task],
    careful: bool = False,
    watch: bool = False,
    trail: str | None = None,
    place: Place | None = None,
    nonce: str | None = None,
    kernels: Offer | None = None,
    lease: str | None = None,
    install: Install | None = None,
) -> list[Result]:
    """The results of some tasks, in order; after a failure the rest is left undone. `trail` is where to say what is
    about to be done, `place` where a worker died that did not go about it with care, `nonce` what a worker of another
    machine must see, `kernels` what it need not compile, `lease` what the driver must hold for anything to be written,
    `install` what its driver has."""
    unprepared: list[str] = getattr(
        sys.modules.get(LOADS), "failures", []
    )  # of the template that this process was forked from
    if unprepared:
        return [{"failed": unprepared[0], "error": "RunFailed"}]
    try:
        if nonce is not None:
            check_seen(nonce)
        if install is not None:
            check_install(install)
            for task in tasks:
                check_inputs(task)
    except RunFailed as error:
        return [{"failed": str(error), "error": "RunFailed"}]
    problem = None if kernels is None else take(kernels)
    if problem is not None:
        note(problem)
    if trail is not None and Last.of(Path(trail)) is not None:  # a scheduler that allows for failures sent it again
        return [DIED]
    done: list[Result] = []
    with contextlib.ExitStack() as stack:
        care = Care(Trail(Path(trail)) if trail is not None else None, watch=watch)
        if care.trail is not None:
            stack.callback(care.trail.close)
        for task in tasks:
            if lease is not None:
                cast(HeldTask, task)["lease"] = lease
            start, sent = time.perf_counter(), dict(REQUESTS)
            forget_peak()
            if care.trail is not None:
                care.trail.begins(task["task"])
            with no_way_back_for_forks():
                result = run_task(task, care, careful, place)
            done.append({**result, "seconds": round(time.perf_counter() - start, 4)})
            if requests := requests_since(sent):
                done[-1]["requests"] = requests
            if "failed" in done[-1] and ("damaged" in done[-1] or task["kind"] not in FOR_REPORTS):
                break
    return done


def look_here(tasks: list[LookTask], lease: str | None = None) -> list[Result]:
    """Run tasks for the report in this process, which has no workers any more."""
    return [run_tasks([task], lease=lease)[0] for task in tasks]


def run_task(task: Task, care: Care, careful: bool, place: Place | None) -> Result:
    """The result of a task, or why there is none."""
    what = f"{named_in(task)}, {task['kind']} {task['key']}"
    try:
        if task["kind"] == "partition":
            return grind_carefully(task, memory_limit(), place, note) if careful else run_map_task(task, care)
        if task["kind"] == "conform":
            return run_conform_task(task)
        if task["kind"] == "pages":
            with care.watching(task["patience"]):
                return run_pages(task)
        if task["kind"] == "numbers":
            return run_numbers(task)
        if task["kind"] == "look":
            with care.watching(Map.patience):
                return LOOKS.get(task["step"], run_survey)(task)
        return run_round(task)
    except CannotRun as error:
        return {"failed": f"{named_in(task)}: {error}", "error": "RunFailed"}
    except DamagedFile as error:
        return {"failed": str(error), "error": "RunFailed", "damaged": error.path}
    except GristmillError as error:
        return {"failed": str(error), "error": type(error).__name__}
    except OSError as error:
        return {"failed": f"{what}: {in_words(error, task['out'])}", "error": "RunFailed"}
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        if not any(words in str(error) for words in TOO_MUCH):
            return {
                "failed": f"{what}: {type(error).__name__}: {error}",
                "error": "RunFailed",
                "trace": traceback.format_exc(),
            }
        return {"failed": f"{what}: {too_much(task, error)}", "error": "RunFailed", "trace": traceback.format_exc()}
    except STAGE_ERRORS as error:
        if of_storage(error):
            return {"failed": f"{what}: {refusal(error) or error}", "error": "RunFailed"}
        # a fault of ours or of a stage's: said with its trace, and the run stops
        return {
            "failed": f"{what}: {type(error).__name__}: {error}",
            "error": "RunFailed",
            "trace": traceback.format_exc(),
        }


def too_much(task: Task, error: Exception) -> str:
    """What to say of a task that met the 2 GB that Arrow can count in one column: which files are too large, and what
    helps."""
    read = [
        *(task["inputs"] if task["kind"] == "partition" else []),
        *(p for part in parts_of(task) for p in part["inputs"]),
    ]
    files = sorted({origin["path"] for origin in read if "path" in origin})
    named = f" ({', '.join(files[:3])}{f' and {len(files) - 3:,} more' if len(files) > 3 else ''})" if files else ""
    return (
        f"the documents of one part{named} are too much for one column, which holds 2 GB ({error}); split large files, "
        "or where the format can be split (a compressed .jsonl only if it has many frames) or files are small take a smaller "
        "`parts: {max_bytes: ...}`"
    )


def named_in(task: Task) -> str:
    """The node of a task, with the file and class of a global stage of a user's own."""
    stage = cast(Mapping[str, Any], task).get("stage")  # of rounds
    address = stage["stage"] if stage else ""
    return f"{task['node']} ({Path(address).name})" if ".py:" in address else task["node"]


def note(message: str) -> None:
    """Something for the person who waits for the run, from a worker."""
    from distributed import get_worker  # Dask is slow to import

    try:
        worker = get_worker()
    except ValueError:  # this process is no worker
        return
    worker.log_event(NOTES, message)


def memory_limit() -> int | None:
    """What this worker may hold, if it is a Dask worker with a limit."""
    try:
        from distributed import get_worker

        limit: int | None = get_worker().memory_manager.memory_limit
    except (ImportError, ValueError):
        return None
    return int(limit) if limit else None


def dask_setup(worker: Worker) -> None:
    """Preloaded by every local worker: leave Ctrl-C to the driver, end with it, stay on the cores that it gave."""
    bind()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.register_at_fork(after_in_child=let_go_of_the_template)
    end_with_parent()


def dask_teardown(worker: Worker) -> None:
    """What stages have left at work ends with their worker."""
    end_descendants()
