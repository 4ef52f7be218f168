"""Texts that say the same in other words: near vectors nominate, a second look at words, numbers and names decides.

SemDeDup (Abbas et al. 2023) drops what lies near in a cluster. Near is also what is made of one template: weather
reports, product pages, licenses, files of code with other constants. So here a nominated pair is compared by its texts
too, and `gristmill.stages.dedup.near` has the rest of the road: a document goes only if it is like one that stays.
Recall and wrong losses beside SemDeDup on the same vectors: benchmarks/dedup/semantic.py, docs/semantic.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.base.types import Array
from gristmill.kernels.vectors.int8 import lengths, near_pairs
from gristmill.kernels.words.facts import shared, words_and_facts
from gristmill.stages.dedup.near import NO_CLUSTER, NearDuplicates, Sketches
from gristmill.stages.dedup.policy import SurvivorPolicy
from gristmill.stages.figures import FactList, Report, StageFigures
from gristmill.stages.flow import Dataset, Flow
from gristmill.stages.semantic.vectors import as_bytes, from_bytes, vectors_in
from gristmill.stages.stage import CannotRun

MOST_PAIRS = 64  # of a document, with those before it
WINDOW = 20_000  # documents of a cluster that one is compared with, nearest by their cosine with the centre
IN_WORD = 8  # numbers of a vector in a machine word


class SemanticDedup(SurvivorPolicy):
    """Keep one of documents that say the same in other words, as their vectors and a second look at their texts tell.

    Off in all recipes that ship: evidence that it helps a model of text is weak. Two documents of one cluster are alike
    if the cosine of their vectors is at least `threshold`, if they share words, and if each has the numbers and names
    of the other. Who stays: by `prefer`, then by uid. Order and negation are not seen, nor are facts in lower case.
    """

    threshold: Annotated[float, Field(description="the cosine from which two documents may be alike", gt=0, le=1)] = 0.9
    shared_words: Annotated[
        float, Field(description="the Jaccard similarity of their words, at least; 0 for translations", ge=0, le=1)
    ] = 0.2
    shared_facts: Annotated[
        float, Field(description="the share of numbers and names of each that the other has too, at least", ge=0, le=1)
    ] = 1.0
    embedding: Annotated[str, Field(description="the signal with the vectors")] = "embedding"
    cluster: Annotated[str, Field(description="the signal with the cluster; only documents of one are compared")] = (
        "cluster"
    )

    cluster_size: ClassVar[str] = "semantic_cluster_size"
    signal_types: ClassVar[Mapping[str, pa.DataType]] = {
        "semantic_cluster": pa.uint64(),
        "semantic_cluster_size": pa.uint32(),
        "semantic_copies": pa.uint32(),
    }
    expect_drops: ClassVar[float] = 0.2

    @property
    def wants(self) -> tuple[str, ...]:
        return (*super().wants, self.embedding, self.cluster)

    @property
    def near(self) -> NearDuplicates:
        return NearDuplicates(self, prefix="semantic", at_least=self.threshold)

    @property
    def round_helpers(self) -> tuple[object, ...]:
        return self.near.helpers

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        columns = ("uid", self.embedding, self.cluster, f"{self.cluster}_similarity")
        rows = flow.map(self.sign, docs, columns=columns, by="key")
        pairs = flow.reduce(self.nominate, rows)
        flow.release(rows)
        nominated = pairs.count
        edges = self.near.compared(pairs, docs, flow, by="left")
        flow.report("semantic_pairs", {"near": nominated, "alike": edges.count})
        duplicates = self.near.duplicates(docs, flow, edges)
        return flow.drop(docs, self.report_clusters(duplicates, flow))

    def prepare(self) -> None:
        text = ["a text in Bonn with 2 facts"] * 2
        vectors = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 1, 2], pa.int8()), 2)
        near_pairs(np.ones((2, 2), np.int8), 0.5, 2, 2)
        self.near.prepare(pa.table({"text": text, self.embedding: vectors}))

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        shown = super().figures(report)
        if shown is None or "semantic_pairs" not in report:
            return shown
        near, alike = report["semantic_pairs"]["near"], report["semantic_pairs"]["alike"]
        pairs = [
            ("pairs with near vectors", f"{near:,}"),
            ("refused for their words, numbers or names", f"{near - alike:,}"),
        ]
        return StageFigures("Texts that say the same", [FactList("", pairs), *shown.blocks])

    def sign(self, docs: pa.Table) -> pa.Table:
        """Each document that has a vector and a cluster, at the bucket of its cluster."""
        if not pa.types.is_integer(docs[self.cluster].type) and not pa.types.is_null(docs[self.cluster].type):
            raise CannotRun(
                f"{self.cluster!r} is {docs[self.cluster].type}; the number of a cluster was expected, as "
                "`semantic_clusters` adds it"
            )
        docs = docs.filter(docs[self.cluster].is_valid())
        vectors, there = vectors_in(docs, self.embedding)
        docs = docs.filter(pa.array(there))
        names = docs[self.cluster].cast(pa.int64()).to_numpy()
        similarity = f"{self.cluster}_similarity"
        middle = docs[similarity].to_numpy() if similarity in docs.column_names else np.zeros(len(docs))
        return pa.table(
            {
                "key": mixed_all(names.view(np.uint64)),
                "uid": docs["uid"],
                "cluster": names,
                "middle": middle.astype(np.float32),
                "vector": as_bytes(vectors),
            }
        )

    def nominate(self, rows: pa.Table) -> pa.Table:
        """Pairs of near vectors in the clusters that met here."""
        rows = rows.sort_by([("cluster", "ascending"), ("middle", "descending"), ("uid", "ascending")])
        vectors, cluster = from_bytes(rows["vector"], np.int8), rows["cluster"].to_numpy()
        uid, home = rows["uid"].to_numpy(), rows["home"].to_numpy()
        ends = np.append(np.flatnonzero(np.diff(cluster)) + 1, len(cluster))
        found = []
        for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            pairs = near_pairs(vectors[start:end], self.threshold, MOST_PAIRS, WINDOW)
            found.append(np.stack([pairs.left, pairs.right]) + start)
        a, b = np.concatenate(found, axis=1) if found else np.zeros((2, 0), np.int64)
        left, right = np.where(uid[a] < uid[b], a, b), np.where(uid[a] < uid[b], b, a)
        pairs_here = {"home": home[left], "left": uid[left], "right": uid[right], "right_home": home[right]}
        return pa.table(pairs_here | {"cluster": np.full(len(left), NO_CLUSTER, np.uint64)})

    def sketches(self, docs: pa.Table) -> Sketches:
        """Of each document how many machine words its vector fills, the vector, and its words."""
        vectors, there = vectors_in(docs, self.embedding)
        size = -(-vectors.shape[1] // IN_WORD) if len(vectors) else 0
        filled = np.zeros((len(docs), size * IN_WORD), np.int8)
        filled[there, : vectors.shape[1]] = vectors
        head = np.concatenate([np.full((len(docs), 1), size, np.uint64), filled.view(np.uint64)], axis=1)
        words, first = words_and_facts(text_column(docs["text"]))
        counts = np.diff(first)
        begins = np.concatenate([[0], np.cumsum(counts + size + 1)]).astype(np.int64)
        values = np.empty(begins[-1], np.uint64)
        values[begins[:-1, None] + np.arange(size + 1)] = head
        values[np.repeat(begins[:-1] + size + 1 - first[:-1], counts) + np.arange(len(words))] = words
        return values, begins

    def similarities(self, sketches: Sketches, left: Array, right: Array) -> Array:
        """The cosine of pairs that pass the second look, and 0 of others."""
        values, begins = sketches
        if not len(left):
            return np.zeros(0)
        size = int(values[begins[0]])
        words, facts = shared(values, begins[:-1] + size + 1, begins[1:], left, right)
        vectors = values[begins[:-1, None] + 1 + np.arange(size)].view(np.int8).reshape(len(begins) - 1, -1)
        dots = np.einsum("pw,pw->p", vectors[left], vectors[right], dtype=np.int64, casting="safe")
        length = lengths(vectors)
        both = length[left] * length[right]
        cosine = np.divide(dots, both, out=np.zeros(len(left)), where=both > 0)
        return np.where((words >= self.shared_words) & (facts >= self.shared_facts), cosine, 0.0)
