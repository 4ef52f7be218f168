"""Writes a shard: an Arrow IPC file, uncompressed, in record batches of a fixed number of rows; equal rows give equal
bytes.

The tokens of every record batch begin at a multiple of 64 bytes, so that those of a mapped file are aligned for vector
loads. Arrow's writer only guarantees 8: the gap is filled with metadata of the batch that nobody reads.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.types import Array
from gristmill.shards.format import ShardMeta, batch_rows
from gristmill.shards.index import Index, ShardEntry, check_segments

ALIGNMENT = 64
FILLER = "align"


def write_shard(file: IO[bytes], table: pa.Table) -> None:
    """To a binary file at its beginning. `table` is from `gristmill.shards.format.shard_table`. A shard without rows
    has a batch too."""
    whole = pa.RecordBatch.from_arrays([_one_chunk(column) for column in table.columns], schema=table.schema)
    each = batch_rows(table.schema.field("input_ids").type.list_size)
    before, headers = _sizes(whole.slice(0, 1))
    with pa.ipc.new_file(pa.PythonFile(file, mode="w"), table.schema) as writer:
        for start in range(0, max(len(whole), 1), each):
            position = file.tell() if start else before
            filler = next((length for length, size in headers.items() if (position + size) % ALIGNMENT == 0), 0)
            writer.write_batch(whole.slice(start, each), custom_metadata={FILLER: " " * filler})


def shard_facts(table: pa.Table) -> dict[str, Any]:
    """Counts of a shard: rows, tokens, padding, documents, pieces, and the tokens of each source."""
    lengths, chunk = (_flat(table, name) for name in ("seq_lens", "chunk"))
    tokens = int(lengths.sum())
    by_source: dict[str, int] = {}
    for part, of_part in zip(table["source"].chunks, table["seq_lens"].chunks, strict=True):
        codes = part.flatten()
        counts = np.bincount(codes.indices.to_numpy(), of_part.flatten().to_numpy(), len(codes.dictionary)).astype(
            np.int64
        )
        for name, count in zip(codes.dictionary.to_pylist(), counts.tolist(), strict=True):
            by_source[name] = by_source.get(name, 0) + count
    return {
        "rows": len(table),
        "tokens": tokens,
        "padding": len(table) * table.schema.field("input_ids").type.list_size - tokens,
        "documents": int((chunk == 0).sum()),
        "pieces": len(lengths),
        "sources": by_source,
    }


def index_of(meta: ShardMeta, shards: Sequence[Mapping[str, Any]], segments: Sequence[int] = ()) -> dict[str, Any]:
    """The contents of index.json. For each shard, in order of its rows: `shard_facts`, and path, bytes and checksum of
    the file."""
    names = list(shards[0]["sources"]) if shards else []
    if any(list(shard["sources"]) != names for shard in shards):
        raise ValueError("the shards of a set must know the same sources, in the same order")
    sources = {name: sum(shard["sources"][name] for shard in shards) for name in names}
    entries = tuple(ShardEntry(**{field.name: shard[field.name] for field in fields(ShardEntry)}) for shard in shards)
    index = Index(meta, entries, sources, tuple(int(row) for row in segments))
    check_segments(index.segments, index.total("rows"), "index")
    return index.facts()


def _flat(table: pa.Table, name: str) -> Array:
    return np.asarray(pc.list_flatten(table[name]).combine_chunks().to_numpy(zero_copy_only=False))


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _sizes(batch: pa.RecordBatch) -> tuple[int, dict[int, int]]:
    """Bytes of the schema and the dictionaries, which are written with the first batch; and length of the filler ->
    bytes of a batch before its tokens. `batch` must be empty only if those to be written are: Arrow leaves zeros
    out."""
    sink = io.BytesIO()
    ends = []
    lengths = range(8, 8 + ALIGNMENT, 8)
    with pa.ipc.new_file(sink, batch.schema) as writer:
        for filler in (lengths[0], *lengths):
            writer.write_batch(batch, custom_metadata={FILLER: " " * filler})
            ends.append(sink.tell())
    messages = np.diff(ends).tolist()
    body = pa.ipc.read_message(sink.getvalue()[ends[0] : ends[1]]).body
    before = ends[0] - messages[0]
    return before, {length: size - len(body or b"") for length, size in zip(lengths, messages, strict=True)}
