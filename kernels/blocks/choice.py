"""Which blocks of a page are kept: what gradient-boosted trees make of the rows of features, and the choice by the
probability that each block is main text.

In a file a forest is flat arrays over all nodes of all trees. At node n a row goes to child[n] if its feature[n] is at
most threshold[n], else to child[n] + 1. A leaf is its own child, with a threshold that nothing exceeds.

The kernel walks no tree. Each node that splits rules out the leaves on its left for rows above its threshold; of the
leaves that are left, the first is the row's (QuickScorer, Lucchese et al. 2015). So 64 rows meet a node at once, with
their features turned into columns, and a tree's leaves are bits of 32. Measured: 5 ns for each tree and row (24 leaves,
241 features), where walking eight rows down at once took 9.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.wide import lowest

TILE = 64  # rows whose features stay near while all trees pass by
LEAVES = 32  # of a tree


class Forest(NamedTuple):
    root: Array  # int32[trees]
    depth: Array  # int32[trees], steps to the deepest leaf
    feature: Array  # int32[nodes]
    threshold: Array  # float32[nodes]
    child: Array  # int32[nodes]
    value: Array  # float32[nodes], of leaves
    base: float  # what the sum begins with


class Splits(NamedTuple):
    """A forest as the kernel reads it: the nodes that split, and the leaves, of one tree after the other."""

    columns: Array  # int64[used]: the features that any node looks at
    feature: Array  # int32[splits]: which of `columns`
    threshold: Array  # float32[splits]
    left: Array  # uint32[splits]: a bit for each leaf of the tree that rows above the threshold can still reach
    first_split: Array  # int32[trees + 1]
    value: Array  # float32[leaves]
    first_leaf: Array  # int32[trees + 1]
    base: float


def splits_of(forest: Forest) -> Splits:
    feature: list[int] = []
    threshold: list[float] = []
    left: list[int] = []
    value: list[float] = []
    first_split, first_leaf = [0], [0]

    def walk(node: int) -> None:
        if forest.child[node] == node:
            value.append(float(forest.value[node]))
            return
        feature.append(int(forest.feature[node]))
        threshold.append(float(forest.threshold[node]))
        if len(feature) - first_split[-1] >= LEAVES:
            raise BrokenForest(f"a tree of more than {LEAVES} leaves")
        place, before = len(left), len(value) - first_leaf[-1]
        left.append(0)
        walk(int(forest.child[node]))
        after = len(value) - first_leaf[-1]
        left[place] = (1 << LEAVES) - 1 - ((1 << after) - (1 << before))
        walk(int(forest.child[node]) + 1)

    for root in forest.root.tolist():
        walk(root)
        first_split.append(len(feature))
        first_leaf.append(len(value))
    columns, which = np.unique(np.array(feature, np.int64), return_inverse=True)
    return Splits(
        columns,
        which.astype(np.int32),
        np.array(threshold, np.float32),
        np.array(left, np.uint32),
        np.array(first_split, np.int32),
        np.array(value, np.float32),
        np.array(first_leaf, np.int32),
        float(forest.base),
    )


@kernel
def sum_of_trees(columns, feature, threshold, left, first_split, value, first_leaf, base, rows, out):
    """out[row] = base + the row's leaf in each tree; out is float64."""
    tile, reached = np.zeros((len(columns), TILE), np.float32), np.empty(TILE, np.uint32)
    out[:] = base
    for first in range(0, len(out), TILE):
        many = min(TILE, len(out) - first)
        for r in range(many):
            for c in range(len(columns)):
                tile[c, r] = rows[first + r, columns[c]]
        for tree in range(len(first_split) - 1):
            reached[:] = 0xFFFFFFFF
            for split in range(first_split[tree], first_split[tree + 1]):
                edge, rest = threshold[split], left[split]
                cells = tile[feature[split]]
                for r in range(TILE):
                    reached[r] &= rest if cells[r] > edge else np.uint32(0xFFFFFFFF)
            for r in range(many):
                out[first + r] += value[first_leaf[tree] + lowest(np.uint64(reached[r]))]


@kernel
def probabilities(sums, out):
    """The logistic function of the sums of trees, as float32."""
    for r in range(len(sums)):
        out[r] = 1 / (1 + np.exp(-sums[r]))


def predict(splits: Splits, rows: Array) -> Array:
    """float32[rows]: the probability of each row of a float32 matrix."""
    sums, out = np.empty(len(rows), np.float64), np.empty(len(rows), np.float32)
    sum_of_trees(*splits, rows, sums)
    probabilities(sums, out)
    return out


def predict_plain(forest: Forest, rows: Array) -> list[float]:
    chances = []
    for row in rows:
        total = forest.base
        for root in forest.root.tolist():
            node = root
            while forest.child[node] != node:
                node = int(forest.child[node]) + bool(row[forest.feature[node]] > forest.threshold[node])
            total += float(forest.value[node])
        chances.append(1 / (1 + float(np.exp(-total))))
    return chances


class BrokenForest(ValueError):
    """Arrays that do not form a forest; a kernel would read out of bounds on them."""


def check(forest: Forest, features: int) -> Forest:
    """The forest, if every path stays inside its arrays and reaches a leaf within the stated depth."""
    nodes = len(forest.feature)
    if not (
        len(forest.threshold) == len(forest.child) == len(forest.value) == nodes
        and len(forest.depth) == len(forest.root)
    ):
        raise BrokenForest("arrays of different lengths")
    if nodes == 0 or len(forest.root) == 0:
        raise BrokenForest("no trees")
    own = np.arange(nodes)
    leaf = forest.child == own
    if forest.feature.min() < 0 or forest.feature.max() >= features:
        raise BrokenForest(f"a feature that is none of {features}")
    if forest.root.min() < 0 or forest.root.max() >= nodes:
        raise BrokenForest("a tree that begins nowhere")
    if (forest.child[~leaf] <= own[~leaf]).any() or (forest.child[~leaf] >= nodes - 1).any():
        raise BrokenForest("a node whose children do not come after it")
    if (
        not np.isposinf(forest.threshold[leaf]).all()
        or not np.isfinite(forest.value).all()
        or np.isnan(forest.threshold).any()
    ):
        raise BrokenForest("a number that is none")
    if forest.depth.min() < 0 or forest.depth.max() > 64:
        raise BrokenForest("a tree deeper than 64")
    return forest


@kernel
def choose(
    probability: Array, words: Array, sharpness: float, recall: float, least: float, order: Array, kept: Array
) -> None:
    """Keeps the blocks up to the cut that promises the highest F, with `recall` the square of its beta; a block without
    words follows what its probability says."""
    hoped = 0.0
    sharp = np.empty(len(order))
    for b in range(len(order)):
        p = np.float64(probability[b])
        a, z = p**sharpness, (1 - p) ** sharpness
        sharp[b] = a / (a + z)
        hoped += sharp[b] * words[b]
    best, cut, right, taken = -1.0, 0, 0.0, 0
    for k in range(len(order)):
        b = order[k]
        if probability[b] < least:
            break
        right += sharp[b] * words[b]
        taken += words[b]
        promised = (1 + recall) * right / (taken + recall * hoped) if taken > 0 else 0.0
        if promised >= best:
            best, cut = promised, k + 1
    for k in range(cut):
        kept[order[k]] = True
