"""k-means on vectors of 8-bit numbers, in rounds of a flow that come to the same clusters wherever rows lie.

    sampled = vectors of some documents            by their uids' hashes, with the cluster that is to be cut
    centres = spread over these                    k-means++ (Arthur and Vassilvitskii 2007) of a smaller sample
    sums    = of each bucket, then of all          whole numbers, so that order is nothing to them
    centres = the directions of sums               one without vectors goes to the farthest vector of a large cluster

Centres are a tree. Its first level cuts all documents, and each later one cuts clusters that are too large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.splitmix import mixed_all, mixed_plain
from gristmill.kernels.base.types import Array
from gristmill.kernels.vectors.int8 import centres_of, inverse_lengths, nearest, sums
from gristmill.stages.dedup.sorted_rows import begins_run
from gristmill.stages.flow import Dataset, Flow, Rows
from gristmill.stages.semantic.corpus_embed import below, keys_of
from gristmill.stages.semantic.vectors import as_bytes, from_bytes, vectors_in

ROOT = -1  # the cluster of all documents
CANDIDATES = 8  # for each centre, among which the first centres are chosen
MOST_SPREAD = 2048  # centres that are chosen by distance; more are taken as they come
FARNESS = 1 << 20  # of a cosine of 0


@dataclass(frozen=True)
class Learning:
    """The rounds. `signal` names the vectors' column."""

    signal: str
    rounds: int
    seed: int

    def centres(self, docs: Dataset, flow: Flow, tree: pa.Table, wanted: pa.Table) -> pa.Table:
        """Centres for the clusters that `wanted` names: `cluster`, `centres` (how many), `first` (the number of the
        first), `share` and `tried` (shares of its documents to learn from and to begin with)."""
        beside = with_wanted(tree, wanted)
        rows = flow.map(
            self.learn_vectors, docs, columns=("uid", self.signal), by="key", fan=max(wanted["share"].to_pylist()),
            broadcast=beside,
        )  # fmt: skip
        tried = flow.reduce(self.begin_with, rows, by="group", broadcast=wanted)
        centres = sorted_by_cluster(flow.gather(flow.reduce(self.spread_centres, tried, by="key", broadcast=wanted)))
        for _ in range(self.rounds if len(centres) else 0):
            before = centres
            centres = self.moved(flow, rows, centres)
            if centres.equals(before):
                break
        flow.release(rows)
        return centres

    def learn_vectors(self, docs: pa.Table, beside: pa.Table) -> pa.Table:
        vectors, there = vectors_in(docs, self.signal)
        uid = docs["uid"].to_numpy()[there]
        tree, wanted = without_wanted(beside)
        leaf, _ = assigned(vectors, tree)
        key = keys_of(uid, self.seed)
        chosen = np.zeros(len(uid), bool)
        for row in wanted.to_pylist():
            chosen |= (leaf == row["cluster"]) & below(key, row["share"])
        return pa.table(
            {
                "key": key[chosen],
                "group": mixed_all(leaf[chosen].astype(np.int64).view(np.uint64)),
                "uid": uid[chosen],
                "parent": leaf[chosen],
                "vector": as_bytes(vectors[chosen]),
            }
        )

    def begin_with(self, rows: pa.Table, wanted: pa.Table) -> pa.Table:
        key, parent = rows["key"].to_numpy(), rows["parent"].to_numpy()
        chosen = np.zeros(len(rows), bool)
        for row in wanted.to_pylist():
            chosen |= (parent == row["cluster"]) & below(key, row["tried"])
        return rows.filter(pa.array(chosen)).select(["key", "group", "uid", "parent", "vector"])

    def spread_centres(self, rows: pa.Table, wanted: pa.Table) -> pa.Table:
        """The first centres of each cluster whose rows met here."""
        rows = rows.sort_by([("key", "ascending"), ("uid", "ascending")])
        parent, vectors = rows["parent"].to_numpy(), from_bytes(rows["vector"], np.int8)
        tables = []
        for row in wanted.to_pylist():
            own = vectors[parent == row["cluster"]]
            if len(own):
                chosen = far_apart(own, row["centres"], self.seed + row["cluster"])
                tables.append(centre_table(row["cluster"], row["first"], own[chosen]))
        return pa.concat_tables(tables) if tables else pa.table({})

    def moved(self, flow: Flow, rows: Rows, centres: pa.Table) -> pa.Table:
        parts = flow.reduce(self.sum_vectors, rows, by="key", broadcast=centres)
        added = flow.reduce(self.add_sums, parts, by="key")
        found = flow.gather(added)
        for each in (parts, added):
            flow.release(each)
        return next_centres(centres, found)

    def sum_vectors(self, rows: pa.Table, centres: pa.Table) -> pa.Table:
        """Of the vectors of this bucket, for each centre: how many, their sum, and the one that is farthest from it."""
        vectors, uid = from_bytes(rows["vector"], np.int8), rows["uid"].to_numpy()
        cluster, cosine = nearest_child(vectors, rows["parent"].to_numpy(), centres)
        known = cluster >= 0
        vectors, uid, cluster, cosine = vectors[known], uid[known], cluster[known], cosine[known]
        names, place, count = np.unique(cluster, return_inverse=True, return_counts=True)
        order = np.lexsort((uid, cosine, place))
        far = order[begins_run(place[order])]
        return sum_table(names, count, sums(vectors, place, len(names)), cosine[far], uid[far], vectors[far])

    def add_sums(self, parts: pa.Table) -> pa.Table:
        """Of the parts of each centre that met here, their sums."""
        parts = parts.sort_by([("cluster", "ascending"), ("cosine", "ascending"), ("far", "ascending")])
        begins = np.flatnonzero(begins_run(parts["cluster"].to_numpy()))
        if not len(begins):
            return parts
        first = parts.take(pa.array(begins))
        total = np.add.reduceat(from_bytes(parts["sum"], np.int64), begins, axis=0)
        count = np.add.reduceat(parts["count"].to_numpy(), begins)
        return sum_table(
            first["cluster"].to_numpy(), count, total, first["cosine"].to_numpy(), first["far"].to_numpy(),
            from_bytes(first["vector"], np.int8),
        )  # fmt: skip


