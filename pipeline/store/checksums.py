"""Files of a run are held against the checksums that they were written with, before anything is made of their content.

Parquet files are hashed whole before they are read, once in a process while their stamp stays. Files of rows carry a
checksum in each record batch, for a task reads its own slice of many of them. Object stores keep checksums of their
own, and are asked for no byte more than a task needs; `gristmill verify --read` asks for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO

import pyarrow as pa
import xxhash

from gristmill.pipeline.errors import DamagedFile
from gristmill.pipeline.store.records import FileFacts
from gristmill.pipeline.store.store import Stamp, Store

READ_AT_ONCE = 1 << 20
IN_BATCH = b"checksum"


def open_checked(store: Store, facts: FileFacts) -> IO[bytes]:
    """A file of the run, opened to be read; DamagedFile if its content is not what was written."""
    if not is_whole(store, facts["path"], facts["checksum"]):
        raise DamagedFile(facts["path"])
    return store.open(facts["path"])


def is_whole(store: Store, path: str, checksum: str) -> bool:
    """Has a local file the content that it was written with? A file that is not there is for whoever opens it."""
    stamp = store.stamp(path)
    return stamp is None or hash_of(store.at(path), stamp) == checksum


@lru_cache(1 << 14)
def hash_of(path: str, stamp: Stamp) -> str:
    """The hash of a local file's content; while the stamp stays it is not read again."""
    return hash_of_content(path)


def hash_of_content(path: str) -> str:
    """The hash that `HashingFile` gives what is written."""
    state = xxhash.xxh3_128()
    buffer = memoryview(bytearray(READ_AT_ONCE))
    with Path(path).open("rb", buffering=0) as file:
        while length := file.readinto(buffer):
            state.update(buffer[:length])
    return state.hexdigest()


def hash_of_object(store: Store, path: str) -> str:
    """The same of a file anywhere, all of which is fetched."""
    state = xxhash.xxh3_128()
    with store.open(path) as file:
        while data := file.read(READ_AT_ONCE):
            state.update(data)
    return state.hexdigest()


def batch_checksum(batch: pa.RecordBatch, schema: pa.Buffer, place: int, count: int) -> str:
    """Of a record batch as it lies in a file, and of where it stands there: another one read in its place is noticed
    too."""
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
    """A record batch of a file of rows; DamagedFile if it is not what was written. Files of earlier versions have no
    checksums in them."""
    read = reader.get_batch_with_custom_metadata(place)
    written = (
        read.custom_metadata[IN_BATCH]
        if read.custom_metadata is not None and IN_BATCH in read.custom_metadata
        else None
    )
    if written is not None and written != batch_checksum(read.batch, schema, place, reader.num_record_batches).encode():
        raise DamagedFile(path)
    return read.batch
