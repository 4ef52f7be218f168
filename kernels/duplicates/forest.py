"""Clusters of documents from pairs of duplicates: components by spanning forests, and which member of a cluster stays.

A spanning forest is a star for each component: every member points at the smallest. Two forests are merged by the same
function, so a tree of merges ends with the components of all edges, wherever they were. The size of a forest is bounded
by the members, not by the edges.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.base.types import Array


@kernel
def _joined(left, right, root):
    """Union-find with path halving; the smaller number is always the root."""
    for edge in range(len(left)):
        a, b = left[edge], right[edge]
        while root[a] != a:
            root[a] = root[root[a]]
            a = root[a]
        while root[b] != b:
            root[b] = root[root[b]]
            b = root[b]
        if a < b:
            root[b] = a
        elif b < a:
            root[a] = b
    for node in range(len(root)):
        root[node] = root[root[node]]  # a root is smaller than what hangs on it, so that it has been settled before


def spanning_forest(left: Array, right: Array) -> tuple[Array, Array]:
    """All nodes of the edges, sorted, and for each the smallest node of its component."""
    members, places = np.unique(np.concatenate([left, right]), return_inverse=True)
    root = np.arange(len(members), dtype=np.int64)
    places = places.reshape(-1).astype(np.int64)
    _joined(places[: len(left)].copy(), places[len(left) :].copy(), root)
    return members, members[root]


def spanning_forest_plain(left: list[int], right: list[int]) -> dict[int, int]:
    label = {name: name for name in [*left, *right]}
    while True:
        before = dict(label)
        for a, b in zip(left, right, strict=True):
            label[a] = label[b] = min(label[a], label[b])
        if label == before:
            return label


def neighbours(left: Array, right: Array, weight: Array, nodes: int) -> tuple[Array, Array, Array]:
    """Edges as adjacency lists: first[n]:first[n + 1] are the neighbours of n in order, with their weights. Repeated
    edges are repeated."""
    ends = np.concatenate([left, right]).astype(np.int64)
    others = np.concatenate([right, left]).astype(np.int64)
    order = np.lexsort((others, ends))
    first = np.searchsorted(ends[order], np.arange(nodes + 1)).astype(np.int64)
    return first, others[order], np.concatenate([weight, weight])[order].astype(np.float64)


@kernel
def _walked(first, other, weight, at_least, keeper):
    for node in range(len(keeper)):
        keeper[node] = -1
        best = -1.0
        for i in range(first[node], first[node + 1]):
            if other[i] < node and keeper[other[i]] < 0 and weight[i] >= at_least and weight[i] > best:
                keeper[node], best = other[i], weight[i]


def keepers(first: Array, other: Array, weight: Array, at_least: float) -> Array:
    """For each node in order: -1 if it stays, or, if it is similar to an earlier node that stays, the most similar of
    those."""
    keeper = np.empty(len(first) - 1, np.int64)
    _walked(first, other, weight, at_least, keeper)
    return keeper


def keepers_plain(edges: list[tuple[int, int, float]], nodes: int, at_least: float) -> list[int]:
    keeper = [-1] * nodes
    for node in range(nodes):
        like = [
            (-w, a if b == node else b) for a, b, w in edges if node in (a, b) and min(a, b) < node and w >= at_least
        ]
        stay = [(w, n) for w, n in like if n < node and keeper[n] < 0]
        keeper[node] = min(stay)[1] if stay else -1
    return keeper


@kernel
def _proposed(first, other, weight, at_least, keeper, most, left, right):
    """Pairs of nodes that stay, are both similar to a third, and were never compared."""
    count = 0
    for node in range(len(keeper)):
        if keeper[node] >= 0:
            continue
        node_start = count
        for i in range(first[node], first[node + 1]):
            if keeper[other[i]] < 0 or weight[i] < at_least:
                continue
            other_keeper = keeper[other[i]]
            if other_keeper >= node or count - node_start >= most:
                continue
            at, end = first[node], first[node + 1]  # neighbours are in order
            while at < end:
                middle = (at + end) // 2
                if other[middle] < other_keeper:
                    at = middle + 1
                else:
                    end = middle
            proposed = at < first[node + 1] and other[at] == other_keeper
            for j in range(node_start, count):
                proposed |= left[j] == other_keeper
            if not proposed:
                left[count], right[count] = other_keeper, node
                count += 1
    return count


def proposals(
    first: Array, other: Array, weight: Array, at_least: float, keeper: Array, most: int = 16
) -> tuple[Array, Array]:
    """Pairs still to be compared: a node that stays, and an earlier one that a neighbour of it is a duplicate of.
    `most` pairs a node."""
    size = int(np.minimum(np.diff(first), most).sum())
    left, right = np.empty(size, np.int64), np.empty(size, np.int64)
    count = _proposed(first, other, weight, at_least, keeper, most, left, right)
    return left[:count], right[:count]
