"""Copies of a run's inputs that Gristmill made outside the run's folder: tables of `Recipe` in OUT-tables, which lose
the rows, and files of crawls in the cache of `cc`, which are removed whole and fetched again when needed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.kernels.base.files import whole_file
from gristmill.pipeline.crawls import spool
from gristmill.pipeline.crawls.dumps import facts_in
from gristmill.pipeline.crawls.remote import facts_path, folder_of
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.forget.plan import OutsideEdit
from gristmill.pipeline.inputs.files import (
    REMEMBERED,
    Folders,
    NoOriginal,
    reader_of,
    remembered_in,
    sources_of,
    sum_of,
)
from gristmill.pipeline.store.forgotten import FORGOTTEN, Forgotten, holds_strings
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.store.storage import Store, hash_of_content
from gristmill.stages.documents import uid_of
from gristmill.stages.read.cc import Cc

ROWS = 8192


def tables_folder(out: str) -> Path:
    """Where `Recipe.run` puts the tables that it is given."""
    return Path(f"{out.rstrip('/')}-tables").resolve()


# --- tables -----------------------------------------------------------------------------------------------------------


def sources_of_tables(store: Store, record: RunRecord) -> dict[Path, str | None]:
    """The tables in OUT-tables, each with the source that reads it; None: no source reads it any more."""
    tables: dict[Path, str | None] = dict.fromkeys(sorted(tables_folder(store.root).glob("*.parquet")))
    for source in sources_of(record):
        try:
            reader = reader_of(record, source)
        except NoOriginal:
            continue
        if isinstance(reader.path, str) and Path(reader.path) in tables:
            tables[Path(reader.path)] = source
    return tables


def rows_of_table(path: Path, source: str, name: str, forgotten: Forgotten) -> list[int]:
    """Rows of a table that a list means and that are not empty yet. Readers make uids from the file's `name`."""
    rows: list[int] = []
    first = 0
    with pq.ParquetFile(path) as table:
        for group in range(table.num_row_groups):
            begun = first
            for batch in table.iter_batches(batch_size=ROWS, row_groups=[group]):
                numbers = range(first - begun, first - begun + len(batch))
                uids = pa.array([uid_of(source, name, f"{group}:{row}") for row in numbers], pa.uint64())
                is_filled = np.any([column.is_valid().to_numpy(False) for column in batch.columns], axis=0)
                goes = is_filled & (forgotten.reasons(as_documents(batch, uids)) == FORGOTTEN)
                rows += (first + np.flatnonzero(goes)).tolist()
                first += len(batch)
    return rows


def as_documents(batch: pa.RecordBatch, uids: pa.Array) -> pa.Table:
    """Columns of anyone's table under their names, with the uids that readers give."""
    columns = {"uid": uids}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        if name != "uid" and holds_strings(column.type):
            columns[f"{name} (nested)" if pa.types.is_nested(column.type) else name] = column
    return pa.table(columns)


def blank(path: Path, rows: Iterable[int]) -> None:
    """Empty some rows of a table. Rows keep their numbers, which uids are made from."""
    gone, first = np.fromiter(rows, np.int64), 0
    with pq.ParquetFile(path) as table, whole_file(path) as draft:
        schema = pa.schema([field.with_nullable(True) for field in table.schema_arrow])
        with pq.ParquetWriter(draft, schema) as writer:
            for group in range(table.num_row_groups):
                batches = []
                for batch in table.iter_batches(batch_size=ROWS, row_groups=[group]):
                    is_gone = np.isin(np.arange(first, first + len(batch)), gone)
                    batches.append(batch.take(pa.array(np.arange(len(batch)), mask=is_gone)))
                    first += len(batch)
                whole = pa.Table.from_batches(batches).cast(schema)
                writer.write_table(whole, row_group_size=max(1, len(whole)))


def keep_identity(store: Store, paths: Iterable[Path]) -> None:
    """Keep the identity that the run's inputs had before they were edited, so that no work is repeated: its results
    have lost the same documents."""
    remembered = remembered_in(store.read(REMEMBERED)) if store.exists(REMEMBERED) else {}
    for path in paths:
        if str(path) in remembered:
            facts = Folders().info(str(path))
            remembered[str(path)] = [int(str(facts["size"])), str(facts["stamp"]), remembered[str(path)][2]]
    store.write(REMEMBERED, json.dumps({"sum": sum_of(remembered), "files": remembered}).encode())


def edit_tables(store: Store, tables: Mapping[str, OutsideEdit]) -> None:
    """Empty rows of tables, and remove tables that no source reads. A second call changes nothing: the checksum of a
    table is another then."""
    for name, edit in tables.items():
        path = Path(name)
        if path.exists() and hash_of_content(name) == edit["checksum"]:
            if edit["rows"] is None:
                path.unlink()
            else:
                blank(path, edit["rows"])
    keep_identity(store, [Path(name) for name, edit in tables.items() if edit["rows"] is not None])


# --- the cache of crawls ----------------------------------------------------------------------------------------------


def crawls_of(record: RunRecord) -> Iterator[tuple[str, Cc]]:
    """Sources that fetch what they read, with their readers."""
    for source in sources_of(record):
        try:
            reader = reader_of(record, source)
        except NoOriginal:
            continue
        if isinstance(reader, Cc) and "://" in reader.root:
            yield source, reader


def cached(record: RunRecord, read: Mapping[str, set[str]]) -> list[str]:
    """Folders of this machine's cache with the crawl files that were `read`, by source, and with tables of the crawl's
    index, which hold urls."""
    folders: list[Path] = []
    for source, reader in crawls_of(record):
        place, root = folder_of(reader) / "files", reader.root.rstrip("/")
        tags = {name: facts.tag for name, facts in facts_in(facts_path(reader, root)).items()}
        names = [
            *sorted(read.get(source, ())),
            *(name for name in tags if read.get(source) and name.endswith(".parquet")),
        ]
        for name in names:
            folders += [spool.folder_of_file(place, f"{root}/{name}", tag) for tag in {"", tags.get(name, "")}]
    return sorted({str(folder) for folder in folders if (folder / spool.PIECES).exists()})


def remove_cached(folders: Iterable[str]) -> None:
    for folder in folders:
        if (Path(folder) / spool.PIECES).exists() and not spool.remove(Path(folder)):
            raise RunFailed(
                f"{folder}: another run is reading this cached file of a crawl; run the same command again when it has "
                "ended"
            )
