"""The rounds of a global stage, as tasks on workers: map, exchange, join, merge, drop.

Every round reads and writes Arrow IPC files cut by bucket: one record batch a bucket, so that a reader takes its slice and no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import registry
from pipeline.counts import Count
from pipeline.leg import Result, Task, peak_memory
from pipeline.parts import Part, bucket_of, read_part
from pipeline.rejects import Rejects
from pipeline.store import Store
from pipeline.writing import part_writers, write_table
from stages.stage import JoinFunction, MapFunction, Verdict


def run_map(task: Task) -> Result:
    """Documents of some parts, through a method of the stage, cut by bucket."""
    store, function = _set_out(task)
    made = []
    for part in task["parts"]:
        for batch in read_part(store, part, task["columns"]):
            rows = cast(MapFunction, function)(pa.Table.from_batches([batch]))
            made.append(rows.append_column("home", pa.array(np.full(len(rows), part["home"], dtype=np.uint64))))
    return _write_rows(store, task, made)


def run_exchange(task: Task) -> Result:
    """All rows of one bucket, through a method of the stage, cut anew."""
    store, function = _set_out(task)
    rows = read_bucket(store, task["rows"], task["bucket"])
    made = [cast(MapFunction, function)(rows)] if rows is not None and len(rows) else []
    return _write_rows(store, task, made)


def run_join(task: Task) -> Result:
    """Rows sent to the parts they came from, each with the documents of its part."""
    store, function = _set_out(task)
    rows = read_bucket(store, task["rows"], task["bucket"])
    made = []
    for part in task["parts"]:
        mine = _rows_of(rows, part)
        if mine is None or len(mine) == 0:
            continue
        documents = list(read_part(store, part, task["columns"]))
        if documents:
            table = cast(JoinFunction, function)(mine, pa.Table.from_batches(documents))
            made.append(
                table.append_column("home", pa.array(np.full(len(table), part["home"], dtype=np.uint64)))
                if "home" not in table.column_names
                else table
            )
    return _write_rows(store, task, made)


def run_merge(task: Task) -> Result:
    """A few tables into one, by a method of the stage that is associative."""
    store, function = _set_out(task)
    tables = [t for rows in task["rows"] if (t := read_bucket(store, [rows], None)) is not None]
    made = [cast(Callable[[list[pa.Table]], pa.Table], function)(tables)] if tables else []
    return _write_rows(store, task, made)


def run_drop(task: Task) -> Result:
    """Verdicts beside the documents of some parts, from the rows that name the losers."""
    start = time.perf_counter()
    store = Store(task["out"])
    stage = registry.build(task["stage"])
    losers = read_bucket(store, task["rows"], task["bucket"])
    parts: list[Part] = []
    files: dict[str, Any] = {}
    counts: dict[str, Count] = {}
    for part in task["parts"]:
        part, made, count = _drop_from_part(store, task, stage.called, part, _rows_of(losers, part))
        parts.append(part)
        files |= {f"{part['key']}/{name}": facts for name, facts in made.items()}
        if part["source"] in counts:
            counts[part["source"]].add(count)
        else:
            counts[part["source"]] = count
    seconds = (time.perf_counter() - start) / max(1, len(counts))
    for count in counts.values():
        count.seconds = seconds
    return {
        "parts": parts,
        "files": files,
        "counts": {s: {stage.called: c.plain()} for s, c in counts.items()},
        "log": [],
        "peak_memory": peak_memory(),
    }


def _drop_from_part(store: Store, task: Task, called: str, part: Part, rows: pa.Table | None) -> tuple[Part, dict[str, Any], Count]:
    count = Count(docs_in=part["kept"], kept=part["kept"])
    if rows is None or len(rows) == 0 or part["documents"] is None:
        return part, {}, count
    with store.open(part["documents"]["path"]) as file:
        uid = pq.read_table(file, columns=["uid"]).column("uid").to_numpy()
    rows = rows.sort_by("uid")
    order = np.argsort(uid, kind="stable")
    place = order[np.clip(np.searchsorted(uid, rows.column("uid").to_numpy(), sorter=order), 0, len(uid) - 1)]
    if not (uid[place] == rows.column("uid").to_numpy()).all():
        raise ValueError(f"{called} named documents that are not in part {part['key']}")
    reason = pa.array([None] * len(uid), pa.string()) if len(uid) == 0 else _scatter(rows.column("reason"), place, len(uid), pa.string())
    detail = _scatter(rows.column("detail"), place, len(uid), pa.string())
    kept = pc.is_null(reason)
    files: dict[str, Any] = {}
    part = {**part, "verdicts": [*part["verdicts"]], "signals": [*part["signals"]]}
    base = f"legs/{called}/{part['key']}.{task['task'][:8]}"
    if not pc.all(kept).as_py():
        name = pa.array([called]).take(pa.array(np.zeros(len(uid), dtype=np.int8)))
        verdicts = pa.table(
            {"uid": uid, "kept": kept, "stage": pc.if_else(kept, pa.scalar(None, pa.string()), name), "reason": reason, "detail": detail}
        )
        facts = write_table(store, f"{base}.verdicts.parquet", verdicts)
        assert facts is not None
        count, rejected = _reject(store, task, called, part, verdicts)
        files |= {"verdicts": facts, **rejected}
        part["verdicts"].append(facts)
        part["kept"] = count.kept
    extras = [c for c in rows.column_names if c not in ("home", "uid", "reason", "detail")]
    if extras:
        signals = pa.table(
            {"uid": uid} | {name: _scatter(rows.column(name), place, len(uid), rows.schema.field(name).type) for name in extras}
        )
        facts = write_table(store, f"{base}.signals.parquet", signals)
        assert facts is not None
        files["signals"] = facts
        part["signals"].append(facts)
    return part, files, count


def _scatter(values: pa.ChunkedArray, place: np.ndarray[Any, Any], length: int, kind: pa.DataType) -> pa.Array:
    """Values laid at their places in a column of nulls."""
    index = np.full(length, -1, dtype=np.int64)
    index[place] = np.arange(len(place))
    return values.cast(kind).combine_chunks().take(pa.array(index, mask=index < 0))


def _reject(store: Store, task: Task, called: str, part: Part, verdicts: pa.Table) -> tuple[Count, dict[str, Any]]:
    """The documents that go, with their texts, into the rejects; and the account of it."""
    count = Count(docs_in=part["kept"])
    with part_writers() as writers:
        rejects = Rejects(store, f"{part['key']}.{task['task'][:8]}", part["source"], task["rejects"], writers)
        fate = {"reason": verdicts.column("reason").combine_chunks(), "detail": verdicts.column("detail").combine_chunks()}
        by_uid = pa.table({"uid": verdicts.column("uid"), **fate})
        by_uid = by_uid.filter(pc.is_valid(by_uid.column("reason")))
        reasons = dict(
            zip(
                by_uid.column("uid").to_pylist(),
                zip(by_uid.column("reason").to_pylist(), by_uid.column("detail").to_pylist(), strict=True),
                strict=True,
            )
        )
        for batch in read_part(store, part, ["uid", "url", "text"]):
            gone = pc.is_in(batch.column("uid"), value_set=by_uid.column("uid").combine_chunks())
            batch = batch.filter(gone)
            verdict = Verdict.keep(len(batch))
            told = [reasons[u] for u in batch.column("uid").to_pylist()]
            for reason in sorted({r for r, _ in told}):
                verdict.drop(np.array([r == reason for r, _ in told]), reason, [d or "" for _, d in told])
                count.dropped[reason] += sum(r == reason for r, _ in told)
            if len(batch):
                rejects.dropped(called, batch, verdict)
        made = rejects.close()
    count.kept = count.docs_in - sum(count.dropped.values())
    return count, made


def read_bucket(store: Store, files: Sequence[dict[str, Any]], bucket: int | None) -> pa.Table | None:
    """One bucket's slice of every file (all of it for None), in an order that depends on the contents alone."""
    tables = []
    for facts in files:
        with store.open(facts["path"]) as file:
            reader = pa.ipc.open_file(file)
            batches = [reader.get_batch(bucket)] if bucket is not None else [reader.get_batch(i) for i in range(reader.num_record_batches)]
            tables.append(pa.Table.from_batches(batches, reader.schema))
    tables = [t for t in tables if len(t)]
    if not tables:
        return None
    table = pa.concat_tables(tables)
    keys = [(name, "ascending") for name in ("uid", "home") if name in table.column_names]
    return table.sort_by(keys) if keys else table


