"""Crash isolation: find the document that breaks its stage, or kills or hangs its process, and finish without it.

A stage that raises is tried on halves of its batch until the document is found (`answers_of`).

A task leaves a breadcrumb, one small file that is overwritten before each batch of each stage (5 µs). Whoever finds the
process dead reads stage and documents there. The task is then repeated in a child process: a child goes straight to
that batch, through no other, and tries row by row. A row on which two children die is poison (one of the deaths may
have been somebody's kill), and the whole partition is done without it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from gristmill.kernels.base.types import Mask
from gristmill.pipeline.errors import STAGE_ERRORS, GristmillError, RunFailed, in_words
from gristmill.pipeline.processes import end_with_parent, how_it_ended
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.store.partitions import error_detail
from gristmill.pipeline.store.records import MapResult, MapTask
from gristmill.pipeline.store.serialize import plain, read_as
from gristmill.stages.contract import check_answer, check_same_types
from gristmill.stages.stage import Applied, CannotRun, Map, NoSuchSignal

LONGEST_RECORD = 4096  # bytes of a breadcrumb; behind them is what the watchdog says of a process that it ended
LONGEST_URL = 300
MOST_DEATHS = 96
STRIKES = 2  # deaths on a row before it is poison
TOO_LONG = "took too long"
# When all of so many documents fail, it is the stage that is broken and not the documents.
ENOUGH_TO_BLAME_THE_STAGE = 16
NO_DOCUMENTS_DOING = (CannotRun, ImportError, NoSuchSignal, RunFailed)

BatchLocation: TypeAlias = tuple[int, str]  # number of a batch, name of a stage
RowLocation: TypeAlias = tuple[int, str, int]  # and a row of that batch
# A slice of a batch, its row if it is given alone, and what that row did if it is poison.
Piece: TypeAlias = tuple[pa.RecordBatch, int | None, str | None]


# --- in the process that may die --------------------------------------------------------------------------------------


class SearchEnded(Exception):
    """Every row that was to be tried has been, and this process lives."""


class Breadcrumb:
    """What a process is about to do, in a file that outlives it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.lseek(self.file, LONGEST_RECORD, os.SEEK_SET)
        self.task = ""

    def begin(self, task: str) -> None:
        self.task = task
        self._write(None, None, 0, "")

    def about_to(self, location: BatchLocation, batch: pa.RecordBatch, row: int | None) -> None:
        document = ""
        if len(batch) == 1:
            document = "a document"
            if "uid" in batch.schema.names:
                url = batch.column("url")[0].as_py() if "url" in batch.schema.names else None
                document = f"document {batch.column('uid')[0].as_py():016x} ({url and url[:LONGEST_URL]})"
        self._write(location, row, len(batch), document)

    def _write(self, *facts: BatchLocation | int | str | None) -> None:
        """The facts of a `LastBreadcrumb`."""
        os.pwrite(self.file, json.dumps([self.task, *facts]).encode().ljust(LONGEST_RECORD), 0)

    def close(self) -> None:
        os.close(self.file)
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class CrashPolicy:
    """What a task leaves for others to read, and which rows it leaves out. The default does neither."""

    breadcrumb: Breadcrumb | None = None
    poison: Mapping[RowLocation, str] = field(default_factory=dict)  # rows to leave out, with what each did
    search: BatchLocation | None = None  # only try the rows of this batch in this stage, each alone
    row: int | None = None  # and of them only this one
    one_by_one: frozenset[BatchLocation] = frozenset()  # no single row is to blame, but all of them are too much
    watch: bool = False  # end the process when a stage hangs

    def skips(self, batch_number: int) -> bool:
        """Whether a search passes over a batch."""
        if self.search is not None and batch_number > self.search[0]:
            raise SearchEnded
        return self.search is not None and batch_number < self.search[0]

    def end_search(self) -> None:
        """Stop after the last batch, where the task is a search and not the work itself."""
        if self.search is not None:
            raise SearchEnded

    @property
    def cuts(self) -> bool:
        """Are batches given to stages in pieces? Only once a process has died."""
        return self.search is not None or bool(self.poison) or bool(self.one_by_one)

    def pieces(self, location: BatchLocation, batch: pa.RecordBatch) -> Iterator[Piece]:
        """Cut a batch as a stage is to be given it."""
        if self.search == location or location in self.one_by_one:
            for row in range(len(batch)) if self.search is None or self.row is None else [self.row]:
                yield batch.slice(row, 1), row, self.poison.get((*location, row))
            if self.search == location:
                raise SearchEnded
            return
        start = 0
        for row in sorted(row for number, stage, row in self.poison if (number, stage) == location):
            if row > start:
                yield batch.slice(start, row - start), None, None
            yield batch.slice(row, 1), row, self.poison[*location, row]
            start = row + 1
        if start < len(batch) or not start:
            yield batch.slice(start), None, None

    @contextlib.contextmanager
    def guard(self, location: BatchLocation, batch: pa.RecordBatch, row: int | None, patience: float) -> Iterator[None]:
        """A stage at work on some documents, which are on record; `row` is the place of one that is given alone."""
        if self.breadcrumb is not None:
            self.breadcrumb.about_to(location, batch, row)
        with self.watching(patience):
            yield

    @contextlib.contextmanager
    def watching(self, patience: float) -> Iterator[None]:
        """A stage at work. The process ends if that takes longer, even if C code holds the interpreter."""
        if self.watch:
            log = self.breadcrumb.file if self.breadcrumb is not None else sys.__stderr__ or sys.stderr
            faulthandler.dump_traceback_later(patience, exit=True, file=log)
        try:
            with exit_if_forked():
                yield
        finally:
            if self.watch:
                faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def exit_if_forked() -> Iterator[None]:
    """End a process that was forked in the block where it leaves it: it would repeat all that its parent does."""
    pid = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != pid:
            os._exit(1)


