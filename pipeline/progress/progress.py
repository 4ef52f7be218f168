"""Progress of a run: events for a UI, the state of the run at any moment, and `logs/progress.json`.

`ProgressRecorder` stands between a run and its UI. It counts what the run reports and gives the state of the run
(`Progress`) to any thread: the terminal, Prometheus, the file.

Time left is measured. For each map node, seconds of a worker for a byte are an exponentially weighted moving average
over the tasks that finished. A map node of which no task has finished is unknown. So is a global stage, whose number of
rounds nobody knows. While one node is unknown, so is the whole run.

`logs/progress.json` is for other processes, such as `gristmill explore`. Once there are workers, a thread of the driver
writes it atomically, once a second (once in ten on an object store). A run that ends well removes it, for run.json has
everything then. A failed or interrupted run leaves it with the reason, a killed run leaves it unchanged; `state_of`
tells whether the process that wrote it is alive and has written lately.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from gristmill.kernels.common.files import write_whole
from gristmill.pipeline.errors import OverBudget, RunFailed, of_storage
from gristmill.pipeline.formatting import plain
from gristmill.pipeline.processes import ProcessId, is_alive, this_process
from gristmill.pipeline.store.counts import DocumentCounts, RunAccount
from gristmill.pipeline.store.records import NOT_JOURNALED, MapResult, Result, RoundTask, Task, counts_by_source
from gristmill.pipeline.store.storage import Store

if TYPE_CHECKING:
    from gristmill.pipeline.plan.plan import Node

RECENT = 30.0  # seconds over which the speed of now is taken
NOTES = 20
REMEMBERED = 0.95  # weight of the tasks before one, in a moving average: it reaches back over some twenty tasks
PATH = "logs/progress.json"
EVERY, EVERY_REMOTE = 1.0, 10.0  # seconds between two writes of it
SILENT = 120.0  # seconds without such a write, after which a run is no longer called running
FOR_THE_REPORT = ("numbers", "look", "conform")  # kinds of tasks that are no work of a node


class UI:
    """Hears of a run's tasks and notes; all else it asks for. Each method does nothing unless a UI overrides it."""

    def follows(self, facts: Callable[[], Progress]) -> None:
        """Before anything else: where to ask for the state of the run, at any moment and from any thread."""

    def expects(self, tasks: Sequence[Task]) -> None:
        """Tasks that are run next, or looked up in the journal."""

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        """A task has its result; `anew` is False where the journal had it."""

    def stopping(self) -> None:
        """Somebody has interrupted the run, and its workers are about to be stopped, which takes a moment."""

    def note(self, message: str) -> None: ...


