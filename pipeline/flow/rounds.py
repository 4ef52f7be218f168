"""The rounds of a global stage, as tasks on workers: map, exchange, meet, join, merge, scan.

A round reads and writes rows as `flow_rows` lays them; `drop` and `rewrite` (`flow_verdicts`) end a flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.columns import widened
from gristmill.pipeline.flow.rows import read_rows, write_rows
from gristmill.pipeline.leg.leg import Result, Task, peak_memory
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.store.parts import Part, read_part
from gristmill.pipeline.store.store import Store
from gristmill.shards.writer import write_shard
from gristmill.stages.contract import ContractBroken, check_rows, check_same_types, kind_of
from gristmill.stages.flow import JoinFunction, MeetFunction, Published, ScanFunction
from gristmill.stages.stage import Global


def run_map(task: Task) -> Result:
    """Documents of some parts, through a method of the stage, cut by bucket."""
    store, function = set_out(task)
    made = []
    for part in task["parts"]:
        for batch in read_part(store, part, task["columns"]):
            made.append(with_home(task, function(pa.Table.from_batches([batch])), part))
    return _written(store, task, made)


def run_exchange(task: Task) -> Result:
    """All rows of one bucket, through a method of the stage, cut anew."""
    store, function = set_out(task)
    rows = read_rows(store, task["rows"], task["bucket"], task["buckets"])
    return _written(store, task, [] if rows is None else [function(rows)])


def run_meet(task: Task) -> Result:
    """The rows of one bucket of two kinds, through a method of the stage; either may be missing."""
    store, function = set_out(task)
    left, right = (read_rows(store, task[side], task["bucket"], task["buckets"]) for side in ("rows", "others"))
    return _written(store, task, [] if left is None and right is None else [cast(MeetFunction, function)(left, right)])


def run_publish(task: Task) -> Result:
    """The rows of one bucket, through a method of the stage, as files for others to read."""
    store, function = set_out(task)
    rows = read_rows(store, task["rows"], task["bucket"], task["buckets"])

    made: list[Published] = [] if rows is None else list(function(rows))
    if not all(isinstance(published, Published) for published in made):
        raise ContractBroken(f"{task['method']}() answered with {kind_of(made[0])}; a list of Published was expected")
    found = []
    for published in made:
        path = f"{published.folder}/shard-{task['bucket']:05d}.{task['task'][:8]}.arrow"
        with store.commit(path) as file:
            write_shard(cast(IO[bytes], file), published.table)
        found.append({"path": path, "bytes": file.length, "checksum": file.checksum, **published.facts})
    return {
        "published": found,
        "files": {facts["path"]: facts for facts in found},
        "log": [],
        "peak_memory": peak_memory(),
    }


def run_scan(task: Task) -> Result:
    """All rows in order of a column, a bucket at a time, through a method of the stage that remembers what went by."""
    store, function = set_out(task)

    def buckets() -> Iterator[pa.Table]:
        for bucket in range(task["buckets"]):
            rows = read_rows(store, task["rows"], bucket, task["buckets"])
            if rows is not None:
                yield rows.take(pa.array(np.argsort(rows.column(task["order"]).to_numpy(), kind="stable")))

    return _written(store, task, list(cast(ScanFunction, function)(buckets())))


def run_join(task: Task) -> Result:
    """Rows sent to the parts they came from, each with the documents of its part."""
    store, function = set_out(task)
    rows = read_rows(store, task["rows"], task["bucket"], task["buckets"])
    made = []
    for part in task["parts"]:
        mine = rows_of(rows, part)
        if mine is None:
            continue
        documents = documents_for(mine, store, part, task["columns"], task["of"])
        if documents is not None:
            made.append(with_home(task, cast(JoinFunction, function)(mine, documents), part))
    return _written(store, task, made)


def documents_for(rows: pa.Table, store: Store, part: Part, columns: Sequence[str], of: str | None) -> pa.Table | None:
    """The documents of a part; with `of` those that this column of the rows names, and no other is held. None of a part
    without any."""
    if of is None:
        batches = list(read_part(store, part, columns))
        return widened(pa.Table.from_batches(batches)) if batches else None
    column = rows.column(of)
    named = np.unique((pc.list_flatten(column) if pa.types.is_nested(column.type) else column).to_numpy())
    batches = [
        batch.filter(pa.array(is_among(batch.column("uid").to_numpy(), named)))
        for batch in read_part(store, part, columns)
    ]
    found = sum(len(batch) for batch in batches)
    if found != len(named):
        raise ValueError(
            f"{len(named) - found:,} of {len(named):,} documents that rows name are not in part {part['key']}"
        )
    return widened(pa.Table.from_batches(batches)) if batches else None


def is_among(uids: np.ndarray[Any, Any], named: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which uids are in a sorted list."""
    if not len(named):
        return np.zeros(len(uids), dtype=bool)
    found: np.ndarray[Any, np.dtype[np.bool_]] = named[np.minimum(np.searchsorted(named, uids), len(named) - 1)] == uids
    return found


def run_merge(task: Task) -> Result:
    """A few tables into one, by a method of the stage that is associative."""
    store, function = set_out(task)
    tables = [t for facts in task["rows"]["files"] if (t := read_rows(store, {"files": [facts]}, None, 1)) is not None]
    return _written(store, task, [cast(Callable[[list[pa.Table]], pa.Table], function)(tables)] if tables else [])


def with_home(task: Task, rows: pa.Table, part: Part) -> pa.Table:
    """The part that rows came from, unless they say themselves where they go."""
    check_rows(task["method"], rows, None)
    return (
        rows
        if "home" in rows.column_names
        else rows.append_column("home", pa.array(np.full(len(rows), part["home"], dtype=np.uint64)))
    )


def rows_of(rows: pa.Table | None, part: Part) -> pa.Table | None:
    """Those that belong to a part; None where there are none."""
    mine = None if rows is None else rows.filter(pc.equal(rows.column("home"), pa.scalar(part["home"], pa.uint64())))
    return mine if mine is not None and len(mine) else None


def set_out(task: Task) -> tuple[Store, Callable[..., Any]]:
    """Where a task reads and writes, and its method of the stage, given the table that it is called with beside."""
    store, function = Store(task["out"]), cast(Global, registry.build(task["stage"])).round_method(task["method"])
    if "beside" not in task:
        return store, function
    table = read_rows(store, task["beside"], None, 1)
    return store, lambda rows: function(rows, table)


def _written(store: Store, task: Task, made: list[pa.Table]) -> Result:
    """What a round made, on disk; no rows, no file."""
    for rows in made:
        check_rows(task["method"], rows, task["by"])
    made = [t for t in made if len(t)]
    for rows in made[1:]:
        check_same_types(made[0].schema, rows.schema)
    counted: dict[str, Any] = {"rows": 0, "files": {}, "log": [], "peak_memory": peak_memory()}
    if not made:
        return counted
    table = pa.concat_tables(made).combine_chunks()
    path = f"flow/{task['node']}/{task['round']:02d}-{task['method']}-{task['task'][:16]}.arrow"
    return counted | {"rows": len(table), "files": {"rows": write_rows(store, path, table, task["by"], task["cut"])}}
