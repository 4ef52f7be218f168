"""Tables of the files that a command is given: Parquet, Arrow, JSON lines, CSV, and plain text, where a file is one
document.

Columns are those that are asked for and there; what a file holds is never guessed from its content, only from its name.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, cast

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.inputs.files import files_at, open_input
from gristmill.pipeline.json_types import JSON, JSONObject
from gristmill.stages.inputs import InputFile
from gristmill.stages.read.charset import decode_text
from gristmill.stages.read.rows import string_of
from gristmill.stages.read.tables import is_binary, is_string, sound

ROWS = 4096  # of a piece
LABELLED_BY = "gristmill.labelled_by"  # in the metadata of a table of labels: who gave them, and how
PARQUET, ARROW, LINES, COMMAS, PLAIN = (
    (".parquet", ".pq"),
    (".arrow", ".feather", ".ipc"),
    (".jsonl", ".ndjson", ".json"),
    (".csv",),
    (".txt", ".text", ".md"),
)
PACKED = (".gz", ".zst")
SUFFIXES = PARQUET + ARROW + tuple(kind + packed for kind in LINES + COMMAS + PLAIN for packed in ("", *PACKED))


def files_of(paths: Sequence[str], who: str) -> list[InputFile]:
    """Every file that the paths name; in folders, those of a kind that can be read."""
    files = [file for path in paths for file in files_at(path, Path(), SUFFIXES, who)]
    for file in files:
        if not file.address.lower().endswith(SUFFIXES):
            raise RecipeError(f"{who}: {file.address}: its name ends in none of {', '.join(SUFFIXES)}")
    return files


def table_of(files: Sequence[InputFile], columns: Sequence[str]) -> pa.Table:
    """All files as one table; a column that a file lacks is null there."""
    pieces = [piece for file in files for piece in pieces_of(file, columns)]
    try:
        return pa.concat_tables(pieces, promote_options="permissive") if pieces else pa.table({})
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise RecipeError(
            f"{files[0].address} and the files beside it disagree on what a column holds: {error}"
        ) from error


def pieces_of(file: InputFile, columns: Sequence[str]) -> Iterator[pa.Table]:
    """A file in tables of some thousand rows."""
    name = PurePosixPath(file.address).name.lower()
    suffix = PurePosixPath(name.removesuffix(".gz").removesuffix(".zst")).suffix
    try:
        with open_input(file.address) as stream:
            if suffix in PARQUET:
                yield from _parquet(stream, columns)
            elif suffix in ARROW:
                yield from _arrow(stream, columns)
            elif suffix in LINES:
                yield from _lines(_unpacked(stream, name), file.address, columns)
            elif suffix in COMMAS:
                yield _chosen(_commas(_unpacked(stream, name)), columns)
            else:
                text = decode_text(_unpacked(stream, name).read())
                yield pa.table({"text": pa.array([text], pa.large_string())})
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        EOFError,
        gzip.BadGzipFile,
        UnicodeError,
    ) as error:
        raise RecipeError(f"{file.address}: cannot be read: {error}") from error


def with_texts(table: pa.Table, name: str, where: str) -> pa.Table:
    """The table with a column as texts: bytes are decoded, and what is neither is refused."""
    column = table[name]
    if pa.types.is_dictionary(column.type):
        column = pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], column.type.value_type)
    kind = column.type
    if is_binary(kind):
        texts = pa.chunked_array(
            [[None if value is None else decode_text(value) for value in column.to_pylist()]], pa.large_string()
        )
    elif pa.types.is_string(kind) or is_string(kind) or pa.types.is_null(kind):
        texts = pa.chunked_array([sound(chunk).cast(pa.large_string()) for chunk in column.chunks], pa.large_string())
    else:
        raise RecipeError(f"{where}: column {name!r} holds {kind}; texts were expected")
    return table.set_column(table.column_names.index(name), name, texts)


def as_words(column: pa.ChunkedArray) -> pa.Array:
    """A column of any type as short texts, for display."""
    return pa.array([string_of(value) for value in column.to_pylist()], pa.string())


def _parquet(stream: IO[bytes], columns: Sequence[str]) -> Iterator[pa.Table]:
    file = pq.ParquetFile(stream)
    wanted = [name for name in file.schema_arrow.names if name in columns]
    if not wanted:
        yield pa.table({})
        return
    for batch in file.iter_batches(ROWS, columns=wanted):
        yield pa.Table.from_batches([batch])


def _arrow(stream: IO[bytes], columns: Sequence[str]) -> Iterator[pa.Table]:
    try:
        table = ipc.open_file(stream).read_all()
    except pa.ArrowInvalid:
        stream.seek(0)
        table = ipc.open_stream(stream).read_all()
    for start in range(0, len(table), ROWS):
        yield _chosen(table.slice(start, ROWS), columns)


def _commas(stream: IO[bytes]) -> pa.Table:
    return pcsv.read_csv(io.BytesIO(stream.read()), parse_options=pcsv.ParseOptions(newlines_in_values=True))


def _lines(stream: IO[bytes], where: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    rows: list[JSONObject] = []
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RecipeError(f"{where}:{number}: no JSON: {error}") from error
        if not isinstance(row, dict):
            raise RecipeError(f"{where}:{number}: expected an object, a row of a table; it is {type(row).__name__}")
        rows.append(row)
        if len(rows) == ROWS:
            yield _of_rows(rows, columns)
            rows = []
    yield _of_rows(rows, columns)


def _of_rows(rows: list[JSONObject], columns: Sequence[str]) -> pa.Table:
    there = [name for name in dict.fromkeys(columns) if any(name in row for row in rows)]
    return pa.table({name: _column([row.get(name) for row in rows]) for name in there})


def _column(values: list[JSON]) -> pa.Array:
    if any(isinstance(value, str) for value in values):
        texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
        return pa.array(
            [None if text is None else text.encode("utf-8", "replace").decode() for text in texts],
            pa.large_string(),
        )
    return pa.array(values)


def _chosen(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    return table.select([name for name in table.column_names if name in columns])


def _unpacked(stream: IO[bytes], name: str) -> IO[bytes]:
    if name.endswith(".gz"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=stream))
    if name.endswith(".zst"):
        import zstandard

        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True))
    return stream


def noted_in(file: InputFile, key: str) -> JSONObject | None:
    """What a Parquet file says of itself under a key of its metadata, where that is an object of JSON."""
    if not file.address.lower().endswith(PARQUET):
        return None
    with open_input(file.address) as stream:
        notes = (pq.read_schema(stream).metadata or {}).get(key.encode())
    try:
        note = json.loads(notes) if notes else None
    except (ValueError, RecursionError):
        return None
    return note if isinstance(note, dict) else None


def column_names(files: Sequence[InputFile]) -> list[str]:
    """Of the first file, for messages that say what there is."""
    file = files[0]
    name = PurePosixPath(file.address).name.lower()
    suffix = PurePosixPath(name.removesuffix(".gz").removesuffix(".zst")).suffix
    with open_input(file.address) as stream:
        if suffix in PARQUET:
            return list(pq.read_schema(stream).names)
        if suffix in LINES:
            return list(json.loads(next(iter(_unpacked(stream, name)), b"{}")))
        if suffix in COMMAS:
            return list(_commas(_unpacked(stream, name)).column_names)
        if suffix in ARROW:
            return sorted({column for piece in [ipc.open_file(stream).read_all()] for column in piece.column_names})
    return ["text"]
