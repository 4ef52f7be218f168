"""`Flow`, as global stages know it, carried out in rounds of flat tasks on the engine.

Parts and rows are cut by the top bits of a hash, so that which task does what depends on the data alone. The rows of a
round lie on disk and in the journal: a killed run resumes in the round it was in, and a part that did not change is not
mapped again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, TypeAlias, cast

import pyarrow as pa

from gristmill.pipeline import fingerprint
from gristmill.pipeline.engine.engine import Engine
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.flow.rows import StoredRows, handle_of, keep_table, read_rows
from gristmill.pipeline.flow.saved import kept_at, load_all, save_rows
from gristmill.pipeline.json_types import JSON, JSONObject
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.recipe import Step
from gristmill.pipeline.run.cuts import by_bucket, bytes_of, cut_for, cut_of, files_saved, groups, of_files, of_parts
from gristmill.pipeline.store.accounting import RunAccount
from gristmill.pipeline.store.partitions import StoredDocuments
from gristmill.pipeline.store.records import (
    FileFacts,
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
from gristmill.pipeline.store.storage import Store
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

FAN_IN = 8
TASKS_AT_ONCE = 2  # for each worker, where what tasks read goes as they finish
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
        keeps_maps: bool = True,
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
        self.text_bytes = 0  # of these
        self.keeps_maps = keeps_maps
        self.gone: set[str] = set()  # files of rows that were removed
        self.mapped: set[str] = set()  # files of rows that a later run with more parts reads again
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
        self.parts, self.text_bytes = len(documents.parts), documents.text_bytes
        together = groups(documents)
        buckets = cut or self.cut_for(documents.rows * fan, by)
        extra, inputs = self.beside(beside)
        given: RoundInputs = {
            "columns": list(columns),
            "by": by,
            "cut": cut_of(len(together), buckets),
            "gpu": gpu,
            **extra,
        }
        tasks = [
            self.task("map", function, name, {**given, "parts": parts}, [*of_parts(parts), *inputs], bytes_of(parts))
            for name, parts in together
        ]
        return self.rows_of(tasks, buckets, by, mapped=True)

    def exchange(
        self, function: MapFunction, rows: Rows, *, by: str = "home", fan: float = 1, beside: Beside = None
    ) -> Rows:
        stored = cast(StoredRows, rows)
        cut = self.cut_for(stored.count * fan, by)
        extra, inputs = self.beside(beside)
        given: RoundInputs = {
            "rows": self.handle_of(stored),
            "by": by,
            "buckets": stored.buckets,
            "cut": cut_of(stored.buckets, cut),
            **extra,
        }
        return self.rows_of(
            self.for_each_bucket("exchange", function, stored, given, [stored.identity, *inputs]), cut, by
        )

    def meet(self, function: MeetFunction, left: Rows, right: Rows, *, by: str = "home") -> Rows:
        stored, others = cast(StoredRows, left), cast(StoredRows, right)
        cut = self.cut_for(max(stored.count, others.count), by)
        given: RoundInputs = {
            "rows": self.handle_of(stored),
            "others": self.handle_of(others),
            "by": by,
            "buckets": stored.buckets,
            "cut": cut_of(stored.buckets, cut),
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
        cut = self.cut_for(stored.count * fan, by)
        given: RoundInputs = {"columns": list(columns), "by": by, "cut": cut_of(stored.buckets, cut), "of": of}
        tasks = self.for_each_home("join", function, stored, docs, given) if stored.files else []
        return self.rows_of(tasks, cut, by)

    def tree(self, function: MergeFunction, rows: Rows, *, by: str) -> Rows:
        stored = cast(StoredRows, rows)
        files, buckets = list(stored.files), self.cut_for(stored.count, by)
        while files:
            together = [files[i : i + FAN_IN] for i in range(0, len(files), FAN_IN)]
            root = len(together) == 1
            cut: RoundInputs = {"by": by, "cut": buckets} if root else {"by": None, "cut": 1}
            keys = [f"{i} of {len(together)}" for i in range(len(together))]
            tasks = [
                self.task("merge", function, key, {**cut, "rows": {"files": some}}, [f["checksum"] for f in some])
                for key, some in zip(keys, together, strict=True)
            ]
            if root:
                return self.rows_of(tasks, buckets, by)
            files = list(self.rows_of(tasks, 1, None).files)
        return StoredRows((), buckets, by)

    def scan(self, function: ScanFunction, rows: Rows, *, by: str = "home") -> Rows:
        stored = cast(StoredRows, rows)
        cut = self.cut_for(stored.count, by)
        given: RoundInputs = {
            "rows": self.handle_of(stored),
            "by": by,
            "buckets": stored.buckets,
            "cut": cut,
            "order": stored.by,
        }
        return self.rows_of([self.task("scan", function, "all", given, [stored.identity], stored.bytes)], cut, by)

    def release(self, rows: Rows) -> None:
        paths = {facts["path"] for facts in cast(StoredRows, rows).files if "store" not in facts}
        self.remove(paths - self.read_here)

    def remove(self, paths: set[str]) -> None:
        """Files that no round reads any more, from the disk; the journal knows that they were there."""
        if self.keeps_maps:
            paths -= self.mapped
        self.engine.journal.retire(paths, {})
        self.gone |= paths

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
            for name, parts in groups(documents)
        ]
        return self.counted(tasks, documents)

    def save(self, rows: Rows, address: str, facts: JSONObject, *, docs: Dataset) -> None:
        kept = kept_at(address, self.step)
        if self.partial:  # the index of some documents must not stand for that of all
            kept = Store(f"{self.store.address.rstrip('/')}/index/{self.node}/{PurePosixPath(address).name}")
        kept.lease = self.store.lease  # a run that lost its folder to another leaves the index to that one too
        made = (self.owner, facts, self.fingerprint, docs.rows)
        save_rows(self.store, kept, self.in_few_files(cast(StoredRows, rows)), made, self.engine.journal)

    def in_few_files(self, rows: StoredRows) -> StoredRows:
        """Rows for later runs, each file with some buckets: their number follows from bytes and not from parts."""
        wide = StoredRows(rows.files, files_saved(rows), rows.by)
        if len(rows.files) <= wide.buckets:
            return rows
        return self.rows_of(self.regroup_tasks(wide, rows.buckets), rows.buckets, rows.by)

    def regroup_tasks(self, rows: StoredRows, cut: int, of: str = "") -> list[RoundTask]:
        given: RoundInputs = {"rows": self.handle_of(rows), "by": rows.by, "buckets": rows.buckets, "cut": cut}
        return self.for_each_bucket("regroup", None, rows, given, [rows.identity], of)

    def load(self, address: str, *, named: bool = False) -> tuple[Rows, JSONObject]:
        rows, facts, earlier = load_all(address, self.step, named)
        if named:
            self.report("earlier_runs", [*self.metrics.get("earlier_runs", []), *earlier])
        return rows, facts

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
            if facts["path"].startswith("flow/") and facts["path"] not in self.gone
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

    def cut_for(self, rows: float, by: str) -> int:
        return cut_for(rows, by, self.parts, self.text_bytes)

    def for_each_bucket(
        self,
        kind: RoundKind,
        function: RoundFunction | None,
        rows: StoredRows,
        given: RoundInputs,
        inputs: list[str],
        of: str = "",
    ) -> list[RoundTask]:
        each = rows.bytes // rows.buckets
        return [
            self.task(kind, function, f"bucket {b}{of}", {**given, "bucket": b}, inputs, each)
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
            for b, parts in by_bucket(cast(StoredDocuments, docs), rows.buckets)
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
        method = kind if function is None else registry.round_method(cast(Global, self.step.stage), function)
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

    def rows_of(self, tasks: list[RoundTask], buckets: int, by: str | None, mapped: bool = False) -> StoredRows:
        """What tasks made, cut into so many buckets."""
        self.round += 1
        cut = tasks[0]["cut"] if tasks else buckets
        rows = StoredRows(tuple(facts for r in self.run(tasks) for facts in r["files"].values()), cut, by)
        if mapped:
            self.mapped |= {facts["path"] for facts in rows.files}
        return rows if cut == buckets else self.regrouped(rows, buckets)

    def regrouped(self, rows: StoredRows, buckets: int) -> StoredRows:
        """Rows that were cut into wide buckets, cut into narrow ones: each task reads one wide bucket of some files. So
        slices grow as the root of files times buckets. A few groups at a time: what they read goes before the next."""
        self.round += 1
        all_groups = of_files(rows)
        at_once = max(1, TASKS_AT_ONCE * self.engine.slots // rows.buckets)
        files: list[FileFacts] = []
        for first in range(0, len(all_groups), at_once):
            some = all_groups[first : first + at_once]
            tasks = []
            for number, group in enumerate(some, first):
                tasks += self.regroup_tasks(group, buckets, f" of {number}")
            files += [r["files"]["rows"] for r in self.run(tasks) if r["files"]]
            for group in some:
                self.release(group)
        return StoredRows(tuple(files), buckets, rows.by)

    def run(self, tasks: list[RoundTask]) -> list[Result]:
        by_task = self.engine.run(tasks)
        results = [by_task[task["task"]] for task in tasks]
        self.seconds += sum(result.get("seconds", 0) for result in results)
        self.peak_memory = max([self.peak_memory, *(result.get("peak_memory", 0) for result in results)])
        self.files += [result["files"] for result in results]
        return results
