"""Documents that are nearly the same by SimHash: fingerprints of 64 or 128 bits that differ in few of them (Charikar
2002; Manku et al. 2007).

One number a document instead of a signature: 8 or 16 bytes. It finds copies with small edits, and less sharply than
`minhash_dedup`, which is the better choice unless space is short or fingerprints are what others ask for
(docs/dedup.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import comb
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.splitmix import mixed_all, mixed_plain
from gristmill.kernels.base.types import Array
from gristmill.kernels.duplicates.simhash import distances, fingerprints, pairs_within, tables_of
from gristmill.stages.dedup.near import NO_CLUSTER, NearDuplicates, Sketches
from gristmill.stages.dedup.policy import SurvivorPolicy
from gristmill.stages.flow import Dataset, Flow, Rows

MOST_TABLES = 128


class SimhashDedup(SurvivorPolicy):
    """Keep one of documents whose fingerprints differ in at most `distance` bits.

    A document goes only for one that stays; who stays: by `prefer`, then by uid. Every pair within the distance that
    shares a bucket is found; words are those of `minhash_dedup`. Documents without words are like none.
    """

    bits: Annotated[Literal[64, 128], Field(description="length of a fingerprint")] = 64
    distance: Annotated[int, Field(description="bits in which two that are alike may differ", ge=0, le=32)] = 3
    ngram: Annotated[int, Field(description="words in a shingle", ge=1, le=64)] = 3
    blocks: Annotated[
        int | None,
        Field(
            description="pieces of a fingerprint; more make more tables with smaller buckets (default: distance + 2)",
            ge=1,
        ),
    ] = None
    seed: Annotated[int, Field(description="of all hashes", ge=0)] = 0

    cluster_size: ClassVar[str] = "simhash_cluster_size"
    signal_types: ClassVar[Mapping[str, pa.DataType]] = {
        "simhash_cluster": pa.uint64(),
        "simhash_cluster_size": pa.uint32(),
        "simhash_copies": pa.uint32(),
    }

    @model_validator(mode="after")
    def _tables_fit(self) -> Self:
        if self.pieces <= self.distance or self.pieces > self.bits:
            raise ValueError(
                f"{self.pieces} blocks for a distance of {self.distance}: there must be more blocks than "
                f"that, and at most {self.bits}"
            )
        if comb(self.pieces, self.distance) > MOST_TABLES:
            raise ValueError(
                f"{self.pieces} blocks and a distance of {self.distance} need "
                f"{comb(self.pieces, self.distance):,} tables; at most {MOST_TABLES}"
            )
        return self

    @property
    def pieces(self) -> int:
        return self.blocks or self.distance + 2

    @property
    def masks(self) -> Array:
        return np.array(tables_of(self.bits, self.distance, self.pieces), np.uint64)

    @property
    def near(self) -> NearDuplicates:
        return NearDuplicates(self, prefix="simhash", at_least=1 - self.distance / self.bits)

    @property
    def round_helpers(self) -> tuple[object, ...]:
        return self.near.helpers

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        duplicates = self.near.duplicates(docs, flow, self.nominated_and_compared(docs, flow))
        return flow.drop(docs, self.report_clusters(duplicates, flow))

    def prepare(self) -> None:
        self.near.prepare()
        rows = self.sign(pa.table({"uid": pa.array([1, 2], pa.uint64()), "text": ["a text that is there twice"] * 2}))
        self.nominate(rows.append_column("home", rows["uid"]))

    def nominated_and_compared(self, docs: Dataset, flow: Flow) -> Rows:
        """Edges, cut by `left`."""
        rows = flow.map(self.sign, docs, columns=("uid", "text"), by="key", fan=len(self.masks))
        pairs = flow.reduce(self.nominate, rows, fan=1 / len(self.masks))
        flow.release(rows)
        return self.near.compared(pairs, docs, flow, by="left")

    def sign(self, docs: pa.Table) -> pa.Table:
        """A row for each table of each document that has words."""
        words, shingles = fingerprints(text_column(docs["text"]), self.ngram, self.bits, self.seed)
        words, uid = words[shingles > 0], docs["uid"].to_numpy()[shingles > 0]
        keys = np.stack([key_of(words & mask, table) for table, mask in enumerate(self.masks)], axis=1)
        tables = len(self.masks)
        rows = {
            "key": keys.reshape(-1),
            "uid": np.repeat(uid, tables),
            "table": np.tile(np.arange(tables, dtype=np.uint8), len(uid)),
        }
        rows |= {f"word{n}": np.repeat(words[:, n], tables) for n in range(words.shape[1])}
        return pa.table(rows)

    def nominate(self, rows: pa.Table) -> pa.Table:
        """Pairs within the distance, each once."""
        names = [f"word{n}" for n in range(self.bits // 64)]
        order = np.lexsort([rows[name].to_numpy() for name in ("uid", *names, "key")])
        key, table, uid, home = (rows[name].to_numpy()[order] for name in ("key", "table", "uid", "home"))
        words = np.stack([rows[name].to_numpy()[order] for name in names], axis=1)
        a, b = pairs_within(key, table, words, uid, self.masks, self.distance)
        left, right = np.where(uid[a] < uid[b], a, b), np.where(uid[a] < uid[b], b, a)
        pairs = {"home": home[left], "left": uid[left], "right": uid[right], "right_home": home[right]}
        return pa.table(pairs | {"cluster": np.full(len(left), NO_CLUSTER, np.uint64)})

    def sketches(self, docs: pa.Table) -> Sketches:
        words, _ = fingerprints(text_column(docs["text"]), self.ngram, self.bits, self.seed)
        return words.reshape(-1), np.arange(len(words) + 1) * words.shape[1]

    def similarities(self, sketches: Sketches, left: Array, right: Array) -> Array:
        return 1 - distances(sketches[0].reshape(-1, self.bits // 64), left, right) / self.bits


def key_of(words: Array, table: int) -> Array:
    """A well-mixed name for the bucket of each fingerprint in a table."""
    key = np.full(len(words), mixed_plain(table + 1), np.uint64)
    for word in range(words.shape[1]):
        key = mixed_all(key ^ words[:, word])
    return key
