"""The format of a token shard: an Arrow IPC file of training rows, with the settings that made them in its schema.

Column by column in docs/shards.md. Document bounds are stored, never inferred from a token: some rows have the
end-of-text token inside a document, others lack it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gristmill.kernels.base.types import Array, Offsets
from gristmill.kernels.rows.lay_rows import lay_rows
from gristmill.kernels.rows.pack import LONGEST_ROW, Packed

VERSION = 1
KEY = b"gristmill"  # of the schema's metadata
BATCH_TOKENS = 1 << 22  # of a record batch: 8 MB of uint16
UNKNOWN_BUCKET = -1


class BadShards(ValueError):
    """These are no token shards, are not what was written, or are of an unknown version."""


@dataclass(frozen=True)
class ShardMeta:
    """What all rows of a set have in common."""

    tokenizer: str
    tokenizer_hash: str
    vocab_size: int
    row_length: int
    pad_id: int
    bos_id: int | None
    eos_id: int | None
    packer: str
    seed: int
    fingerprint: str

    def __post_init__(self) -> None:
        for name in ("tokenizer", "tokenizer_hash", "packer", "fingerprint"):
            if not isinstance(getattr(self, name), str):
                raise BadShards(f"{name} must be text, not {getattr(self, name)!r}")
        for name in ("vocab_size", "row_length", "pad_id", "seed"):
            if type(getattr(self, name)) is not int:
                raise BadShards(f"{name} must be a whole number, not {getattr(self, name)!r}")
        if not 1 <= self.vocab_size <= 1 << 32:
            raise BadShards(f"a vocabulary of {self.vocab_size:,}: between 1 and {1 << 32:,} are possible")
        if not 1 <= self.row_length <= LONGEST_ROW:
            raise BadShards(f"rows of {self.row_length:,} tokens: between 1 and {LONGEST_ROW:,} are possible")
        for name in ("pad_id", "bos_id", "eos_id"):
            token = getattr(self, name)
            if token is None and name != "pad_id":
                continue
            if type(token) is not int or not 0 <= token < self.vocab_size:
                raise BadShards(f"{name} {token!r} is not in the vocabulary of {self.vocab_size:,}")

    @property
    def dtype(self) -> np.dtype[Any]:
        return dtype_of(self.vocab_size)

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return {"version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_facts(cls, facts: Any, where: str) -> ShardMeta:
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(facts, dict):
            raise BadShards(f"{where}: not the facts of token shards")
        check_version(facts.get("version"), where)
        missing = [name for name in names if name not in facts]
        if missing:
            raise BadShards(f"{where}: {', '.join(missing)} missing")
        try:
            return cls(**{name: facts[name] for name in names})
        except BadShards as error:
            raise BadShards(f"{where}: {error}") from None

    @classmethod
    def from_schema(cls, schema: pa.Schema, where: str) -> ShardMeta:
        stored = (schema.metadata or {}).get(KEY)
        if stored is None:
            raise BadShards(
                f"{where}: an Arrow file, but not a token shard (no {KEY.decode()!r} in the metadata of its schema)"
            )
        try:
            return cls.from_facts(json.loads(stored), where)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise BadShards(f"{where}: the metadata of the schema is not JSON ({error})") from None


def check_version(version: Any, where: str) -> None:
    if type(version) is not int or version < 1:
        raise BadShards(f"{where}: {version!r} is no version of token shards")
    if version > VERSION:
        raise BadShards(
            f"{where}: token shards of version {version}, this program reads up to version {VERSION}; update gristmill"
        )


def dtype_of(vocab_size: int) -> np.dtype[Any]:
    """Of stored tokens: uint16 where every id fits."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def batch_rows(row_length: int) -> int:
    """The rows of every record batch but the last of a shard."""
    return max(1, BATCH_TOKENS // row_length)


def schema_of(meta: ShardMeta, sources: Sequence[str]) -> pa.Schema:
    """Every shard of a set has the same sources, in the same order."""
    source = pa.dictionary(pa.int16() if len(sources) <= 1 << 15 else pa.int32(), pa.string())
    return pa.schema(
        [
            pa.field(
                "input_ids", pa.list_(pa.field("item", pa.from_numpy_dtype(meta.dtype), False), meta.row_length), False
            ),
            pa.field("seq_lens", _list_of(pa.int32()), False),
            pa.field("doc_uids", _list_of(pa.uint64()), False),
            pa.field("chunk", _list_of(pa.int32()), False),
            pa.field("source", _list_of(source), False),
            pa.field("bucket", pa.int16(), False),
            pa.field("difficulty", pa.float32()),
        ],
        metadata={KEY: json.dumps(meta.facts(), sort_keys=True).encode()},
    )


class Documents(NamedTuple):
    """Document d is tokens[offsets[d]:offsets[d + 1]] and comes from sources[source[d]]; `bucket` -1 and `difficulty`
    NaN: unknown."""

    tokens: Array
    offsets: Offsets
    uid: Array  # uint64
    source: Array
    bucket: Array  # int16
    difficulty: Array  # float32


def shard_table(meta: ShardMeta, sources: Sequence[str], documents: Documents, packed: Packed) -> pa.Table:
    """The rows of one shard: documents packed by `gristmill.kernels.rows.pack` (in rows of `meta.row_length`)."""
    tokens = np.asarray(documents.tokens)
    if tokens.dtype != meta.dtype:
        raise ValueError(
            f"tokens are {tokens.dtype}, but a vocabulary of {meta.vocab_size:,} is stored as {meta.dtype}"
        )
    if len(tokens) and int(tokens.max()) >= meta.vocab_size:
        raise ValueError(
            f"token {int(tokens.max()):,} is not in the vocabulary of {meta.vocab_size:,}: is the tokenizer the one "
            "that was named?"
        )
    if len(documents.source) and not 0 <= int(np.min(documents.source)) <= int(np.max(documents.source)) < len(sources):
        raise ValueError(f"a document of source {int(np.max(documents.source))}: there are {len(sources)}")
    schema = schema_of(meta, sources)
    rows = lay_rows(tokens, documents.offsets, packed, meta.row_length, meta.pad_id)
    first_piece = np.searchsorted(packed.row, np.arange(packed.rows + 1)).astype(np.int32)
    column = {
        "input_ids": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), type=schema.field("input_ids").type),
        "bucket": pa.array(_hardest(packed, first_piece, documents.bucket)),
        "difficulty": _mean_difficulty(packed, documents.difficulty),
    }
    names = pa.array(list(sources), pa.string())
    source = np.asarray(documents.source)[packed.document]
    values = {
        "seq_lens": pa.array(np.asarray(packed.length, np.int32)),
        "doc_uids": pa.array(np.asarray(documents.uid, np.uint64)[packed.document]),
        "chunk": pa.array(_chunks(packed, documents.offsets)),
        "source": pa.DictionaryArray.from_arrays(
            pa.array(source, schema.field("source").type.value_type.index_type), names
        ),
    }
    for name, flat in values.items():
        column[name] = pa.ListArray.from_arrays(pa.array(first_piece), flat, type=schema.field(name).type)
    return pa.table([column[name] for name in schema.names], schema=schema)


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", kind, False))


