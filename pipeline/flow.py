"""`Flow`, as global stages know it, carried out in rounds of flat tasks on the engine.

Parts and rows are cut by the top bits of a hash, so that which task does what depends on the data alone. What a round made lies on
disk and in the journal; a run that was killed goes on in the round it was in, and a part that did not change is not mapped again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from pipeline import fingerprint
from pipeline.counts import Account
from pipeline.engine import Engine
from pipeline.flow_tasks import read_bucket
from pipeline.leg import Result, Task
from pipeline.parts import Documents, Part, bucket_of, buckets_for, identity
from pipeline.recipe import Step
from pipeline.store import Store
from stages.stage import Dataset, JoinFunction, MapFunction, Rows

ROWS_A_BUCKET = 500_000
ROWS_A_GROUP = 100_000
BYTES_A_GROUP = 32 << 20
PARTS_ALONE = 1024  # up to so many parts, each is a task of its own
FAN_IN = 8


@dataclass(frozen=True)
class StoredRows:
    """Rows on disk, cut into buckets; the files of one round."""

    files: tuple[dict[str, Any], ...]
    buckets: int
    by: str | None

    @property
    def count(self) -> int:
        return sum(int(f["rows"]) for f in self.files)


class DaskFlow:
    """The flow of one global stage in one run."""

    def __init__(
        self, engine: Engine, store: Store, step: Step, node: str, stage_fingerprint: str, rejects: dict[str, Any], account: Account
    ) -> None:
        self.engine = engine
        self.store = store
        self.step = step
        self.node = node
        self.fingerprint = stage_fingerprint
        self.rejects = rejects
        self.account = account
        self.round = 0
        self.files: list[dict[str, Any]] = []  # of every task, so that others may be cleared away

    def map(self, function: MapFunction, docs: Dataset, *, columns: Sequence[str], by: str) -> Rows:
        documents = cast(Documents, docs)
        buckets = buckets_for(documents.rows, ROWS_A_BUCKET)
        groups = self.groups(documents)
        tasks = [
            self.task(
                "map",
                function,
                name,
                {"parts": g, "columns": list(columns), "by": by, "buckets": buckets},
                [identity(p) for p in g],
                cost=sum(int(p["text_bytes"]) for p in g),
            )
            for name, g in groups
        ]
        return self.rows_of(tasks, buckets, by)

    def exchange(self, function: MapFunction, rows: Rows, *, by: str = "home") -> Rows:
        stored = cast(StoredRows, rows)
        tasks = [
            self.task(
                "exchange",
                function,
                f"bucket {b}",
                {"rows": list(stored.files), "bucket": b, "by": by, "buckets": stored.buckets},
                [f["checksum"] for f in stored.files],
                cost=stored.count * 64 // stored.buckets,
            )
            for b in range(stored.buckets)
        ]
        return self.rows_of(tasks, stored.buckets, by)

    def join(self, function: JoinFunction, rows: Rows, docs: Dataset, *, columns: Sequence[str], by: str = "home") -> Rows:
        stored, documents = self.at_home(rows), cast(Documents, docs)
        tasks = []
        for b, parts in self.by_bucket(documents, stored.buckets):
            given = {"parts": parts, "rows": list(stored.files), "bucket": b, "columns": list(columns), "by": by, "buckets": stored.buckets}
            tasks.append(
                self.task(
                    "join",
                    function,
                    f"bucket {b}",
                    given,
                    [f["checksum"] for f in stored.files] + [identity(p) for p in parts],
                    cost=sum(int(p["text_bytes"]) for p in parts),
                )
            )
        return self.rows_of(tasks, stored.buckets, by)

    def tree(self, function: Callable[[list[pa.Table]], pa.Table], rows: Rows) -> pa.Table:
        files = list(cast(StoredRows, rows).files)
        while len(files) > 1:
            groups = [files[i : i + FAN_IN] for i in range(0, len(files), FAN_IN)]
            tasks = [
                self.task("merge", function, f"{i} of {len(groups)}", {"rows": g, "by": None, "buckets": 1}, [f["checksum"] for f in g])
                for i, g in enumerate(groups)
            ]
            files = list(self.rows_of(tasks, 1, None).files)
        table = read_bucket(self.store, files, None)
        return function([] if table is None else [table])

    def gather(self, rows: Rows) -> pa.Table:
        table = read_bucket(self.store, cast(StoredRows, rows).files, None)
        return pa.table({}) if table is None else table

    def drop(self, docs: Dataset, losers: Rows) -> Dataset:
        stored, documents = self.at_home(losers), cast(Documents, docs)
        tasks = []
        for b, parts in self.by_bucket(documents, stored.buckets):
            given = {"parts": parts, "rows": list(stored.files), "bucket": b, "rejects": self.rejects}
            tasks.append(
                self.task(
                    "drop",
                    None,
                    f"bucket {b}",
                    given,
                    [f["checksum"] for f in stored.files] + [identity(p) for p in parts],
                    cost=sum(int(p["text_bytes"]) for p in parts),
                )
            )
        self.round += 1
        by_key: dict[str, Part] = {}
        for result in self.run(tasks):
            by_key |= {p["key"]: p for p in result["parts"]}
            for source, counts in result["counts"].items():
                self.account.add(source, counts, result["peak_memory"])
        return Documents(tuple(by_key[p["key"]] for p in documents.parts))

    def at_home(self, rows: Rows) -> StoredRows:
        stored = cast(StoredRows, rows)
        if stored.by != "home":
            raise ValueError(f"{self.node}: these rows are cut by {stored.by}; give `by='home'` in the round before")
        return stored

    def groups(self, documents: Documents) -> list[tuple[str, list[Part]]]:
        """Which parts are mapped together: each alone while they are few, by their home where they are many."""
        if len(documents.parts) <= PARTS_ALONE:
            return [(p["key"], [p]) for p in documents.parts if p["kept"]]
        buckets = min(buckets_for(documents.rows, ROWS_A_GROUP, 1 << 16), buckets_for(len(documents.parts), 1, 1 << 16))
        buckets = max(
            buckets, min(buckets_for(documents.text_bytes, BYTES_A_GROUP, 1 << 16), buckets_for(len(documents.parts), 1, 1 << 16))
        )
        return [(f"group {b}", kept) for b, parts in self.by_bucket(documents, buckets) if (kept := [p for p in parts if p["kept"]])]

    def by_bucket(self, documents: Documents, buckets: int) -> list[tuple[int, list[Part]]]:
        at = bucket_of(np.array([p["home"] for p in documents.parts], dtype=np.uint64), buckets)
        found: dict[int, list[Part]] = {}
        for bucket, part in zip(at.tolist(), documents.parts, strict=True):
            found.setdefault(int(bucket), []).append(part)
        return sorted(found.items())

    def task(
        self, kind: str, function: Callable[..., Any] | None, key: str, given: dict[str, Any], inputs: list[str], cost: int = 0
    ) -> Task:
        """A task of this round; its fingerprint is of the stage, the method and the contents it reads."""
        method = "drop" if function is None else self.method(function)
        shape = {name: given.get(name) for name in ("columns", "by", "buckets", "bucket")}
        facts = fingerprint.digest([self.fingerprint, kind, method, shape, self.round, sorted(inputs)])
        return {
            "task": facts,
            "kind": kind,
            "node": self.node,
            "key": key,
            "cost": cost,
            "out": self.store.address,
            "stage": self.step.spec,
            "method": method,
            "round": self.round,
            **given,
        }

    def method(self, function: Callable[..., Any]) -> str:
        if getattr(function, "__self__", None) is not self.step.stage:
            raise TypeError(
                f"{self.node}: a round takes a method of the stage (self.something), not {function!r}: that is what can travel to a worker"
            )
        return str(getattr(function, "__name__", ""))

    def rows_of(self, tasks: list[Task], buckets: int, by: str | None) -> StoredRows:
        self.round += 1
        return StoredRows(tuple(r["files"]["rows"] for r in self.run(tasks) if r["files"]), buckets, by)

    def run(self, tasks: list[Task]) -> list[Result]:
        results = self.engine.run(tasks)
        found = [results[t["task"]] for t in tasks]
        self.files += [r["files"] for r in found]
        return found
