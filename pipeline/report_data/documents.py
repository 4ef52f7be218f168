"""What tasks for the report share: the task itself, and documents as a report shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.pipeline.formatting import as_hex
from gristmill.pipeline.store.partitions import as_lying, read_part
from gristmill.pipeline.store.records import LookTask, Partition
from gristmill.pipeline.store.serialize import plain
from gristmill.pipeline.store.storage import Store, digest
from gristmill.stages.documents import BATCH_ROWS

Value: TypeAlias = "bool | int | float | str | bytes | Sequence[Value] | Mapping[str, Value] | None"  # a Parquet cell
Row: TypeAlias = "dict[str, Value]"  # all columns of a Parquet row
CHARACTERS = 600  # of the text of a sample


class SampleEntry(TypedDict, total=False):
    """A document in report.json or survey.json."""

    uid: str | None
    url: str | None
    source: str | None
    detail: str | None
    text: str | None


def sample_entry(row: Mapping[str, Any], source: str, detail: str | None) -> SampleEntry:
    """A document with the beginning of its text."""
    text = (row["text"] or "")[:CHARACTERS]
    return {"uid": as_hex(row["uid"]), "url": row["url"], "source": source, "detail": detail, "text": text}


def report_task(store: Store, step: str, node: str, key: str, cost: int, given: dict[str, Any]) -> LookTask:
    """A task that reads documents for the report."""
    return LookTask(
        task=digest([step, node, key, plain(given)]),
        node=node,
        key=key,
        cost=cost,
        out=store.anywhere,
        step=step,
        given=given,
    )


def stored_batches(
    store: Store, part: Partition, columns: Sequence[str], needed: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """The documents of a part; where none are stored, those in the first of its sinks that has the `needed` columns."""
    if part.documents is not None:
        yield from read_part(store, part, columns)
        return
    for path in part.sinks.values():
        with store.open(as_lying(store, path)) as file:
            written = pq.ParquetFile(file)
            there = written.schema_arrow.names
            if set(needed) <= set(there):
                yield from written.iter_batches(BATCH_ROWS, columns=[name for name in columns if name in there])
                return