class Quiet(UI):
    """Prints notes on standard error, and nothing else."""

    facts: Callable[[], Progress] | None = None

    def follows(self, facts: Callable[[], Progress]) -> None:
        self.facts = facts

    def note(self, message: str) -> None:
        print(plain(message), file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


# --- facts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeProgress:
    """A map node or a global stage."""

    name: str
    kind: Literal["map", "global"]
    source: str | None
    stages: tuple[str, ...]
    state: Literal["waiting", "running", "done"] = "waiting"
    parts: int | None = None
    done: int = 0
    round: int = 0  # of a global stage: the one at work, its tasks, and those of them that are done
    round_tasks: int = 0
    round_done: int = 0
    share: float = 0.0  # of the tasks at hand, that is done: of a map node, or of a round
    seconds_left: float | None = None  # None: not known
    began: float | None = None
    ended: float | None = None


@dataclass(frozen=True)
class Speed:
    """What was done in the last seconds."""

    documents: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class WorkerMemory:
    """Of the workers that were heard of last."""

    workers: int
    largest: int  # of one worker, in bytes
    limit: int | None  # of one worker


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of a run at one moment: `logs/progress.json`."""

    name: str
    state: str = "running"  # or done, failed, interrupted
    message: str | None = None
    process: ProcessId  # that drives the run
    started: float
    updated: float
    workers: int = 0
    dashboard: str | None = None
    notes: tuple[str, ...] = ()
    documents: int = 0  # worked on by this process, once for each node
    bytes: int = 0
    tasks: Mapping[str, int] = field(default_factory=dict)  # done by this process, by kind
    deaths: int = 0  # of workers
    peak_memory: Mapping[str, int] = field(default_factory=dict)  # of a worker, by stage
    memory: WorkerMemory | None = None
    recently: Speed = Speed(0, 0, 0.0)
    alarms: tuple[str, ...] = ()
    nodes: tuple[NodeProgress, ...] = ()
    stages: Mapping[str, Mapping[str, DocumentCounts]] = field(default_factory=dict)  # by stage, then by source
    seconds_left: float | None = None  # of the whole run; None: not known

    @property
    def read(self) -> int:
        """Documents that readers gave, in earlier runs too."""
        readers = [node.source for node in self.nodes if node.source]
        return sum(count.kept for reader in readers for count in self.stages.get(reader, {}).values())

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


# --- what is counted --------------------------------------------------------------------------------------------------


class NodeTracker:
    """Counts the tasks of a node, and tells how long the rest of them will take."""

    def __init__(self, node: Node) -> None:
        from gristmill.pipeline.plan.plan import GlobalNode  # with recipes; `explore` and `inspect` only read the file

        if isinstance(node, GlobalNode):
            self.facts = NodeProgress(node.name, "global", None, (node.name,))
        else:
            source = None if node.source is None else node.source.name
            self.facts = NodeProgress(node.name, "map", source, tuple(step.called for step in node.in_order_of_work))
        self.at_hand: tuple[str, int] | None = None  # kind and round of the tasks below
        self.tasks = self.done = self.bytes = self.bytes_done = 0
        self.recent_seconds = self.recent_bytes = 0.0  # moving averages, but for a factor that both have

    def expect(self, task: Task) -> None:
        at_hand = task.kind, round_of(task)
        if at_hand != self.at_hand:
            self.at_hand = at_hand
            self.tasks = self.done = self.bytes = self.bytes_done = 0
            self.recent_seconds = self.recent_bytes = 0.0
        self.tasks += 1
        self.bytes += bytes_of(task)

    def finish(self, task: Task, result: Result) -> None:
        self.done += 1
        self.bytes_done += bytes_of(task)
        self.recent_seconds = REMEMBERED * self.recent_seconds + result.seconds
        self.recent_bytes = REMEMBERED * self.recent_bytes + bytes_of(task)
        if self.facts.kind != "global":
            self.facts = replace(self.facts, done=self.facts.done + 1)

    def progress(self, workers: int) -> NodeProgress:
        facts = replace(self.facts, share=self.share, seconds_left=self.seconds_left(workers))
        if facts.kind != "global" or self.at_hand is None:
            return facts
        return replace(facts, round=self.at_hand[1] + 1, round_tasks=self.tasks, round_done=self.done)

    @property
    def share(self) -> float:
        return 1.0 if self.facts.state == "done" else min(1.0, self.bytes_done / max(1, self.bytes))

    def seconds_left(self, workers: int) -> float | None:
        if self.facts.state == "done":
            return 0.0
        if self.facts.kind == "global" or not self.recent_bytes:
            return None
        work = max(0, self.bytes - self.bytes_done) * self.recent_seconds / self.recent_bytes
        return work / max(1, min(workers, self.tasks - self.done))


def round_of(task: Task) -> int:
    return task.round if isinstance(task, RoundTask) else 0


def peak_of(result: Result) -> int:
    phases = result.phases if isinstance(result, MapResult) else ()
    return max(each.peak_memory for each in (result, *phases) if each is not None)


def bytes_of(task: Task) -> int:
    return 1 + task.cost  # of tasks that read no bytes each counts the same


def known_seconds_left(nodes: Sequence[NodeProgress]) -> tuple[float, int, int]:
    """The seconds left of all nodes of which they are known, how many these are, and how many are not done."""
    left = [node.seconds_left for node in nodes if node.state != "done"]
    known = [seconds for seconds in left if seconds is not None]
    return sum(known), len(known), len(left)


class Workers(Protocol):
    """An executor, as far as it is asked here."""

    deaths: int
    workers: int  # that were there when work began
    dashboard: str | None

    def memory(self) -> WorkerMemory | None: ...


class ProgressRecorder(UI):
    """Passes on what a run reports, and counts it."""

    def __init__(
        self,
        ui: UI,
        name: str,
        nodes: Sequence[Node],
        alarms: Callable[[RunAccount], list[str]],
        since: float | None = None,
    ) -> None:
        self.ui = ui
        self.alarms = alarms
        self.tasks: Counter[str] = Counter()
        self.account = RunAccount()
        self.executor: Workers | None = None  # once there is one
        self._lock = threading.Lock()
        self._speeds: deque[tuple[float, int, int]] = deque()
        self._nodes = {node.name: NodeTracker(node) for node in nodes}
        now = time.time()
        started = now if since is None else since
        self._latest = Progress(name=name, process=this_process(), started=started, updated=now)
        ui.follows(self.facts)

    def begins(self, node: Node, parts: int) -> None:
        with self._lock:
            tracker = self._nodes[node.name]
            began = tracker.facts.began or time.time()
            tracker.facts = replace(tracker.facts, state="running", parts=parts, began=began)

    def expects(self, tasks: Sequence[Task]) -> None:
        with self._lock:
            for task in tasks:
                if task.kind not in FOR_THE_REPORT:
                    self._nodes[task.node].expect(task)
        self.ui.expects(tasks)

    def ends(self, node: Node) -> None:
        with self._lock:
            tracker = self._nodes[node.name]
            tracker.facts = replace(tracker.facts, state="done", ended=time.time())

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        with self._lock:
            if task.kind not in NOT_JOURNALED:
                self.tasks[task.kind] += anew
            if task.kind not in FOR_THE_REPORT:
                self._nodes[task.node].finish(task, result)
                for source, counts in counts_by_source(task, result).items():
                    self.account.add(source, counts, peak_of(result))
            if anew and task.kind == "partition":
                [counts] = counts_by_source(task, result).values()
                documents = self._latest.documents + next((count.docs_in for count in counts.values()), 0)
                self._latest = replace(self._latest, documents=documents, bytes=self._latest.bytes + task.cost)
        self.ui.finished(task, result, anew)

    def stopping(self) -> None:
        self.ui.stopping()

    def note(self, message: str) -> None:
        with self._lock:
            self._latest = replace(self._latest, notes=(*self._latest.notes, message)[-NOTES:])
        self.ui.note(message)

    def end(self, state: str, message: str | None) -> None:
        with self._lock:
            self._latest = replace(self._latest, state=state, message=message)

    def facts(self) -> Progress:
        """Everything as it is now."""
        memory = None if self.executor is None else self.executor.memory()
        with self._lock:
            now = time.time()
            nodes = tuple(node.progress(max(1, self.workers)) for node in self._nodes.values())
            seconds, known, unfinished = known_seconds_left(nodes)
            self._latest = replace(
                self._latest,
                updated=now,
                tasks=dict(sorted(self.tasks.items())),
                deaths=0 if self.executor is None else self.executor.deaths,
                workers=self.workers,
                dashboard=None if self.executor is None else self.executor.dashboard,
                peak_memory=dict(self.account.peak_memory),
                memory=memory,
                recently=self._recently(now),
                alarms=self._alarms(),
                nodes=nodes,
                stages={
                    name: {source: count.in_record() for source, count in by_source.items()}
                    for name, by_source in self.account.stages.items()
                },
                seconds_left=seconds if known == unfinished and known else None,
            )
            return self._latest

    @property
    def workers(self) -> int:
        return 0 if self.executor is None else self.executor.workers

    def _alarms(self) -> tuple[str, ...]:
        """Stages have alarms of their own. Whatever is wrong with one, progress is shown and the run goes on."""
        try:
            return tuple(self.alarms(self.account))
        except Exception as error:
            return (f"alarms cannot be shown: {type(error).__name__}: {error}",)

    def _recently(self, now: float) -> Speed:
        documents_now, size_now = self._latest.documents, self._latest.bytes
        self._speeds.append((now, documents_now, size_now))
        while self._speeds[0][0] < now - RECENT:
            self._speeds.popleft()
        then, documents, size = self._speeds[0]
        return Speed(documents_now - documents, size_now - size, now - then)


# --- logs/progress.json -----------------------------------------------------------------------------------------------


Watcher = Callable[[Progress], None]


@contextlib.contextmanager
def recording_progress(
    recorder: ProgressRecorder, store: Store, watcher: Watcher | None = None
) -> Iterator[ProgressRecorder]:
    """Write the file while a run works. At the end remove it, or write how the run failed. `watcher` gets the same
    facts, the last ones included."""
    ended = threading.Event()
    watchers = [] if watcher is None else [watcher]
    writers: list[Watcher] = [partial(_write, store), *watchers]

    def publish(to: Sequence[Watcher]) -> None:
        for watch in to:
            watch(recorder.facts())

    def keep() -> None:
        while not ended.wait(EVERY if store.local else EVERY_REMOTE):
            if recorder.workers:
                publish(writers)

    keeper = threading.Thread(target=keep, name="progress", daemon=True)
    keeper.start()

    def stop() -> None:
        ended.set()
        keeper.join()

    try:
        yield recorder
    except BaseException as error:
        stop()
        stopped = isinstance(error, KeyboardInterrupt | OverBudget)
        recorder.end("interrupted" if stopped else "failed", message_of(error))
        publish(writers)
        raise
    stop()
    recorder.end("done", None)
    publish(watchers)
    if store.exists(PATH):
        store.remove([PATH])


def message_of(error: BaseException) -> str | None:
    return None if isinstance(error, KeyboardInterrupt) else f"{error}" or type(error).__name__


def _write(store: Store, facts: Progress) -> None:
    """Whole or not at all, but without fsync: a second later there is another. A disk that is full, or a store that
    does not answer, is the run's to complain of."""
    data = json.dumps(facts.as_json(), separators=(",", ":")).encode()
    try:
        if store.local:
            write_whole(Path(store.at(PATH)), data, durable=False)
        else:
            store.write(PATH, data)
    except Exception as error:
        if not isinstance(error, OSError | RunFailed) and not of_storage(error):
            raise


def state_of(facts: Mapping[str, object], now: float) -> str:
    """The state of a run. A file that says `running` counts as `stopped` if its process is gone, and as `silent` if it
    was last written minutes ago."""
    state, process, updated = str(facts.get("state")), facts.get("process"), facts.get("updated")
    if state != "running":
        return state
    if not isinstance(process, Mapping) or is_alive(process) is False:
        return "stopped"
    return "running" if isinstance(updated, int | float) and now - updated < SILENT else "silent"
