"""What a run has done by now, counted from the results of its tasks."""

from __future__ import annotations

import time
from collections import Counter

from gristmill.pipeline.store.records import CountRecord, Result, Task, counts_by_source


class Tally:
    """What has been done in this run: documents read, documents and bytes worked on, which count once for each node, and
    drops."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.read = 0
        self.documents = 0
        self.bytes = 0
        self.drops: Counter[str] = Counter()

    def add(self, task: Task, result: Result) -> None:
        if task["kind"] == "partition":
            [counts] = counts_by_source(task, result).values()
            first = next(iter(counts.values()), None)
            documents = 0 if first is None else first["docs_in"]
            self.read += documents if task["reader"] else 0
            self.documents += documents
            self.bytes += 0 if first is None else task["cost"]
        if task["kind"] == "partition" or task["kind"] == "drop":
            for by_stage in counts_by_source(task, result).values():
                for stage, count in by_stage.items():
                    self.drop(stage, count)

    def drop(self, stage: str, count: CountRecord) -> None:
        for reason, times in count["dropped"].items():
            self.drops[f"{stage}: {reason}"] += times
        if count["quarantined"]:
            self.drops[f"{stage}: quarantined"] += count["quarantined"]

    def rates(self) -> str:
        seconds = max(1e-6, time.monotonic() - self.start)
        speed = f"{self.documents / seconds:,.0f} documents/s, {self.bytes / seconds / 1e6:,.1f} MB/s"
        return f"{self.read:,} documents read; at work {speed}"
