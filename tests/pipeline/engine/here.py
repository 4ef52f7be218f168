"""Tasks run in the test's own process, one after the other: quick, and stopped wherever a test likes."""

from __future__ import annotations

import pickle
import signal

import pytest

from gristmill.pipeline.engine.executor import InlineExecutor, results_in
from gristmill.pipeline.store.records import Result, Task
from gristmill.pipeline.store.serialize import dumps


class WiredExecutor(InlineExecutor):
    """Tasks and results take the form in which they travel to workers and back."""

    def run_task(self, task: Task) -> Result:
        return results_in(dumps([super().run_task(pickle.loads(pickle.dumps(task)))]).decode())[0]


def work_here(patch: pytest.MonkeyPatch, executor: type[InlineExecutor] = WiredExecutor) -> None:
    """Give runs an executor of this process in place of workers."""
    patch.setattr("gristmill.pipeline.run.run.DaskExecutor", lambda store, *_: executor(store))


def interrupted_after(tasks: int, by: signal.Signals = signal.SIGINT) -> type[InlineExecutor]:
    """An executor to which Ctrl-C, or another signal, comes after so many tasks."""

    class Interrupted(InlineExecutor):
        ran = 0

        def run_task(self, task: Task) -> Result:
            if self.ran == tasks:
                signal.raise_signal(by)
            self.ran += 1
            return super().run_task(task)

    return Interrupted
