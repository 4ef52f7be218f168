"""`logs/progress.json`: what a running run tells other processes, such as the page of `gristmill explore`.

A thread of the driver writes it at most once a second (once in ten on an object store), and at least once in half a
minute, whole or not at all, while workers are at work. It is removed when the run is done, for run.json has all facts
then. A run that fails or is interrupted leaves it with the reason. One that is killed leaves it as it was; `state_of`
tells whether the process that wrote it is alive and has written lately.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from gristmill.kernels.base.files import write_whole
from gristmill.pipeline.errors import OverBudget
from gristmill.pipeline.plan.plan import MapNode, Node
from gristmill.pipeline.process_id import is_alive, this_process
from gristmill.pipeline.progress import events
from gristmill.pipeline.progress.facts import ProcessFacts, ProgressFacts, Speed, WorkerMemory
from gristmill.pipeline.progress.tally import Tally
from gristmill.pipeline.progress.time_left import TimeLeft
from gristmill.pipeline.progress.ui import UI
from gristmill.pipeline.progress.usual import Known
from gristmill.pipeline.store.accounting import RunAccount
from gristmill.pipeline.store.records import NOT_JOURNALED, Result, Task, counts_by_source
from gristmill.pipeline.store.run_records import NodeProgress
from gristmill.pipeline.store.storage import Store

PATH = "logs/progress.json"
EVERY, EVERY_REMOTE = 1.0, 10.0  # seconds
HEARTBEAT = 30.0  # seconds after which a file without news is written again
SILENT = 120.0  # seconds without a heartbeat, after which a run is no longer called running
RECENT = 30.0  # seconds over which the speed of now is taken
NOTES = 20


Watcher = Callable[[ProgressFacts], None]


class OnRecord(UI):
    """Passes on what it is told, and keeps it for whoever looks at the run's folder."""

    def __init__(
        self,
        ui: UI,
        name: str,
        nodes: Sequence[Node],
        alarms: Callable[[RunAccount], list[str]],
        known: Known | None = None,
        since: float | None = None,
        workers: int = 1,
    ) -> None:
        """`workers`: as many are expected."""
        self.ui = ui
        self.alarms = alarms
        self.tally = Tally()
        self.account = RunAccount()
        self.tasks: Counter[str] = Counter()
        self.deaths: Callable[[], int] = lambda: 0
        self.memory: Callable[[], WorkerMemory | None] = lambda: None
        self.time_left = TimeLeft([events.shape_of(node) for node in nodes], known, workers)
        self.changed = threading.Event()
        self.at_work = threading.Event()
        self._lock = threading.Lock()
        self._speeds: deque[tuple[float, int, int]] = deque()
        self._troubles: dict[str, bool] = {}  # by words: has the terminal been told?
        self._facts: ProcessFacts = {
            "name": name,
            "state": "running",
            "message": None,
            "process": this_process(),
            "started": time.time() if since is None else since,
            "workers": 0,
            "dashboard": None,
            "notes": [],
        }
        self._nodes = {node.name: _beginning(node) for node in nodes}
        self._latest: ProgressFacts | None = None
        ui.follows(self.facts)

    @property
    def at(self) -> float:
        """Seconds since the run began."""
        return time.time() - self._facts["started"]

    def follows(self, facts: Callable[[], ProgressFacts]) -> None:
        self.ui.follows(facts)

    def begins(self, node: Node, parts: int) -> None:
        with self._telling():
            progress = self._nodes[node.name]
            progress |= {"state": "running", "parts": parts, "began": progress["began"] or time.time()}
            self.time_left.take(events.Event(self.at, "began", node.name, tasks=parts))
        self.ui.begins(node, parts)

    def expects(self, tasks: Sequence[Task]) -> None:
        with self._telling():
            for event in events.expected(self.at, tasks):
                self.time_left.take(event)
                node = self._nodes[event.node]
                if event.kind != "partition":
                    if node["round"] != event.round + 1:
                        node |= {"round": event.round + 1, "round_tasks": 0, "round_done": 0}
                    node["round_tasks"] += event.tasks
        self.ui.expects(tasks)

    def ends(self, node: Node) -> None:
        with self._telling():
            self.time_left.take(events.Event(self.at, "ended", node.name))
            self._nodes[node.name] |= {"state": "done", "ended": time.time(), "doing": None}
        self.ui.ends(node)

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        with self._telling():
            self._count(task, result, anew)
        self.ui.finished(task, result, anew)

    def connected(self, dashboard: str | None, workers: int) -> None:
        with self._telling():
            self._facts |= {"dashboard": dashboard, "workers": workers}
            self.time_left.take(events.Event(self.at, "connected", workers=workers))
        self.at_work.set()
        self.ui.connected(dashboard, workers)

    def stopping(self) -> None:
        self.ui.stopping()

    def note(self, message: str) -> None:
        with self._telling():
            self._facts["notes"] = [*self._facts["notes"], message][-NOTES:]
        self.ui.note(message)

    def end(self, state: str, message: str | None) -> None:
        with self._telling():
            self._facts |= {"state": state, "message": message}

    def facts(self) -> ProgressFacts:
        """Everything as it is now, as plain data. After an error, which is noted, the facts are the last good ones;
        `updated` is their time."""
        try:
            self._latest = self._facts_now()
        except Exception as error:  # of an alarm, say; whatever it is, the run goes on
            self.trouble(error)
            if self._latest is None:
                raise
            self._latest = {**self._latest, **self._facts}
        return self._latest

    def trouble(self, error: Exception) -> None:
        """Note once that the run's progress cannot be shown, and why."""
        words = f"progress cannot be shown: {type(error).__name__}: {error}"
        with self._lock:
            if words not in self._troubles:
                self._troubles[words] = False
                self._facts["notes"] = [*self._facts["notes"], words][-NOTES:]

    def tell_troubles(self) -> None:
        """Show the troubles that the terminal has not shown yet."""
        with self._lock:
            untold = [words for words, told in self._troubles.items() if not told]
            self._troubles |= dict.fromkeys(untold, True)
        for words in untold:
            self.ui.note(words)

    def _facts_now(self) -> ProgressFacts:
        memory = self.memory()
        with self._lock:
            now, tally = time.time(), self.tally
            self._speeds.append((now, tally.documents, tally.bytes))
            while self._speeds[0][0] < now - RECENT:
                self._speeds.popleft()
            then, documents, size = self._speeds[0]
            stages = {
                name: {source: count.plain() for source, count in by_source.items()}
                for name, by_source in self.account.stages.items()
            }
            shares = self.time_left.shares()
            speed: Speed = {
                "documents": tally.documents - documents,
                "bytes": tally.bytes - size,
                "seconds": now - then,
            }
            return {
                **self._facts,
                "updated": now,
                "documents": tally.documents,
                "bytes": tally.bytes,
                "tasks": dict(sorted(self.tasks.items())),
                "deaths": self.deaths(),
                "peak_memory": dict(self.account.peak_memory),
                "memory": memory,
                "recently": speed,
                "alarms": self.alarms(self.account),
                "nodes": [{**node, "share": shares[name]} for name, node in self._nodes.items()],
                "stages": stages,
                "seconds_left": self.time_left.left(now - self._facts["started"]),
            }

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        with self._lock:
            yield
        self.changed.set()

    def _count(self, task: Task, result: Result, anew: bool) -> None:
        if task["kind"] in NOT_JOURNALED:
            return
        self.tasks[task["kind"]] += anew
        if task["kind"] in events.ASIDE:
            return
        node = self._nodes[task["node"]]
        if event := events.finished(self.at, task, result, anew):
            self.time_left.take(event)
        for source, counts in counts_by_source(task, result).items():
            self.account.add(
                source, counts, max([each.get("peak_memory", 0) for each in (result, *result.get("phases", ()))])
            )
        if task["kind"] == "partition":
            node["done"] += 1
            node["doing"] = None
        else:
            node["doing"] = f"{task['kind']} {events.round_of(task) + 1}"
            node["round_done"] += 1
        if anew:
            node["anew"] += 1
            self.tally.add(task, result)