# --- a stage's answer without the documents that break it ------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What a stage made of a piece of a batch; or, where it is one document, why there is no answer."""

    batch: pa.RecordBatch
    applied: Applied | None = None
    kept: Mask | None = None  # the rows that stay
    broke: str = ""


def answers_of(
    stage: Map,
    batch: pa.RecordBatch,
    crash: CrashPolicy,
    location: BatchLocation,
    schemas: dict[str, pa.Schema] | None = None,
) -> list[Answer]:
    """A stage's answer on a batch, in as many pieces as it takes to leave out the documents that break it, or that
    killed a process before. `schemas` has those of the stages' first answers, by name."""
    answers: list[Answer] = []
    for piece, row, poison in crash.pieces(location, batch) if crash.cuts else ((batch, None, None),):
        if poison is not None:
            answers.append(Answer(piece, broke=poison))
            continue
        try:
            with crash.guard(location, piece, row, stage.patience):
                before = stage.remembered()
                applied = stage.apply(piece)
                kept = check_answer(piece, applied, stage.rewrites)
                if before is not None:
                    stage.check_memory(before, piece, applied)
                if schemas is not None:
                    check_same_types(schemas.setdefault(location[1], applied.batch.schema), applied.batch.schema)
            answers.append(Answer(piece, applied, kept))
        except NO_DOCUMENTS_DOING as error:
            raise RunFailed(f"{registry.named(stage)}: {error}") from error
        except STAGE_ERRORS as error:  # whatever a hostile document brings a stage to
            if len(piece) <= 1:
                answers.append(Answer(piece, broke=error_detail(error)))
            else:
                whole = replace(crash, poison={}, search=None, one_by_one=frozenset())
                middle = len(piece) // 2
                for half in (piece.slice(0, middle), piece.slice(middle)):
                    answers += answers_of(stage, half, whole, location, schemas)
    return answers


# --- in the process that finds it dead --------------------------------------------------------------------------------


@dataclass(frozen=True)
class LastBreadcrumb:
    """What a process was about to do when it died."""

    task: str
    location: BatchLocation | None = None  # none: reading, or between tasks
    row: int | None = None
    rows: int = 0
    document: str = ""  # where there is only one
    hung: str = ""  # what the watchdog said

    @classmethod
    def read(cls, path: Path) -> LastBreadcrumb | None:
        """None where nothing was begun, or the file is on another machine."""
        try:
            data = path.read_bytes()
            task, location, row, rows, document = json.loads(data[:LONGEST_RECORD])
        except (OSError, ValueError):
            return None
        hung = data[LONGEST_RECORD:].decode("utf-8", "replace")
        return cls(task, tuple(location) if location else None, row, rows, document, hung)

    def in_words(self) -> str:
        """Over what the process died."""
        what = self.document if self.rows == 1 else f"{self.rows:,} documents"
        return "" if self.location is None else f"in {self.location[1]}, over {what}"


@dataclass(frozen=True)
class Death:
    """How a child died, and where."""

    how: str
    last: LastBreadcrumb | None

    @classmethod
    def of(cls, code: int, last: LastBreadcrumb | None) -> Death:
        # faulthandler ends a process that hangs with code 1, as others may; but it says so
        return cls(TOO_LONG if code == 1 and last is not None and last.hung else how_it_ended(code), last)

    def __str__(self) -> str:
        return self.how if self.how == TOO_LONG else f"killed its process ({self.how})"


