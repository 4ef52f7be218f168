"""Small sets of shards, made from a seed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.kernels.rows.pack import Packed, best_fit, windows
from gristmill.shards.format import Documents, ShardMeta, shard_table
from gristmill.shards.writer import index_of, shard_facts, write_shard

SOURCES = ("web", "code", "books")


class Made(NamedTuple):
    folder: Path
    meta: ShardMeta
    shards: list[Documents]


def meta_of(row_length: int = 16, vocab_size: int = 1000) -> ShardMeta:
    return ShardMeta(
        "tiny",
        "5eed",
        vocab_size,
        row_length,
        pad_id=1,
        bos_id=None,
        eos_id=0,
        packer="best_fit",
        seed=7,
        fingerprint="f00d",
    )


def documents_of(count: int, mean: float, vocab_size: int, seed: int) -> Documents:
    """Lengths of all kinds, uids that repeat in no shard, bucket and difficulty unknown for some."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.normal(np.log(mean), 0.8, count)).astype(np.int64) + 1
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(0, vocab_size, offsets[-1]).astype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
    difficulty = np.where(rng.random(count) < 0.3, np.nan, rng.random(count)).astype(np.float32)
    uid = rng.integers(0, 2**64, count, np.uint64)
    return Documents(
        tokens,
        offsets,
        uid,
        rng.integers(0, len(SOURCES), count),
        rng.integers(-1, 4, count).astype(np.int16),
        difficulty,
    )


def best(lengths: np.ndarray, row_length: int) -> Packed:
    return best_fit(lengths, row_length, windows(len(lengths), 100_000))


def table_of(meta: ShardMeta, documents: Documents, packer: Callable[[np.ndarray, int], Packed] = best) -> pa.Table:
    return shard_table(meta, SOURCES, documents, packer(np.diff(documents.offsets), meta.row_length))


def written(table: pa.Table) -> bytes:
    file = io.BytesIO()
    write_shard(file, table)
    return file.getvalue()


def write_set(
    folder: Path, meta: ShardMeta, shards: list[Documents], packer=best, segments: tuple[int, ...] = ()
) -> Made:
    folder.mkdir(parents=True, exist_ok=True)
    facts = []
    for number, documents in enumerate(shards):
        table = table_of(meta, documents, packer)
        content = written(table)
        path = f"shard-{number:05d}.arrow"
        (folder / path).write_bytes(content)
        facts.append(
            {**shard_facts(table), "path": path, "bytes": len(content), "checksum": xxhash.xxh3_128_hexdigest(content)}
        )
    (folder / "index.json").write_text(json.dumps(index_of(meta, facts, segments)))
    return Made(folder, meta, shards)


def small_set(
    folder: Path, shards: int = 3, documents: int = 60, row_length: int = 16, vocab_size: int = 1000, **more
) -> Made:
    meta = meta_of(row_length, vocab_size)
    return write_set(folder, meta, [documents_of(documents, 9, vocab_size, seed) for seed in range(shards)], **more)