def _hardest(packed: Packed, first_piece: Array, bucket: Array) -> Array:
    if packed.rows == 0:
        return np.zeros(0, np.int16)
    return np.maximum.reduceat(np.asarray(bucket, np.int16)[packed.document], first_piece[:-1])


def _mean_difficulty(packed: Packed, difficulty: Array) -> pa.Array:
    """Weighted by tokens, over the documents with a difficulty; null where there are none."""
    of_piece = np.asarray(difficulty, np.float64)[packed.document]
    has_difficulty = ~np.isnan(of_piece)
    tokens = np.bincount(packed.row, packed.length * has_difficulty, packed.rows)
    total = np.bincount(packed.row, packed.length * np.where(has_difficulty, of_piece, 0), packed.rows)
    return pa.array((total / np.maximum(tokens, 1)).astype(np.float32), mask=tokens == 0)


def _chunks(packed: Packed, offsets: Offsets) -> Array:
    """The number of each piece in its document, from 0."""
    chunk = np.zeros(len(packed.row), np.int32)
    cut = np.flatnonzero(packed.length < np.diff(offsets)[packed.document])
    cut = cut[np.lexsort((packed.start[cut], packed.document[cut]))]
    begins = np.flatnonzero(packed.start[cut] == 0)
    chunk[cut] = np.arange(len(cut)) - np.repeat(begins, np.diff(np.append(begins, len(cut))))
    return chunk
