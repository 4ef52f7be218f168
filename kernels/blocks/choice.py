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

from typing import Any, NamedTuple

import numpy as np

from gristmill.kernels.base.compiled import helper, kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.wide import lowest
from gristmill.kernels.blocks.features import put_context
from gristmill.kernels.html.names import TAGS

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


@helper
def put_probabilities(
    columns, feature, threshold, left, first_split, value, first_leaf, base, matrix, which, out
):  # as Splits, and then
    """out[row] = the logistic function of base + the row's leaf in each tree, for the rows in `which`."""
    tile, reached, sums = np.zeros((len(columns), TILE), np.float32), np.empty(TILE, np.uint32), np.empty(TILE)
    for first in range(0, len(which), TILE):
        many = min(TILE, len(which) - first)
        for r in range(many):
            for c in range(len(columns)):
                tile[c, r] = matrix[which[first + r], columns[c]]
        sums[:] = base
        for tree in range(len(first_split) - 1):
            reached[:] = 0xFFFFFFFF
            for split in range(first_split[tree], first_split[tree + 1]):
                edge, rest = threshold[split], left[split]
                cells = tile[feature[split]]
                for r in range(TILE):
                    reached[r] &= rest if cells[r] > edge else np.uint32(0xFFFFFFFF)
            for r in range(many):
                sums[r] += value[first_leaf[tree] + lowest(np.uint64(reached[r]))]
        for r in range(many):
            out[which[first + r]] = 1 / (1 + np.exp(-sums[r]))


@kernel
def predict_rows(columns, feature, threshold, left, first_split, value, first_leaf, base, matrix) -> Any:
    out = np.empty(len(matrix), np.float32)
    put_probabilities(
        columns, feature, threshold, left, first_split, value, first_leaf, base, matrix, np.arange(len(matrix)), out
    )
    return out


def predict(splits: Splits, rows: Array) -> Array:
    """float32[rows]: the probability of each row of a float32 matrix."""
    made: Array = predict_rows(*splits, rows)
    return made


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


@helper
def put_choice(probability, words, sharpness, recall, least, kept):
    """Keeps the blocks up to the cut that promises the highest F, with `recall` the square of its beta; a block without
    words follows what its probability says, and one of less than `least` is not kept unless there is none better."""
    order = np.argsort(-probability, kind="mergesort")
    hoped = 0.0
    sharp = np.empty(len(order))
    for b in range(len(order)):
        p = np.float64(probability[b])
        a, z = p**sharpness, (1 - p) ** sharpness
        sharp[b] = a / (a + z)
        hoped += sharp[b] * words[b]
    least = min(least, np.float64(probability[order[0]]))
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


@kernel
def choose(probability, words, sharpness, recall, least) -> Any:
    """bool[blocks], as `put_choice` keeps them."""
    kept = np.zeros(len(probability), np.bool_)
    if len(probability) > 0:
        put_choice(probability, words, sharpness, recall, least, kept)
    return kept


@kernel
def judge(
    columns_1, feature_1, threshold_1, left_1, first_split_1, value_1, first_leaf_1, base_1,
    columns_2, feature_2, threshold_2, left_2, first_split_2, value_2, first_leaf_2, base_2,
    hopeless, rows, counts, parent, element, sums, path, group, heading,
) -> Any:  # fmt: skip
    """The probabilities of two forests, in one call: of the first for all blocks, and of the second, which also reads
    what the first said of the blocks around, for those that are not hopeless."""
    probability = np.empty(len(rows), np.float32)
    if len(rows) == 0:
        return probability
    put_probabilities(
        columns_1, feature_1, threshold_1, left_1, first_split_1, value_1, first_leaf_1, base_1,
        rows, np.arange(len(rows)), probability,
    )  # fmt: skip
    put_context(probability, counts, parent, element, sums, path, group, heading, rows)
    put_probabilities(
        columns_2, feature_2, threshold_2, left_2, first_split_2, value_2, first_leaf_2, base_2,
        rows, np.flatnonzero(probability >= hopeless), probability,
    )  # fmt: skip
    return probability


# --- what the choice may not tear apart -------------------------------------------------------------------------------

# What a page has that makes a closer look at the choice worth it.
APART_CODE, APART_FORMULA, HAS_TABLE = 1, 2, 4
IS_CODE = np.array([tag in {"pre", "listing", "xmp", "plaintext"} for tag in TAGS])
TABLE = TAGS.index("table")
DOLLAR = ord("$")


@helper
def near(parent, left, right):
    """Whether two elements stand in one container, or one of them in a child of it."""
    for _ in range(4):
        other = right
        for _ in range(4):
            if other == left:
                return True
            if other <= 0:
                break
            other = parent[other]
        if left <= 0:
            break
        left = parent[left]
    return False


@kernel
def mend_headings(kept, heading, element, parent, words, in_title) -> Any:
    """bool[blocks]: the choice, and with it the headings between its blocks; less a first-level heading that says the
    page's title."""
    made = kept.copy()
    for b in range(1, len(kept) - 1):
        if heading[b] > 0 and not kept[b] and kept[b - 1] and kept[b + 1] and near(parent, element[b], element[b + 1]):
            made[b] = True
    others = False
    for b in range(len(made)):
        is_headline = heading[b] == 1 and 2 * in_title[b] >= words[b] and words[b] > 0
        others |= made[b] and not is_headline
    for b in range(len(made)):
        if others and heading[b] == 1 and 2 * in_title[b] >= words[b] and words[b] > 0:
            made[b] = False
    return made


@kernel
def left_out(tag, element, text, start, kept) -> int:
    """Bits of what a page has: code and displayed formulas (`$$...$$`) that the choice leaves out, and tables."""
    bits = 0
    for e in range(len(tag)):
        if tag[e] == TABLE:
            bits |= HAS_TABLE
            break
    for b in range(len(element)):
        if kept[b]:
            continue
        if IS_CODE[tag[element[b]]]:
            bits |= APART_CODE
        first = start[b]
        if start[b + 1] - first > 4 and text[first] == DOLLAR and text[first + 1] == DOLLAR:
            bits |= APART_FORMULA
    return bits
