"""`Flow`, as global stages know it, carried out in rounds of flat tasks on the engine.

Parts and rows are cut by the top bits of a hash, so that which task does what depends on the data alone. The rows of a
round lie on disk and in the journal: a killed run resumes in the round it was in, and a part that did not change is not
mapped again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa

from gristmill.pipeline import fingerprint
from gristmill.pipeline.engine.engine import Engine
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.flow.rows import StoredRows, handle_of, keep_table, read_rows
from gristmill.pipeline.flow.saved import kept_at, load_rows, save_rows
from gristmill.pipeline.json_types import JSON, JSONObject
from gristmill.pipeline.recipe.recipe import Step
from gristmill.pipeline.store.counts import RunAccount
from gristmill.pipeline.store.parts import StoredDocuments, bucket_of, buckets_for, identity
from gristmill.pipeline.store.records import (
    Files,
    Part,
    RejectsSettings,
    Result,
    RoundInputs,
    RoundKind,
    RoundTask,
    RowsHandle,
    StageMetrics,
    counts_by_source,
)
from gristmill.pipeline.store.store import Store
from gristmill.stages.flow import (
    Beside,
    Dataset,
    JoinFunction,
    MapFunction,
    MeetFunction,
    MergeFunction,
    PublishFunction,
    Rows,
    ScanFunction,
)
from gristmill.stages.stage import Global

ROWS_A_BUCKET = 1_000_000
MOST_BUCKETS = 1 << 14
BUCKETS_FOR_WORK = 4  # of few rows in many parts, so that more than one worker has something to do
HOMES = 64  # buckets of few rows that go home to many parts
ROWS_A_GROUP = 100_000
BYTES_A_GROUP = 32 << 20
MOST_GROUPS = 1 << 14  # then groups grow: files times buckets are slices, and a slice should not be a few bytes
PARTS_ALONE = 1024  # up to so many parts, each is a task of its own
FAN_IN = 8
RoundFunction: TypeAlias = MapFunction | MeetFunction | JoinFunction | MergeFunction | ScanFunction | PublishFunction


class DaskFlow:
    """The flow of one global stage in one run."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        step: Step,
        node: str,
        stage_fingerprint: str,
        rejects: RejectsSettings,
        account: RunAccount,
        before: StageMetrics,
        partial: bool = False,
        owner: str = "",
    ) -> None:
        self.engine = engine
        self.store = store
        self.step = step
        self.node = node
        self.fingerprint = stage_fingerprint
        self.rejects = rejects
        self.account = account
        self.partial = partial
        self.owner = owner  # of the rows that it saves
        self.before = before  # by name, what global stages before this one told or handed on
        self.round = 0
        self.seconds = 0.0  # of all rounds
        self.peak_memory = 0
        self.parts = 1  # of the documents that were mapped
        self.metrics: StageMetrics = {}  # for the stage's report
        self.shared_values: StageMetrics = {}  # for later stages
        self.files: list[Files] = []  # of every task, so that others may be cleared away
        self.other_paths: set[str] = set()  # of files that no task wrote
        self.read_here: set[str] = set()  # of rows that the stage itself looks at, and does so in every run

    def map(
        self,
        function: MapFunction,
        docs: Dataset,
        *,
        columns: Sequence[str],
        by: str,
        fan: float = 1,
        beside: Beside = None,
        cut: int = 0,
        gpu: bool = False,
    ) -> Rows:
        documents = cast(StoredDocuments, docs)
        self.parts = len(documents.parts)
        buckets = cut or self.buckets_for(documents.rows * fan, by)
        extra, inputs = self.beside(beside)
        given: RoundInputs = {"columns": list(columns), "by": by, "cut": buckets, "gpu": gpu, **extra}
        tasks = [
            self.task("map", function, name, {**given, "parts": parts}, [*of_parts(parts), *inputs], bytes_of(parts))
            for name, parts in self.groups(documents)
        ]
        return self.rows_of(tasks, buckets, by)

    def exchange(
        self, function: MapFunction, rows: Rows, *, by: str = "home", fan: float = 1, beside: Beside = None
    ) -> Rows:
        stored = cast(StoredRows, rows)
        cut = self.buckets_for(stored.count * fan, by)
        extra, inputs = self.beside(beside)
        given: RoundInputs = {
            "rows": self.handle_of(stored),
            "by": by,
            "buckets": stored.buckets,
            "cut": cut,
            **extra,
        }
        return self.rows_of(
            self.for_each_bucket("exchange", function, stored, given, [stored.identity, *inputs]), cut, by
        )

    def meet(self, function: MeetFunction, left: Rows, right: Rows, *, by: str = "home") -> Rows:
        stored, others = cast(StoredRows, left), cast(StoredRows, right)
        cut = self.buckets_for(max(stored.count, others.count), by)
        given: RoundInputs = {
            "rows": self.handle_of(stored),
            "others": self.handle_of(others),
            "by": by,
            "buckets": stored.buckets,
            "cut": cut,
        }
        return self.rows_of(
            self.for_each_bucket("meet", function, stored, given, [stored.identity, others.identity]), cut, by
        )

    def both(self, rows: Rows, more: Rows) -> Rows:
        stored, others = cast(StoredRows, rows), cast(StoredRows, more)
        if others.files and stored.by != others.by:
            raise ValueError(f"{self.node}: rows cut by {stored.by} and by {others.by} do not meet")
        return StoredRows(stored.files + others.files, stored.buckets, stored.by)

    def join(
        self,
        function: JoinFunction,
        rows: Rows,
        docs: Dataset,
        *,
        columns: Sequence[str],
        by: str = "home",
        fan: float = 1,
        of: str | None = None,
    ) -> Rows:
        stored = self.at_home(rows)
        cut = self.buckets_for(stored.count * fan, by)
        given: RoundInputs = {"columns": list(columns), "by": by, "cut": cut, "of": of}
        tasks = self.for_each_home("join", function, stored, docs, given) if stored.files else []
        return self.rows_of(tasks, cut, by)

    def tree(self, function: MergeFunction, rows: Rows, *, by: str) -> Rows:
        stored = cast(StoredRows, rows)
        files, buckets = list(stored.files), self.buckets_for(stored.count, by)
        while files:
            groups = [files[i : i + FAN_IN] for i in range(0, len(files), FAN_IN)]
            root = len(groups) == 1
            cut: RoundInputs = {"by": by, "cut": buckets} if root else {"by": None, "cut": 1}
            tasks = [
                self.task(
                    "merge",
                    function,
                    f"{i} of {len(groups)}",
                    {**cut, "rows": {"files": group}},
                    [f["checksum"] for f in group],
                )
                for i, group in enumerate(groups)
            ]
            if root:
                return self.rows_of(tasks, buckets, by)
            files = list(self.rows_of(tasks, 1, None).files)
        return StoredRows((), buckets, by)

    def scan(self, function: ScanFunction, rows: Rows, *, by: str = "home") -> Rows:
        stored = cast(StoredRows, rows)
        cut = self.buckets_for(stored.count, by)
        given: RoundInputs = {
            "rows": self.handle_of(stored),
            "by": by,
            "buckets": stored.buckets,
            "cut": cut,
            "order": stored.by,
        }
        return self.rows_of([self.task("scan", function, "all", given, [stored.identity], stored.bytes)], cut, by)

    def gather(self, rows: Rows) -> pa.Table:
        files = cast(StoredRows, rows).files
        self.read_here |= {facts["path"] for facts in files}
        table = read_rows(self.store, {"files": files}, None, 1)
        return pa.table({}) if table is None else table

    def report(self, name: str, value: JSON) -> None:
        self.metrics[name] = value
        self.share(name, value)

    def share(self, name: str, value: JSON) -> None:
        self.shared_values[name] = value

    def shared(self, name: str) -> JSON:
        return cast(JSON, self.before.get(name))

    def publish(self, function: PublishFunction, rows: Rows, *, beside: Beside = None) -> list[dict[str, Any]]:
        stored = cast(StoredRows, rows)
        extra, inputs = self.beside(beside)
        given: RoundInputs = {"rows": self.handle_of(stored), "buckets": stored.buckets, **extra}
        tasks = self.for_each_bucket("publish", function, stored, given, [stored.identity, *inputs])
        self.round += 1
        return [dict(facts) for result in self.run(tasks) for facts in result["published"]]

    def leave(self, path: str, text: str) -> None:
        self.store.write_if_other(path, text.encode())
        self.other_paths.add(path)

    def mark(self, function: MapFunction, docs: Dataset, *, columns: Sequence[str], beside: Beside = None) -> Dataset:
        documents = cast(StoredDocuments, docs)
        extra, inputs = self.beside(beside)
        given: RoundInputs = {"columns": list(columns), "rejects": self.rejects, **extra}
        tasks = [
            self.task("mark", function, name, {**given, "parts": parts}, [*of_parts(parts), *inputs], bytes_of(parts))
            for name, parts in self.groups(documents)
        ]
        return self.counted(tasks, documents)

    def save(self, rows: Rows, address: str, facts: JSONObject) -> None:
        kept = kept_at(address, self.step)
        if self.partial:  # the index of some documents must not stand for that of all
            kept = Store(f"{self.store.address.rstrip('/')}/index/{self.node}/{PurePosixPath(address).name}")
        save_rows(self.store, kept, cast(StoredRows, rows), self.owner, facts, self.engine.journal)

    def load(self, address: str) -> tuple[Rows, JSONObject]:
        return load_rows(kept_at(address, self.step), self.node)

    def drop(self, docs: Dataset, duplicates: Rows) -> Dataset:
        return self.ended("drop", None, duplicates, docs, {"rejects": self.rejects})

    def rewrite(self, function: JoinFunction, rows: Rows, docs: Dataset, *, columns: Sequence[str]) -> Dataset:
        if not cast(Global, self.step.stage).rewrites:
            raise RunFailed(
                f"{self.node}: a stage that writes texts anew says so (`rewrites: ClassVar[bool] = True`), "
                "or what was measured on the old ones would still count"
            )
        return self.ended("rewrite", function, rows, docs, {"rejects": self.rejects, "columns": list(columns)})

    @property
    def between_rounds(self) -> Files:
        """Files of rows that one round left for another. Without them the rounds have to be done again, even if nothing
        has changed."""
        return {
            facts["path"]: facts
            for files in self.files
            for facts in files.values()
            if facts["path"].startswith("flow/")
        }

    def ended(
        self, kind: RoundKind, function: JoinFunction | None, rows: Rows, docs: Dataset, given: RoundInputs
    ) -> Dataset:
        """The last round: it makes documents again, and is counted."""
        return self.counted(
            self.for_each_home(kind, function, self.at_home(rows), docs, given), cast(StoredDocuments, docs)
        )

    def counted(self, tasks: list[RoundTask], documents: StoredDocuments) -> Dataset:
        self.round += 1
        by_key: dict[str, Part] = {}
        for task, result in zip(tasks, self.run(tasks), strict=True):
            by_key |= {p["key"]: p for p in result["parts"]}
            for source, counts in counts_by_source(task, result).items():
                self.account.add(source, counts, result["peak_memory"])
        return StoredDocuments(tuple(by_key.get(p["key"], p) for p in documents.parts))

    def beside(self, rows: Beside) -> tuple[RoundInputs, list[str]]:
        """The table that a function is called with, as tasks get it, and what that adds to their identity."""
        if rows is None:
            return {}, []
        if isinstance(rows, pa.Table):
            rows = self.stored(rows)
        stored = cast(StoredRows, rows)
        return {"beside": self.handle_of(stored)}, ["beside", stored.identity]

    def stored(self, table: pa.Table) -> StoredRows:
        """A table of the driver's, as rows that tasks can read."""
        facts = keep_table(self.store, f"flow/{self.node}/{self.round:02d}-table", table)
        self.files.append({"table": facts})
        self.read_here.add(facts["path"])
        return StoredRows((facts,) if len(table) else (), 1, None)

    def buckets_for(self, rows: float, by: str) -> int:
        """Into how many buckets a round cuts its rows. Files times buckets are slices, and each costs its reader a
        third of a millisecond: so few rows go into few buckets. Rows that go home get more, for each part's worker
        wants its own."""
        least = min(self.parts, HOMES) if by == "home" else BUCKETS_FOR_WORK if self.parts > 1 else 1
        return max(buckets_for(int(rows), ROWS_A_BUCKET, MOST_BUCKETS), buckets_for(least, 1))

    def for_each_bucket(
        self,
        kind: RoundKind,
        function: RoundFunction,
        rows: StoredRows,
        given: RoundInputs,
        inputs: list[str],
    ) -> list[RoundTask]:
        each = rows.bytes // rows.buckets
        return [
            self.task(kind, function, f"bucket {b}", {**given, "bucket": b}, inputs, each)
            for b in range(rows.buckets if rows.files else 0)
        ]

    def for_each_home(
        self,
        kind: RoundKind,
        function: RoundFunction | None,
        rows: StoredRows,
        docs: Dataset,
        given: RoundInputs,
    ) -> list[RoundTask]:
        given = {**given, "rows": self.handle_of(rows), "buckets": rows.buckets}
        return [
            self.task(
                kind,
                function,
                f"bucket {b}",
                {**given, "parts": parts, "bucket": b},
                [rows.identity, *of_parts(parts)],
                bytes_of(parts),
            )
            for b, parts in self.by_bucket(cast(StoredDocuments, docs), rows.buckets)
        ]

    def handle_of(self, rows: StoredRows) -> RowsHandle:
        handle = handle_of(self.store, f"flow/{self.node}", rows)
        if "list" in handle:
            self.other_paths.add(handle["list"])
        return handle

    def at_home(self, rows: Rows) -> StoredRows:
        stored = cast(StoredRows, rows)
        if stored.by != "home":
            raise ValueError(f"{self.node}: these rows are cut by {stored.by}; give `by='home'` in the round before")
        return stored

    def groups(self, documents: StoredDocuments) -> list[tuple[str, list[Part]]]:
        """Which parts are mapped together: each alone while they are few, by their home where they are many."""
        if len(documents.parts) <= PARTS_ALONE:
            return [(p["key"], [p]) for p in documents.parts if p["kept"]]
        buckets = min(
            buckets_for(documents.rows, ROWS_A_GROUP, MOST_GROUPS), buckets_for(len(documents.parts), 1, MOST_GROUPS)
        )
        buckets = max(
            buckets,
            min(
                buckets_for(documents.text_bytes, BYTES_A_GROUP, MOST_GROUPS),
                buckets_for(len(documents.parts), 1, MOST_GROUPS),
            ),
        )
        return [
            (f"group {b}", kept)
            for b, parts in self.by_bucket(documents, buckets)
            if (kept := [p for p in parts if p["kept"]])
        ]

    def by_bucket(self, documents: StoredDocuments, buckets: int) -> list[tuple[int, list[Part]]]:
        buckets_of_parts = bucket_of(np.array([p["home"] for p in documents.parts], dtype=np.uint64), buckets)
        by_bucket: dict[int, list[Part]] = {}
        for bucket, part in zip(buckets_of_parts.tolist(), documents.parts, strict=True):
            by_bucket.setdefault(int(bucket), []).append(part)
        return sorted(by_bucket.items())

    def task(
        self,
        kind: RoundKind,
        function: RoundFunction | None,
        key: str,
        given: RoundInputs,
        inputs: list[str],
        cost: int = 0,
    ) -> RoundTask:
        """A task of this round; its fingerprint is of the stage, the method and the contents it reads."""
        method = "drop" if function is None else self.method(function)
        shape = {name: given.get(name) for name in ("columns", "by", "buckets", "cut", "bucket", "order")}
        return {
            "task": fingerprint.digest([self.fingerprint, kind, method, shape, self.round, sorted(inputs)]),
            "kind": kind,
            "node": self.node,
            "key": key,
            "cost": cost,
            "out": self.store.anywhere,
            "stage": self.step.spec,
            "method": method,
            "round": self.round,
            **given,
        }

    def method(self, function: RoundFunction) -> str:
        stage, owner = cast(Global, self.step.stage), getattr(function, "__self__", None)
        if owner is not stage and not any(type(each) is type(owner) and each == owner for each in stage.round_helpers):
            raise TypeError(
                f"{self.node}: a round takes a method of the stage (self.something), not {function!r}: "
                "that is what can travel to a worker"
            )
        return str(getattr(function, "__name__", ""))

    def rows_of(self, tasks: list[RoundTask], buckets: int, by: str | None) -> StoredRows:
        self.round += 1
        return StoredRows(tuple(r["files"]["rows"] for r in self.run(tasks) if r["files"]), buckets, by)

    def run(self, tasks: list[RoundTask]) -> list[Result]:
        by_task = self.engine.run(tasks)
        results = [by_task[task["task"]] for task in tasks]
        self.seconds += sum(result.get("seconds", 0) for result in results)
        self.peak_memory = max([self.peak_memory, *(result.get("peak_memory", 0) for result in results)])
        self.files += [result["files"] for result in results]
        return results


def of_parts(parts: list[Part]) -> list[str]:
    return [identity(p) for p in parts]


def bytes_of(parts: list[Part]) -> int:
    return sum(part["text_bytes"] for part in parts)
