"""How a global stage ends: verdicts and signals beside the documents of each part, or the documents written anew with
other texts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gristmill.kernels.base.columns import widened
from gristmill.pipeline.flow.rounds import rows_of, set_out
from gristmill.pipeline.flow.rows import read_rows
from gristmill.pipeline.processes.memory import peak_memory
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.store.accounting import Count, RejectsWriter
from gristmill.pipeline.store.lock import store_of
from gristmill.pipeline.store.partitions import (
    kept_mask,
    part_writers,
    read_part,
    text_length,
    with_text_lengths,
    write_every_row,
    write_table,
)
from gristmill.pipeline.store.records import FileFacts, Files, Part, Result, RoundTask
from gristmill.pipeline.store.storage import Store, open_checked
from gristmill.stages.contract import ContractBroken, check_documents, check_same_types, check_texts, check_verdicts
from gristmill.stages.flow import JoinFunction
from gristmill.stages.stage import Global

PartChange = Callable[[Store, RoundTask, Global, Part, pa.Table | None], tuple[Part, Files, Count]]


def run_drop(task: RoundTask) -> Result:
    """Verdicts beside the documents of some parts, from the rows that name those to drop."""
    return _each_part(task, _drop_from_part)


def run_mark(task: RoundTask) -> Result:
    """Verdicts and signals beside the documents of some parts, which a method of the stage makes from the documents."""
    return _each_part(task, _mark_part)


def run_rewrite(task: RoundTask) -> Result:
    """The documents of some parts with new texts, as a method of the stage makes them from the rows of each part."""
    return _each_part(task, _rewrite_part)


def _each_part(task: RoundTask, change: PartChange) -> Result:
    start = time.perf_counter()
    store = store_of(task)
    stage = cast(Global, registry.build(task["stage"]))
    called = stage.called
    rows = read_rows(store, task["rows"], task["bucket"], task["buckets"]) if "rows" in task else None
    parts: list[Part] = []
    files: Files = {}
    counts: dict[str, Count] = {}
    for part in task["parts"]:
        part, written, count = change(store, task, stage, part, rows_of(rows, part))
        parts.append(part)
        files |= {f"{part['key']}/{name}": facts for name, facts in written.items()}
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
        "counts": {s: {called: c.plain()} for s, c in counts.items()},
        "log": [],
        "peak_memory": peak_memory(),
    }


def _drop_from_part(
    store: Store, task: RoundTask, stage: Global, part: Part, rows: pa.Table | None
) -> tuple[Part, Files, Count]:
    if part["documents"] is None:
        return part, {}, untouched(part)
    if rows is None:
        return _without_hits(store, task, stage, part)
    uid = _uids(store, part["documents"])
    check_verdicts("drop", rows)
    rows = rows.sort_by("uid")
    order = np.argsort(uid, kind="stable")
    place = order[np.clip(np.searchsorted(uid, rows.column("uid").to_numpy(), sorter=order), 0, len(uid) - 1)]
    if not (uid[place] == rows.column("uid").to_numpy()).all():
        raise ContractBroken(f"the rows to drop name documents that are not in part {part['key']}")
    return _attach(store, task, stage.called, part, rows, uid, place)


def _without_hits(store: Store, task: RoundTask, stage: Global, part: Part) -> tuple[Part, Files, Count]:
    """A part in which the stage found nothing: its signals are there all the same, null, so that no column depends on
    the data."""
    if part["documents"] is None or not part["kept"] or not stage.added_types:
        return part, {}, untouched(part)
    none = {"uid": pa.uint64(), "reason": pa.string(), "detail": pa.string(), **stage.added_types}
    rows = pa.table({name: pa.array([], kind) for name, kind in none.items()})
    uid = _uids(store, part["documents"])
    return _attach(store, task, stage.called, part, rows, uid, np.zeros(0, np.int64))


def untouched(part: Part) -> Count:
    """The account of a part that nothing is taken from."""
    return Count(docs_in=part["kept"], kept=part["kept"], text_bytes=part["text_bytes"])


def _uids(store: Store, documents: FileFacts) -> NDArray[np.uint64]:
    with open_checked(store, documents) as file:
        uid: NDArray[np.uint64] = pq.read_table(file, columns=["uid"]).column("uid").to_numpy()
    return uid


def _attach(
    store: Store,
    task: RoundTask,
    called: str,
    part: Part,
    rows: pa.Table,
    uid: NDArray[np.uint64],
    place: NDArray[np.int64],
) -> tuple[Part, Files, Count]:
    """Rows on documents, `place` of each in its part, as files beside the part's."""
    count = untouched(part)
    reason = _scatter(rows.column("reason"), place, len(uid), pa.string())
    detail = _scatter(rows.column("detail"), place, len(uid), pa.string())
    kept = pc.is_null(reason)
    files: Files = {}
    part = {**part, "verdicts": [*part["verdicts"]], "signals": [*part["signals"]]}
    base = f"legs/{called}/{part['key']}.{task['task'][:8]}"
    if not pc.all(kept).as_py():
        name = pa.array([called]).take(pa.array(np.zeros(len(uid), dtype=np.int8)))
        verdicts = pa.table(
            {
                "uid": uid,
                "kept": kept,
                "stage": pc.if_else(kept, pa.scalar(None, pa.string()), name),
                "reason": reason,
                "detail": detail,
            }
        )
        facts = write_every_row(store, f"{base}.verdicts.parquet", verdicts)
        count, rejected = _reject(store, task, called, part, verdicts)
        files |= {"verdicts": facts, **rejected}
        part["verdicts"].append(facts)
        part["kept"], part["text_bytes"] = count.kept, count.text_bytes
    extras = [c for c in rows.column_names if c not in ("home", "uid", "reason", "detail")]
    if extras:
        signals = pa.table(
            {"uid": uid}
            | {name: _scatter(rows.column(name), place, len(uid), rows.schema.field(name).type) for name in extras}
        )
        facts = write_every_row(store, f"{base}.signals.parquet", signals)
        files["signals"] = facts
        part["signals"].append(facts)
    return part, files, count


