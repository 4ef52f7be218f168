"""Reads token shards in place: files are mapped, rows are views of the map, and nothing is copied unless asked for.

A file is closed once it is mapped, so the number of shards is not bounded by the number of open files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.kernels.base.types import Array
from gristmill.shards.documents import Document, documents_of
from gristmill.shards.format import BadShards, ShardMeta, schema_of
from gristmill.shards.index import NAME, Index, read_index
from gristmill.shards.rows import Row, Rows, concatenate

__all__ = ["Document", "Row", "Rows", "Shard", "ShardSet", "open_shards"]

LISTS = ("seq_lens", "doc_uids", "chunk", "source")


class Shard:
    """One mapped file."""

    def __init__(self, path: Path, meta: ShardMeta) -> None:
        where = str(path)
        try:
            with pa.memory_map(where) as file, pa.ipc.open_file(file) as reader:
                self.meta = ShardMeta.from_schema(reader.schema, where)
                if self.meta != meta:
                    raise BadShards(
                        f"{where}: made in another way than the index says ({_difference(self.meta, meta)})"
                    )
                batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
                self.sources = _sources(reader.schema, batches, meta, where)
        except FileNotFoundError:
            raise BadShards(f"{where}: missing, but the index lists it") from None
        except (pa.ArrowException, OSError) as error:
            raise BadShards(
                f"{where}: not a whole Arrow file ({str(error).splitlines()[0]}); was it cut off or changed?"
            ) from None
        try:
            self.batches = [_rows(batch, f"{where}: record batch {i}") for i, batch in enumerate(batches)]
        except pa.ArrowException as error:  # nulls where there are none, offsets beyond the data
            raise BadShards(f"{where}: {str(error).splitlines()[0]}") from None
        self.first_rows = [0, *np.cumsum([len(batch.bucket) for batch in self.batches], dtype=np.int64).tolist()]

    def __len__(self) -> int:
        return int(self.first_rows[-1])


class ShardSet:
    """All rows of a set, in the order in which they were written. It can be pickled; the other process maps the files
    anew."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder = folder
        self.index = index
        self.meta = index.meta
        self.first_rows = [0, *np.cumsum([shard.rows for shard in index.shards], dtype=np.int64).tolist()]
        self._opened: dict[int, Shard] = {}

    def __len__(self) -> int:
        return int(self.first_rows[-1])

    def __repr__(self) -> str:
        tokens, documents = (self.index.total(name) for name in ("tokens", "documents"))
        return (
            f"<ShardSet {self.folder}: {len(self):,} rows of {self.meta.row_length:,} tokens; {documents:,} documents,"
            f" {tokens:,} tokens of {', '.join(self.sources)}; tokenizer {self.meta.tokenizer}>"
        )

    def __getitem__(self, i: int) -> Row:
        if isinstance(i, slice):
            raise TypeError(
                "one row by its number was expected, not a slice: take(range(start, stop)) gives several rows,"
                " rows(start, stop) their tokens"
            )
        return self.row(i)

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardSet, (self.folder, self.index)

    @property
    def fingerprint(self) -> str:
        return self.index.fingerprint

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources by number, as in the rows."""
        return tuple(self.index.sources)

    def shard(self, number: int) -> Shard:
        """Mapped at first use."""
        if number not in self._opened:
            self._opened[number] = self._open(number)
        return self._opened[number]

    def row(self, i: int) -> Row:
        i = self._checked(i)
        batch, place = self._batch_of(i)
        return batch.row(place)

    def rows(self, start: int, stop: int) -> Array:
        """Tokens of rows start to stop as (rows, row length): a view inside one record batch, else a copy."""
        return self.take(np.arange(start, stop)).input_ids

    def take(self, rows: Sequence[int] | Array, out: Array | None = None) -> Rows:
        """These rows, in this order; into `out` (rows, row length) if it is given, else as a view if they are
        consecutive in one record batch."""
        rows = np.asarray(rows, np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"row {int(rows.min() if rows.min() < 0 else rows.max()):,}: there are {len(self):,}")
        parts = list(self._runs(rows))
        if len(parts) == 1 and out is None:
            return parts[0]
        if out is None:
            out = np.empty((len(rows), self.meta.row_length), self.meta.dtype)
        return concatenate(parts, out)

    def blocks(self) -> Iterator[Rows]:
        """All rows, a record batch at a time, as views."""
        for number in range(len(self.index.shards)):
            yield from self.shard(number).batches

    def documents(self) -> Iterator[Document]:
        """All documents, whole, shard by shard, in the order of their first pieces."""
        for number in range(len(self.index.shards)):
            yield from documents_of(self.shard(number).batches)

    def _checked(self, i: int) -> int:
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i:,}: there are {len(self):,}")
        return i % len(self)

    def _open(self, number: int) -> Shard:
        entry = self.index.shards[number]
        path = self.folder / entry.path
        size = path.stat().st_size if path.is_file() else None
        if size is not None and size != entry.bytes:
            raise BadShards(f"{path}: {size:,} bytes, the index says {entry.bytes:,}; was it cut off or written anew?")
        shard = Shard(path, self.meta)
        if len(shard) != entry.rows:
            raise BadShards(f"{path}: {len(shard):,} rows, the index says {entry.rows:,}")
        if shard.sources != self.sources:
            raise BadShards(
                f"{path}: its sources are {', '.join(shard.sources)}, those of the index {', '.join(self.sources)}"
            )
        return shard

    def _batch_of(self, i: int) -> tuple[Rows, int]:
        number = bisect_right(self.first_rows, i) - 1
        shard = self.shard(number)
        i -= self.first_rows[number]
        batch = bisect_right(shard.first_rows, i) - 1
        return shard.batches[batch], i - shard.first_rows[batch]

    def _runs(self, rows: Array) -> Iterator[Rows]:
        """Views of as many adjacent rows at a time as possible."""
        ends = np.append(np.flatnonzero(np.diff(rows) != 1) + 1, len(rows)) if len(rows) else np.zeros(0, np.int64)
        i = 0
        for end in ends.tolist():
            while i < end:
                batch, place = self._batch_of(int(rows[i]))
                count = min(end - i, len(batch.bucket) - place)
                yield batch.part(place, place + count)
                i += count


def open_shards(folder: str | PathLike[str]) -> ShardSet:
    """A set of shards in a local folder, by its index.json. Files are opened when first needed
    (`gristmill.shards.verify` checks all)."""
    if "://" in str(folder):
        raise BadShards(f"{folder}: shards are mapped, so they must lie in a local folder; copy them there first")
    path = Path(folder)
    try:
        text = (path / NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise BadShards(f"{path}: no {NAME} here; a set of shards is a folder with one") from None
    return ShardSet(path, read_index(text, str(path / NAME)))


def _difference(actual: ShardMeta, expected: ShardMeta) -> str:
    pairs = ((name, getattr(actual, name), getattr(expected, name)) for name in actual.__dataclass_fields__)
    return ", ".join(f"{name} {ours!r}, not {theirs!r}" for name, ours, theirs in pairs if ours != theirs)


def _sources(schema: pa.Schema, batches: list[pa.RecordBatch], meta: ShardMeta, where: str) -> tuple[str, ...]:
    """Their names, in the order of their numbers in rows."""
    if not any(schema == schema_of(meta, [""] * size) for size in (1, 1 + (1 << 15))):  # int16 or int32
        raise BadShards(f"{where}: its columns are not those of a token shard of this vocabulary and row length")
    if not batches:
        raise BadShards(f"{where}: holds no record batch")
    names = batches[0].column("source").values.dictionary
    names.validate(full=True)
    return tuple(names.to_pylist())


def _rows(batch: pa.RecordBatch, where: str) -> Rows:
    batch.validate()
    row_length = batch.schema.field("input_ids").type.list_size
    tokens = batch.column("input_ids").values.to_numpy().reshape(-1, row_length)
    first_piece = batch.column("seq_lens").offsets.to_numpy()
    for name in LISTS:
        if not np.array_equal(batch.column(name).offsets.to_numpy(), first_piece):
            raise BadShards(f"{where}: {name} has not as many values in each row as seq_lens")
    pieces = len(batch.column("seq_lens").values)
    if (np.diff(first_piece) < 0).any() or first_piece[0] < 0 or first_piece[-1] > pieces:
        raise BadShards(f"{where}: lists of documents that overlap or reach beyond the {pieces:,} that there are")
    lengths, uids, chunk = (batch.column(name).values.to_numpy() for name in LISTS[:3])
    source = batch.column("source").values.indices.to_numpy()
    difficulty = batch.column("difficulty").to_numpy(zero_copy_only=False)  # NaN for null
    return Rows(tokens, first_piece, lengths, uids, chunk, source, batch.column("bucket").to_numpy(), difficulty)