def _beginning(node: Node) -> NodeProgress:
    return {
        "name": node.name,
        "kind": "map" if isinstance(node, MapNode) else "global",
        "source": node.source.name if isinstance(node, MapNode) and node.source is not None else None,
        "stages": [step.called for step in node.in_order_of_work] if isinstance(node, MapNode) else [node.name],
        "state": "waiting",
        "doing": None,
        "parts": None,
        "done": 0,
        "decided": 0,
        "anew": 0,
        "round": 0,
        "round_tasks": 0,
        "round_done": 0,
        "share": 0.0,
        "began": None,
        "ended": None,
    }


@contextlib.contextmanager
def on_record(recording: OnRecord, store: Store, watcher: Watcher | None = None) -> Iterator[OnRecord]:
    """Keep the file while a run goes on; at the end it is removed, or says how the run ended. `watcher` is shown the
    same facts, the last too."""
    ended = threading.Event()

    def write(facts: ProgressFacts) -> None:
        _write(store, facts)

    def show(facts: ProgressFacts) -> None:
        if watcher is not None:
            watcher(facts)

    def publish(*readers: Watcher) -> None:
        """Pass the facts on. An error is noted and does not end the run."""
        for reader in readers:
            try:
                reader(recording.facts())
            except Exception as error:
                recording.trouble(error)
        with contextlib.suppress(OSError):  # the terminal is gone
            recording.tell_troubles()

    def keep() -> None:
        recording.at_work.wait()
        last = -math.inf
        while not ended.is_set():
            if recording.changed.is_set() or time.monotonic() - last >= HEARTBEAT:
                recording.changed.clear()
                publish(write, show)
                last = time.monotonic()
            ended.wait(EVERY if store.local else EVERY_REMOTE)

    keeper = threading.Thread(target=keep, name="progress", daemon=True)
    keeper.start()

    def stop() -> None:
        ended.set()
        recording.at_work.set()
        keeper.join()

    try:
        yield recording
    except BaseException as error:
        stop()
        stopped = isinstance(error, KeyboardInterrupt | OverBudget)
        recording.end("interrupted" if stopped else "failed", words_of(error))
        publish(write, show)
        raise
    stop()
    recording.end("done", None)
    publish(show)
    if store.exists(PATH):
        store.remove([PATH])


def words_of(error: BaseException) -> str | None:
    return None if isinstance(error, KeyboardInterrupt) else f"{error}" or type(error).__name__


def _write(store: Store, facts: ProgressFacts) -> None:
    """Whole or not at all, but without fsync: a second later there is another. A disk that is full is the run's to
    complain of."""
    data = json.dumps(facts, separators=(",", ":")).encode()
    with contextlib.suppress(OSError):
        if store.local:
            write_whole(Path(store.at(PATH)), data, durable=False)
        else:
            store.write(PATH, data)


def state_of(facts: Mapping[str, object], now: float) -> str:
    """The state of a run. A file that says `running` counts as `stopped` if its process is gone, and as `silent` if it
    was last written minutes ago."""
    state, process, updated = str(facts.get("state")), facts.get("process"), facts.get("updated")
    if state != "running":
        return state
    if not isinstance(process, Mapping) or is_alive(process) is False:
        return "stopped"
    return "running" if isinstance(updated, int | float) and now - updated < SILENT else "silent"
