"""Small sets of shards whose documents are known, and readers of other formats that share no code with what writes
them."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import xxhash

from gristmill.kernels.rows.pack import Packed, best_fit
from gristmill.shards.format import Documents, ShardMeta, shard_table
from gristmill.shards.writer import index_of, shard_facts, write_shard

SOURCES = ("web", "books")
EOS = 2


class Made(NamedTuple):
    folder: Path
    meta: ShardMeta
    documents: list[list[tuple[int, list[int]]]]  # of each shard: number and tokens
    packed: list[Packed]  # of each shard


def meta_of(row_length: int, vocab_size: int, eos: int | None = EOS, tokenizer_hash: str = "0f") -> ShardMeta:
    return ShardMeta("a tokenizer", tokenizer_hash, vocab_size, row_length, 0, None, eos, "best_fit", 7, "abc")


def make_shards(
    folder: Path,
    lengths: list[list[int]],
    row_length: int,
    vocab_size: int = 1000,
    eos: int | None = EOS,
    copies: int = 1,
    tokenizer_hash: str = "0f",
    pack: Callable[[Any, int], Packed] = lambda lengths, row_length: best_fit(
        lengths, row_length, np.array([0, len(lengths)])
    ),
) -> Made:
    """One shard for each list of lengths of documents, every document as often as `copies` says."""
    meta = meta_of(row_length, vocab_size, eos, tokenizer_hash)
    random = np.random.default_rng(sum(map(sum, lengths)) + row_length)
    folder.mkdir(parents=True, exist_ok=True)
    entries, documents, layouts = [], [], []
    uid = 1 << 63
    for number, of_shard in enumerate(lengths):
        texts: list[tuple[int, list[int]]] = []
        for length in of_shard:
            uid += 1
            tokens = [*random.integers(3, vocab_size, length - 1).tolist(), EOS]
            texts += [(uid, tokens)] * copies
        sizes = np.array([len(tokens) for _, tokens in texts], np.int64)
        flat = Documents(
            np.concatenate([np.array(tokens, meta.dtype) for _, tokens in texts]),
            np.concatenate([[0], np.cumsum(sizes)]),
            np.array([uid for uid, _ in texts], np.uint64),
            np.arange(len(texts)) % 2,
            np.zeros(len(texts), np.int16),
            np.full(len(texts), np.nan, np.float32),
        )
        packed = pack(sizes, row_length)
        table = shard_table(meta, SOURCES, flat, packed)
        path = folder / f"shard-{number:05}.arrow"
        with path.open("wb") as file:
            write_shard(file, table)
        data = path.read_bytes()
        entries.append(
            {**shard_facts(table), "path": path.name, "bytes": len(data), "checksum": xxhash.xxh3_128_hexdigest(data)}
        )
        documents.append(texts)
        layouts.append(packed)
    (folder / "index.json").write_text(json.dumps(index_of(meta, entries)), encoding="utf-8")
    return Made(folder, meta, documents, layouts)


def rows_of(made: Made) -> list[tuple[list[int], list[int]]]:
    """Every row as the tokens without padding and the lengths of its pieces, from the layout alone."""
    rows = []
    for documents, packed in zip(made.documents, made.packed, strict=True):
        for row in range(packed.rows):
            tokens: list[int] = []
            lengths = []
            for piece in np.flatnonzero(packed.row == row).tolist():
                start, length = int(packed.start[piece]), int(packed.length[piece])
                tokens += documents[packed.document[piece]][1][start : start + length]
                lengths.append(length)
            rows.append((tokens, lengths))
    return rows


def all_documents(made: Made) -> list[list[int]]:
    return [tokens for shard in made.documents for _, tokens in shard]


def read_indexed(prefix: Path) -> list[list[int]]:
    """The documents of Megatron's .bin and .idx."""
    index, data = Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()
    magic, version, code, count, marks = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version, marks) == (b"MMIDIDX\0\0", 1, count + 1)
    kind = {8: "H", 4: "i"}[code]
    lengths = struct.unpack_from(f"<{count}i", index, 34)
    places = struct.unpack_from(f"<{count}q", index, 34 + 4 * count)
    ends = struct.unpack_from(f"<{marks}q", index, 34 + 12 * count)
    assert ends == tuple(range(count + 1))
    assert len(index) == 34 + 20 * count + 8
    assert sum(lengths) * struct.calcsize(kind) == len(data)
    return [list(struct.unpack_from(f"<{n}{kind}", data, place)) for n, place in zip(lengths, places, strict=True)]


def read_mds(folder: Path) -> tuple[list[tuple[list[int], list[int]]], list[int]]:
    """Tokens and seq_lens of every sample, and the size of every shard."""
    samples, sizes = [], []
    index = json.loads((folder / "index.json").read_text())
    assert index["version"] == 2
    for shard in index["shards"]:
        assert shard["column_names"] == ["seq_lens", "tokens"]
        assert shard["column_encodings"][0] == "ndarray:int32"
        _, kind, row_length = shard["column_encodings"][1].split(":")
        data = (folder / shard["raw_data"]["basename"]).read_bytes()
        assert shard["raw_data"]["bytes"] == len(data)
        assert shard["raw_data"]["hashes"].get("xxh64", xxhash.xxh64_hexdigest(data)) == xxhash.xxh64_hexdigest(data)
        (count,) = struct.unpack_from("<I", data)
        assert count == shard["samples"]
        ends = struct.unpack_from(f"<{count + 1}I", data, 4)
        assert ends[-1] == len(data)
        for start, stop in pairwise(ends):
            (size,) = struct.unpack_from("<I", data, start)
            head = data[start + 4]
            assert head >> 2 == 1
            width = 1 << (head & 3)
            pieces = int.from_bytes(data[start + 5 : start + 5 + width], "little")
            assert size == 1 + width + 4 * pieces
            seq_lens = struct.unpack_from(f"<{pieces}i", data, start + 5 + width)
            form = f"<{row_length}{ {'uint16': 'H', 'uint32': 'I'}[kind] }".replace(" ", "")
            assert start + 4 + size + struct.calcsize(form) == stop
            samples.append((list(struct.unpack_from(form, data, start + 4 + size)), list(seq_lens)))
        sizes.append(len(data))
    return samples, sizes


def run_elsewhere(variable: str, script: str, *arguments: str | Path) -> Any:
    """What a script of tests/shards/elsewhere prints last, as JSON; `variable` names the Python that has the package it
    needs."""
    python = os.environ.get(variable)
    if not python and script == "with_datasets.py" and importlib.util.find_spec("datasets") is not None:
        python = sys.executable
    if not python:
        pytest.skip(f"set {variable} to a Python that has the package")
    path = Path(__file__).parent / "elsewhere" / script
    done = subprocess.run(
        [python, path, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stderr[-500:], file=sys.stderr)
    return json.loads(done.stdout.splitlines()[-1])
