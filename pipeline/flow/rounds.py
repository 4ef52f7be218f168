"""The rounds of a global stage, as tasks on workers: map, exchange, meet, join, merge, scan.

Rows on disk are `flow.rows`; `drop`, `mark` and `rewrite` (`flow.verdicts`) end a flow. A part may be as large as a
compressed file that cannot be cut: a map, and a join that names its documents, hold about MOST_HELD of its texts at
once, and as much of what they write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gristmill.kernels.base.columns import widened
from gristmill.pipeline.flow.rows import files_of_rows, read_rows, write_range, write_rows
from gristmill.pipeline.processes.memory import peak_memory
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.store.lock import store_of
from gristmill.pipeline.store.partitions import read_part
from gristmill.pipeline.store.records import FileFacts, Files, Part, Result, RoundTask
from gristmill.pipeline.store.storage import Store
from gristmill.shards.writer import write_shard
from gristmill.stages.contract import ContractBroken, check_rows, check_same_types, kind_of
from gristmill.stages.flow import JoinFunction, MeetFunction, MergeFunction, Published, ScanFunction
from gristmill.stages.stage import Global

MOST_HELD = 32 << 20  # bytes of documents for one call of a method, and of rows for one file
PublishMethod = Callable[[pa.Table], list[Published]]


def run_map(task: RoundTask) -> Result:
    """Documents of some parts, through a method of the stage, cut by bucket."""
    store, function = set_out(task)
    tables = (
        with_home(task, function(pa.Table.from_batches([batch])), part)
        for part in task["parts"]
        for batch in read_part(store, part, task["columns"])
    )
    return _write(store, task, tables)


def run_exchange(task: RoundTask) -> Result:
    """All rows of one bucket, through a method of the stage, cut anew."""
    store, function = set_out(task)
    rows = read_rows(store, task["rows"], task["bucket"], task["buckets"])
    return _write(store, task, [] if rows is None else [function(rows)])


def run_meet(task: RoundTask) -> Result:
    """The rows of one bucket of two kinds, through a method of the stage; either may be missing."""
    store, function = set_out(task)
    left, right = (read_rows(store, rows, task["bucket"], task["buckets"]) for rows in (task["rows"], task["others"]))
    return _write(store, task, [] if left is None and right is None else [cast(MeetFunction, function)(left, right)])


def run_publish(task: RoundTask) -> Result:
    """The rows of one bucket, through a method of the stage, as files for others to read."""
    store, function = set_out(task)
    rows = read_rows(store, task["rows"], task["bucket"], task["buckets"])
    shards: list[Published] = [] if rows is None else list(cast(PublishMethod, function)(rows))
    for shard in shards:
        if not isinstance(shard, Published):
            raise ContractBroken(
                f"{task['method']}() answered with {kind_of(shard)} in its list; each has to be a Published"
            )
    published: list[FileFacts] = []
    files: Files = {}
    for shard in shards:
        path = f"{shard.folder}/shard-{task['bucket']:05d}.{task['task'][:8]}.arrow"
        with store.commit(path) as file:
            write_shard(cast(BinaryIO, file), shard.table)
        facts = cast(
            FileFacts, {"path": path, "bytes": file.length, "checksum": file.checksum, **shard.facts}
        )  # and what the stage says of the file
        published.append(facts)
        files[path] = facts
    return {
        "published": published,
        "files": files,
        "log": [],
        "peak_memory": peak_memory(),
    }


def run_regroup(task: RoundTask) -> Result:
    """The rows that some files hold of a wide bucket, as one file that is cut into narrow ones."""
    store = store_of(task)
    rows = read_rows(store, task["rows"], task["bucket"], task["buckets"])
    result: Result = {"rows": 0, "files": {}, "log": [], "peak_memory": peak_memory()}
    if rows is None:
        return result
    path = f"flow/{task['node']}/{task['round']:02d}-{task['method']}-{task['task'][:16]}.arrow"
    facts = write_range(store, path, rows, task["by"], task["bucket"], task["buckets"], task["cut"])
    return {**result, "rows": len(rows), "files": {"rows": facts}}


def run_scan(task: RoundTask) -> Result:
    """All rows in order of a column, a bucket at a time, through a method of the stage that remembers what went by."""
    store, function = set_out(task)

    def buckets() -> Iterator[pa.Table]:
        for bucket in range(task["buckets"]):
            rows = read_rows(store, task["rows"], bucket, task["buckets"])
            if rows is not None:
                yield rows.take(pa.array(np.argsort(rows.column(task["order"]).to_numpy(), kind="stable")))

    return _write(store, task, list(cast(ScanFunction, function)(buckets())))


def run_join(task: RoundTask) -> Result:
    """Rows sent to the parts they came from, each with the documents of its part."""
    store, function = set_out(task)
    rows = read_rows(store, task["rows"], task["bucket"], task["buckets"])

    def joined() -> Iterator[pa.Table]:
        for part in task["parts"]:
            rows_here = rows_of(rows, part)
            for some, documents in (
                () if rows_here is None else meetings(rows_here, store, part, task["columns"], task["of"])
            ):
                yield with_home(task, cast(JoinFunction, function)(some, documents), part)

    return _write(store, task, joined())


def meetings(
    rows: pa.Table, store: Store, part: Part, columns: Sequence[str], of: str | None
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The documents of a part and the rows that go with them: all at once, or with `of` those that this column names,
    some at a time. None of a part without documents."""
    batches = read_part(store, part, columns)
    if of is None:
        if tables := list(batches):
            yield rows, widened(pa.Table.from_batches(tables))
        return
    column = rows.column(of)
    named = np.unique((pc.list_flatten(column) if pa.types.is_nested(column.type) else column).to_numpy())
    held: list[pa.RecordBatch] = []
    size = present = 0
    for batch in batches:
        if size >= MOST_HELD:
            yield with_documents(rows, of, held)
            held, size = [], 0
        held.append(batch.filter(pa.array(is_among(batch.column("uid").to_numpy(), named))))
        present += len(held[-1])
        size += held[-1].nbytes
    if present != len(named):
        raise ValueError(
            f"{len(named) - present:,} of {len(named):,} documents that rows name are not in part {part['key']}"
        )
    if held:
        yield (
            with_documents(rows, of, held)
            if sum(map(len, held)) < present
            else (
                rows,
                widened(pa.Table.from_batches(held)),
            )
        )


