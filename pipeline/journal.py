"""What is done: one line of JSON for each finished task, by the task's fingerprint. Append-only; a torn last line is no line.

On object stores, which cannot append, each flush is an object of its own.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from pipeline.store import Store

Result = dict[str, Any]
FOLDER = "journal"
FLUSH_SECONDS = 1.0


class Journal:
    """Remembers the results of tasks whose files are really there."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.done: dict[str, Result] = {}
        self._waiting: list[bytes] = []
        self._flushed = time.monotonic()
        self._segment = 0
        self._load()

    def _load(self) -> None:
        segments = sorted(path for path in self.store.files(FOLDER) if path.endswith(".jsonl"))
        self._segment = len(segments)
        for segment in segments:
            for line in self.store.read(segment).split(b"\n"):
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue  # torn by a kill: the task will be done again
                self.done[entry["task"]] = entry["result"]

    def check(self, present: dict[str, int]) -> int:
        """Forget results whose files are not there in full length; says how many."""
        gone = [task for task, result in self.done.items() if any(present.get(path) != facts["bytes"] for path, facts in files_of(result))]
        for task in gone:
            del self.done[task]
        return len(gone)

    def add(self, task: str, result: Result) -> None:
        self.done[task] = result
        self._waiting.append(json.dumps({"task": task, "result": result}, ensure_ascii=True, separators=(",", ":")).encode() + b"\n")
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
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
            self.store.write(f"{FOLDER}/tasks-{self._segment:08d}.jsonl", data)
            self._segment += 1


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def files_of(result: Result) -> list[tuple[str, dict[str, Any]]]:
    """Path and facts of every file that a task's result stands for."""
    return [(facts["path"], facts) for facts in result.get("files", {}).values()]
