"""Tables and texts of the files that a command or a plan names, where no run reads them. Columns are those that are
asked for and there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import nearest
from gristmill.pipeline.inputs.files import list_at, open_input
from gristmill.pipeline.json_types import JSONObject
from gristmill.stages.inputs import InputFile
from gristmill.stages.read.columns import BROKEN, PARQUET, SUFFIXES, NoRow, names_in, pieces, texts_of
from gristmill.stages.read.rows import string_of

LABELLED_BY = "gristmill.labelled_by"  # in the metadata of a table of labels: who gave them, and how


def files_of(paths: Sequence[str], who: str) -> list[InputFile]:
    """Every file that the paths name; in folders, those of a kind that can be read."""
    files = [file for path in paths for file in list_at(path, Path(), SUFFIXES, who).files]
    for file in files:
        if not file.address.lower().endswith(SUFFIXES):
            raise RecipeError(f"{who}: {file.address}: its name ends in none of {', '.join(SUFFIXES)}")
    return files


def pieces_of(file: InputFile, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """A file in tables of some thousand rows."""
    try:
        with open_input(file.address) as stream:
            yield from pieces(stream, file.address, columns)
    except NoRow as error:
        raise RecipeError(f"{file.address}:{error}") from error
    except BROKEN as error:
        raise RecipeError(f"{file.address}: cannot be read: {error}") from error


def table_of(files: Sequence[InputFile], columns: Sequence[str]) -> pa.Table:
    """All files as one table; a column that a file lacks is null there."""
    tables = [piece for file in files for piece in pieces_of(file, columns)]
    try:
        return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise RecipeError(
            f"{files[0].address} and the files beside it disagree on what a column holds: {error}"
        ) from error


def texts_in(
    files: Sequence[InputFile], text: str, beside: Sequence[str], named_by: str
) -> Iterator[tuple[InputFile, int, pa.Table]]:
    """Files piece by piece: the number of a piece's first row, and its columns, of which `text` is there and holds
    texts. `named_by` is what names that column."""
    for file in files:
        row = 0
        for table in pieces_of(file, [text, *beside]):
            check_column(table, text, [file], named_by)
            if len(table):
                yield file, row, with_texts(table, text, file.address)
            row += len(table)


def check_column(table: pa.Table, name: str, files: Sequence[InputFile], named_by: str) -> None:
    if name not in table.column_names:
        raise RecipeError(f"{named_by}: {files[0].path}: no column {name!r}{nearest(name, column_names(files))}")


def with_texts(table: pa.Table, name: str, where: str) -> pa.Table:
    """The table with a column as texts; what is neither text nor bytes is refused."""
    texts = texts_of(table[name])
    if texts is None:
        raise RecipeError(f"{where}: column {name!r} holds {table[name].type}; texts were expected")
    return table.set_column(table.column_names.index(name), name, texts)


def as_words(column: pa.ChunkedArray) -> pa.Array:
    """A column of any type as short texts, for display."""
    return pa.array([string_of(value) for value in column.to_pylist()], pa.string())


def cast_to(column: pa.Array | pa.ChunkedArray, kind: pa.DataType, expected: str) -> pa.Array:
    """The column as one array of a type; `expected` begins the message where it cannot be."""
    try:
        cast = pc.cast(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RecipeError(f"{expected}, not {column.type} ({str(error).splitlines()[0]})") from error
    return cast.combine_chunks() if isinstance(cast, pa.ChunkedArray) else cast


def column_names(files: Sequence[InputFile]) -> list[str]:
    """Of the first file, for messages that say what there is."""
    with open_input(files[0].address) as stream:
        return names_in(stream, files[0].address)


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
