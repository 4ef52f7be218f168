"""Megatron's indexed dataset: `PREFIX.bin`, nothing but tokens, and `PREFIX.idx`, where each sequence begins
(megatron-core 0.16).

The index: magic `MMIDIDX`, version 1, a code for the type, counts, then int32 lengths, int64 places in bytes, int64
ends of documents. Written as the sequences come, in memory that does not grow with them: lengths first, places from the
lengths once all are known. Tokens are uint16 where the vocabulary has fewer than 65,500 entries and int32 from there
on: Megatron's own rule, not ours.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.shards.export.rows import ExportError, Sequences, blocks, padding_of
from gristmill.shards.rows import Rows

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
CODES = {np.dtype(np.int32): 4, np.dtype(np.uint16): 8}
HEADER = struct.Struct("<9sQBQQ")
SMALL_VOCABULARY = 65_500
AT_ONCE = 1 << 20  # index entries held in memory


def dtype_for(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    return np.dtype("<u2") if vocab_size < SMALL_VOCABULARY else np.dtype("<i4")


def rows_as_documents(batches: Iterable[Rows], eod: int) -> Iterator[Sequences]:
    """Each row one document, padded with `eod`, so that Megatron's concatenate-and-cut falls on the edges of rows."""
    for block in blocks(batches):
        count, row_length = block.input_ids.shape
        padding = padding_of(block)
        tokens = (
            np.where(padding, block.input_ids.dtype.type(eod), block.input_ids) if padding.any() else block.input_ids
        )
        yield Sequences(tokens.reshape(-1), np.full(count, row_length, np.int64))


def write_megatron(prefix: Path, sequences: Iterable[Sequences], vocab_size: int) -> int:
    """Writes `prefix`.bin and `prefix`.idx; every sequence is a document. Returns the number of sequences."""
    dtype = dtype_for(vocab_size)
    index_path = prefix.with_name(prefix.name + ".idx")
    count = 0
    with prefix.with_name(prefix.name + ".bin").open("wb") as tokens, index_path.open("wb") as index:
        index.write(HEADER.pack(MAGIC, VERSION, CODES[dtype], 0, 0))
        for block in sequences:
            tokens.write(_as(block.tokens, dtype, vocab_size).data)
            if block.lengths.size and block.lengths.max() > np.iinfo(np.int32).max:
                raise ExportError(
                    f"a document of {block.lengths.max():,} tokens: Megatron's index has room for 2,147,483,647"
                )
            index.write(block.lengths.astype("<i4").data)
            count += len(block.lengths)
        if not count:
            raise ExportError("there are no documents to export, and Megatron cannot open an empty set")
        index.flush()
        place = 0
        for start in range(0, count, AT_ONCE):
            lengths = np.fromfile(index_path, "<i4", min(AT_ONCE, count - start), offset=HEADER.size + 4 * start)
            ends = place + np.cumsum(lengths, dtype=np.int64) * dtype.itemsize
            index.write((ends - lengths.astype(np.int64) * dtype.itemsize).astype("<i8").data)
            place = int(ends[-1])
        for start in range(0, count + 1, AT_ONCE):
            index.write(np.arange(start, min(start + AT_ONCE, count + 1), dtype="<i8").data)
        index.seek(0)
        index.write(HEADER.pack(MAGIC, VERSION, CODES[dtype], count, count + 1))
    return count


def _as(tokens: Array, dtype: np.dtype[np.uint16] | np.dtype[np.int32], vocab_size: int) -> Array:
    """Tokens in Megatron's type; a token that does not fit is an error."""
    if tokens.dtype != dtype and tokens.size and tokens.max() > np.iinfo(dtype).max:
        raise ExportError(
            f"token {tokens.max():,} is beyond the vocabulary of {vocab_size:,} and does not fit Megatron's "
            f"{dtype.name}"
        )
    return np.ascontiguousarray(tokens, dtype)
