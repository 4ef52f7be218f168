"""Checksums in the record batches of a file of rows: a task reads its own slice of many such files, and checks no more
than that before it makes anything of the content."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import xxhash

from gristmill.pipeline.errors import DamagedFile

IN_BATCH = b"checksum"


def batch_checksum(batch: pa.RecordBatch, schema: pa.Buffer, place: int, count: int) -> str:
    """Of a record batch as stored in a file, and of its place there, so that another batch in its place is noticed."""
    state = xxhash.xxh3_64(f"{place}/{count}/{len(batch)}".encode())
    state.update(schema)
    for array in [below for column in batch.columns for below in all_arrays(column)] if len(batch) else ():
        state.update(f"{len(array)}/{array.null_count}".encode())
        for buffer in array.buffers():
            state.update(b"-" if buffer is None else f"{buffer.size}".encode())
            state.update(b"" if buffer is None else buffer)
    return state.hexdigest()


def all_arrays(array: pa.Array) -> Iterator[pa.Array]:
    """An array, and those that it is made of: Arrow keeps a count of nulls for each."""
    yield array
    if pa.types.is_dictionary(array.type):
        yield from all_arrays(array.dictionary)
    elif pa.types.is_struct(array.type):
        yield from (below for i in range(array.type.num_fields) for below in all_arrays(array.field(i)))
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        yield from all_arrays(array.values)


def as_in_a_file(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the buffers that a reader will find: those of a slice begin where the slice does."""
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema) if len(batch) else batch


def checked_batch(reader: pa.ipc.RecordBatchFileReader, schema: pa.Buffer, place: int, path: str) -> pa.RecordBatch:
    """A record batch of a file of rows; DamagedFile if it is not what was written."""
    read = reader.get_batch_with_custom_metadata(place)
    written = (read.custom_metadata or {}).get(IN_BATCH)
    if written != batch_checksum(read.batch, schema, place, reader.num_record_batches).encode():
        raise DamagedFile(path)
    return read.batch
