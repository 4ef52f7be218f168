"""`logs/progress.json`: what a run that goes on tells other processes, such as the page of `gristmill explore`.

A thread of the driver writes it at most once a second (once in ten on an object store), whole or not at all, while
workers are at work. It is removed when the run is done, for run.json has all facts then; a run that fails or is
interrupted leaves it with the reason, and one that is killed leaves it as it was: `is_alive` tells whether the process
that wrote it is still there.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil

from gristmill.pipeline.leg.leg import Result, Task
from gristmill.pipeline.plan.plan import Leg, Node
from gristmill.pipeline.progress.progress import Tally
from gristmill.pipeline.store.counts import Account
from gristmill.pipeline.store.store import Store

PATH = "logs/progress.json"
EVERY, EVERY_REMOTE = 1.0, 10.0  # seconds
RECENT = 30.0  # seconds over which the speed of now is taken
NOTES = 20


class Face(Protocol):
    """Whom a run tells what happens."""

    def begins(self, node: Node, parts: int) -> None: ...

    def ends(self, node: Node) -> None: ...

    def finished(self, task: Task, result: Result, anew: bool) -> None: ...

    def connected(self, dashboard: str | None, workers: int) -> None: ...

    def stopping(self) -> None: ...

    def note(self, message: str) -> None: ...


class OnRecord:
    """Passes on what it is told, and keeps it for whoever looks at the run's folder."""

    def __init__(self, face: Face, name: str, nodes: Sequence[Node], alarms: Callable[[Account], list[str]]) -> None:
        self.face = face
        self.alarms = alarms
        self.tally = Tally()
        self.account = Account()
        self.changed = threading.Event()
        self.at_work = threading.Event()
        self._lock = threading.Lock()
        self._speeds: deque[tuple[float, int, int]] = deque()
        process = psutil.Process()
        self._facts: dict[str, Any] = {
            "name": name,
            "state": "running",
            "message": None,
            "process": process.pid,
            "born": process.create_time(),
            "host": platform.node(),
            "started": time.time(),
            "workers": 0,
            "dashboard": None,
            "notes": [],
        }
        self._nodes = {node.name: _beginning(node) for node in nodes}

    def begins(self, node: Node, parts: int) -> None:
        with self._telling():
            node_ = self._nodes[node.name]
            node_ |= {"state": "running", "parts": parts, "began": node_["began"] or time.time()}
        self.face.begins(node, parts)

    def ends(self, node: Node) -> None:
        with self._telling():
            self._nodes[node.name] |= {"state": "done", "ended": time.time(), "doing": None}
        self.face.ends(node)

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        with self._telling():
            self._count(task, result, anew)
        self.face.finished(task, result, anew)

    def connected(self, dashboard: str | None, workers: int) -> None:
        with self._telling():
            self._facts |= {"dashboard": dashboard, "workers": workers}
        self.at_work.set()
        self.face.connected(dashboard, workers)

    def stopping(self) -> None:
        self.face.stopping()

    def note(self, message: str) -> None:
        with self._telling():
            self._facts["notes"] = [*self._facts["notes"], message][-NOTES:]
        self.face.note(message)

    def end(self, state: str, message: str | None) -> None:
        with self._telling():
            self._facts |= {"state": state, "message": message}

    def facts(self) -> dict[str, Any]:
        """Everything as it is now, as plain data."""
        with self._lock:
            now, tally = time.time(), self.tally
            self._speeds.append((now, tally.documents, tally.bytes))
            while self._speeds[0][0] < now - RECENT:
                self._speeds.popleft()
            then, documents, size = self._speeds[0]
            stages = {
                name: {source: count.plain() for source, count in its.items()}
                for name, its in self.account.stages.items()
            }
            speed = {"documents": tally.documents - documents, "bytes": tally.bytes - size, "seconds": now - then}
            return self._facts | {
                "updated": now,
                "documents": tally.documents,
                "bytes": tally.bytes,
                "recently": speed,
                "alarms": self.alarms(self.account),
                "nodes": [dict(node) for node in self._nodes.values()],
                "stages": stages,
            }

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        with self._lock:
            yield
        self.changed.set()

    def _count(self, task: Task, result: Result, anew: bool) -> None:
        if task["kind"] == "pages":
            return
        node, counts = self._nodes[task["node"]], result.get("counts") or {}
        if task["kind"] in ("leg", "decide"):
            self.account.add(task["source"], counts)
            node["done" if task["kind"] == "leg" else "decided"] += 1
            node["doing"] = None if task["kind"] == "leg" else "rules"
        else:
            for source, its in counts.items():
                self.account.add(source, its)
            node["doing"] = f"{task['kind']} {task['round'] + 1}"
        if anew:
            node["anew"] += 1
            self.tally.add(task, result)


def _beginning(node: Node) -> dict[str, Any]:
    stages = [step.called for step in node.in_order_of_work] if isinstance(node, Leg) else [node.name]
    source = node.source.name if isinstance(node, Leg) and node.source is not None else None
    counts = {"parts": None, "done": 0, "decided": 0, "anew": 0}
    times = {"began": None, "ended": None}
    kind = "leg" if isinstance(node, Leg) else "global"
    return (
        {"name": node.name, "kind": kind, "source": source, "stages": stages, "state": "waiting", "doing": None}
        | counts
        | times
    )


@contextlib.contextmanager
def on_record(face: OnRecord, store: Store) -> Iterator[OnRecord]:
    """Keep the file while a run goes on; at the end it is removed, or says how the run ended."""
    ended = threading.Event()

    def keep() -> None:
        face.at_work.wait()
        while not ended.is_set():
            if face.changed.is_set():
                face.changed.clear()
                _write(store, face.facts())
            ended.wait(EVERY if store.local else EVERY_REMOTE)

    keeper = threading.Thread(target=keep, name="progress", daemon=True)
    keeper.start()

    def stop() -> None:
        ended.set()
        face.at_work.set()
        keeper.join()

    try:
        yield face
    except BaseException as error:
        stop()
        interrupted = isinstance(error, KeyboardInterrupt)
        face.end(
            "interrupted" if interrupted else "failed", None if interrupted else f"{error}" or type(error).__name__
        )
        _write(store, face.facts())
        raise
    stop()
    if store.exists(PATH):
        store.remove([PATH])


def _write(store: Store, facts: Mapping[str, Any]) -> None:
    """Whole or not at all, but without fsync: a second later there is another. A disk that is full is the run's to
    complain of."""
    data = json.dumps(facts, separators=(",", ":")).encode()
    with contextlib.suppress(OSError):
        if not store.local:
            store.write(PATH, data)
            return
        path = Path(store.at(PATH))
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_bytes(data)
        temporary.replace(path)


def is_alive(facts: Mapping[str, Any]) -> bool | None:
    """Is the process that wrote the file still at work? None where another machine would have to be asked."""
    if facts.get("state") != "running":
        return False
    if facts.get("host") != platform.node():
        return None
    try:
        process = psutil.Process(int(facts["process"]))
        same = abs(process.create_time() - float(facts["born"])) < 1
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False
