"""What is done: one line of JSON for each finished task, by the task's fingerprint. Append-only; a torn last line is no line.

On object stores, which cannot append, each flush is an object of its own, named so that no other process writes the same; a run that finds many makes one of them.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pipeline.store import Store

Result = dict[str, Any]
FOLDER = "journal"
FLUSH_SECONDS, FLUSH_SECONDS_REMOTE = 1.0, 10.0
MANY_SEGMENTS = 32
READERS = 16


class Journal:
    """Remembers the results of tasks whose files are really there."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.done: dict[str, Result] = {}
        self.gone: set[str] = set()  # tasks that were done, and whose files went
        self._waiting: list[bytes] = []
        self._flushed = time.monotonic()
        self._segments: list[str] = []
        self._load()

    def _load(self) -> None:
        self._segments = sorted(path for path in self.store.files(FOLDER) if path.endswith(".jsonl"))
        with ThreadPoolExecutor(READERS) as threads:
            for data in threads.map(self.store.read, self._segments):
                for line in data.split(b"\n"):
                    try:
                        entry = json.loads(line)
                    except ValueError:
                        continue  # torn by a kill: the task will be done again
                    self.done[entry["task"]] = entry["result"]

    def gather(self) -> None:
        """Many objects into one, which is there before they go."""
        if self.store.local or len(self._segments) <= MANY_SEGMENTS:
            return
        before, self._segments = self._segments, []
        self._add_segment(b"".join(_line(task, result) for task, result in self.done.items()), after=before[-1])
        self.store.remove(before)

    def check(self, present: dict[str, int]) -> int:
        """Forget results whose files are not there in full length; says how many."""
        self.gone = {
            task for task, result in self.done.items() if any(present.get(path) != facts["bytes"] for path, facts in files_of(result))
        }
        for task in self.gone:
            del self.done[task]
        return len(self.gone)

    def add(self, task: str, result: Result) -> None:
        self.done[task] = result
        self._waiting.append(_line(task, result))
        if time.monotonic() - self._flushed > (FLUSH_SECONDS if self.store.local else FLUSH_SECONDS_REMOTE):
            self.flush()

    def flush(self) -> None:
        self._flushed = time.monotonic()
        if not self._waiting:
            return
        data, self._waiting = b"".join(self._waiting), []
        if self.store.local:
            path = Path(self.store.at(f"{FOLDER}/tasks.jsonl"))
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                if file.tell() and not _ends_line(path):
                    file.write(b"\n")
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        else:
            self._add_segment(data, after=self._segments[-1] if self._segments else None)

    def _add_segment(self, data: bytes, after: str | None) -> None:
        number = 0 if after is None else int(after.removeprefix(f"{FOLDER}/tasks-")[:8]) + 1
        self._segments.append(f"{FOLDER}/tasks-{number:08d}-{uuid.uuid4().hex[:8]}.jsonl")
        self.store.write(self._segments[-1], data)


def _line(task: str, result: Result) -> bytes:
    return json.dumps({"task": task, "result": result}, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def files_of(result: Result) -> list[tuple[str, dict[str, Any]]]:
    """Path and facts of every file that a task's result stands for."""
    return [(facts["path"], facts) for facts in result.get("files", {}).values()]
