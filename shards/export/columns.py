"""The columns that TRL (1.16) and torchtune (0.6) train on, as Parquet or Arrow files that `load_dataset` opens.

Both expect lengths that add up to the row, so padding, where there is any, is a last length of its own. Labels are
aligned with the tokens (both trainers shift them); they are -100, which no loss counts, on padding and on the first
token of each document, which nothing before it in the document could predict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.kernels.base.types import Array
from gristmill.shards.batch import labels, sequence_lengths
from gristmill.shards.export.rows import ExportError, blocks
from gristmill.shards.pieces import filled, piece_starts
from gristmill.shards.rows import Rows

FORMATS = ("parquet", "arrow")
IDS = pa.list_(pa.int32())
SCHEMAS = {
    "trl": pa.schema({"input_ids": IDS, "labels": IDS, "seq_lengths": IDS}),
    "torchtune": pa.schema({"tokens": IDS, "labels": IDS, "input_pos": IDS, "seq_lens": IDS}),
}


def trl_columns(rows: Rows) -> pa.RecordBatch:
    return _batch(SCHEMAS["trl"], [rows.input_ids, labels(rows), lengths_by_row(rows)])


def torchtune_columns(rows: Rows) -> pa.RecordBatch:
    return _batch(SCHEMAS["torchtune"], [rows.input_ids, labels(rows), counted_on(rows), lengths_by_row(rows)])


def counted_on(rows: Rows) -> Array:
    """The position of each token in its piece; padding counts on from the last piece, as in torchtune's own packer."""
    count, row_length = rows.input_ids.shape
    starts = piece_starts(rows.seq_lens, rows.first_piece, row_length)
    begun = np.zeros(count * row_length, np.int32)
    begun[starts] = starts % row_length
    return np.arange(row_length, dtype=np.int32) - np.maximum.accumulate(begun.reshape(count, row_length), axis=1)


def lengths_by_row(rows: Rows) -> tuple[Array, Array]:
    """Lengths that add up to the row, and where those of each row begin."""
    padded = filled(rows.seq_lens, rows.first_piece) < rows.input_ids.shape[1]
    return sequence_lengths(rows)[0], rows.first_piece + np.concatenate([[0], np.cumsum(padded)])


def write_columns(path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """One file, its format by its suffix; returns the number of rows."""
    count = 0
    with _writer(path, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            count += len(batch)
    return count


def columns_of(batches: Iterable[Rows], names: str) -> Iterator[pa.RecordBatch]:
    make = {"trl": trl_columns, "torchtune": torchtune_columns}[names]
    for block in blocks(batches):
        if block.input_ids.size and block.input_ids.max() > np.iinfo(np.int32).max:
            raise ExportError(f"token {block.input_ids.max():,} does not fit in 32 bits with a sign, as labels need")
        yield make(block)


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter | pa.RecordBatchFileWriter:
    if path.suffix == ".parquet":  # with its dictionaries tokens take a fifth to a third less than without
        return pq.ParquetWriter(path, schema, compression="zstd", compression_level=1, write_statistics=False)
    return pa.ipc.new_file(path, schema)


def _batch(schema: pa.Schema, columns: list[Array | tuple[Array, Array]]) -> pa.RecordBatch:
    arrays = []
    for column in columns:
        if isinstance(column, tuple):
            values, bounds = column
        else:
            count, row_length = column.shape
            values, bounds = column.reshape(-1), np.arange(count + 1, dtype=np.int64) * row_length
        arrays.append(
            pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), pa.array(values.astype(np.int32, copy=False)))
        )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
