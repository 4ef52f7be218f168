"""Columns of files as tables: texts with their labels, weights and scores, where no documents are wanted. Every row
keeps its place, with a text or without.

Bytes are read as the readers of documents read them: packing by content, lines, batches, charsets. The format is told
by the file's name. CSV has no reader of documents, and is read here. A file that is damaged is refused whole.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from gristmill.stages.read.arrow import Arrow, batches
from gristmill.stages.read.charset import decode_text
from gristmill.stages.read.jsonl import Jsonl, lines
from gristmill.stages.read.members import Chunks, Damaged, Unpacked, Window, codec_for, plain_chunks
from gristmill.stages.read.parquet import Parquet
from gristmill.stages.read.plain import Plain, contents
from gristmill.stages.read.tables import as_text, holds_text, sound

ROWS = 4096  # of a piece
WHOLE = 1 << 62  # bytes of a line or a file, which have no limit here
PARQUET = (*Parquet.suffixes, ".pq")
COMMAS = (".csv", ".csv.gz", ".csv.zst")
LINES = (*Jsonl.suffixes, ".json")
SUFFIXES = (*PARQUET, *Arrow.suffixes, *LINES, *COMMAS, *Plain.suffixes)
BROKEN = (pa.ArrowException, Damaged, UnicodeError)  # what a file that cannot be read raises


class NoRow(ValueError):
    """A line that is no row; the message says which and why."""


def pieces(file: BinaryIO, path: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """A file in tables of some thousand rows, with those of the columns that it has; all unless given."""
    name = PurePosixPath(path).name.lower()
    if name.endswith(PARQUET):
        table = pq.ParquetFile(file)
        wanted = [each for each in table.schema_arrow.names if columns is None or each in columns]
        if not wanted:
            yield pa.table({})
        for batch in table.iter_batches(ROWS, columns=wanted) if wanted else ():
            yield pa.Table.from_batches([batch])
    elif name.endswith(Arrow.suffixes):
        for batch in batches(file):
            for start in range(0, len(batch), ROWS):
                yield _chosen(pa.Table.from_batches([batch.slice(start, ROWS)]), columns)
    elif name.endswith(LINES):
        yield from _rows(_chunks(file, path), columns)
    elif name.endswith(COMMAS):
        options = pcsv.ParseOptions(newlines_in_values=True)
        yield _chosen(pcsv.read_csv(io.BytesIO(_whole(file, path)), parse_options=options), columns)
    else:
        yield pa.table({"text": pa.array([decode_text(_whole(file, path))], pa.large_string())})


def names_in(file: BinaryIO, path: str) -> list[str]:
    """The columns of a file, by its first rows."""
    if path.lower().endswith(PARQUET):
        return list(pq.read_schema(file).names)
    return list(next(iter(pieces(file, path)), pa.table({})).column_names)


def texts_of(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """A column as texts; bytes are decoded. None: it holds neither."""
    if not (holds_text(column.type) or pa.types.is_null(column.type)):
        return None
    chunks = [as_text(sound(chunk)).cast(pa.large_string()) for chunk in column.chunks]
    return pa.chunked_array(chunks, pa.large_string())


def _chosen(table: pa.Table, columns: Sequence[str] | None) -> pa.Table:
    return table.select([name for name in table.column_names if columns is None or name in columns])


def _chunks(file: BinaryIO, path: str) -> Chunks:
    size = file.seek(0, os.SEEK_END)  # before the window, which remembers where the file stands
    window = Window(file)
    codec = codec_for(window, path)
    return plain_chunks(window, 0) if codec is None else Unpacked(codec, window, size).chunk


def _whole(file: BinaryIO, path: str) -> bytes:
    size = file.seek(0, os.SEEK_END)
    window = Window(file)
    return contents(window, codec_for(window, path), size, WHOLE)


def _rows(chunk: Chunks, columns: Sequence[str] | None) -> Iterator[pa.Table]:
    damages: list[Damaged] = []

    def noted() -> bytes:
        try:
            return chunk()
        except Damaged as damage:
            damages.append(damage)
            raise

    rows: list[dict[str, Any]] = []
    for number, (_, line) in enumerate(lines(noted, 0, WHOLE), 1):
        if not (line or b"").strip():
            continue
        try:
            row = json.loads(line or b"")
        except (ValueError, RecursionError) as error:
            raise NoRow(f"{number}: no JSON: {error}") from error
        if not isinstance(row, dict):
            raise NoRow(f"{number}: expected an object, a row of a table; it is {type(row).__name__}")
        rows.append(row)
        if len(rows) == ROWS:
            yield _of_rows(rows, columns)
            rows = []
    if damages:  # a stream that broke ends the lines
        raise damages[0]
    yield _of_rows(rows, columns)


def _of_rows(rows: list[dict[str, Any]], columns: Sequence[str] | None) -> pa.Table:
    known = dict.fromkeys(name for row in rows for name in row) if columns is None else dict.fromkeys(columns)
    there = [name for name in known if any(name in row for row in rows)]
    return pa.table({name: _column([row.get(name) for row in rows]) for name in there})


def _column(values: list[Any]) -> pa.Array:
    if any(isinstance(value, str) for value in values):
        texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
        sound_texts = [None if text is None else text.encode("utf-8", "replace").decode() for text in texts]
        return pa.array(sound_texts, pa.large_string())
    return pa.array(values)