def with_documents(rows: pa.Table, of: str, batches: list[pa.RecordBatch]) -> tuple[pa.Table, pa.Table]:
    """Some documents with the rows that name them; a list of a row keeps those of its uids that are here."""
    documents = widened(pa.Table.from_batches(batches))
    uids, column = np.sort(documents.column("uid").to_numpy()), rows.column(of).combine_chunks()
    if not pa.types.is_nested(column.type):
        return rows.filter(pa.array(is_among(column.to_numpy(), uids))), documents
    parents, values = pc.list_parent_indices(column).to_numpy(), column.flatten()
    here = is_among(values.to_numpy(), uids)
    lengths = np.bincount(parents[here], minlength=len(rows))
    chosen = np.flatnonzero(lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths[chosen])]).astype(np.int64)
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), values.filter(pa.array(here)))
    some = rows.take(pa.array(chosen))
    return some.set_column(rows.schema.get_field_index(of), of, lists.cast(column.type)), documents


def is_among(uids: NDArray[np.uint64], named: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which uids are in a sorted list."""
    if not len(named):
        return np.zeros(len(uids), dtype=bool)
    present: NDArray[np.bool_] = named[np.minimum(np.searchsorted(named, uids), len(named) - 1)] == uids
    return present


def run_merge(task: RoundTask) -> Result:
    """A few tables into one, by a method of the stage that is associative."""
    store, function = set_out(task)
    tables = [
        table
        for facts in files_of_rows(store, task["rows"])
        if (table := read_rows(store, {"files": [facts]}, None, 1)) is not None
    ]
    return _write(store, task, [cast(MergeFunction, function)(tables)] if tables else [])


def with_home(task: RoundTask, rows: pa.Table, part: Part) -> pa.Table:
    """The part that rows came from, unless they say themselves where they go."""
    check_rows(task["method"], rows, None)
    return (
        rows
        if "home" in rows.column_names
        else rows.append_column("home", pa.array(np.full(len(rows), part["home"], dtype=np.uint64)))
    )


def rows_of(rows: pa.Table | None, part: Part) -> pa.Table | None:
    """Those that belong to a part; None where there are none."""
    if rows is None:
        return None
    here = pc.equal(rows.column("home"), pa.scalar(part["home"], pa.uint64()))
    rows = rows if pc.all(here).as_py() else rows.filter(here)  # a copy of a giant part's would be as large again
    return rows if len(rows) else None


def set_out(task: RoundTask) -> tuple[Store, Callable[..., pa.Table]]:
    """Where a task reads and writes, and its method of the stage, with the second table that it is called with bound
    (`beside`). Methods of some rounds take and give other things; these cast it."""
    store, function = store_of(task), cast(Global, registry.build(task["stage"])).round_method(task["method"])
    if "beside" not in task:
        return store, function
    table = read_rows(store, task["beside"], None, 1)
    return store, lambda rows: function(rows, table)


def _write(store: Store, task: RoundTask, tables: Iterable[pa.Table]) -> Result:
    """The rows of a round, on disk; no rows, no file, and of many several files."""
    files: Files = {}
    held: list[pa.Table] = []
    size = count = 0
    schema: pa.Schema | None = None

    def put_down() -> None:
        number = f"-{len(files)}" if files else ""
        path = f"flow/{task['node']}/{task['round']:02d}-{task['method']}{number}-{task['task'][:16]}.arrow"
        table = pa.concat_tables(held).combine_chunks()
        files[f"rows{number}"] = write_rows(store, path, table, task["by"], task["cut"])

    for rows in tables:
        check_rows(task["method"], rows, task["by"])
        if not len(rows):
            continue
        schema = schema or rows.schema
        check_same_types(schema, rows.schema)
        if held and size + rows.nbytes > MOST_HELD:
            put_down()
            held, size = [], 0
        held.append(rows)
        size += rows.nbytes
        count += len(rows)
    if held:
        put_down()
    return {"rows": count, "files": files, "log": [], "peak_memory": peak_memory()}