def _rows_of(rows: pa.Table | None, part: Part) -> pa.Table | None:
    return None if rows is None else rows.filter(pc.equal(rows.column("home"), pa.scalar(part["home"], pa.uint64())))


def _set_out(task: Task) -> tuple[Store, Callable[..., pa.Table]]:
    return Store(task["out"]), getattr(registry.build(task["stage"]), task["method"])


def _write_rows(store: Store, task: Task, made: list[pa.Table]) -> Result:
    """Rows cut by the top bits of a column into one record batch a bucket; no rows, no file."""
    made = [t for t in made if len(t)]
    counted: dict[str, Any] = {"rows": 0, "files": {}, "log": [], "peak_memory": peak_memory()}
    if not made:
        return counted
    table = pa.concat_tables(made).combine_chunks()
    path = f"flow/{task['node']}/{task['round']:02d}-{task['method']}-{task['task'][:16]}.arrow"
    with store.commit(path) as file, pa.ipc.new_file(file, table.schema) as writer:
        for slice_ in _cut(table, task["by"], task["buckets"]):
            writer.write_batch(slice_)
    facts = {"path": path, "bytes": file.length, "checksum": file.checksum, "rows": len(table)}
    return counted | {"rows": len(table), "files": {"rows": facts}}


def _cut(table: pa.Table, by: str | None, buckets: int) -> list[pa.RecordBatch]:
    if by is None or buckets == 1:
        return [_one_batch(table)]
    bucket = bucket_of(table.column(by).to_numpy(), buckets)
    order = np.argsort(bucket, kind="stable")
    ends = np.searchsorted(bucket[order], np.arange(buckets, dtype=np.uint64), side="right")
    table = table.take(pa.array(order))
    return [_one_batch(table.slice(start, end - start)) for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
