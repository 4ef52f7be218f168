"""A global stage's `Flow` as a shuffle: rounds of flat tasks, seen from the driver and from a worker.

The driver (`Shuffle`) cuts each round into tasks and says into how many buckets they cut their rows; a worker
(`run_round`) carries out one task. Buckets are the top bits of a hash, so that which task does what depends on the data
alone, never on workers. Rows between rounds are spilled to disk (`spill.py`) and recorded in the journal: a killed run
resumes in the round it was in, and a part that did not change is not mapped again.

    round      a task reads                             and makes, with a method of the stage
    map        documents of some parts                  rows of each batch
    reduce     a bucket of rows, of one kind or two     rows of the bucket
    join       a bucket of rows, and its parts          rows of each part's rows and documents
    combine    up to FAN_IN files                       one table of several, until one is left
    scan       all buckets, in order                    rows, with what it remembers of those before
    regroup    a wide bucket of some files              the same rows, cut into narrow buckets
    publish    a bucket of rows                         files for others
    mark, drop, rewrite: documents and rows of parts    verdicts and signals, or new texts (`verdicts.py`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Protocol, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.columns import widened
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.json_types import JSON, JSONObject
from gristmill.pipeline.processes import peak_memory
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.recipe import Step
from gristmill.pipeline.shuffle.saved_index import load_all, remember, save_rows, saved_at
from gristmill.pipeline.shuffle.spill import (
    files_of_rows,
    for_tasks,
    identity_of_rows,
    keep_table,
    read_rows,
    rows_of_part,
    write_rows,
)
from gristmill.pipeline.shuffle.verdicts import PartVerdicts, bound_method
from gristmill.pipeline.store.counts import RunAccount
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.lock import store_of
from gristmill.pipeline.store.partitions import StoredDocuments, bucket_of, buckets_for, identity, is_among, read_part
from gristmill.pipeline.store.records import (
    EarlierRun,
    FileRef,
    Files,
    Partition,
    PublishResult,
    RejectsSettings,
    Result,
    RoundKind,
    RoundTask,
    StageMetrics,
    StoredRows,
    Task,
    VerdictsResult,
)
from gristmill.pipeline.store.storage import Store, digest
from gristmill.shards.writer import write_shard
from gristmill.stages.contract import ContractBroken, check_rows, check_same_types, kind_of
from gristmill.stages.flow import (
    Broadcast,
    CombineFunction,
    Dataset,
    JoinFunction,
    MapFunction,
    Published,
    PublishFunction,
    ReduceFunction,
    Rows,
    ScanFunction,
)
from gristmill.stages.stage import Global

FAN_IN = 8
TASKS_AT_ONCE = 2  # for each worker, where what tasks read goes as they finish
RoundFunction: TypeAlias = (
    MapFunction | ReduceFunction | JoinFunction | CombineFunction | ScanFunction | PublishFunction
)


# --- the driver's side ------------------------------------------------------------------------------------------------


class RunsTasks(Protocol):
    """Runs tasks on workers, those that the journal does not hold yet (`Engine`)."""

    journal: Journal

    @property
    def slots(self) -> int: ...

    def run(self, tasks: Iterable[Task]) -> dict[str, Result]: ...


class Shuffle:
    """The `Flow` of one global stage in one run."""

    def __init__(
        self,
        executor: RunsTasks,
        store: Store,
        step: Step,
        node: str,
        stage_fingerprint: str,
        rejects: RejectsSettings,
        account: RunAccount,
        before: StageMetrics,
        partial: bool,
        recipe: str,
        keeps_maps: bool,
    ) -> None:
        self.executor = executor
        self.store = store
        self.step = step
        self.node = node
        self.fingerprint = stage_fingerprint
        self.rejects = rejects
        self.account = account
        self.keeps_maps = keeps_maps
        self.run = StageRun(self, before, partial, recipe)
        self.round = 0
        self.seconds = 0.0  # of all rounds
        self.peak_memory = 0
        self.parts = 1  # of the documents that were mapped last
        self.text_bytes = 0  # of these
        self.metrics: StageMetrics = {}  # for the stage's report
        self.files: list[Files] = []  # of every task, so that others may be cleared away
        self.other_paths: set[str] = set()  # of files that no task wrote
        self.mapped: set[str] = set()  # files of rows that a later run with more parts reads again
        self.gathered: set[str] = set()  # files of rows that the stage reads in this process, in every run
        self.gone: set[str] = set()  # files of rows that were released

    # The rounds.

    def map(
        self,
        function: MapFunction,
        docs: Dataset,
        *,
        columns: Sequence[str],
        by: str,
        fan: float = 1,
        broadcast: Broadcast = None,
        buckets: int = 0,
        gpu: bool = False,
    ) -> Rows:
        documents = cast(StoredDocuments, docs)
        self.parts, self.text_bytes = len(documents.parts), documents.text_bytes
        groups = groups_of(documents)
        buckets = buckets or self.buckets_for(documents.rows * fan, by)
        cut = first_cut(len(groups), buckets)
        task = replace(self.template("map", function), columns=tuple(columns), by=by, cut=cut, gpu=gpu)
        return self.rows_of(self.task_a_group(task, groups, broadcast), buckets, by)

    def reduce(
        self, function: ReduceFunction, *rows: Rows, by: str = "home", fan: float = 1, broadcast: Broadcast = None
    ) -> Rows:
        kinds = [cast(StoredRows, each) for each in rows]
        buckets = self.buckets_for(max(each.count for each in kinds) * fan, by)
        task = replace(
            self.template("reduce", function),
            rows=tuple(self.for_tasks(each) for each in kinds),
            by=by,
            cut=first_cut(kinds[0].buckets, buckets),
        )
        return self.rows_of(self.task_a_bucket(task, kinds, broadcast), buckets, by)

    def join(
        self,
        function: JoinFunction,
        rows: Rows,
        docs: Dataset,
        *,
        columns: Sequence[str],
        by: str = "home",
        fan: float = 1,
        uids: str | None = None,
    ) -> Rows:
        stored = cast(StoredRows, rows)
        buckets = self.buckets_for(stored.count * fan, by)
        cut = first_cut(stored.buckets, buckets)
        task = replace(self.template("join", function), columns=tuple(columns), by=by, cut=cut, uids=uids)
        return self.rows_of(self.task_a_home(task, stored, docs), buckets, by)

    def combine(self, function: CombineFunction, rows: Rows, *, by: str) -> Rows:
        stored = cast(StoredRows, rows)
        files, buckets = list(stored.files), self.buckets_for(stored.count, by)
        while files:
            groups = [files[i : i + FAN_IN] for i in range(0, len(files), FAN_IN)]
            is_last = len(groups) == 1
            cut, cut_by = (buckets, by) if is_last else (1, None)
            task = replace(self.template("combine", function), by=cut_by, cut=cut)
            tasks = [
                self.named(
                    replace(task, key=f"{number} of {len(groups)}", rows=(StoredRows(tuple(group)),)),
                    [file.checksum for file in group],
                )
                for number, group in enumerate(groups)
            ]
            merged = self.rows_of(tasks, cut, cut_by)
            if is_last:
                return merged
            files = list(merged.files)
        return StoredRows((), buckets, by)

    def scan(self, function: ScanFunction, rows: Rows, *, by: str = "home") -> Rows:
        stored = cast(StoredRows, rows)
        buckets = self.buckets_for(stored.count, by)
        task = replace(
            self.template("scan", function),
            key="all",
            cost=stored.bytes,
            rows=(self.for_tasks(stored),),
            by=by,
            buckets=stored.buckets,
            cut=buckets,
            order=stored.by,
        )
        return self.rows_of([self.named(task, [identity_of_rows(stored)])], buckets, by)

    def publish(self, function: PublishFunction, rows: Rows, *, broadcast: Broadcast = None) -> list[dict[str, Any]]:
        stored = cast(StoredRows, rows)
        task = replace(self.template("publish", function), rows=(self.for_tasks(stored),))
        tasks = self.task_a_bucket(task, [stored], broadcast)
        self.round += 1
        results = cast(list[PublishResult], self.results(tasks))
        return [dict(facts) for result in results for facts in result.published]

    def gather(self, rows: Rows) -> pa.Table:
        stored = cast(StoredRows, rows)
        self.gathered |= {facts.path for facts in stored.files}
        table = read_rows(self.store, stored)
        return pa.table({}) if table is None else table

    def release(self, rows: Rows) -> None:
        paths = {facts.path for facts in cast(StoredRows, rows).files if not facts.store} - self.gathered
        if self.keeps_maps:
            paths -= self.mapped
        self.executor.journal.retire(paths)
        self.gone |= paths

    def report(self, name: str, value: JSON) -> None:
        self.metrics[name] = value
        self.run.share(name, value)

    # The last round: verdicts and signals beside the documents, or other texts.

    def mark(
        self, function: MapFunction, docs: Dataset, *, columns: Sequence[str], broadcast: Broadcast = None
    ) -> Dataset:
        documents = cast(StoredDocuments, docs)
        task = replace(self.template("mark", function), columns=tuple(columns))
        return self.applied(self.task_a_group(task, groups_of(documents), broadcast), documents)

    def drop(self, docs: Dataset, duplicates: Rows) -> Dataset:
        return self.applied(self.task_a_home(self.template("drop", None), duplicates, docs), docs)

    def rewrite(self, function: JoinFunction, rows: Rows, docs: Dataset, *, columns: Sequence[str]) -> Dataset:
        if not cast(Global, self.step.stage).rewrites:
            raise RunFailed(
                f"{self.node}: a stage that writes texts anew says so (`rewrites: ClassVar[bool] = True`), "
                "or what was measured on the old ones would still count"
            )
        task = replace(self.template("rewrite", function), columns=tuple(columns))
        return self.applied(self.task_a_home(task, rows, docs), docs)

    def applied(self, tasks: list[RoundTask], docs: Dataset) -> Dataset:
        """The documents after the last round, which counts them."""
        self.round += 1
        by_key: dict[str, Partition] = {}
        for result in cast(list[VerdictsResult], self.results(tasks)):
            by_key |= {part.key: part for part in result.parts}
            for source, counts in result.counts.items():
                self.account.add(source, {self.node: counts}, result.peak_memory)
        return StoredDocuments(tuple(by_key.get(p.key, p) for p in cast(StoredDocuments, docs).parts))

    # Tasks of a round.

    def template(self, kind: RoundKind, function: RoundFunction | None) -> RoundTask:
        """A task of this round, without what it reads and without its name."""
        return RoundTask(
            kind=kind,
            task="",
            node=self.node,
            key="",
            cost=0,
            out=self.store.anywhere,
            stage=self.step.spec,
            method=kind if function is None else registry.round_method(cast(Global, self.step.stage), function),
            round=self.round,
            rejects=self.rejects,
        )

    def named(self, task: RoundTask, inputs: Sequence[str]) -> RoundTask:
        """A task with its fingerprint, of the stage, the method and the contents it reads."""
        shape = [task.columns, task.by, task.buckets, task.cut, task.bucket, task.order, task.uids]
        name = digest([self.fingerprint, task.kind, task.method, shape, task.round, sorted(inputs)])
        return replace(task, task=name)

    def task_a_group(
        self, task: RoundTask, groups: list[tuple[str, list[Partition]]], broadcast: Broadcast
    ) -> list[RoundTask]:
        """A task for each group of partitions."""
        task, inputs = self.with_broadcast(task, broadcast)
        return [
            self.named(
                replace(task, key=name, parts=tuple(parts), cost=text_bytes_of(parts)), [*map(identity, parts), *inputs]
            )
            for name, parts in groups
        ]

    def task_a_bucket(
        self, task: RoundTask, rows: Sequence[StoredRows], broadcast: Broadcast = None, suffix: str = ""
    ) -> list[RoundTask]:
        """A task for each bucket of the first rows."""
        task, inputs = self.with_broadcast(task, broadcast)
        inputs = [*map(identity_of_rows, rows), *inputs]
        buckets = rows[0].buckets if rows[0].files else 0
        return [
            self.named(
                replace(
                    task,
                    key=f"bucket {bucket}{suffix}",
                    buckets=buckets,
                    bucket=bucket,
                    cost=rows[0].bytes // buckets,
                ),
                inputs,
            )
            for bucket in range(buckets)
        ]

    def task_a_home(self, task: RoundTask, rows: Rows, docs: Dataset) -> list[RoundTask]:
        """A task for each bucket of homes: rows, and the partitions that they belong to."""
        stored = cast(StoredRows, rows)
        if stored.by != "home":
            raise ValueError(f"{self.node}: these rows are cut by {stored.by}; give `by='home'` in the round before")
        if task.kind == "join" and not stored.files:  # the last round counts the documents of all partitions
            return []
        task = replace(task, rows=(self.for_tasks(stored),), buckets=stored.buckets)
        return [
            self.named(
                replace(task, key=f"bucket {bucket}", parts=tuple(parts), bucket=bucket, cost=text_bytes_of(parts)),
                [identity_of_rows(stored), *map(identity, parts)],
            )
            for bucket, parts in parts_by_bucket(cast(StoredDocuments, docs), stored.buckets)
        ]

    def with_broadcast(self, task: RoundTask, rows: Broadcast) -> tuple[RoundTask, list[str]]:
        """A task with the table that its function is called with, and what that adds to its identity."""
        if rows is None:
            return task, []
        if isinstance(rows, pa.Table):
            rows = self.stored(rows)
        stored = cast(StoredRows, rows)
        return replace(task, broadcast=self.for_tasks(stored)), ["broadcast", identity_of_rows(stored)]

    def stored(self, table: pa.Table) -> StoredRows:
        """A table of the driver's, as rows that tasks can read."""
        facts = keep_table(self.store, f"shuffle/{self.node}/{self.round:02d}-table-", table)
        self.files.append({"table": facts})
        self.gathered.add(facts.path)
        return StoredRows((facts,) if len(table) else (), 1, None)

    def for_tasks(self, rows: StoredRows) -> StoredRows:
        told = for_tasks(self.store, f"shuffle/{self.node}", rows)
        if told.listed is not None:
            self.other_paths.add(told.listed.path)
        return told

    def buckets_for(self, rows: float, by: str) -> int:
        return buckets_of_rows(rows, by, self.parts, self.text_bytes)

    # Results of a round.

    def rows_of(self, tasks: list[RoundTask], buckets: int, by: str | None) -> StoredRows:
        """The rows that tasks made, cut into so many buckets."""
        self.round += 1
        cut = tasks[0].cut if tasks else buckets
        rows = StoredRows(tuple(facts for r in self.results(tasks) for facts in r.files.values()), cut, by)
        if tasks and tasks[0].kind == "map":
            self.mapped |= {facts.path for facts in rows.files}
        return rows if cut == buckets else self.regrouped(rows, buckets)

    def regrouped(self, rows: StoredRows, buckets: int) -> StoredRows:
        """Rows that were cut into wide buckets, cut into narrow ones: each task reads one wide bucket of some files. So
        slices grow as the root of files times buckets. A few groups at a time: what they read goes before the next."""
        self.round += 1
        each = 1 << (len(rows.files).bit_length() // 2)  # about as many files in a group as groups
        groups = [
            StoredRows(rows.files[first : first + each], rows.buckets, rows.by)
            for first in range(0, len(rows.files), each)
        ]
        at_once = max(1, TASKS_AT_ONCE * self.executor.slots // rows.buckets)
        files: list[FileRef] = []
        for first in range(0, len(groups), at_once):
            some = groups[first : first + at_once]
            tasks = []
            for number, group in enumerate(some, first):
                tasks += self.regroup_tasks(group, buckets, f" of {number}")
            files += [r.files["rows"] for r in self.results(tasks) if r.files]
            for group in some:
                self.release(group)
        return StoredRows(tuple(files), buckets, rows.by)

    def in_few_files(self, rows: StoredRows) -> StoredRows:
        """Rows to save, each file with some buckets: their number follows from bytes and not from parts."""
        wide = StoredRows(rows.files, files_saved(rows), rows.by)
        if len(rows.files) <= wide.buckets:
            return rows
        return self.rows_of(self.regroup_tasks(wide, rows.buckets), rows.buckets, rows.by)

    def regroup_tasks(self, rows: StoredRows, cut: int, suffix: str = "") -> list[RoundTask]:
        task = replace(self.template("regroup", None), rows=(self.for_tasks(rows),), by=rows.by, cut=cut)
        return self.task_a_bucket(task, [rows], suffix=suffix)

    def results(self, tasks: list[RoundTask]) -> list[Result]:
        by_task = self.executor.run(tasks)
        results = [by_task[task.task] for task in tasks]
        self.seconds += sum(result.seconds for result in results)
        self.peak_memory = max([self.peak_memory, *(result.peak_memory for result in results)])
        self.files += [result.files for result in results]
        return results

    def files_left(self, after: StoredDocuments) -> Files:
        """Files without which the stage has work to do: those that it added to the parts, and rows that one round left
        for another."""
        added = {facts.path for part in after.parts for facts in (*part.verdicts, *part.signals)}
        removed = self.gone | self.executor.journal.retired
        written = {facts.path: facts for files in self.files for facts in files.values()}
        return {
            path: facts
            for path, facts in written.items()
            if (path in added or path.startswith("shuffle/")) and path not in removed
        }


class StageRun:
    """The `RunContext` of one global stage: values for later stages, small files, and rows for later runs."""

    def __init__(self, shuffle: Shuffle, before: StageMetrics, partial: bool, recipe: str) -> None:
        self.shuffle = shuffle
        self.before = before  # by name, what global stages before this one reported or shared
        self.partial = partial
        self.recipe = recipe  # by name
        self.values: StageMetrics = {}  # for later stages

    def share(self, name: str, value: JSON) -> None:
        self.values[name] = value

    def shared(self, name: str) -> JSON:
        return cast(JSON, self.before.get(name))

    def save(self, rows: Rows, address: str, facts: JSONObject, *, docs: Dataset) -> None:
        shuffle = self.shuffle
        saved = saved_at(address, shuffle.step)
        if self.partial:  # the index of some documents must not stand for that of all
            folder = shuffle.store.address.rstrip("/")
            saved = Store(f"{folder}/index/{shuffle.node}/{PurePosixPath(address).name}")
        saved.lease = shuffle.store.lease  # a run that lost its folder to another leaves the index to that one too
        stored = shuffle.in_few_files(cast(StoredRows, rows))
        run = EarlierRun(self.recipe, shuffle.step.called, shuffle.fingerprint, docs.rows, stored.count)
        save_rows(shuffle.store, saved, stored, facts, run, shuffle.executor.journal)
        remember(shuffle.store, saved)

    def load(self, address: str, *, named: bool = False) -> tuple[Rows, JSONObject]:
        rows, facts, earlier = load_all(address, self.shuffle.step, named)
        if named:
            metrics = self.shuffle.metrics
            self.shuffle.report("earlier_runs", [*metrics.get("earlier_runs", []), *earlier])
        return rows, facts

    def leave(self, path: str, text: str) -> None:
        self.shuffle.store.write_if_other(path, text.encode())
        self.shuffle.other_paths.add(path)


# --- how many buckets and groups: by the data alone, never by workers -------------------------------------------------

# Files times buckets are slices, and a slice costs its reader a third of a millisecond, however few bytes it has.
ROWS_A_BUCKET = 1_000_000
MOST_BUCKETS = 1 << 14
BUCKETS_FOR_WORK = 4  # of few rows in many parts, so that more than one worker has something to do
HOMES = 64  # buckets of few rows that go home to many parts
BYTES_A_HOME = 64 << 20  # of text, which the task of a home reads
BYTES_SAVED = 256 << 20  # of a file of a saved index, which one task reads
MOST_SLICES = 1 << 16  # of more, rows are regrouped on the way
ROWS_A_GROUP = 100_000
BYTES_A_GROUP = 32 << 20
MOST_GROUPS = 1 << 14  # then groups grow: a slice should not be a few bytes
PARTS_ALONE = 1024  # up to so many parts, each is a task of its own


def buckets_of_rows(rows: float, by: str, parts: int, text_bytes: int) -> int:
    """Into how many buckets a round cuts its rows: few rows into few. Rows that go home to the documents of so many
    parts get more, for each part's worker wants its own."""
    homes = max(HOMES, text_bytes // BYTES_A_HOME)
    least = min(parts, homes) if by == "home" else BUCKETS_FOR_WORK if parts > 1 else 1
    return max(buckets_for(int(rows), ROWS_A_BUCKET, MOST_BUCKETS), buckets_for(least, 1, MOST_BUCKETS))


def first_cut(files: int, buckets: int) -> int:
    """Into how many buckets so many files are cut at first: fewer where slices would be too many, and then they are
    regrouped."""
    return buckets if files * buckets <= MOST_SLICES else 1 << (buckets.bit_length() - 1) // 2


def files_saved(rows: StoredRows) -> int:
    """How many files hold the rows of a saved index, each with some of the buckets."""
    return min(rows.buckets, buckets_for(rows.bytes, BYTES_SAVED, MOST_BUCKETS))


def groups_of(documents: StoredDocuments) -> list[tuple[str, list[Partition]]]:
    """Which parts one task maps: each alone while they are few, by their home where they are many."""
    if len(documents.parts) <= PARTS_ALONE:
        return [(p.key, [p]) for p in documents.parts if p.kept]
    wanted = max(
        buckets_for(documents.rows, ROWS_A_GROUP, MOST_GROUPS),
        buckets_for(documents.text_bytes, BYTES_A_GROUP, MOST_GROUPS),
    )
    buckets = min(wanted, buckets_for(len(documents.parts), 1, MOST_GROUPS))
    kept = [(bucket, [p for p in parts if p.kept]) for bucket, parts in parts_by_bucket(documents, buckets)]
    return [(f"group {bucket}", parts) for bucket, parts in kept if parts]


def parts_by_bucket(documents: StoredDocuments, buckets: int) -> list[tuple[int, list[Partition]]]:
    homes = np.array([p.home for p in documents.parts], dtype=np.uint64)
    by_bucket: dict[int, list[Partition]] = {}
    for bucket, part in zip(bucket_of(homes, buckets).tolist(), documents.parts, strict=True):
        by_bucket.setdefault(int(bucket), []).append(part)
    return sorted(by_bucket.items())


def text_bytes_of(parts: list[Partition]) -> int:
    return sum(part.text_bytes for part in parts)


# --- a worker's side --------------------------------------------------------------------------------------------------

# Bytes of documents for one call of a method, and of rows for one file. A part may be as large as a compressed file
# that cannot be split: a map, and a join with `uids`, hold about so much of its texts at once.
MOST_HELD = 32 << 20


def run_round(task: RoundTask) -> Result:
    """Carry out one task of a round."""
    store = store_of(task)
    if task.kind == "regroup":
        return regroup(store, task)
    stage = cast(Global, registry.build(task.stage))
    if task.kind in ("drop", "mark", "rewrite"):
        return PartVerdicts(store, task, stage).apply()
    function = bound_method(store, task, stage)
    if task.kind == "publish":
        return publish(store, task, function)
    return rows_to_disk(store, task, TABLES[task.kind](store, task, function))


def map_documents(store: Store, task: RoundTask, function: Callable[..., Any]) -> Iterator[pa.Table]:
    for part in task.parts:
        for batch in read_part(store, part, task.columns):
            yield with_home(task, function(pa.Table.from_batches([batch])), part)


def reduce_bucket(store: Store, task: RoundTask, function: Callable[..., Any]) -> Iterator[pa.Table]:
    tables = [read_rows(store, rows, task.bucket, task.buckets) for rows in task.rows]
    if any(table is not None for table in tables):
        yield function(*tables)


def join_documents(store: Store, task: RoundTask, function: Callable[..., Any]) -> Iterator[pa.Table]:
    rows = read_rows(store, task.rows[0], task.bucket, task.buckets)
    for part in task.parts:
        here = rows_of_part(rows, part)
        for some, documents in () if here is None else with_their_rows(here, store, part, task.columns, task.uids):
            yield with_home(task, function(some, documents), part)


def combine_files(store: Store, task: RoundTask, function: Callable[..., Any]) -> Iterator[pa.Table]:
    files = files_of_rows(store, task.rows[0])
    tables = [read_rows(store, StoredRows((facts,))) for facts in files]
    if there := [table for table in tables if table is not None]:
        yield function(there)


def scan_buckets(store: Store, task: RoundTask, function: Callable[..., Any]) -> Iterator[pa.Table]:
    def buckets() -> Iterator[pa.Table]:
        for bucket in range(task.buckets):
            rows = read_rows(store, task.rows[0], bucket, task.buckets)
            if rows is not None:
                yield rows.take(pa.array(np.argsort(rows.column(task.order).to_numpy(), kind="stable")))

    yield from function(buckets())


TABLES: dict[str, Callable[[Store, RoundTask, Callable[..., Any]], Iterator[pa.Table]]] = {
    "map": map_documents,
    "reduce": reduce_bucket,
    "join": join_documents,
    "combine": combine_files,
    "scan": scan_buckets,
}


def rows_to_disk(store: Store, task: RoundTask, tables: Iterable[pa.Table]) -> Result:
    """Write the rows of a round; no rows, no file, and of many several files."""
    files: Files = {}
    held: list[pa.Table] = []
    size = 0
    schema: pa.Schema | None = None

    def flush() -> None:
        number = f"-{len(files)}" if files else ""
        table = pa.concat_tables(held).combine_chunks()
        files[f"rows{number}"] = write_rows(store, path_of_rows(task, number), table, task.by, task.cut)

    for rows in tables:
        check_rows(task.method, rows, task.by)
        if not len(rows):
            continue
        schema = schema or rows.schema
        check_same_types(schema, rows.schema)
        if held and size + rows.nbytes > MOST_HELD:
            flush()
            held, size = [], 0
        held.append(rows)
        size += rows.nbytes
    if held:
        flush()
    return Result(files=files, peak_memory=peak_memory())


def regroup(store: Store, task: RoundTask) -> Result:
    """Write the rows that some files hold of a wide bucket as one file that is cut into narrow ones."""
    rows = read_rows(store, task.rows[0], task.bucket, task.buckets)
    files: Files = {}
    if rows is not None:
        wide = (task.bucket, task.buckets)
        files["rows"] = write_rows(store, path_of_rows(task), rows, task.by, task.cut, wide)
    return Result(files=files, peak_memory=peak_memory())


def path_of_rows(task: RoundTask, number: str = "") -> str:
    return f"shuffle/{task.node}/{task.round:02d}-{task.method}{number}-{task.task[:16]}.arrow"


def publish(store: Store, task: RoundTask, function: Callable[..., Any]) -> Result:
    """Write what a method makes of a bucket's rows as files for others to read."""
    rows = read_rows(store, task.rows[0], task.bucket, task.buckets)
    shards: list[Published] = [] if rows is None else list(function(rows))
    for shard in shards:
        if not isinstance(shard, Published):
            raise ContractBroken(
                f"{task.method}() answered with {kind_of(shard)} in its list; each has to be a Published"
            )
    published: list[JSONObject] = []
    files: Files = {}
    for shard in shards:
        path = f"{shard.folder}/shard-{task.bucket:05d}.{task.task[:8]}.arrow"
        with store.commit(path) as file:
            write_shard(cast(BinaryIO, file), shard.table)
        files[path] = FileRef(path, file.length, file.checksum)
        published.append({"path": path, "bytes": file.length, "checksum": file.checksum, **shard.facts})
    return PublishResult(published=published, files=files, peak_memory=peak_memory())


def with_home(task: RoundTask, rows: pa.Table, part: Partition) -> pa.Table:
    """Rows with the part they came from, unless they say themselves where they go."""
    check_rows(task.method, rows, None)
    if "home" in rows.column_names:
        return rows
    return rows.append_column("home", pa.array(np.full(len(rows), part.home, dtype=np.uint64)))


def with_their_rows(
    rows: pa.Table, store: Store, part: Partition, columns: Sequence[str], uids: str | None
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The documents of a part and the rows that go with them: all at once, or with `uids` those that this column names,
    some at a time. None of a part without documents."""
    if uids is None:
        if tables := list(read_part(store, part, columns)):
            yield rows, widened(pa.Table.from_batches(tables))
        return
    column = rows.column(uids)
    named = np.unique((pc.list_flatten(column) if pa.types.is_nested(column.type) else column).to_numpy())
    held: list[pa.RecordBatch] = []
    size = found = 0
    for batch in read_part(store, part, columns, uids=named if len(named) else None):
        if size >= MOST_HELD:
            yield with_documents(rows, uids, held)
            held, size = [], 0
        held.append(batch.filter(pa.array(is_among(batch.column("uid").to_numpy(), named))))
        found += len(held[-1])
        size += held[-1].nbytes
    if found != len(named):
        raise ValueError(
            f"{len(named) - found:,} of {len(named):,} documents that rows name are not in part {part.key}"
        )
    if held:
        all_here = sum(map(len, held)) == found
        yield (rows, widened(pa.Table.from_batches(held))) if all_here else with_documents(rows, uids, held)


def with_documents(rows: pa.Table, uids: str, batches: list[pa.RecordBatch]) -> tuple[pa.Table, pa.Table]:
    """Some documents with the rows that name them; a list of a row keeps those of its uids that are here."""
    documents = widened(pa.Table.from_batches(batches))
    present, column = np.sort(documents.column("uid").to_numpy()), rows.column(uids).combine_chunks()
    if not pa.types.is_nested(column.type):
        return rows.filter(pa.array(is_among(column.to_numpy(), present))), documents
    parents, values = pc.list_parent_indices(column).to_numpy(), column.flatten()
    here = is_among(values.to_numpy(), present)
    lengths = np.bincount(parents[here], minlength=len(rows))
    chosen = np.flatnonzero(lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths[chosen])]).astype(np.int64)
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), values.filter(pa.array(here)))
    some = rows.take(pa.array(chosen))
    return some.set_column(rows.schema.get_field_index(uids), uids, lists.cast(column.type)), documents
