"""Parquet parts as the mill writes them: zstd, row groups whose length depends on the rows alone, so that files are
equal byte for byte."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.store.records import FileFacts
from gristmill.pipeline.store.store import HashingFile, Store
from gristmill.stages.documents import BATCH_BYTES, BATCH_ROWS


def schema_hash(schema: pa.Schema) -> str:
    """A hash of names and types of columns."""
    return xxhash.xxh3_64_hexdigest(schema.remove_metadata().serialize().to_pybytes())


def row_bytes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """About how many bytes each row takes: a function of the row alone, so that row groups do not depend on batches."""
    size = np.full(len(batch), 8 * batch.num_columns, dtype=np.int64)
    for column in batch.columns:
        kind = column.type
        if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
            lengths = pc.binary_length(column)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            lengths = pc.multiply(pc.list_value_length(column), 4)
        else:
            continue
        size += pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return size


class PartWriter:
    """Writes one Parquet file; small batches are gathered into a row group. No rows, no file."""

    def __init__(self, store: Store, path: str, lies_at: str | None = None) -> None:
        self.store = store
        self.path = path
        self.lies_at = lies_at or path  # until it gets its name
        self.rows = 0
        self._stack = contextlib.ExitStack()
        self._file: HashingFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._schema = pa.schema([])
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. A row group is full at so many rows or bytes, wherever batches end."""
        ends = np.cumsum(row_bytes(batch))
        start = 0
        while start < len(batch):
            before = int(ends[start - 1]) if start else 0
            full = int(np.searchsorted(ends, before + BATCH_BYTES - self._waiting_bytes)) + 1
            end = min(len(batch), start + BATCH_ROWS - self._waiting_rows, full)
            self._waiting.append(batch.slice(start, end - start))
            self.rows += end - start
            self._waiting_rows += end - start
            self._waiting_bytes += int(ends[end - 1]) - before
            if self._waiting_rows >= BATCH_ROWS or self._waiting_bytes >= BATCH_BYTES:
                self._flush()
            start = end

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting).combine_chunks()
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        if self._writer is None:
            self._file = self._stack.enter_context(self.store.commit(self.lies_at))
            self._schema = table.schema
            self._writer = pq.ParquetWriter(
                self._file, table.schema, compression="zstd", compression_level=1, write_page_index=True
            )
        self._writer.write_table(table, row_group_size=len(table))

    def close(self) -> FileFacts | None:
        """Commit the file; its facts, or None if there was nothing to write."""
        self._flush()
        if self._writer is None or self._file is None:
            return None
        self._writer.close()
        self._stack.close()
        return {
            "path": self.path,
            "bytes": self._file.length,
            "checksum": self._file.checksum,
            "rows": self.rows,
            "schema": schema_hash(self._schema),
        }

    def abandon(self, error: BaseException) -> None:
        """Leave nothing behind."""
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
        self._stack.__exit__(type(error), error, error.__traceback__) if self._file is not None else None


@contextlib.contextmanager
def part_writers() -> Iterator[list[PartWriter]]:
    """A list to put writers in; if the block fails, none of those still open leaves a file."""
    writers: list[PartWriter] = []
    try:
        yield writers
    except BaseException as error:
        for writer in writers:
            with contextlib.suppress(Exception):
                writer.abandon(error)
        raise


def write_table(store: Store, path: str, table: pa.Table) -> FileFacts | None:
    """One small table as a part file."""
    with part_writers() as writers:
        writer = PartWriter(store, path)
        writers.append(writer)
        for batch in table.combine_chunks().to_batches():
            writer.write(batch)
        return writer.close()


def write_every_row(store: Store, path: str, table: pa.Table) -> FileFacts:
    """A table of rows that lie beside documents: RunFailed if not all are written."""
    facts = write_table(store, path, table)
    if facts is None or facts["rows"] != len(table):
        raise RunFailed(f"{path}: of {len(table):,} rows {facts['rows'] if facts else 0:,} were written")
    return facts
