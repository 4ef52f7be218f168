"""Takes documents out of packed token shards: rows that held them are written anew, all others are byte for byte what
they were.

The pieces of other documents in such a row move to its beginning and padding follows; a row that holds nothing else
goes. Bucket and difficulty of a row stay what they were when it was packed. The tokenizer is not touched.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gristmill.kernels.base.types import Array
from gristmill.kernels.common.files import whole_file, write_whole
from gristmill.shards.format import schema_of
from gristmill.shards.index import NAME, Index, ShardEntry, read_index
from gristmill.shards.pieces import piece_starts
from gristmill.shards.reader import Shard, open_shards
from gristmill.shards.rows import Rows
from gristmill.shards.verify import checksum_of
from gristmill.shards.writer import index_of, shard_facts, write_shard

COUNTS = ("rows", "tokens", "documents", "pieces")
WAITING_INDEX = f".{NAME}.forget"


class Held(NamedTuple):
    """What a set holds of some documents."""

    counts: Counter[str]  # documents, pieces, tokens, and rows that are written anew or go
    documents: Counter[str]  # by source
    tokens: Counter[str]  # by source


def held_in_set(folder: str | PathLike[str], uids: Array) -> Held:
    """How much of these documents is in the shards of a set."""
    shards = open_shards(folder)
    held = Held(Counter(), Counter(), Counter())
    for batch in shards.blocks():
        goes = np.isin(batch.doc_uids, uids)
        if not goes.any():
            continue
        row_of = np.repeat(np.arange(len(batch.bucket)), np.diff(batch.first_piece))
        sources = np.array(shards.sources)[batch.source[goes]].tolist()
        held.counts["pieces"] += int(goes.sum())
        held.counts["tokens"] += int(batch.seq_lens[goes].sum(dtype=np.int64))
        held.counts["rows"] += len(np.unique(row_of[goes]))
        held.counts["documents"] += int((goes & (batch.chunk == 0)).sum())
        held.documents.update(np.array(shards.sources)[batch.source[goes & (batch.chunk == 0)]].tolist())
        for source, tokens in zip(sources, batch.seq_lens[goes].tolist(), strict=True):
            held.tokens[source] += tokens
    return held


def forget_in_set(folder: str | PathLike[str], uids: Array) -> list[str]:
    """Take these documents out of all shards of a set; the paths of those that were written anew. New shards wait under
    other names until the new index is there: a call that was broken off is finished, or done again, by the next."""
    place = Path(folder)
    finished = put_in_place(place)
    index = read_index((place / NAME).read_bytes(), str(place / NAME))
    uids = np.unique(np.asarray(uids, np.uint64))
    entries: list[dict[str, Any]] = []
    stays = []
    for entry in index.shards:
        facts, rows_stay = _forget_in_shard(place, entry, index, uids)
        entries.append(facts)
        stays.append(rows_stay)
    written = [entry.path for entry, facts in zip(index.shards, entries, strict=True) if went_from(entry, facts)]
    if written:
        rows_before = np.concatenate([[0], np.cumsum(np.concatenate(stays))])
        segments = sorted({int(rows_before[row]) for row in index.segments} - {int(rows_before[-1])} | {0})
        content = index_of(index.meta, entries, segments if index.segments else ())
        write_whole(place / WAITING_INDEX, (json.dumps(content, indent=1) + "\n").encode())
        put_in_place(place)
    return [*finished, *written]


def went_from(entry: ShardEntry, facts: dict[str, Any]) -> bool:
    return any(getattr(entry, name) != facts[name] for name in COUNTS)


def _waiting(path: Path) -> Path:
    return path.with_name(f".{path.name}.forget")


def put_in_place(place: Path) -> list[str]:
    """Shards that wait replace the old ones once the new index is there, which says that all are; else they go."""
    index, waiting = place / WAITING_INDEX, sorted(place.rglob(".*.arrow.forget"))
    if not index.exists():
        for path in waiting:
            path.unlink()
        return []
    names = []
    for path in waiting:
        shard = path.with_name(path.name.removeprefix(".").removesuffix(".forget"))
        path.replace(shard)
        names.append(shard.relative_to(place).as_posix())
    index.replace(place / NAME)
    return names


def _forget_in_shard(folder: Path, entry: ShardEntry, index: Index, uids: Array) -> tuple[dict[str, Any], Array]:
    """The facts of a shard without the documents, and which of its rows stay."""
    path = folder / entry.path
    rows = _joined(Shard(path, index.meta))
    goes = np.isin(rows.doc_uids, uids)
    if not goes.any():
        sources = np.bincount(rows.source, rows.seq_lens, len(index.sources)).astype(np.int64).tolist()
        facts = dataclasses.asdict(entry) | {"sources": dict(zip(index.sources, sources, strict=True))}
        return facts, np.ones(len(rows.bucket), np.int64)
    row_of = np.repeat(np.arange(len(rows.bucket)), np.diff(rows.first_piece))
    stays = np.bincount(row_of[~goes], minlength=len(rows.bucket)) > 0
    tokens, flat = rows.input_ids.copy(), rows.input_ids.reshape(-1)
    starts = piece_starts(rows.seq_lens, rows.first_piece, tokens.shape[1])
    for number in np.unique(row_of[goes]).tolist():
        pieces = range(int(rows.first_piece[number]), int(rows.first_piece[number + 1]))
        line = [flat[starts[i] : starts[i] + rows.seq_lens[i]] for i in pieces if not goes[i]]
        tokens[number] = index.meta.pad_id
        if line:
            kept = np.concatenate(line)
            tokens[number, : len(kept)] = kept
    table = table_of(rows, tokens, goes, stays, index)
    with whole_file(_waiting(path)) as file:
        write_shard(file, table)
    facts = {**shard_facts(table), "path": entry.path, "bytes": _waiting(path).stat().st_size}
    return {**facts, "checksum": checksum_of(_waiting(path))}, stays.astype(np.int64)


def table_of(rows: Rows, tokens: Array, goes: Array, stays: Array, index: Index) -> pa.Table:
    """The rows that stay, without the pieces that go."""
    schema = schema_of(index.meta, list(index.sources))
    row_of = np.repeat(np.arange(len(stays)), np.diff(rows.first_piece))
    per_row = np.bincount(row_of[~goes], minlength=len(stays))[stays]
    first_piece = np.concatenate([[0], np.cumsum(per_row)]).astype(np.int32)
    names = pa.array(list(index.sources), pa.string())
    kinds = schema.field("source").type.value_type
    flat = {
        "seq_lens": pa.array(rows.seq_lens[~goes]),
        "doc_uids": pa.array(rows.doc_uids[~goes]),
        "chunk": pa.array(rows.chunk[~goes]),
        "source": pa.DictionaryArray.from_arrays(pa.array(rows.source[~goes], kinds.index_type), names),
    }
    difficulty = rows.difficulty[stays]
    columns = {
        "input_ids": pa.FixedSizeListArray.from_arrays(
            pa.array(tokens[stays].reshape(-1)), type=schema.field("input_ids").type
        ),
        "bucket": pa.array(rows.bucket[stays]),
        "difficulty": pa.array(difficulty, mask=np.isnan(difficulty)),
    }
    for name, values in flat.items():
        columns[name] = pa.ListArray.from_arrays(pa.array(first_piece), values, type=schema.field(name).type)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _joined(shard: Shard) -> Rows:
    """All rows of a shard as one block."""
    parts = [batch.part(0, len(batch.bucket)) for batch in shard.batches]
    first_piece = np.concatenate([[0], *(np.diff(part.first_piece) for part in parts)]).cumsum().astype(np.int32)
    return Rows(
        np.concatenate([part.input_ids for part in parts]),
        first_piece,
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("seq_lens", "doc_uids", "chunk", "source", "bucket", "difficulty")
        ),
    )