def _mark_part(
    store: Store, task: RoundTask, stage: Global, part: Part, rows: pa.Table | None
) -> tuple[Part, Files, Count]:
    _, function = set_out(task)
    marks: list[pa.Table] = []
    for batch in read_part(store, part, task["columns"]):
        documents = pa.Table.from_batches([batch])
        marked = function(documents)
        check_verdicts(task["method"], marked)
        check_documents(task["method"], marked, documents)
        check_same_types((marks or [marked])[0].schema, marked.schema)
        marks.append(marked)
    if not marks or part["documents"] is None:
        return part, {}, untouched(part)
    return _attach(
        store,
        task,
        stage.called,
        part,
        widened(pa.concat_tables(marks)),
        _uids(store, part["documents"]),
        np.flatnonzero(kept_mask(store, part)),
    )


def _scatter(
    values: pa.ChunkedArray, place: NDArray[np.int64], length: int, kind: pa.DataType
) -> pa.Array | pa.ChunkedArray:
    """Values laid at their places in a column of nulls."""
    if len(place) == length and bool((place == np.arange(length)).all()):
        return values.cast(kind)
    index = np.full(length, -1, dtype=np.int64)
    index[place] = np.arange(len(place))
    return values.cast(kind).combine_chunks().take(pa.array(index, mask=index < 0))


def _reject(store: Store, task: RoundTask, called: str, part: Part, verdicts: pa.Table) -> tuple[Count, Files]:
    """The documents that go, with their texts, into the rejects; and the account of it."""
    count = Count(docs_in=part["kept"], text_bytes=part["text_bytes"])
    fate = verdicts.filter(pc.is_valid(verdicts.column("reason"))).combine_chunks()
    count.dropped.update({row["values"]: row["counts"] for row in pc.value_counts(fate.column("reason")).to_pylist()})
    with part_writers() as writers:
        rejects = RejectsWriter(store, f"{part['key']}.{task['task'][:8]}", part["source"], task["rejects"], writers)
        for batch in read_part(store, part, ["uid", "url", "id", "text"]):
            place = pc.index_in(batch.column("uid"), value_set=fate.column("uid").combine_chunks())
            is_gone = pc.is_valid(place)
            why = fate.take(place.filter(is_gone))
            gone = batch.filter(is_gone)
            count.text_bytes -= text_length(gone)
            rejects.named(called, gone, why.column("reason"), why.column("detail"))
        files = rejects.close()
    count.kept = count.docs_in - sum(count.dropped.values())
    return count, files


def _rewrite_part(
    store: Store, task: RoundTask, stage: Global, part: Part, rows: pa.Table | None
) -> tuple[Part, Files, Count]:
    count, called = untouched(part), stage.called
    if rows is None or part["documents"] is None or not part["kept"]:
        return _without_hits(store, task, stage, part)
    documents = pa.Table.from_batches(list(read_part(store, part)))
    function = cast(JoinFunction, stage.round_method(task["method"]))
    rewritten = function(rows, widened(documents.select(task["columns"])))
    check_verdicts(task["method"], rewritten, changes=["text"])
    check_documents(task["method"], rewritten, documents)
    kept = pc.is_null(rewritten.column("reason"))
    if "text" in rewritten.column_names:
        check_texts(documents, rewritten, kept.to_numpy())
    files: Files = {}
    if not pc.all(kept).as_py():
        fate = pa.table({name: rewritten.column(name) for name in ("uid", "reason", "detail")})
        count, rejected = _reject(store, task, called, part, fate)
        files |= rejected
    for name in rewritten.column_names:
        if name not in ("home", "uid", "reason", "detail"):
            index = documents.schema.get_field_index(name)
            values = rewritten.column(name)
            if index >= 0 and values.type == pa.large_string():  # as files of other parts have it
                values = values.cast(documents.schema.field(index).type)
            if index < 0:
                documents = documents.append_column(name, values)
            else:
                documents = documents.set_column(index, name, values)
    documents = documents.filter(kept)
    count.text_bytes = text_length(documents)
    lengthy = (
        pa.Table.from_batches([with_text_lengths(batch) for batch in documents.to_batches()])
        if len(documents)
        else None
    )
    facts = (
        write_table(store, f"legs/{called}/{part['key']}.{task['task'][:8]}.documents.parquet", lengthy)
        if lengthy is not None
        else None
    )
    if facts is not None:
        files["documents"] = facts
    changed: Part = {
        **part,
        "documents": facts,
        "verdicts": [],
        "signals": [],
        "rows": len(documents),
        "kept": len(documents),
        "text_bytes": count.text_bytes,
    }
    return changed, files, count
