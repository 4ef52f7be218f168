"""Texts of benchmarks as others publish them: JSON lines, JSON, Parquet and Arrow files, plain, .gz or .zst.

A field is a dotted path into a row; a list on the way stands for each of its members, so that `choices` are the options
of a question, and `answers.text` all texts of its answers. A text is known by benchmark, item and field:
`gsm8k/17/question`.
"""

from __future__ import annotations

import difflib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from isal import igzip
from pydantic import Field

from gristmill.kernels.common.settings import Settings
from gristmill.stages.read.arrow import batches

PACKED = (".gz", ".zst", ".zstd")
KINDS = (".jsonl", ".ndjson", ".json", ".parquet", ".parq", ".arrow", ".feather", ".ipc", ".arrows")


class BenchmarkError(ValueError):
    """A file of a benchmark is not there, or not what the recipe says it is."""


class Benchmark(Settings):
    """A benchmark: its files, and which fields of a row are sought in documents."""

    name: Annotated[
        str, Field(description="what its items are called by in reports", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")
    ]
    path: Annotated[str | tuple[str, ...], Field(description="files, folders or globs below `benchmarks_path`")]
    fields: Annotated[
        tuple[str, ...], Field(description="dotted paths of texts; a list counts as its members", min_length=1)
    ]
    id: Annotated[
        str | None, Field(description="dotted path of what names an item; absent: the number of its row, from 0")
    ] = None


class Text(NamedTuple):
    """A text of an item, and the item (of its benchmark, a number)."""

    label: str
    item: int
    text: str


def files_of(folder: Path, benchmark: Benchmark) -> list[Path]:
    """The files of a benchmark, sorted within each of its paths."""
    chosen: list[Path] = []
    for path in [benchmark.path] if isinstance(benchmark.path, str) else benchmark.path:
        if Path(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise BenchmarkError(f"{benchmark.name}: {path} does not lie below benchmarks_path, {folder}")
        there = [folder / path] if (folder / path).exists() else sorted(folder.glob(path))
        files = [
            file
            for entry in there
            for file in (sorted(entry.rglob("*")) if entry.is_dir() else [entry])
            if file.is_file()
        ]
        if any(entry.is_dir() for entry in there):
            files = [file for file in files if kind_of(file)]
        if not files:
            raise BenchmarkError(f"{benchmark.name}: nothing to read at {folder / path}")
        chosen += files
    for file in chosen:
        if not kind_of(file):
            raise BenchmarkError(
                f"{benchmark.name}: {file}: its name ends in none of {', '.join(KINDS)} (with or without "
                f"{', '.join(PACKED)})"
            )
    return list(dict.fromkeys(chosen))


def kind_of(file: Path) -> str:
    """The suffix that says how a file is read, empty if none does."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in KINDS else ""


def texts_of(folder: Path, benchmark: Benchmark) -> Iterator[Text]:
    """All texts of a benchmark in the order of its files and rows."""
    item = 0
    wanted = (*benchmark.fields, *([benchmark.id] if benchmark.id else []))
    for file in files_of(folder, benchmark):
        for place, row in rows_of(file, wanted):
            where = f"{file}: {place}"
            name = next(values_at(row, benchmark.id, where), "") if benchmark.id else str(item)
            for field in benchmark.fields:
                for text in values_at(row, field, where):
                    yield Text(f"{benchmark.name}/{name}/{field}", item, text)
            item += 1


def values_at(row: Any, field: str, where: str) -> Iterator[str]:
    """The texts that a field of a row holds; none where there is a null."""

    def walk(value: Any, steps: list[str]) -> Iterator[str]:
        if value is None:
            return
        if isinstance(value, list):
            for item in value:
                yield from walk(item, steps)
        elif steps and isinstance(value, Mapping):
            if steps[0] not in value:
                raise BenchmarkError(f"{where}: {no_such_field(field, steps, list(value))}")
            yield from walk(value[steps[0]], steps[1:])
        elif steps or not isinstance(value, str | int | float):
            raise BenchmarkError(
                f"{where}: field {field!r} holds no text but {type(value).__name__}"
                + (f" above {steps[0]!r}" if steps else "")
            )
        else:
            yield str(value)

    yield from walk(row, [field] if isinstance(row, Mapping) and field in row else field.split("."))


def no_such_field(field: str, steps: list[str], known: list[str]) -> str:
    near = difflib.get_close_matches(steps[0], known, n=1)
    inside = field.removesuffix(".".join(steps)).rstrip(".")
    return f"no field {field!r}; {'it' if not inside else repr(inside)} has {', '.join(known) or 'none'}" + (
        f" (did you mean {near[0]}?)" if near else ""
    )


def rows_of(file: Path, fields: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a file, each with its place as a person would say it."""
    try:
        with opened(file) as data:
            kind = kind_of(file)
            if kind in (".jsonl", ".ndjson"):
                yield from json_lines(data, file)
            elif kind == ".json":
                yield from json_rows(data.read(), file, fields)
            else:
                yield from table_rows(data, kind, file, fields)
    except (OSError, EOFError, zstandard.ZstdError, pa.ArrowException) as error:
        raise BenchmarkError(
            f"{file}: cannot be read ({str(error).splitlines()[0][:200] if str(error) else type(error).__name__})"
        ) from error


def opened(file: Path) -> IO[bytes]:
    if file.suffix.lower() == ".gz":
        return igzip.open(file, "rb")  # type: ignore[no-any-return]
    if file.suffix.lower() in (".zst", ".zstd"):
        reader = zstandard.ZstdDecompressor().stream_reader(file.open("rb"), read_across_frames=True, closefd=True)
        return io.BufferedReader(reader)
    return file.open("rb")


def json_lines(lines: Any, file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"line {number}", json_object(line, f"{file}: line {number}")


def json_object(data: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(data.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        raise BenchmarkError(f"{where}: no JSON ({error})") from error
    if not isinstance(row, dict):
        raise BenchmarkError(f"{where}: no JSON object but {type(row).__name__}")
    return row


def json_rows(data: bytes, file: Path, fields: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """An array of objects, an object that holds one such array, a single object; or lines after all, as many a `.json`
    has."""
    try:
        whole = json.loads(data.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        yield from json_lines(data.splitlines(), file)
        return
    if isinstance(whole, dict):
        arrays = [
            value
            for value in whole.values()
            if isinstance(value, list) and value and all(isinstance(row, dict) for row in value)
        ]
        a_row = any(field.split(".")[0] in whole for field in fields)
        whole = arrays[0] if len(arrays) == 1 and not a_row else [whole]
    if not isinstance(whole, list):
        raise BenchmarkError(f"{file}: an array of objects was expected, not {type(whole).__name__}")
    for number, row in enumerate(whole, 1):
        if not isinstance(row, dict):
            raise BenchmarkError(f"{file}: row {number}: no JSON object but {type(row).__name__}")
        yield f"row {number}", row


def table_rows(data: IO[bytes], kind: str, file: Path, fields: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of their columns only those that are asked for."""
    seekable = io.BytesIO(data.read()) if file.suffix.lower() in PACKED else data
    table = pq.ParquetFile(seekable) if kind in (".parquet", ".parq") else None
    number = 1
    columns = top_of(fields, table.schema_arrow.names) if table else []
    stream = (
        table.iter_batches(columns=columns, use_threads=False) if table else batches(seekable)  # type: ignore[arg-type]
    )
    for batch in stream:
        names = batch.schema.names if table is None else table.schema_arrow.names
        for field in fields:
            if field not in names and field.split(".")[0] not in names:
                raise BenchmarkError(f"{file}: row {number}: {no_such_field(field, field.split('.'), names)}")
        for row in batch.select(top_of(fields, batch.schema.names)).to_pylist():
            yield f"row {number}", row
            number += 1


def top_of(fields: tuple[str, ...], names: list[str]) -> list[str]:
    wanted = {field if field in names else field.split(".")[0] for field in fields}
    return [name for name in names if name in wanted]
