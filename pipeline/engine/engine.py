"""Tasks to results: those in the journal are not repeated, the others go to an executor.

What a worker needs of a task is in the task (`store/records.py`); its fingerprint is its name in the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from types import TracebackType

from gristmill.pipeline.engine.budget import Budget
from gristmill.pipeline.engine.executor import GROUP_BYTES, Executor, InlineExecutor
from gristmill.pipeline.errors import DamagedFile, NotConserved, RetiredFiles, RunFailed
from gristmill.pipeline.formatting import plain
from gristmill.pipeline.progress.progress import UI
from gristmill.pipeline.shuffle.spill import files_of_rows
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.partitions import parts_of, resting_on
from gristmill.pipeline.store.records import (
    FOR_REPORTS,
    NOT_JOURNALED,
    Failure,
    FileRef,
    MapTask,
    Result,
    StoredRows,
    Task,
)
from gristmill.pipeline.store.resume import as_one, by_name, names_in, resume


class Engine:
    """Runs tasks for one run folder."""

    def __init__(
        self,
        journal: Journal,
        executor: Executor,
        ui: UI,
        before_work: Callable[[], None] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.journal = journal
        self.executor = executor
        self.ui = ui
        self.before_work = before_work  # of the first task that is not done yet
        self.budget = budget
        self.worked = 0
        self.requests: Counter[str] = Counter()  # of all results, to object stores
        self._failed: dict[str, Result] = {}  # of tasks for the report

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.journal.flush()
            if isinstance(error, KeyboardInterrupt) and self.executor.started:
                self.ui.stopping()
        finally:
            self.executor.close()

    @property
    def slots(self) -> int:
        """How many tasks can run at once."""
        return self.executor.slots

    def run(self, tasks: Iterable[Task], required: bool = True) -> dict[str, Result]:
        """The result of every task, and of every phase of a map task, by fingerprint. Tasks that are not required are
        for the report: they may fail, and where no workers are there yet none are started for a little work."""
        tasks = list(tasks)
        if required:
            self.ui.expects(tasks)
        results, missing = self.look_up(tasks, required)
        if missing:
            self.need(missing)
            few = not required and not self.executor.started and sum(task.cost for task in missing) <= GROUP_BYTES
            executor = InlineExecutor(self.journal.store) if few else self.executor
            if not few and self.before_work is not None:
                self.before_work()
                self.before_work = None
            if (lease := self.journal.store.lease_token) is not None:
                missing = [replace(task, lease=lease) for task in missing]
            for task, result in executor.results(missing):
                self.accept(task, result)
                results |= by_name(task, result)
                if not few and task.kind not in NOT_JOURNALED:
                    self.worked += 1
                    self.count(task, result, anew=True)
            self.journal.flush()
        return {name: results[name] for task in tasks for name in names_in(task) if name in results}

    def report(self, tasks: Sequence[Task]) -> list[Result]:
        """The results of tasks for the report, in order, or why one failed."""
        results = self.run(tasks, required=False)
        return [results[task.task] for task in tasks]

    def look_up(self, tasks: Sequence[Task], required: bool) -> tuple[dict[str, Result], list[Task]]:
        """The results that are known, and tasks for the rest."""
        results: dict[str, Result] = {}
        missing: list[Task] = []
        for task in tasks:
            if isinstance(task, MapTask):
                found, rest = resume(task, self.journal.done)
                results |= found
                for phase in found.values():
                    self.requests.update(phase.requests)
                if rest is None:
                    self.count(task, as_one(task, found), anew=False)
                else:
                    missing.append(rest)
                continue
            known = self.journal.done.get(task.task) or self._failed.get(task.task)
            if known is None:
                missing.append(task)
                continue
            results[task.task] = resting_on(known, parts_of(task)) if required else known
            if required:
                self.requests.update(known.requests)
                self.count(task, known, anew=False)
        return results, missing

    def count(self, task: Task, result: Result, anew: bool) -> None:
        if self.budget is not None:
            self.budget.counts(task, result)
        self.ui.finished(task, result, anew)

    def accept(self, task: Task, result: Result) -> None:
        """Put a result into the journal. A failure ends the run, unless only the report needed the task."""
        if isinstance(result, Failure):
            if result.damaged:
                raise DamagedFile(result.damaged)
            if result.trace:
                self.journal.store.write("logs/trace.txt", plain(result.trace).encode("utf-8", "replace"))
                where = f" (where in the code: {self.journal.store.at('logs/trace.txt')})"
                result = replace(result, message=result.message + where)
            if task.kind not in FOR_REPORTS:
                raise (NotConserved if result.error == "NotConserved" else RunFailed)(result.message)
            self._failed[task.task] = result
            return
        self.requests.update(result.requests)
        if task.kind not in NOT_JOURNALED:
            for name, done in by_name(task, result).items():
                self.journal.add(name, done)

    def need(self, tasks: Iterable[Task]) -> None:
        """RetiredFiles where tasks read what the run removed itself."""
        if retired := self.journal.retired & {path for task in tasks for path in self.paths_read(task)}:
            raise RetiredFiles(retired)

    def paths_read(self, task: Task) -> Iterator[str]:
        """The files of the run that a task reads, as far as any were retired."""
        waiting: list[object] = [task] if self.journal.retired else []
        while waiting:
            value = waiting.pop()
            if isinstance(value, FileRef):
                yield value.path
            elif isinstance(value, StoredRows):
                yield from (file.path for file in files_of_rows(self.journal.store, value))
            elif isinstance(value, list | tuple):
                waiting += value
            elif isinstance(value, Mapping):
                waiting += value.values()
            elif is_dataclass(value):
                waiting += vars(value).values()
