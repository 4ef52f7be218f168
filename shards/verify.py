"""Whether shards are what was written: every byte, every count, every length; faults in words, with the shard and the
row.

A checksum shows that a file is as it was written; the rest shows that what was written is right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from gristmill.kernels.base.types import Array
from gristmill.shards.format import UNKNOWN_BUCKET, BadShards
from gristmill.shards.index import NAME, TOTALS, ShardEntry
from gristmill.shards.pieces import filled
from gristmill.shards.reader import ShardSet, open_shards
from gristmill.shards.rows import Rows

READ = 1 << 23  # bytes at a time
TOKENIZER = "tokenizer/tokenizer.json"  # of a set that carries its own
UNLISTED = "lies among the shards, but the index does not list it"


class Fault(NamedTuple):
    """`row` counts in its shard; None where the fault is not of one row."""

    shard: str
    row: int | None
    what: str

    def __str__(self) -> str:
        return f"{self.shard}: {self.what}" if self.row is None else f"{self.shard}: row {self.row:,}: {self.what}"


def verify(
    folder: str | PathLike[str],
    passed: Callable[[int], None] = lambda number: None,
) -> list[Fault]:
    """All faults; none if all is well. `passed` is called with the number of each shard after its check."""
    try:
        shards = open_shards(folder)
    except BadShards as error:
        return [Fault(NAME, None, str(error))]
    faults: list[Fault] = []
    tokens = np.zeros(len(shards.sources), np.int64)
    for number in range(len(shards.index.shards)):
        # A set keeps the files that it has opened.
        of_shard, of_sources = verify_shard(ShardSet(shards.folder, shards.index), number)
        faults += of_shard
        tokens += of_sources
        passed(number)
    return faults + set_faults(shards, tokens)


def verify_shard(shards: ShardSet, number: int) -> tuple[list[Fault], Array]:
    """Faults of one shard, and the tokens of each source in it."""
    entry = shards.index.shards[number]
    faults: list[Fault] = []
    tokens = np.zeros(len(shards.sources), np.int64)
    path = Path(shards.folder) / entry.path
    try:
        batches = shards.shard(number).batches
    except BadShards as error:
        return [Fault(entry.path, None, str(error).removeprefix(f"{path}: "))], tokens
    checksum = checksum_of(path)
    if checksum != entry.checksum:
        faults.append(
            Fault(
                entry.path,
                None,
                f"checksum {checksum}, the index says {entry.checksum}: the file was changed after it was written",
            )
        )
    first_row = 0
    for batch in batches:
        for row, what in _of_rows(batch, shards):
            faults.append(Fault(entry.path, first_row + row, what))
        in_range = (batch.source >= 0) & (batch.source < len(tokens))
        tokens += np.bincount(batch.source[in_range], batch.seq_lens[in_range], len(tokens)).astype(np.int64)
        first_row += len(batch.bucket)
    faults += [Fault(entry.path, row, what) for row, what in _of_pieces(batches)]
    return faults + _of_counts(entry, batches), tokens


def set_faults(shards: ShardSet, tokens: Array) -> list[Fault]:
    """Faults of the whole set, from the tokens of each source."""
    faults = [
        Fault(NAME, None, f"source {name!r} has {expected:,} tokens, its shards hold {counted:,}")
        for (name, expected), counted in zip(shards.index.sources.items(), tokens.tolist(), strict=True)
        if expected != counted
    ]
    if changed := changed_tokenizer(shards.folder / TOKENIZER, shards.meta.tokenizer_hash):
        faults.append(Fault(TOKENIZER, None, changed))
    listed = {entry.path for entry in shards.index.shards}
    found_files = sorted(path.relative_to(shards.folder).as_posix() for path in shards.folder.rglob("*.arrow"))
    return faults + [Fault(path, None, UNLISTED) for path in found_files if path not in listed]


def changed_tokenizer(file: Path, expected: str) -> str | None:
    """What is wrong with the tokenizer beside the shards, if anything."""
    if not file.is_file():
        return None
    checksum = hashlib.sha256(file.read_bytes()).hexdigest()
    return (
        None
        if checksum == expected
        else f"sha256 {checksum}, the shards were made with {expected}: it is another tokenizer, or was changed"
    )


def checksum_of(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while data := file.read(READ):
            digest.update(data)
    return digest.hexdigest()


def _of_rows(batch: Rows, shards: ShardSet) -> Iterator[tuple[int, str]]:
    """The first row of each fault, and how many more have it."""
    meta, rows = shards.meta, len(batch.bucket)
    row_of = np.repeat(np.arange(rows), np.diff(batch.first_piece))
    used = filled(batch.seq_lens, batch.first_piece)
    highest = batch.input_ids.max(axis=1) if rows else np.zeros(0, meta.dtype)
    not_padding = batch.input_ids != meta.pad_id
    not_padding &= np.arange(meta.row_length) >= used[:, None]
    yield from _first(np.diff(batch.first_piece) == 0, "holds no document")
    yield from _first(_any(row_of, batch.seq_lens < 1, rows), "a document of no tokens, or fewer")
    yield from _first(used > meta.row_length, f"its documents have more than {meta.row_length:,} tokens together")
    yield from _first(highest >= meta.vocab_size, f"a token that is not in the vocabulary of {meta.vocab_size:,}")
    yield from _first(not_padding.any(axis=1), f"what follows its last document is not padding ({meta.pad_id})")
    wrong_source = (batch.source < 0) | (batch.source >= len(shards.sources))
    yield from _first(_any(row_of, wrong_source, rows), f"a source that is none of the {len(shards.sources):,}")
    yield from _first(_any(row_of, batch.chunk < 0, rows), "a piece of a document with a number below 0")
    yield from _first(batch.bucket < UNKNOWN_BUCKET, f"a bucket below {UNKNOWN_BUCKET}")
    yield from _first(np.isinf(batch.difficulty), "a difficulty that is not finite")


def _any(row_of: Array, wrong: Array, rows: int) -> Array:
    return np.bincount(row_of[wrong], minlength=rows) > 0


def _first(wrong: Array, what: str) -> Iterator[tuple[int, str]]:
    wrong_rows = np.flatnonzero(wrong)
    if len(wrong_rows):
        yield (
            int(wrong_rows[0]),
            what + (f" (and {len(wrong_rows) - 1:,} more rows after it)" if len(wrong_rows) > 1 else ""),
        )


def _of_pieces(batches: list[Rows]) -> Iterator[tuple[int, str]]:
    """For each document there are as many of a piece as of the one before it, or fewer where copies have other cuts;
    one source."""
    uids, chunks, sources = (
        np.concatenate([getattr(batch, name) for batch in batches]) for name in ("doc_uids", "chunk", "source")
    )
    if len(uids) == 0:
        return
    row_of = np.repeat(
        np.arange(sum(len(batch.bucket) for batch in batches)),
        np.concatenate([np.diff(batch.first_piece) for batch in batches]),
    )
    order = np.lexsort((chunks, uids))
    uid, chunk, source = uids[order], chunks[order].astype(np.int64), sources[order]
    same_document = uid[1:] == uid[:-1]
    other_source = order[1:][same_document & (source[1:] != source[:-1])]
    if len(other_source):
        i = int(other_source.min())
        yield int(row_of[i]), f"document {uids[i]} has two sources"
    begins = np.flatnonzero(np.append(True, ~(same_document & (chunk[1:] == chunk[:-1]))))
    times = np.diff(np.append(begins, len(uid)))
    follows = np.append(False, (uid[begins[1:]] == uid[begins[:-1]]) & (chunk[begins[1:]] == chunk[begins[:-1]] + 1))
    alone = np.where(follows, times > np.append(0, times[:-1]), chunk[begins] != 0)
    wrong = order[begins[alone]]
    if len(wrong):
        i = int(wrong.min())
        more = f" (and {len(wrong) - 1:,} more)" if len(wrong) > 1 else ""
        yield (
            int(row_of[i]),
            f"document {uids[i]}: piece {chunks[i]} without piece {int(chunks[i]) - 1} in this shard{more}",
        )


def _of_counts(entry: ShardEntry, batches: list[Rows]) -> list[Fault]:
    tokens = sum(int(batch.seq_lens.sum(dtype=np.int64)) for batch in batches)
    counted = {
        "rows": sum(len(batch.bucket) for batch in batches),
        "tokens": tokens,
        "padding": sum(batch.input_ids.size for batch in batches) - tokens,
        "documents": sum(int((batch.chunk == 0).sum()) for batch in batches),
        "pieces": sum(len(batch.chunk) for batch in batches),
    }
    differ = [name for name in TOTALS if name in counted and counted[name] != getattr(entry, name)]
    return [
        Fault(entry.path, None, f"{counted[name]:,} {name}, the index says {getattr(entry, name):,}") for name in differ
    ]
