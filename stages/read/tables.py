"""Batches of an Arrow table as documents, column by column; only `meta` is made row by row."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.stages.documents import (
    BASE,
    PAGE,
    Collector,
    Reading,
    as_json,
    column_of,
    mended,
    page_schema,
    uids_of,
    without_nuls,
)
from gristmill.stages.read.charset import decode_text, is_utf8
from gristmill.stages.read.rows import UTF_8, RowReader, missing_field, string_of
from gristmill.stages.stage import Origin

NO_VALUE = (
    ValueError,
    OverflowError,
    KeyError,
)  # what pyarrow raises where Python has no such value: text, time, time zone


def reading_of(batch: pa.RecordBatch, group: int, first_row: int, reader: RowReader, origin: Origin) -> Reading:
    """The rows of a batch as documents; `first_row` is its first row's number in the group."""
    pages = pages_of(batch, reader.html) if reader.html is not None else None
    batch = pa.RecordBatch.from_arrays([sound(column) for column in batch.columns], names=batch.schema.names)
    fields = {name: places(batch, paths) for name, paths in reader.paths().items()}
    content = pages.html if pages is not None else first_of(text_columns(fields["text"].columns), batch.num_rows)
    lengths = pc.fill_null(pc.binary_length(content), -1).to_numpy(zero_copy_only=False)
    large, missing = lengths > reader.max_record_bytes, lengths < 0
    urls, ids, dates = (
        first_of([strings(column) for column in fields[name].columns], batch.num_rows) for name in ("url", "id", "date")
    )

    account = Collector(origin.source, origin.path)
    for row in np.flatnonzero(large | missing).tolist():
        url = mended(urls[row].as_py())
        if missing[row]:
            account.skip(f"no_{reader.content}", url)
        else:
            account.skip("too_large", url, f"{lengths[row]} bytes")
    reading = account.take()

    rows = np.flatnonzero(~(large | missing)).tolist()

    def kept(column: pa.Array) -> pa.Array:
        return column if len(rows) == batch.num_rows else column.filter(pa.array(~(large | missing)))

    values = {
        "uid": pa.array(uids_of(origin.source, origin.path, first_row + np.array(rows, np.int64), f"{group}:")),
        "source": pa.DictionaryArray.from_arrays(
            pa.array([0] * len(rows), pa.int32()), pa.array([origin.source], pa.string())
        ),
        "id": kept(ids),
        "url": kept(urls),
        "date": kept(dates),
        "text": kept(content) if pages is None else pa.nulls(len(rows), pa.string()),
        "meta": kept(metas(batch, [place for place in fields.values() if place.paths], reader.keep)),
    }
    values["text"], reading.nuls = without_nuls(values["text"])
    if pages is not None:
        values |= {"html": kept(content).cast(PAGE.field("html").type), "charset": kept(pages.charset)}
    schema = BASE if pages is None else page_schema()
    reading.documents = pa.RecordBatch.from_arrays([values[f.name] for f in schema], schema=schema)
    return reading


class Pages(NamedTuple):
    """Pages of a table's rows, null where a row has none, and what charset is known of each."""

    html: pa.Array  # large_binary
    charset: pa.Array


def pages_of(batch: pa.RecordBatch, path: str) -> Pages:
    """The pages that a column holds. Bytes may be of any charset, and so are strings that are no UTF-8; a blank page is
    none."""
    names = [path] if path in batch.schema.names else path.split(".")
    column = pa.nulls(batch.num_rows, pa.binary())
    if reaches(batch.schema, names):
        column = batch.column(names[0])
        column = pc.struct_field(column, names[1:]) if names[1:] else column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not holds_text(column.type):
        column = pa.nulls(len(column), pa.binary())
    html = column.cast(pa.large_binary())
    html = pc.if_else(pc.match_substring_regex(html, r"\S"), html, pa.scalar(None, pa.large_binary()))
    if is_binary(column.type):
        return Pages(html, pa.nulls(len(html), pa.string()))
    try:
        html.cast(pa.large_string())
    except pa.ArrowInvalid:
        return Pages(
            html,
            column_of(
                [UTF_8 if page is not None and is_utf8(page) else None for page in html.to_pylist()], pa.string()
            ),
        )
    return Pages(html, pa.array([UTF_8] * len(html), pa.string()))


def why_no_text(schema: pa.Schema, reader: RowReader) -> str | None:
    """What to tell whoever wrote the recipe where no row of a table can have text, or a page; None where rows may."""
    paths = reader.paths()[reader.content]
    apart = {path: [path] if path in schema.names else path.split(".") for path in paths}
    kinds = {path: type_at(schema, names) for path, names in apart.items() if reaches(schema, names)}
    if not kinds:
        return missing_field(reader, schema.names)
    path = next(
        (path for path, kind in kinds.items() if not pa.types.is_null(kind)), next(iter(kinds))
    )  # nulls leave it to the next, as in a row
    if holds_text(kinds[path]):
        return None
    return (
        f"its column {path} is {kinds[path]} and no text; name the {reader.content}'s column with `{reader.content}:`"
    )