def sum_table(names: Array, count: Array, total: Array, cosine: Array, far: Array, vectors: Array) -> pa.Table:
    return pa.table(
        {
            "key": mixed_all(names.astype(np.uint64)),
            "cluster": names.astype(np.int32),
            "count": count.astype(np.int64),
            "cosine": cosine.astype(np.float32),
            "far": far.astype(np.uint64),
            "sum": as_bytes(total),
            "vector": as_bytes(vectors),
        }
    )


def next_centres(centres: pa.Table, found: pa.Table) -> pa.Table:
    """Centres moved to the middle of their vectors; those without any go to vectors far from the centres of the
    largest clusters of their parent, one for each."""
    vectors = from_bytes(centres["vector"], np.int8).copy()
    names, parent = centres["cluster"].to_numpy(), centres["parent"].to_numpy()
    count = np.zeros(len(names), np.int64)
    if len(found):
        found = found.sort_by("cluster")
        place = np.searchsorted(names, found["cluster"].to_numpy())
        count[place] = found["count"].to_numpy()
        vectors[place] = centres_of(from_bytes(found["sum"], np.int64))
        far = from_bytes(found["vector"], np.int8)
        for group in np.unique(parent[count == 0]).tolist():
            empty = np.flatnonzero((count == 0) & (parent == group))
            own = np.flatnonzero((parent[place] == group) & (count[place] > 1))
            largest = own[np.lexsort((place[own], -count[place[own]]))][: len(empty)]
            vectors[empty[: len(largest)]] = far[largest]
    return pa.table({"parent": centres["parent"], "cluster": centres["cluster"], "vector": as_bytes(vectors)})


