"""The last round of a global stage on a worker: verdicts and signals beside the documents of each part, or documents
with other texts.

    drop       rows of a part say which of its documents go, and bring signals
    mark       a method of the stage says it of each batch of documents
    rewrite    a method makes the documents of a part again, from its rows and documents
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gristmill.kernels.base.columns import text_length, widened
from gristmill.pipeline.processes import peak_memory
from gristmill.pipeline.shuffle.spill import read_rows, rows_of_part
from gristmill.pipeline.store.counts import Counts
from gristmill.pipeline.store.partitions import (
    RejectsWriter,
    kept_mask,
    part_writers,
    read_part,
    with_text_lengths,
    write_every_row,
    write_table,
)
from gristmill.pipeline.store.records import FileRef, Files, Partition, RoundTask, VerdictsResult
from gristmill.pipeline.store.storage import Store, open_checked
from gristmill.stages.contract import ContractBroken, check_documents, check_same_types, check_texts, check_verdicts
from gristmill.stages.stage import Global

FATE = ("home", "uid", "reason", "detail")  # what rows say of a document beside signals
Change: TypeAlias = tuple[Partition, Files, Counts]  # a part after the stage, what was written for it, and its account


def untouched(part: Partition) -> Counts:
    """The account of a part that nothing is taken from."""
    return Counts(docs_in=part.kept, kept=part.kept, text_bytes=part.text_bytes)


def bound_method(store: Store, task: RoundTask, stage: Global) -> Callable[..., Any]:
    """The method of the stage that a task calls, with the broadcast table as its last argument."""
    function = stage.round_method(task.method)
    if task.broadcast is None:
        return function
    table = read_rows(store, task.broadcast)
    return lambda *tables: function(*tables, table)


@dataclass(frozen=True)
class PartVerdicts:
    """The verdicts of one task on its parts."""

    store: Store
    task: RoundTask
    stage: Global

    def apply(self) -> VerdictsResult:
        start = time.perf_counter()
        task, change = self.task, {"drop": self.drop, "mark": self.mark, "rewrite": self.rewrite}[self.task.kind]
        rows = read_rows(self.store, task.rows[0], task.bucket, task.buckets) if task.rows else None
        parts: list[Partition] = []
        files: Files = {}
        counts: dict[str, Counts] = {}
        for part in task.parts:
            if part.documents is None:
                changed, written, count = part, Files(), untouched(part)
            else:
                changed, written, count = change(part, part.documents, rows_of_part(rows, part))
            parts.append(changed)
            files |= {f"{part.key}/{name}": facts for name, facts in written.items()}
            counts.setdefault(part.source, Counts()).add(count)
        for count in counts.values():
            count.seconds = (time.perf_counter() - start) / len(counts)
        return VerdictsResult(parts=tuple(parts), files=files, counts=counts, peak_memory=peak_memory())

    def drop(self, part: Partition, documents: FileRef, rows: pa.Table | None) -> Change:
        if rows is None:
            return self.without_rows(part, documents)
        uid = self.uids(documents)
        check_verdicts("drop", rows)
        rows = rows.sort_by("uid")
        order = np.argsort(uid, kind="stable")
        place = order[np.clip(np.searchsorted(uid, rows.column("uid").to_numpy(), sorter=order), 0, len(uid) - 1)]
        if not (uid[place] == rows.column("uid").to_numpy()).all():
            raise ContractBroken(f"the rows to drop name documents that are not in part {part.key}")
        return self.attach(part, rows, uid, place)

    def mark(self, part: Partition, documents: FileRef, rows: pa.Table | None) -> Change:
        function = bound_method(self.store, self.task, self.stage)
        marks: list[pa.Table] = []
        for batch in read_part(self.store, part, self.task.columns):
            table = pa.Table.from_batches([batch])
            marked = function(table)
            check_verdicts(self.task.method, marked)
            check_documents(self.task.method, marked, table)
            check_same_types((marks or [marked])[0].schema, marked.schema)
            marks.append(marked)
        if not marks:
            return part, {}, untouched(part)
        places = np.flatnonzero(kept_mask(self.store, part))
        return self.attach(part, widened(pa.concat_tables(marks)), self.uids(documents), places)

    def rewrite(self, part: Partition, documents: FileRef, rows: pa.Table | None) -> Change:
        if rows is None or not part.kept:
            return self.without_rows(part, documents)
        table = pa.Table.from_batches(list(read_part(self.store, part)))
        rewritten = bound_method(self.store, self.task, self.stage)(rows, widened(table.select(self.task.columns)))
        check_verdicts(self.task.method, rewritten, changes=["text"])
        check_documents(self.task.method, rewritten, table)
        kept = pc.is_null(rewritten.column("reason"))
        if "text" in rewritten.column_names:
            check_texts(table, rewritten, kept.to_numpy())
        count, files = untouched(part), Files()
        if not pc.all(kept).as_py():
            fate = pa.table({name: rewritten.column(name) for name in ("uid", "reason", "detail")})
            count, files = self.reject(part, fate)
        table = with_columns_of(table, rewritten).filter(kept)
        count.text_bytes = text_length(table)
        facts = None
        if len(table):
            table = pa.Table.from_batches([with_text_lengths(batch) for batch in table.to_batches()])
            facts = write_table(self.store, f"{self.base(part)}.documents.parquet", table)
        if facts is not None:
            files["documents"] = facts
        changed = replace(
            part,
            documents=facts,
            verdicts=(),
            signals=(),
            rows=len(table),
            kept=len(table),
            text_bytes=count.text_bytes,
        )
        return changed, files, count

    def without_rows(self, part: Partition, documents: FileRef) -> Change:
        """A part in which the stage found nothing: its signals are there all the same, null, so that no column depends
        on the data."""
        if not part.kept or not self.stage.added_types:
            return part, {}, untouched(part)
        none = {"uid": pa.uint64(), "reason": pa.string(), "detail": pa.string(), **self.stage.added_types}
        rows = pa.table({name: pa.array([], kind) for name, kind in none.items()})
        return self.attach(part, rows, self.uids(documents), np.zeros(0, np.int64))

    def base(self, part: Partition) -> str:
        return f"partitions/{self.stage.called}/{part.key}.{self.task.task[:8]}"

    def uids(self, documents: FileRef) -> NDArray[np.uint64]:
        with open_checked(self.store, documents) as file:
            uid: NDArray[np.uint64] = pq.ParquetFile(file).read(columns=["uid"]).column("uid").to_numpy()
        return uid

    def attach(self, part: Partition, rows: pa.Table, uid: NDArray[np.uint64], place: NDArray[np.int64]) -> Change:
        """Rows on documents, `place` of each in its part, as files beside the part's."""
        count, files = untouched(part), Files()
        reason = scatter(rows.column("reason"), place, len(uid), pa.string())
        kept = pc.is_null(reason)
        if not pc.all(kept).as_py():
            name = pa.array([self.stage.called]).take(pa.array(np.zeros(len(uid), dtype=np.int8)))
            verdicts = pa.table(
                {
                    "uid": uid,
                    "kept": kept,
                    "stage": pc.if_else(kept, pa.scalar(None, pa.string()), name),
                    "reason": reason,
                    "detail": scatter(rows.column("detail"), place, len(uid), pa.string()),
                }
            )
            facts = write_every_row(self.store, f"{self.base(part)}.verdicts.parquet", verdicts)
            count, rejected = self.reject(part, verdicts)
            files |= {"verdicts": facts, **rejected}
            part = replace(part, verdicts=(*part.verdicts, facts), kept=count.kept, text_bytes=count.text_bytes)
        signals = {
            name: scatter(rows.column(name), place, len(uid), rows.schema.field(name).type)
            for name in rows.column_names
            if name not in FATE
        }
        if signals:
            facts = write_every_row(self.store, f"{self.base(part)}.signals.parquet", pa.table({"uid": uid} | signals))
            files["signals"] = facts
            part = replace(part, signals=(*part.signals, facts))
        return part, files, count

    def reject(self, part: Partition, verdicts: pa.Table) -> tuple[Counts, Files]:
        """Write the documents that go, with their texts, into the rejects; the account of it."""
        task = self.task
        count = Counts(docs_in=part.kept, text_bytes=part.text_bytes)
        fate = verdicts.filter(pc.is_valid(verdicts.column("reason"))).combine_chunks()
        reasons = pc.value_counts(fate.column("reason")).to_pylist()
        count.dropped.update({row["values"]: row["counts"] for row in reasons})
        with part_writers() as writers:
            name = f"{part.key}.{task.task[:8]}"
            rejects = RejectsWriter(self.store, name, part.source, task.rejects, writers)
            for batch in read_part(self.store, part, ["uid", "url", "id", "text"]):
                place = pc.index_in(batch.column("uid"), value_set=fate.column("uid").combine_chunks())
                is_gone = pc.is_valid(place)
                why = fate.take(place.filter(is_gone))
                gone = batch.filter(is_gone)
                count.text_bytes -= text_length(gone)
                rejects.named(self.stage.called, gone, why.column("reason"), why.column("detail"))
            files = rejects.close()
        count.kept = count.docs_in - sum(count.dropped.values())
        return count, files


def scatter(
    values: pa.ChunkedArray, place: NDArray[np.int64], length: int, kind: pa.DataType
) -> pa.Array | pa.ChunkedArray:
    """Values at their places in a column of nulls."""
    if len(place) == length and bool((place == np.arange(length)).all()):
        return values.cast(kind)
    index = np.full(length, -1, dtype=np.int64)
    index[place] = np.arange(len(place))
    return values.cast(kind).combine_chunks().take(pa.array(index, mask=index < 0))


def with_columns_of(documents: pa.Table, rewritten: pa.Table) -> pa.Table:
    """Documents with the texts and signals that a stage made for each."""
    for name in rewritten.column_names:
        if name in FATE:
            continue
        index = documents.schema.get_field_index(name)
        values = rewritten.column(name)
        if index < 0:
            documents = documents.append_column(name, values)
            continue
        if values.type == pa.large_string():  # as files of other parts have it
            values = values.cast(documents.schema.field(index).type)
        documents = documents.set_column(index, name, values)
    return documents