def type_at(schema: pa.Schema, names: list[str]) -> pa.DataType:
    kind = schema.field(names[0]).type
    for name in names[1:]:
        kind = kind.field(name).type
    return kind


def holds_text(kind: pa.DataType) -> bool:
    """Can a column of this type hold what `as_text` takes for text?"""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return is_binary(kind) or pa.types.is_string(kind) or is_string(kind)


class Places(NamedTuple):
    """Where a field of the documents may stand in a row, first choice first."""

    paths: list[str]
    columns: list[pa.Array]

    def taken(self) -> list[str]:
        """For each row the path whose value counts: the first that holds one."""
        return [
            self.paths[place] for place in np.argmax([column.is_valid() for column in self.columns], axis=0).tolist()
        ]


def places(batch: pa.RecordBatch, paths: tuple[str, ...]) -> Places:
    """Those of the paths that the batch has, with their columns."""
    present = Places([], [])
    for path in paths:
        names = [path] if path in batch.schema.names else path.split(".")
        if reaches(batch.schema, names):
            column = batch.column(names[0])
            present.paths.append(path)
            present.columns.append(sound(pc.struct_field(column, names[1:])) if names[1:] else column)
    return present


def first_of(columns: list[pa.Array], rows: int) -> pa.Array:
    """For each row the first value that is one."""
    return pc.coalesce(*columns) if columns else pa.nulls(rows, pa.string())


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
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (pa.types.is_string(column.type) or is_string(column.type)):
        return column
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array(
            [None if v is None else v.decode("utf-8", "replace") for v in column.cast(pa.binary()).to_pylist()],
            pa.string(),
        )
    return (
        column.cast(pa.string()) if pa.types.is_string_view(column.type) else column
    )  # views cannot be filtered in every pyarrow


def text_columns(columns: list[pa.Array]) -> list[pa.Array]:
    """As text, up to the first that is none: it is what its rows have for text, and so they have none."""
    none = next(
        (n for n, column in enumerate(columns) if not holds_text(column.type) and not pa.types.is_null(column.type)),
        len(columns),
    )
    return [as_text(column) for column in columns[: none + 1]]


def as_text(column: pa.Array) -> pa.Array:
    """Text as strings; bytes are decoded, what is neither counts as missing."""
    if is_binary(column.type):
        return pa.array([None if value is None else decode_text(value) for value in column.to_pylist()], pa.string())
    if pa.types.is_string(column.type):
        return column
    return column.cast(pa.string()) if is_string(column.type) else pa.nulls(len(column), pa.string())


def strings(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        return column
    return column_of([string_of(value) for value in values_of(column)], pa.string())


def values_of(column: pa.Array) -> list[Any]:
    """The values of a column for Python; of those that it cannot hold, as texts that are no UTF-8 and times past its
    years, a text."""
    try:
        return list(column.to_pylist())
    except NO_VALUE:
        return [value_of(scalar) for scalar in column]


def value_of(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except NO_VALUE:
        kind = scalar.type
    if pa.types.is_struct(kind):
        return {kind.field(index).name: value_of(scalar[index]) for index in range(kind.num_fields)}
    if pa.types.is_map(kind):
        return [
            [value_of(key), value_of(value)]
            for key, value in zip(scalar.values.field(0), scalar.values.field(1), strict=True)
        ]
    if pa.types.is_nested(kind):
        return [value_of(value) for value in scalar.values]
    if pa.types.is_dictionary(kind):
        return value_of(scalar.value)
    if pa.types.is_string(kind) or is_string(kind):
        return scalar.as_buffer().to_pybytes().decode("utf-8", "replace")
    try:
        return pc.cast(scalar, pa.string()).as_py()
    except pa.ArrowInvalid:  # a time in a zone that nobody knows
        return str(scalar.value)


def is_binary(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
        )
    )


def is_string(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pa.types.is_large_string, pa.types.is_string_view))


def metas(batch: pa.RecordBatch, mapped: list[Places], keep: list[str] | None) -> pa.Array:
    """The rest of each row as JSON; values that are missing are left out, and so is an object that is empty."""
    given = batch.schema.names
    whole = {
        place.paths[0] for place in mapped if len(place.paths) == 1 and place.paths[0] in given
    }  # columns that are no row's rest
    names = [n for n in given if n not in whole and given.count(n) == 1 and (keep is None or n in keep)]
    apart = {
        path: [path] if path in given else path.split(".")
        for place in mapped
        for path in place.paths
        if path not in whole
    }
    taken = [place.taken() for place in mapped if place.paths[0] not in whole]
    columns = [values_of(batch.column(name)) for name in names]
    rows: list[str | None] = []
    for number, values in enumerate(zip(*columns, strict=True)):
        row = dict(zip(names, values, strict=True))
        for paths in taken:
            remove(row, apart[paths[number]])
        row = {name: value for name, value in row.items() if value is not None and value != {}}
        rows.append(as_json(row) if row else None)
    return column_of(rows if names else [None] * batch.num_rows, pa.string())


def remove(row: dict[str, Any], path: list[str]) -> None:
    for name in path[:-1]:
        row = row.get(name) or {}
    row.pop(path[-1], None)