def centre_table(parent: int, first: int, vectors: Array) -> pa.Table:
    count = len(vectors)
    numbers = np.arange(first, first + count, dtype=np.int32)
    return pa.table(
        {
            "key": mixed_all(numbers.astype(np.uint64)),
            "parent": np.full(count, parent, np.int32),
            "cluster": numbers,
            "vector": as_bytes(vectors),
        }
    )


def sorted_by_cluster(table: pa.Table) -> pa.Table:
    if not len(table):
        return no_centres()
    return table.select(["parent", "cluster", "vector"]).sort_by("cluster").combine_chunks()


def no_centres() -> pa.Table:
    return pa.table({"parent": pa.array([], pa.int32()), "cluster": pa.array([], pa.int32()), "vector": []})


def far_apart(vectors: Array, count: int, seed: int) -> Array:
    """Places of vectors, each chosen with a chance that grows with its distance from those before it."""
    if len(vectors) <= count:
        return np.arange(len(vectors))
    wide, inverse = vectors.astype(np.float32), inverse_lengths(vectors).astype(np.float64)
    distance = np.full(len(vectors), 2 * FARNESS, np.int64)
    chosen: list[int] = []
    for step in range(min(count, MOST_SPREAD)):
        ends = np.cumsum(distance)
        if not ends[-1]:
            break
        dice = mixed_plain((seed << 32) + step + 1 & (1 << 64) - 1) % int(ends[-1])
        place = int(np.searchsorted(ends, dice, side="right"))
        chosen.append(place)
        cosine = (wide @ wide[place]).astype(np.float64) * inverse * inverse[place]
        distance = np.minimum(distance, np.maximum(0, np.floor((1 - cosine) * FARNESS)).astype(np.int64))
        distance[place] = 0
    others = np.setdiff1d(np.arange(len(vectors)), chosen)[: count - len(chosen)]
    return np.concatenate([np.array(chosen, np.int64), others])


def nearest_child(vectors: Array, parent: Array, centres: pa.Table, kernel: Any = nearest) -> tuple[Array, Array]:
    """Of each vector the nearest of its parent's centres, -1 where it has none; and the cosine."""
    cluster, cosine = np.full(len(vectors), -1, np.int32), np.zeros(len(vectors), np.float32)
    of, names, rows = centres["parent"].to_numpy(), centres["cluster"].to_numpy(), centres["vector"]
    for group in np.unique(parent).tolist():
        own = np.flatnonzero(of == group)
        if len(own):
            here = np.flatnonzero(parent == group)
            place, near = kernel(vectors[here], from_bytes(rows.take(pa.array(own)), np.int8))
            cluster[here], cosine[here] = names[own][place], near
    return cluster, cosine


def assigned(vectors: Array, tree: pa.Table, kernel: Any = nearest) -> tuple[Array, Array]:
    """The leaf of each vector, ROOT of a tree without centres, and the cosine with its centre."""
    leaf, cosine = np.full(len(vectors), ROOT, np.int32), np.zeros(len(vectors), np.float32)
    parents = set(tree["parent"].to_pylist())
    while True:
        open_ = np.flatnonzero(np.isin(leaf, list(parents)))
        if not len(open_):
            return leaf, cosine
        leaf[open_], cosine[open_] = nearest_child(vectors[open_], leaf[open_], tree, kernel)


def with_wanted(tree: pa.Table, wanted: pa.Table) -> pa.Table:
    """One table of both: rows without a parent are what is wanted."""
    return pa.concat_tables([tree, wanted], promote_options="default")


def without_wanted(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    is_tree = table["parent"].is_valid()
    wanted = table.filter(pc.invert(is_tree))
    return table.filter(is_tree).select(["parent", "cluster", "vector"]), wanted
