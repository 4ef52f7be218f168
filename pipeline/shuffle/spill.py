"""Rows of a shuffle, spilled to disk: Arrow IPC files with one record batch a bucket, so that a reader takes its slice
and no more.

Buckets are the top bits of a column, and their number a power of two; so rows that were cut into another number of
buckets (those of an index that an earlier run saved) are read as if they had been cut into ours.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.kernels.base.columns import widened
from gristmill.kernels.common.files import HashingFile
from gristmill.pipeline.errors import DamagedFile, RunFailed
from gristmill.pipeline.store.partitions import bucket_of
from gristmill.pipeline.store.records import FileRef, Partition, StoredRows
from gristmill.pipeline.store.serialize import dumps, read_as
from gristmill.pipeline.store.storage import Store, digest, is_whole

CHECKSUM = b"checksum"  # of a record batch, in its metadata
FILES_IN_A_TASK = 64  # more are named in a file of their own, which every task of the round reads


def identity_of_rows(rows: StoredRows) -> str:
    """Of the contents, whatever the files are called."""
    return digest([rows.by, sorted(f.checksum + f.run for f in rows.files)])


def for_tasks(store: Store, folder: str, rows: StoredRows) -> StoredRows:
    """Rows as a task is told of them: of many files, by the name of a list."""
    if len(rows.files) <= FILES_IN_A_TASK:
        return rows
    path, content = f"{folder}/{identity_of_rows(rows)[:16]}.files.json", dumps(rows.files)
    listed = FileRef(path, len(content), store.write_if_other(path, content))
    return StoredRows(buckets=rows.buckets, by=rows.by, listed=listed)


def files_of_rows(store: Store, rows: StoredRows) -> Sequence[FileRef]:
    return rows.files if rows.listed is None else _listed(store.address, rows.listed.path, rows.listed.checksum)


@lru_cache(8)
def _listed(address: str, path: str, checksum: str) -> tuple[FileRef, ...]:
    content = Store(address).read(path)
    if xxhash.xxh3_128_hexdigest(content) != checksum:
        raise DamagedFile(path)
    return tuple(read_as(FileRef, file) for file in json.loads(content))


def read_rows(store: Store, rows: StoredRows, bucket: int | None = None, buckets: int = 1) -> pa.Table | None:
    """One bucket's slice of every file (all of it for None); None where there is no row. The order of rows is that of
    files and no promise."""
    tables = []
    for facts in files_of_rows(store, rows):
        if bucket is not None and not reaches(facts, bucket, buckets):
            continue
        owner = Store(facts.store) if facts.store else store  # of a saved index: a folder of its own
        try:
            table = _slice(owner, facts, rows, bucket, buckets)
        except Exception as error:  # whatever Arrow makes of a damaged file
            if not isinstance(error, DamagedFile) and is_whole(owner, facts.path, facts.checksum):
                raise
            raise damaged_rows(owner, facts) from error
        if table is not None:
            tables.append(_with_run(table, facts))
    return widened(pa.concat_tables(_alike(tables))) if tables else None


def rows_of_part(rows: pa.Table | None, part: Partition) -> pa.Table | None:
    """The rows whose home is a part; None where there are none."""
    if rows is None:
        return None
    here = pc.equal(rows.column("home"), pa.scalar(part.home, pa.uint64()))
    rows = rows if pc.all(here).as_py() else rows.filter(here)  # a copy of a giant part's would be as large again
    return rows if len(rows) else None


def _with_run(table: pa.Table, facts: FileRef) -> pa.Table:
    return table.append_column("run", pa.array([facts.run] * len(table), pa.string())) if facts.run else table


def reaches(facts: FileRef, bucket: int, buckets: int) -> bool:
    """May a file have rows of this bucket? One of regrouped rows has a range of buckets."""
    if facts.cells is None:
        return True
    first, count, of = facts.cells
    return first * buckets < (bucket + 1) * of and bucket * of < (first + count) * buckets


def _alike(tables: list[pa.Table]) -> list[pa.Table]:
    """Tables of one schema: where the rows of a file were so many that a column has wide offsets, that column of all
    has. Other columns are an error, which `concat_tables` would fill with nulls."""
    if len({table.schema for table in tables}) == 1:
        return tables
    schema = pa.unify_schemas([table.schema for table in tables], promote_options="permissive")
    return [table.cast(schema) for table in tables]


def _slice(store: Store, facts: FileRef, rows: StoredRows, bucket: int | None, buckets: int) -> pa.Table | None:
    """The rows of a bucket that a file holds, each batch held against its checksum."""
    with store.open(facts.path) as file:
        reader = pa.ipc.open_file(file)
        first, _, cells = facts.cells or (0, 0, reader.num_record_batches)
        places = range(reader.num_record_batches)
        if not places:
            raise DamagedFile(facts.path)
        if bucket is not None:  # several of the file's buckets, or one that holds ours
            begin = bucket * cells // buckets - first
            end = max(begin + 1, (bucket + 1) * cells // buckets - first)
            places = range(max(0, begin), min(len(places), end))
        batches = [checked_batch(reader, place, facts.path) for place in places]
        if bucket is None and sum(map(len, batches)) != facts.rows:
            raise DamagedFile(facts.path)
        if bucket is not None and cells < buckets:
            batches = [
                batch.filter(pa.array(bucket_of(batch[rows.by].to_numpy(), buckets) == bucket)) for batch in batches
            ]
        batches = [batch for batch in batches if len(batch)]
        return pa.Table.from_batches(batches, reader.schema) if batches else None


def batches_of(store: Store, facts: FileRef) -> list[pa.RecordBatch]:
    """All of a file of rows, a batch a bucket."""
    with store.open(facts.path) as file:
        reader = pa.ipc.open_file(file)
        return [checked_batch(reader, place, facts.path) for place in range(reader.num_record_batches)]


def damaged_rows(store: Store, facts: FileRef) -> RunFailed:
    """The error for a file that is not what was written: this run makes its own anew, and another run its saved
    index."""
    if not facts.store:
        return DamagedFile(facts.path)
    return RunFailed(
        f"{store.at(facts.path)}: the content of this saved index is not what was written; "
        "run the recipe that saved it again, which mends it"
    )


def write_rows(
    store: Store, path: str, table: pa.Table, by: str | None, buckets: int, wide: tuple[int, int] | None = None
) -> FileRef:
    """Write rows cut by the top bits of a column, one record batch a bucket. `wide`: the bucket, of how many, that all
    these rows are of; the file has only the buckets within it."""
    number, wide_buckets = wide or (0, 1)
    each = buckets // wide_buckets
    first = number * each
    with store.commit(path) as file:
        write_batches(file, _cut(widened(table), by, range(first, first + each), buckets))
    cells = (first, each, buckets) if wide else None
    return FileRef(path, file.length, file.checksum, rows=len(table), cells=cells)


def keep_table(store: Store, beginning: str, table: pa.Table) -> FileRef:
    """A small table whole."""
    return keep_batches(store, beginning, [one_batch(widened(table))])


def keep_batches(store: Store, beginning: str, batches: Sequence[pa.RecordBatch]) -> FileRef:
    """Rows in a file named by what is in it: one that is there already is not written again."""
    content = io.BytesIO()
    file = HashingFile(content)
    write_batches(file, batches)
    path = f"{beginning}{file.checksum[:16]}.arrow"
    store.write_if_other(path, content.getvalue())
    return FileRef(path, file.length, file.checksum, rows=sum(map(len, batches)))


def write_batches(file: HashingFile, batches: Sequence[pa.RecordBatch]) -> None:
    """Write record batches, each with its checksum: a reader takes some of them, and checks no more than those."""
    with pa.ipc.new_file(file, batches[0].schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for place, batch in enumerate(batches):
            checksum = batch_checksum(batch, place, len(batches))
            writer.write_batch(batch, custom_metadata={CHECKSUM: checksum})


def checked_batch(reader: pa.ipc.RecordBatchFileReader, place: int, path: str) -> pa.RecordBatch:
    """A record batch of a file of rows; DamagedFile if it is not what was written."""
    read = reader.get_batch_with_custom_metadata(place)
    written = (read.custom_metadata or {}).get(CHECKSUM)
    if written != batch_checksum(read.batch, place, reader.num_record_batches).encode():
        raise DamagedFile(path)
    return read.batch


def batch_checksum(batch: pa.RecordBatch, place: int, count: int) -> str:
    """Of a record batch, its schema and dictionaries, and its place in a file: another one in its place is noticed."""
    hashing = HashingFile()
    hashing.write(f"{place}/{count}".encode())
    with pa.ipc.new_stream(hashing, batch.schema) as stream:
        stream.write_batch(batch)
    return hashing.checksum


def _cut(table: pa.Table, by: str | None, cells: range, buckets: int) -> list[pa.RecordBatch]:
    if by is None or buckets == 1:
        return [one_batch(table)]
    bucket = bucket_of(table.column(by).to_numpy(), buckets).astype(
        np.uint16 if buckets <= 1 << 16 else np.uint32
    )  # of 16 bits: sorted by radix
    order = np.argsort(bucket, kind="stable")
    ends = np.searchsorted(bucket[order], np.array(cells), side="right")
    table = table.take(pa.array(order))
    return [
        one_batch(table.slice(start, end - start))
        for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)
    ]


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """All rows of a table that was widened. A reader takes a bucket to be one batch; a second one would be lost."""
    batches = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    if len(batches[0]) != len(table):
        raise RunFailed(
            f"{len(table):,} rows do not fit one record batch ({len(batches[0]):,} do): "
            "a column holds more than Arrow can count"
        )
    return batches[0]
