"""Progress of a run: what a UI is told, and the facts that it may show.

`ProgressRecorder` stands between a run and its UI. It counts what the run reports, and gives the facts at any moment
and to any thread: to a terminal, to Prometheus, to `logs/progress.json`.

Time left is measured. For each map node, seconds of a worker for a byte are an exponentially weighted moving average
over the tasks that finished. A map node of which no task has finished is unknown. So is a global stage, whose number of
rounds nobody knows, unless an earlier run in the folder measured it. While one node is unknown, so is the whole run.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self

from gristmill.pipeline.formatting import plain
from gristmill.pipeline.plan.plan import GlobalNode, Node
from gristmill.pipeline.process_id import ProcessId, this_process
from gristmill.pipeline.store.counts import CountsRecord, RunAccount
from gristmill.pipeline.store.records import NOT_JOURNALED, MapResult, Result, RoundTask, Task, counts_by_source

RECENT = 30.0  # seconds over which the speed of now is taken
NOTES = 20
REMEMBERED = 0.95  # weight of the tasks before one, in a moving average: it reaches back over some twenty tasks
FOR_THE_REPORT = ("pages", "numbers", "look", "conform")  # kinds of tasks that are no work of a node


class UI:
    """What a run and its engine report. Each method does nothing unless a UI has a use for it."""

    def follows(self, facts: Callable[[], Progress]) -> None:
        """Before anything else: where to ask for the state of the run, at any moment and from any thread."""

    def connected(self, dashboard: str | None, workers: int) -> None: ...

    def begins(self, node: Node, parts: int) -> None: ...

    def expects(self, tasks: Sequence[Task]) -> None:
        """Tasks that are run next, or looked up in the journal."""

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        """A task has its result; `anew` is False where the journal had it."""

    def ends(self, node: Node) -> None: ...

    def stopping(self) -> None: ...

    def note(self, message: str) -> None: ...


class Quiet(UI):
    """Prints notes on standard error, and nothing else."""

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
    doing: str | None = None
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
    total: int
    limit: int | None  # of one worker


@dataclass(frozen=True)
class Progress:
    """The state of a run at one moment: `logs/progress.json`."""

    name: str
    state: str  # running, done, failed, interrupted
    message: str | None
    process: ProcessId  # that drives the run
    started: float
    updated: float
    workers: int
    dashboard: str | None
    notes: tuple[str, ...]
    documents: int  # worked on by this process, once for each node
    bytes: int
    tasks: Mapping[str, int]  # done by this process, by kind
    deaths: int  # of workers
    peak_memory: Mapping[str, int]  # of a worker, by stage
    memory: WorkerMemory | None
    recently: Speed
    alarms: tuple[str, ...]
    nodes: tuple[NodeProgress, ...]
    stages: Mapping[str, Mapping[str, CountsRecord]]  # by stage, then by source
    seconds_left: float | None  # of the whole run; None: not known

    @property
    def read(self) -> int:
        """Documents that readers gave, in earlier runs too."""
        readers = [node.source for node in self.nodes if node.source]
        return sum(count["kept"] for reader in readers for count in self.stages.get(reader, {}).values())

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


# --- what is counted --------------------------------------------------------------------------------------------------


class NodeTracker:
    """Counts the tasks of a node, and tells how long the rest of them will take."""

    def __init__(self, node: Node, before: float | None) -> None:
        """`before`: seconds of workers that the node took in an earlier run, scaled to the inputs of this one."""
        if isinstance(node, GlobalNode):
            self.facts = NodeProgress(node.name, "global", None, (node.name,))
        else:
            source = None if node.source is None else node.source.name
            self.facts = NodeProgress(node.name, "map", source, tuple(step.called for step in node.in_order_of_work))
        self.before = before
        self.spent = 0.0
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
        seconds = result.seconds
        self.spent += seconds
        self.done += 1
        self.bytes_done += bytes_of(task)
        self.recent_seconds = REMEMBERED * self.recent_seconds + seconds
        self.recent_bytes = REMEMBERED * self.recent_bytes + bytes_of(task)
        if self.facts.kind == "global":
            self.facts = replace(self.facts, doing=f"{task.kind} {round_of(task) + 1}")
        else:
            self.facts = replace(self.facts, done=self.facts.done + 1, doing=None)

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
        if self.facts.kind != "global" and self.recent_bytes:
            work = max(0, self.bytes - self.bytes_done) * self.recent_seconds / self.recent_bytes
            return work / max(1, min(workers, self.tasks - self.done))
        if self.before is None or self.spent >= self.before:
            return None
        return (self.before - self.spent) / workers


def round_of(task: Task) -> int:
    return task.round if isinstance(task, RoundTask) else 0


def peak_of(result: Result) -> int:
    phases = result.phases if isinstance(result, MapResult) else ()
    return max(each.peak_memory for each in (result, *phases) if each is not None)


def bytes_of(task: Task) -> int:
    return 1 + task.cost  # of tasks that read no bytes each counts the same


def seconds_left(nodes: Sequence[NodeProgress]) -> float | None:
    """Of all nodes together; None where one is unknown, and when all are done."""
    left = [node.seconds_left for node in nodes if node.state != "done"]
    known = [seconds for seconds in left if seconds is not None]
    return sum(known) if known and len(known) == len(left) else None


class ProgressRecorder(UI):
    """Passes on what a run reports, and counts it."""

    def __init__(
        self,
        ui: UI,
        name: str,
        nodes: Sequence[Node],
        alarms: Callable[[RunAccount], list[str]],
        before: Mapping[str, float] | None = None,
        since: float | None = None,
        workers: int = 1,
    ) -> None:
        """`before`: by node, seconds of workers as an earlier run measured them. `workers`: as many are expected."""
        self.ui = ui
        self.name = name
        self.alarms = alarms
        self.expected_workers = workers
        self.process = this_process()
        self.started = time.time() if since is None else since
        self.state = "running"
        self.message: str | None = None
        self.workers = 0
        self.dashboard: str | None = None
        self.notes: tuple[str, ...] = ()
        self.documents = self.bytes = 0
        self.tasks: Counter[str] = Counter()
        self.account = RunAccount()
        self.deaths: Callable[[], int] = lambda: 0
        self.memory: Callable[[], WorkerMemory | None] = lambda: None
        self.changed = threading.Event()
        self.at_work = threading.Event()
        self._lock = threading.Lock()
        self._speeds: deque[tuple[float, int, int]] = deque()
        self._troubles: dict[str, bool] = {}  # by message: does the terminal have it?
        self._nodes = {node.name: NodeTracker(node, (before or {}).get(node.name)) for node in nodes}
        self._latest: Progress | None = None
        ui.follows(self.facts)

    def begins(self, node: Node, parts: int) -> None:
        with self._updating():
            tracker = self._nodes[node.name]
            began = tracker.facts.began or time.time()
            tracker.facts = replace(tracker.facts, state="running", parts=parts, began=began)
        self.ui.begins(node, parts)

    def expects(self, tasks: Sequence[Task]) -> None:
        with self._updating():
            for task in tasks:
                if task.kind not in FOR_THE_REPORT:
                    self._nodes[task.node].expect(task)
        self.ui.expects(tasks)

    def ends(self, node: Node) -> None:
        with self._updating():
            tracker = self._nodes[node.name]
            tracker.facts = replace(tracker.facts, state="done", ended=time.time(), doing=None)
        self.ui.ends(node)

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        with self._updating():
            if task.kind not in NOT_JOURNALED:
                self.tasks[task.kind] += anew
            if task.kind not in FOR_THE_REPORT:
                self._nodes[task.node].finish(task, result)
                for source, counts in counts_by_source(task, result).items():
                    self.account.add(source, counts, peak_of(result))
            if anew and task.kind == "partition":
                [counts] = counts_by_source(task, result).values()
                self.documents += next((count.docs_in for count in counts.values()), 0)
                self.bytes += task.cost
        self.ui.finished(task, result, anew)

    def connected(self, dashboard: str | None, workers: int) -> None:
        with self._updating():
            self.dashboard, self.workers = dashboard, workers
        self.at_work.set()
        self.ui.connected(dashboard, workers)

    def stopping(self) -> None:
        self.ui.stopping()

    def note(self, message: str) -> None:
        with self._updating():
            self.notes = (*self.notes, message)[-NOTES:]
        self.ui.note(message)

    def end(self, state: str, message: str | None) -> None:
        with self._updating():
            self.state, self.message = state, message

    @contextlib.contextmanager
    def _updating(self) -> Iterator[None]:
        with self._lock:
            yield
        self.changed.set()

    def facts(self) -> Progress:
        """Everything as it is now. After an error, which is noted, the facts are the last good ones; `updated` is their
        time."""
        try:
            self._latest = self._facts_now()
        except Exception as error:  # of an alarm, say; whatever it is, the run goes on
            self.trouble(error)
            if self._latest is None:
                raise
            self._latest = replace(self._latest, state=self.state, message=self.message, notes=self.notes)
        return self._latest

    def trouble(self, error: Exception) -> None:
        """Note once that the run's progress cannot be shown, and why."""
        message = f"progress cannot be shown: {type(error).__name__}: {error}"
        with self._lock:
            if message not in self._troubles:
                self._troubles[message] = False
                self.notes = (*self.notes, message)[-NOTES:]

    def show_troubles(self) -> None:
        """Show the troubles that the terminal has not shown yet."""
        with self._lock:
            new = [message for message, is_shown in self._troubles.items() if not is_shown]
            self._troubles |= dict.fromkeys(new, True)
        for message in new:
            self.ui.note(message)

    def _facts_now(self) -> Progress:
        memory = self.memory()
        with self._lock:
            now = time.time()
            nodes = tuple(node.progress(self.workers or self.expected_workers) for node in self._nodes.values())
            return Progress(
                name=self.name,
                state=self.state,
                message=self.message,
                process=self.process,
                started=self.started,
                updated=now,
                workers=self.workers,
                dashboard=self.dashboard,
                notes=self.notes,
                documents=self.documents,
                bytes=self.bytes,
                tasks=dict(sorted(self.tasks.items())),
                deaths=self.deaths(),
                peak_memory=dict(self.account.peak_memory),
                memory=memory,
                recently=self._recently(now),
                alarms=tuple(self.alarms(self.account)),
                nodes=nodes,
                stages={
                    name: {source: count.in_record() for source, count in by_source.items()}
                    for name, by_source in self.account.stages.items()
                },
                seconds_left=seconds_left(nodes),
            )

    def _recently(self, now: float) -> Speed:
        self._speeds.append((now, self.documents, self.bytes))
        while self._speeds[0][0] < now - RECENT:
            self._speeds.popleft()
        then, documents, size = self._speeds[0]
        return Speed(self.documents - documents, self.bytes - size, now - then)
