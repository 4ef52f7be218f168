"""Documents for other programs, in columns named as in FineWeb (Penedo et al. 2024), so that what reads FineWeb reads
these."""

from __future__ import annotations

import json
from typing import Annotated

import pyarrow as pa
from pydantic import Field

from gristmill.stages.documents import BASE, PAGE, column_of
from gristmill.stages.stage import Sink, with_columns

# FineWeb's columns less dump and file_path, then ours. All are always there, null where unknown: parts never differ in
# schema.
COLUMNS = pa.schema(
    [
        pa.field("text", pa.string()),
        pa.field("id", pa.string()),
        pa.field("url", pa.string()),
        pa.field("date", pa.string()),
        pa.field("language", pa.string()),
        pa.field("language_score", pa.float64()),
        pa.field("token_count", pa.int64()),
        pa.field("uid", pa.uint64()),
        pa.field("source", pa.string()),
        pa.field("meta", pa.string()),
    ]
)
OURS = {"token_count": "tokens"}  # what a stage of ours calls it


class Write(Sink):
    """Writes what passes through it, as Parquet with FineWeb's column names and our `uid`, `source` and `meta`."""

    dump: Annotated[
        str | None, Field(description="name of the crawl (CC-MAIN-2024-10); adds `dump`, and `file_path` out of `meta`")
    ] = None
    signals: Annotated[bool, Field(description="also write the signals measured so far, by name")] = True
    vectors: Annotated[
        bool, Field(description="of these also vectors (lists of one length, as `embedding`), which are large")
    ] = False

    def table(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = {field.name: known(batch, field) for field in COLUMNS}
        if self.dump is not None:
            columns["dump"] = pa.array([self.dump] * len(batch), pa.string())
            columns["file_path"] = column_of(from_meta(batch, "file_path"), pa.string())
        if self.signals:
            taken = {*columns, *BASE.names, *PAGE.names}
            columns |= {
                name: batch.column(name)
                for name in sorted(batch.schema.names)
                if name not in taken and (self.vectors or not is_vector(batch.schema.field(name)))
            }
        empty = pa.RecordBatch.from_arrays([columns.pop("text")], names=["text"])
        return with_columns(empty, columns)


def is_vector(field: pa.Field) -> bool:
    return bool(pa.types.is_fixed_size_list(field.type))


def known(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    names = [name for name in (field.name, OURS.get(field.name)) if name in batch.schema.names]
    index = batch.schema.get_field_index(names[0]) if names else -1
    return batch.column(index).cast(field.type) if index >= 0 else pa.nulls(len(batch), field.type)


def from_meta(batch: pa.RecordBatch, key: str) -> list[str | None]:
    """What a source has under this key, as text: one that had a number there is no fault."""
    metas = batch.column(batch.schema.get_field_index("meta")).to_pylist()
    values = [json.loads(meta).get(key) if meta else None for meta in metas]
    return [
        value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values
    ]
