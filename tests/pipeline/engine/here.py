"""Tasks done in the test's own process, one after the other: quick, and stopped wherever a test likes."""

from __future__ import annotations

import signal
from collections.abc import Callable

from gristmill.pipeline.engine.engine import Engine
from gristmill.pipeline.engine.work import run_tasks
from gristmill.pipeline.leg.resume import by_name
from gristmill.pipeline.store.records import Result, Task

Work = Callable[[Engine, list[Task], dict[str, Result]], None]


def work_here(engine: Engine, left: list[Task], results: dict[str, Result]) -> None:
    """In place of `Engine._work`."""
    for task in left:
        results |= by_name(task, run_tasks([task])[0])
        engine.accept(task, results[task["task"]])
        engine.worked += 1
        engine.ui.finished(task, results[task["task"]], anew=True)


def interrupted_after(tasks: int, by: signal.Signals = signal.SIGINT) -> Work:
    """The same, until Ctrl-C, or another signal, comes after so many tasks of the run."""

    def work(engine: Engine, left: list[Task], results: dict[str, Result]) -> None:
        for task in left:
            if engine.worked == tasks:
                signal.raise_signal(by)
            work_here(engine, [task], results)

    return work
