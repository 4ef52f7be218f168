"""Batches of an Arrow table as documents, column by column; only `meta` is made row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.documents import BASE, Collector, Reading, as_json, column_of, uid_of
from stages.read.charset import decode_text
from stages.read.rows import RowReader, mended, no_text_among, string_of
from stages.stage import Origin


def reading_of(batch: pa.RecordBatch, group: int, first_row: int, reader: RowReader, origin: Origin) -> Reading:
    """The rows of a batch as documents; `first_row` is its first row's number in the group."""
    batch = pa.RecordBatch.from_arrays([sound(column) for column in batch.columns], names=batch.schema.names)
    found = {name: field(batch, paths) for name, paths in reader.paths().items()}
    texts = as_text(found["text"][1], batch.num_rows)
    lengths = pc.fill_null(pc.binary_length(texts), -1).to_numpy(zero_copy_only=False)
    large, missing = lengths > reader.max_record_bytes, lengths < 0
    kept = pa.array(~(large | missing))
    urls = strings(found["url"][1], batch.num_rows)

    account = Collector(origin.source, origin.path)
    for row in np.flatnonzero(large | missing).tolist():
        url = mended(urls[row].as_py())
        if missing[row]:
            account.skip("no_text", url)
        else:
            account.skip("too_large", url, f"{lengths[row]} bytes")
    reading = account.take()

    rows = np.flatnonzero(~(large | missing)).tolist()
    values = {
        "uid": pa.array([uid_of(origin.source, origin.path, f"{group}:{first_row + row}") for row in rows], pa.uint64()),
        "source": pa.DictionaryArray.from_arrays(pa.array([0] * len(rows), pa.int32()), pa.array([origin.source], pa.string())),
        "id": strings(found["id"][1], batch.num_rows).filter(kept),
        "url": urls.filter(kept),
        "date": strings(found["date"][1], batch.num_rows).filter(kept),
        "text": texts.filter(kept),
        "meta": metas(batch.filter(kept), [path for path, _ in found.values() if path], reader.keep),
    }
    reading.documents = pa.RecordBatch.from_arrays([values[f.name] for f in BASE], schema=BASE)
    return reading


def why_no_text(schema: pa.Schema, reader: RowReader) -> str | None:
    """What to tell whoever wrote the recipe where no row of a table can have text; None where rows may."""
    paths = reader.paths()["text"]
    for path in paths:
        names = [path] if path in schema.names else path.split(".")
        if reaches(schema, names):
            kind = type_at(schema, names)
            return None if holds_text(kind) else f"its column {path} is {kind} and no text; name the text's column with `text:`"
    return no_text_among(paths, schema.names)


def type_at(schema: pa.Schema, names: list[str]) -> pa.DataType:
    kind = schema.field(names[0]).type
    for name in names[1:]:
        kind = kind.field(name).type
    return kind


def holds_text(kind: pa.DataType) -> bool:
    """Can a column of this type hold what `as_text` takes for text?"""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return is_binary(kind) or pa.types.is_string(kind) or is_string(kind)


def field(batch: pa.RecordBatch, paths: tuple[str, ...]) -> tuple[str | None, pa.Array | None]:
    """The first of the paths that the batch has, and its column."""
    for path in paths:
        names = [path] if path in batch.schema.names else path.split(".")
        if reaches(batch.schema, names):
            column = batch.column(names[0])
            return path, pc.struct_field(column, names[1:]) if names[1:] else column
    return None, None


def reaches(schema: pa.Schema, names: list[str]) -> bool:
    if schema.names.count(names[0]) != 1:
        return False
    kind = schema.field(names[0]).type
    for name in names[1:]:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return False
        kind = kind.field(name).type
    return True


def sound(column: pa.Array) -> pa.Array:
    """A column of strings with what is not UTF-8 replaced; Parquet's writers do not all check."""
    if not (pa.types.is_string(column.type) or is_string(column.type)):
        return column
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([None if v is None else v.decode("utf-8", "replace") for v in column.cast(pa.binary()).to_pylist()], pa.string())
    return column.cast(pa.string()) if pa.types.is_string_view(column.type) else column  # views cannot be filtered in every pyarrow


def as_text(column: pa.Array | None, rows: int) -> pa.Array:
    """Text as strings; bytes are decoded, what is neither counts as missing."""
    if column is None:
        return pa.nulls(rows, pa.string())
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_binary(column.type):
        return pa.array([None if value is None else decode_text(value) for value in column.to_pylist()], pa.string())
    if pa.types.is_string(column.type):
        return column
    return column.cast(pa.string()) if is_string(column.type) else pa.nulls(rows, pa.string())


def strings(column: pa.Array | None, rows: int) -> pa.Array:
    if column is None:
        return pa.nulls(rows, pa.string())
    if pa.types.is_string(column.type):
        return column
    return column_of([string_of(value) for value in column.to_pylist()], pa.string())


def is_binary(kind: pa.DataType) -> bool:
    return any(
        test(kind) for test in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    )


def is_string(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pa.types.is_large_string, pa.types.is_string_view))


def metas(batch: pa.RecordBatch, mapped: list[str], keep: list[str] | None) -> pa.Array:
    """The rest of each row as JSON; values that are missing are left out, and so is an object that is empty."""
    names = [n for n in batch.schema.names if n not in mapped and batch.schema.names.count(n) == 1 and (keep is None or n in keep)]
    inner = [path.split(".") for path in mapped if path not in batch.schema.names]
    columns = [batch.column(name).to_pylist() for name in names]
    rows: list[str | None] = []
    for values in zip(*columns, strict=True):
        row = dict(zip(names, values, strict=True))
        for path in inner:
            remove(row, path)
        row = {name: value for name, value in row.items() if value is not None and value != {}}
        rows.append(as_json(row) if row else None)
    return column_of(rows if names else [None] * batch.num_rows, pa.string())


def remove(row: dict[str, Any], path: list[str]) -> None:
    for name in path[:-1]:
        row = row.get(name) or {}
    row.pop(path[-1], None)