class _Search:
    """What is known so far of the rows of a partition that kill."""

    def __init__(self, location: BatchLocation | None) -> None:
        self.policy = CrashPolicy(search=location)
        self.strikes: Counter[RowLocation] = Counter()
        self.unclear: Counter[BatchLocation | None] = Counter()  # deaths for which no row was to blame

    @property
    def hopeless(self) -> bool:
        return bool(self.unclear) and max(self.unclear.values()) > STRIKES

    def look_at(self, location: BatchLocation | None, row: int | None = None) -> None:
        self.policy = replace(self.policy, search=location, row=row)

    def all_rows_live(self) -> None:
        policy = self.policy
        if policy.search is not None and policy.row is None:
            self.policy = replace(policy, one_by_one=policy.one_by_one | {policy.search})
        self.look_at(None)

    def learn(self, death: Death, what: str, note: Callable[[str], None]) -> None:
        """Where to look next, after a child died."""
        last = death.last
        if last is None or last.location is None:
            self.unclear[None] += 1
            self.look_at(None)
        elif last.row is None:
            self.unclear[last.location] += 1
            self.look_at(None if last.location in self.policy.one_by_one else last.location)
        else:
            row = (*last.location, last.row)
            self.unclear.pop(last.location, None)
            self.strikes[row] += STRIKES if death.how == TOO_LONG else 1  # somebody's kill is no hang
            if self.strikes[row] >= STRIKES:
                poison = {**self.policy.poison, row: f"killed the worker: {death.how}"}
                self.policy = replace(self.policy, poison=poison)
                self.look_at(None)
                note(f"{last.location[1]}: {last.document} {death}; it is quarantined")
            else:
                self.look_at(last.location, last.row)
                note(f"{last.location[1]}: {last.document} of {what} {death}; trying it once more")


Runner: TypeAlias = Callable[[MapTask, CrashPolicy], MapResult]
# What a child is to do, within how many bytes of memory, and how.
Orders: TypeAlias = tuple[Runner, MapTask, int | None, CrashPolicy]


def run_isolated(
    runner: Runner,
    task: MapTask,
    memory: int | None,
    location: BatchLocation | None,
    note: Callable[[str], None],
) -> MapResult:
    """The result of a task, whatever its documents do to the process that works on them. `location` is where a worker
    died over it, if that is known; `note` tells the person who waits."""
    search, death = _Search(location), Death("", None)
    what = f"part {task.key} of {task.node}"
    for _ in range(MOST_DEATHS):
        answer = _in_child((runner, task, memory, search.policy))
        if isinstance(answer, Death):
            death = answer
            search.learn(death, what, note)
        elif "failed" in answer:
            raise RunFailed(answer["failed"])
        elif "result" in answer:
            return read_as(MapResult, answer["result"])
        else:
            search.all_rows_live()
        if search.hopeless:
            break
    last = death.last
    where = last.in_words() if last is not None and last.location is not None else "while reading"
    raise RunFailed(
        f"{task.node}: part {task.key} kills every process that works on it; the last one {death.how} {where}"
    )


# Modules are found where this process finds them, and last in the folder where the run was started.
START = """
import json, sys
folder, path = sys.argv[1:]
sys.path[:] = json.loads(path)
from gristmill.pipeline.tasks.isolation import run_child
run_child(folder)
"""


def command(folder: str) -> list[str]:
    """How a child is started. `-P`: without the current folder before all others."""
    return [sys.executable, "-P", "-c", START, folder, json.dumps([*sys.path, ""])]


def _in_child(orders: Orders) -> dict[str, Any] | Death:
    """A child's answer, or how it died."""
    with tempfile.TemporaryDirectory(prefix="gristmill-") as name:
        folder = Path(name)
        (folder / "orders").write_bytes(pickle.dumps(orders))
        # none of its children keeps us waiting
        child = subprocess.Popen(
            command(name), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            code = child.wait()
        except BaseException:
            child.kill()
            raise
        if (folder / "answer.json").exists():
            answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
            return answer
        return Death.of(code, LastBreadcrumb.read(folder / "breadcrumb"))


def run_child(name: str) -> None:
    """The child's side: run the task under its orders, and leave the answer in the folder."""
    folder = Path(name)
    end_with_parent()
    orders: Orders = pickle.loads((folder / "orders").read_bytes())
    runner, task, memory, policy = orders
    breadcrumb = Breadcrumb(folder / "breadcrumb")
    breadcrumb.begin(task.task)
    if memory:
        # RLIMIT_DATA counts private writable memory only: mapped models and files are not held against a document
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    answer: dict[str, Any]
    try:
        answer = {"result": plain(runner(task, replace(policy, breadcrumb=breadcrumb, watch=True)))}
    except SearchEnded:
        answer = {"searched": True}
    except GristmillError as error:
        answer = {"failed": str(error)}
    except OSError as error:
        answer = {"failed": f"{task.node}, {task.key}: {in_words(error, task.out)}"}
    except MemoryError:
        raise  # the document at hand is too much for this process: that is a death
    except STAGE_ERRORS as error:  # a fault of ours or of a stage's, for which no document is to be blamed
        answer = {"failed": f"{task.node}, {task.key}: {type(error).__name__}: {error}"}
    (folder / "answer.new").write_text(json.dumps(answer))
    (folder / "answer.new").rename(folder / "answer.json")
