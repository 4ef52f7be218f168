"""Mosaic's MDS: `shard.00000.mds` and so on, and `index.json`, as StreamingDataset reads them (mosaicml-streaming
0.13).

A shard is a uint32 count, uint32 places of the samples and of the end, the writer's configuration as JSON, then the
samples: uint32 sizes of the columns that vary, then the columns in the order of their names. `tokens` is an `ndarray`
of a fixed type and length, which llm-foundry's StreamingTextDataset recognises by itself (its `token_encoding_type` is
for bytes only), at no cost but the tokens; `seq_lens` are the lengths of a row's documents, for attention that stays
within them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from gristmill.shards.export.rows import ExportError, blocks
from gristmill.shards.rows import Rows

SHARD_BYTES = 1 << 26
HASHES = ("xxh64", "xxh128", "sha1", "sha256")


def write_mds(
    folder: Path,
    batches: Iterable[Rows],
    row_length: int,
    dtype: np.dtype[Any],
    hashes: tuple[str, ...],
    shard_bytes: int,
) -> int:
    """Writes shards of at most `shard_bytes` and index.json into a folder; returns the number of samples."""
    wrong = [name for name in hashes if name not in HASHES]
    if wrong:
        raise ExportError(f"unknown hash {wrong[0]!r}; one of {', '.join(HASHES)}")
    if not 1 <= shard_bytes < 1 << 32:
        raise ExportError(
            f"files of {shard_bytes:,} bytes: MDS counts in 32 bits, so between 1 and 4,294,967,295 are possible"
        )
    columns = {
        "column_encodings": ["ndarray:int32", f"ndarray:{dtype.name}:{row_length}"],
        "column_names": ["seq_lens", "tokens"],
        "column_sizes": [None, row_length * dtype.itemsize],
        "compression": None,
        "format": "mds",
        "hashes": list(hashes),
        "size_limit": shard_bytes,
        "version": 2,
    }
    header = json.dumps(columns, sort_keys=True).encode()
    shards: list[dict[str, Any]] = []
    parts: list[Any] = []
    sizes: list[int] = []
    empty = 4 + 4 + len(header)
    size = empty

    def flush() -> None:
        places = np.cumsum([empty + 4 * len(sizes), *sizes])
        data = b"".join([np.array([len(sizes), *places], "<u4").tobytes(), header, *parts])
        name = f"shard.{len(shards):05}.mds"
        (folder / name).write_bytes(data)
        file = {"basename": name, "bytes": len(data), "hashes": {kind: _hash(kind, data) for kind in hashes}}
        shards.append({**columns, "raw_data": file, "samples": len(sizes), "zip_data": None})

    for sample_size, sample in _samples(batches):
        if sizes and size + sample_size + 4 > shard_bytes:
            flush()
            parts.clear()
            sizes.clear()
            size = empty
        parts += sample
        sizes.append(sample_size)
        size += sample_size + 4
    if sizes:
        flush()
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}, sort_keys=True), encoding="utf-8")
    return sum(shard["samples"] for shard in shards)


def _samples(batches: Iterable[Rows]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Size and parts of each sample; the tokens are views of the mapped shards until they are written."""
    for block in blocks(batches):
        width = block.input_ids.shape[1] * block.input_ids.itemsize
        tokens = block.input_ids.data.cast("B")
        lengths, bounds = block.seq_lens.astype("<i4", copy=False).tobytes(), block.first_piece.tolist()
        for row, (start, stop) in enumerate(pairwise(bounds)):
            head = _head(stop - start)
            array = len(head) + 4 * (stop - start)
            sample = (
                array.to_bytes(4, "little"),
                head,
                lengths[4 * start : 4 * stop],
                tokens[row * width : (row + 1) * width],
            )
            yield 4 + array + width, sample


def _head(length: int) -> bytes:
    """The header of an array of known type and unknown length: dimensions and width of the length in one byte, then the
    length."""
    code = 0 if length < 1 << 8 else 1 if length < 1 << 16 else 2
    return bytes((1 << 2 | code,)) + length.to_bytes(1 << code, "little")


def _hash(kind: str, data: bytes) -> str:
    return str((getattr(xxhash, kind) if kind.startswith("xxh") else getattr(hashlib, kind))(data).hexdigest())
