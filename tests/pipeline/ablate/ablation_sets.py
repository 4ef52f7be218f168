"""Small sets of token shards of made-up language, a tokenizer of bytes, and held-out texts: all that a plan of an
ablation names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from gristmill.kernels.rows.pack import best_fit
from gristmill.shards.format import Documents, ShardMeta, shard_table
from gristmill.shards.writer import index_of, shard_facts, write_shard

ROW_LENGTH = 64
WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "king",
    "queen",
    "sees",
    "loves",
    "finds",
    "old",
    "red",
    "small",
    "house",
    "tree",
    "river",
    "and",
    "but",
    "then",
]


def tokenizer() -> Tokenizer:
    """A token for each byte, and one that ends a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(
        models.BPE(vocab={**{letter: i for i, letter in enumerate(letters)}, "<end>": len(letters)}, merges=[])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    return made


def tales(count: int, seed: int, shuffled: float = 0.0) -> list[str]:
    """Texts of a language that a small model can learn; in a part of them letters stand in any order."""
    random = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        words = [WORDS[i] for i in (random.integers(0, len(WORDS), 12) ** 2 // len(WORDS))]
        text = " ".join(words) + "."
        if random.random() < shuffled:
            text = "".join(random.permutation(list(text)))
        texts.append(text)
    return texts


def make_set(
    folder: Path,
    texts: Sequence[str],
    name: str = "tales",
    row_length: int = ROW_LENGTH,
    segments: Sequence[int] = (),
    difficulty: Sequence[float] | None = None,
) -> Path:
    """A set of one shard, with its tokenizer beside it. `segments` are the texts with which each begins; the buckets of
    a `difficulty` between 0 and 1 are its quarters."""
    by = tokenizer()
    tokens = [[*by.encode(text).ids, 256] for text in texts]
    written = by.to_str()
    meta = ShardMeta(
        "bytes", hashlib.sha256(written.encode()).hexdigest(), 257, row_length, 256, None, 256, "best_fit", 0, name
    )
    sizes = np.array([len(each) for each in tokens], np.int64)
    uids = np.array([xxhash.xxh3_64_intdigest(f"{i} {text}".encode()) for i, text in enumerate(texts)], np.uint64)
    documents = Documents(
        np.concatenate([np.array(each, meta.dtype) for each in tokens]), np.concatenate([[0], np.cumsum(sizes)]), uids,
        np.zeros(len(texts), np.int64),
        np.zeros(len(texts), np.int16) if difficulty is None else (4 * np.asarray(difficulty)).astype(np.int16),
        np.asarray(np.full(len(texts), np.nan) if difficulty is None else difficulty, np.float32),
    )  # fmt: skip
    edges = [*(segments or [0]), len(texts)]
    packed = best_fit(sizes, row_length, np.array(edges))
    table = shard_table(meta, [name], documents, packed)
    first_rows = [int(packed.row[packed.document >= edge].min()) for edge in segments]
    (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer" / "tokenizer.json").write_text(written, encoding="utf-8")
    with (folder / "shard-00000.arrow").open("wb") as file:
        write_shard(file, table)
    data = (folder / "shard-00000.arrow").read_bytes()
    entry = {
        **shard_facts(table),
        "path": "shard-00000.arrow",
        "bytes": len(data),
        "checksum": xxhash.xxh3_128_hexdigest(data),
    }
    (folder / "index.json").write_text(json.dumps(index_of(meta, [entry], first_rows)), encoding="utf-8")
    return folder


def held_out(path: Path, count: int, seed: int) -> Path:
    texts = tales(count, seed)
    hosts = [f"host{i % 30}" for i in range(count)]
    kinds = ["short" if i % 2 else "long" for i in range(count)]
    pq.write_table(pa.table({"text": texts, "host": hosts, "kind": kinds}), path)
    return path


PLAN = """
name: tales
sets:
  default: sets/default
  clean: sets/clean
  noise: sets/noise
control: default
arms:
  clean: clean
  noise: noise
base:
  mix: default
  shape: {{hidden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 32, tied: true}}
  tokens: 10000
  training: {{rate: 0.01, rows_per_update: 8, rows_per_step: 8}}
protocol: {protocol}
tokens: {tokens}
seeds: {seeds}
training: {{rows_per_update: 8, rows_per_step: 8, checkpoints: 4}}
evaluate:
  texts:
    prose: {{files: prose.parquet, cluster: host, domain: kind}}
    general: {{files: general.parquet, cluster: host}}
  target: prose
  guard: general
  guard_budget: 0.05
  points: 2
  point_documents: 8
"""


def make_plan(folder: Path, protocol: str = "microanneal", tokens: int = 10_000, seeds: int = 2) -> Path:
    """A folder with three sets, held-out texts and a plan: a clean arm, and one of which half is noise."""
    make_set(folder / "sets" / "default", tales(600, 1, shuffled=0.2))
    make_set(folder / "sets" / "clean", tales(600, 2))
    make_set(folder / "sets" / "noise", tales(600, 3, shuffled=0.9))
    held_out(folder / "prose.parquet", 60, 4)
    held_out(folder / "general.parquet", 60, 5)
    path = folder / "plan.yaml"
    path.write_text(PLAN.format(protocol=protocol, tokens=tokens, seeds=seeds), encoding="utf-8")
    return path
