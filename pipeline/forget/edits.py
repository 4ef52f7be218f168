"""Which rows of which files go, and the files without them.

An edit is of one version of a file, known by its checksum: done again it finds another version and does nothing.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from gristmill.kernels.base.files import write_whole
from gristmill.kernels.base.types import Array
from gristmill.pipeline.forget.folder import batches, columns_of, string_columns, text_columns, uids_of
from gristmill.pipeline.forget.passages import Passages
from gristmill.pipeline.forget.plan import TableEdit
from gristmill.pipeline.forget.search import REJECTS, Search, has_document
from gristmill.pipeline.store.accounting import SCHEMA
from gristmill.pipeline.store.forgotten import Forgotten
from gristmill.pipeline.store.partitions import PartWriter, part_writers
from gristmill.pipeline.store.storage import Store, hash_of_content

ROWS_OF_LINES = 8192
HIDDEN = ("url", "id", "detail")  # of rejects that are no documents: what may name one


def is_theirs(path: str) -> bool:
    """Is a table one that a run of ours wrote beside its documents? Others are looked through for passages too."""
    return path.startswith(("legs/", "stages/"))


def rows_by_uid(search: Search, uids: Array, wanted: Forgotten) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Rows of tables that are of these documents, and rows of records that are no documents, with an address that is to
    be forgotten."""
    goes: dict[str, list[int]] = {}
    nameless: dict[str, list[int]] = {}
    by_url = len(wanted.keys["url"]) or len(wanted.keys["host"]) or len(wanted.keys["email"])
    for path in search.tables("uid"):
        with_urls = by_url and bool(REJECTS.match(path))
        for first, batch in batches(search.store, path, ["uid", "reason", *(HIDDEN if with_urls else ())]):
            unknown = batch.column("uid").is_null().to_numpy(False)
            own = np.isin(uids_of(batch), uids)
            own &= has_document(batch)
            if own.any():
                goes.setdefault(path, []).extend((first + np.flatnonzero(own)).tolist())
            if with_urls and (named := unknown & names_any(batch, wanted)).any():
                nameless.setdefault(path, []).extend((first + np.flatnonzero(named)).tolist())
    return goes, nameless


def names_any(batch: pa.RecordBatch, wanted: Forgotten) -> Array:
    """Which records that are no documents have a url that is asked for, or name an address that is."""
    named: Array = wanted.of_urls(batch.column("url"))
    for name in HIDDEN:
        named = named | wanted.of_emails(batch.column(name), in_url=name == "url")
    return named


def strange_tables(search: Search) -> list[str]:
    """Tables that did not come of this run's stages, or whose rows have no uid."""
    return [
        path
        for path in search.files.tables
        if not is_theirs(path) and ("uid" not in search.schema(path).names or not search.schema(path).names)
    ]


def cells(store: Store, path: str) -> Iterator[tuple[int, list[pa.Array]]]:
    """Text cells of a table, some rows at a time."""
    names = string_columns(columns_of(store, path))
    for first, batch in batches(store, path, names):
        yield first, [batch.column(name) for name in names]


def whole_path(store: Store, path: str) -> str:
    """Of a file below the run's folder, or of one elsewhere that goes by its whole path."""
    return path if path.startswith("/") else store.at(path)


def lines_of(store: Store, path: str) -> Iterator[list[bytes]]:
    """Lines of a text file, packed or not, some at a time."""
    with Path(whole_path(store, path)).open("rb") as file:
        stream: Any = file
        if path.endswith(".gz"):
            stream = gzip.GzipFile(fileobj=file)
        elif path.endswith(".zst"):
            stream = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
        some: list[bytes] = []
        for line in stream:
            some.append(line)
            if len(some) == ROWS_OF_LINES:
                yield some
                some = []
        if some:
            yield some


def as_texts(lines: list[bytes]) -> pa.Array:
    """Lines as what they say: escapes of JSON are read."""
    import json

    def said(line: bytes) -> bytes:
        if b"\\" not in line:
            return line
        try:
            return json.dumps(json.loads(line), ensure_ascii=False).replace("\\n", "\n").replace('\\"', '"').encode()
        except (ValueError, RecursionError):
            return line

    return pa.array([said(line) for line in lines], pa.large_binary())


def theirs_and_others(search: Search, uids: Array, passages: Passages) -> None:
    """Show passages all documents that go, and then all that stay."""
    for theirs in (True, False):
        for path in search.tables("uid"):
            names = [n for n in text_columns(search.schema(path)) if not n.startswith("html")]
            for _, batch in batches(search.store, path, ["uid", *names]) if names else ():
                own = np.isin(uids_of(batch), uids)
                rows = pa.array(own if theirs else ~own)
                for name in names:
                    (passages.are_theirs if theirs else passages.stay)(batch.column(name).filter(rows))


# --- carrying them out ------------------------------------------------------------------------------------------------


def edit_table(store: Store, path: str, edit: TableEdit) -> None:
    """Write a table without the rows that go; one without rows is no file."""
    there = store.exists(path)
    if (hash_of_content(store.at(path)) if there else "") != edit["checksum"]:
        return
    goes, nameless = np.array(edit["goes"], np.int64), np.array(edit.get("nameless", []), np.int64)
    with part_writers() as writers:
        writer = PartWriter(store, path)
        writers.append(writer)
        if there:
            schema = columns_of(store, path)
            for first, batch in batches(store, path):
                rows = np.arange(first, first + len(batch))
                batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
                if (hidden := np.isin(rows, nameless)).any():
                    for name in HIDDEN:
                        place = schema.get_field_index(name)
                        values = pc.if_else(pa.array(hidden), pa.scalar(None, pa.string()), batch.column(place))
                        batch = batch.set_column(place, schema.field(name), values)
                writer.write(batch.filter(pa.array(~np.isin(rows, goes))))
        if edit.get("comes"):
            for batch in pa.Table.from_pylist(list(edit["comes"]), SCHEMA).combine_chunks().to_batches():
                writer.write(batch)
        if writer.close() is None:
            store.remove([path])


def edit_lines(store: Store, path: str, checksum: str, goes: list[int]) -> None:
    """Write a file of lines without those that go."""
    place = Path(whole_path(store, path))
    if not place.exists() or hash_of_content(str(place)) != checksum:
        return
    gone, row = set(goes), 0
    content = io.BytesIO()
    out: Any = content
    if path.endswith(".gz"):
        out = gzip.GzipFile(fileobj=content, mode="wb", mtime=0)
    elif path.endswith(".zst"):
        out = zstandard.ZstdCompressor().stream_writer(content, closefd=False)
    for lines in lines_of(store, path):
        for line in lines:
            if row not in gone:
                out.write(line)
            row += 1
    if out is not content:
        out.close()
    write_whole(place, content.getvalue())
