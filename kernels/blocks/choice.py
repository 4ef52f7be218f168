"""Which blocks of a page are kept: what gradient-boosted trees make of the rows of features, and the choice by the
probability that each block is main text.

In a file a forest is flat arrays over all nodes of all trees. At node n a row goes to child[n] if its feature[n] is at
most threshold[n], else to child[n] + 1. A leaf is its own child, with a threshold that nothing exceeds.

The kernel walks no tree. Each node that splits rules out the leaves on its left for rows above its threshold; of the
leaves that are left, the first is the row's (QuickScorer, Lucchese et al. 2015). So 32 rows meet a node at once, with
their features turned into columns, and a tree's leaves are bits of 32. The bits of 32 rows stay in registers while the
splits of a tree pass by.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gristmill.kernels.base import bare
from gristmill.kernels.base.compiled import helper, intrinsic, ir, kernel, types
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.wide import lowest
from gristmill.kernels.blocks.columns import BIT_NAMES, FAR, KIND, KNOWN, LINK_SHARE, SAYS, TO_BIT, TO_KIND
from gristmill.kernels.blocks.features import IN_TITLE, WORDS, put_context
from gristmill.kernels.html.names import TAGS

TILE = 32  # rows whose features stay near while all trees pass by
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


def reached_by(rows: int) -> Any:
    """Makes what fills reached[rows]: of the leaves of one tree, whose splits are `first` to `last`, those that each of
    the first `rows` rows of the tile (float32[columns, TILE]) can reach. Nothing checks that the arrays are as long as
    that."""

    @intrinsic
    def put_reached(
        _context: Any, tile: Any, feature: Any, threshold: Any, left: Any, first: Any, last: Any, reached: Any
    ) -> Any:
        def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            arrays = [
                context.make_array(kind)(context, builder, value).data
                for kind, value in zip(signature.args, arguments, strict=True)
                if isinstance(kind, types.Array)
            ]
            columns, features, thresholds, lefts, out = arrays
            word, floats, bits = (
                ir.IntType(64),
                ir.VectorType(ir.FloatType(), rows),
                ir.VectorType(ir.IntType(32), rows),
            )

            def in_all(value: Any, vector: Any) -> Any:
                undefined = ir.Constant(vector, ir.Undefined)
                alone = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
                return builder.shuffle_vector(
                    alone, undefined, ir.Constant(ir.VectorType(ir.IntType(32), rows), [0] * rows)
                )

            all_leaves = ir.Constant(bits, [0xFFFFFFFF] * rows)
            before = builder.block
            test, body, after = (builder.append_basic_block(name) for name in ("splits", "split", "reached"))
            builder.branch(test)
            builder.position_at_end(test)
            split, leaves = builder.phi(word), builder.phi(bits)
            split.add_incoming(arguments[4], before)
            leaves.add_incoming(all_leaves, before)
            builder.cbranch(builder.icmp_signed("<", split, arguments[5]), body, after)
            builder.position_at_end(body)
            column = builder.zext(builder.load(builder.gep(features, [split])), word)
            place = builder.gep(columns, [builder.mul(column, ir.Constant(word, TILE))])
            cells = builder.load(builder.bitcast(place, floats.as_pointer()), align=4)
            edge = in_all(builder.load(builder.gep(thresholds, [split])), floats)
            rest = in_all(builder.load(builder.gep(lefts, [split])), bits)
            left_over = builder.and_(leaves, builder.select(builder.fcmp_ordered(">", cells, edge), rest, all_leaves))
            split.add_incoming(builder.add(split, ir.Constant(word, 1)), body)
            leaves.add_incoming(left_over, body)
            builder.branch(test)
            builder.position_at_end(after)
            builder.store(leaves, builder.bitcast(out, bits.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(tile, feature, threshold, left, types.int64, types.int64, reached), make

    return put_reached


put_reached, put_half_reached = reached_by(TILE), reached_by(TILE // 2)


@bare.helper
def put_tile(
    columns, feature, threshold, left, first_split, value, first_leaf, base, matrix, which, first, tile, reached, sums, out
):  # fmt: skip
    """As `put_probabilities`, for TILE rows at most."""
    many = min(TILE, len(which) - first)
    for r in range(many):
        row = matrix[which[first + r]]
        for c in range(len(columns)):
            tile[c, r] = row[np.uint64(columns[c])]
        sums[r] = base
    for tree in range(len(first_split) - 1):
        if many > TILE // 2:
            put_reached(tile, feature, threshold, left, first_split[tree], first_split[tree + 1], reached)
        else:
            put_half_reached(tile, feature, threshold, left, first_split[tree], first_split[tree + 1], reached)
        leaf = np.uint64(first_leaf[tree])
        for r in range(many):
            sums[r] += value[leaf + np.uint64(lowest(np.uint64(reached[r])))]
    for r in range(many):
        out[which[first + r]] = 1 / (1 + np.exp(-sums[r]))


@helper
def put_probabilities(
    columns, feature, threshold, left, first_split, value, first_leaf, base, matrix, which, out
):  # as Splits, and then
    """out[row] = the logistic function of base + the row's leaf in each tree, for the rows in `which`."""
    tile, reached, sums = np.zeros((len(columns), TILE), np.float32), np.empty(TILE, np.uint32), np.empty(TILE)
    for first in range(0, len(which), TILE):
        put_tile(
            columns, feature, threshold, left, first_split, value, first_leaf, base, matrix, which, first, tile,
            reached, sums, out,
        )  # fmt: skip


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
    hoped = 0.0
    sharp = np.empty(len(probability))
    for b in range(len(probability)):
        p = np.float64(probability[b])
        sharp[b] = 1 / (1 + ((1 - p) / p) ** sharpness)
        hoped += sharp[b] * words[b]
    worth = np.flatnonzero(probability >= min(least, np.float64(probability.max())))
    order = worth[np.argsort(-probability[worth], kind="mergesort")]
    best, cut, right, taken = -1.0, 0, 0.0, 0
    for k in range(len(order)):
        b = order[k]
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


@helper
def probability_of(
    columns_1, feature_1, threshold_1, left_1, first_split_1, value_1, first_leaf_1, base_1,
    columns_2, feature_2, threshold_2, left_2, first_split_2, value_2, first_leaf_2, base_2,
    hopeless, rows, counts, parent, element, sums, path, group, heading,
):  # fmt: skip
    """float32[blocks]: what the first forest says of all blocks, and the second, which also reads what the first said
    of the blocks around, of those that are not hopeless."""
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

IS_CODE = np.array([tag in {"pre", "listing", "xmp", "plaintext"} for tag in TAGS])
TABLE = TAGS.index("table")
DOLLAR = ord("$")
MOST_BETWEEN = 12  # blocks of code and formulas between two chosen ones
SMALLEST_TABLE = 6  # blocks of a table
LIKELY = 0.15  # the mean probability of a table that is kept for what stands before it
MOST_LINKED = 0.3  # of its words


@kernel
def mend(kept, probability, tag, parent, element, text, start, counts, rows, heading) -> Any:
    return mended(kept, probability, tag, parent, element, text, start, counts, rows, heading)


@helper
def mended(kept, probability, tag, parent, element, text, start, counts, rows, heading):
    """bool[blocks]: the choice, and with it the headings and the code between its blocks, the displayed formulas
    between or beside them, the rest of tables that are mostly in it, and tables of data right after its blocks; less a
    first-level heading that says the page's title: that is `title`, and texts that are one in two templates stay one.

    Reviewers put such a heading into the text of four pages in ten; left to the model, so did it, now here and now
    there (word-F1 0.8800; always in 0.8789, never 0.8805).
    """
    made = kept.copy()
    if len(kept) == 0:
        return made
    put_headings(kept, heading, element, parent, counts, made)
    if made.any():
        put_runs(tag, parent, element, text, start, made)
        put_tables(tag, parent, element, counts, rows, probability, made)
    return made


@bare.helper
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


@bare.helper
def put_headings(kept, heading, element, parent, counts, made):
    for b in range(1, len(kept) - 1):
        if heading[b] > 0 and not kept[b] and kept[b - 1] and kept[b + 1] and near(parent, element[b], element[b + 1]):
            made[b] = True
    others = False
    for b in range(len(made)):
        others |= made[b] and not is_headline(heading[b], counts[b])
    for b in range(len(made)):
        if others and is_headline(heading[b], counts[b]):
            made[b] = False


@bare.helper
def is_headline(heading, counts):
    """Whether a block is a first-level heading that says the page's title."""
    return heading == 1 and counts[WORDS] > 0 and 2 * counts[IN_TITLE] >= counts[WORDS]


@bare.helper
def is_displayed(text, first, last):
    """Whether a block is nothing but `$$...$$`."""
    return (
        last - first > 4
        and text[first] == DOLLAR
        and text[first + 1] == DOLLAR
        and text[last - 1] == DOLLAR
        and text[last - 2] == DOLLAR
    )


@bare.helper
def put_runs(tag, parent, element, text, start, made):
    """Keeps runs of code and displayed formulas between kept blocks, and formulas beside one."""
    count = len(made)
    first, last = 0, count - 1
    while not made[first]:
        first += 1
    while not made[last]:
        last -= 1
    b = 0
    while b < count:
        a, formulas = b, True
        while b < count and not made[b]:
            formula = is_displayed(text, start[b], start[b + 1])
            if not formula and not IS_CODE[tag[element[b]]]:
                break
            formulas &= formula
            b += 1
        if b == a:
            b += 1
            continue
        if b - a > MOST_BETWEEN or b - 1 < first - 1 or a > last + 1:
            continue
        before, after = a > 0 and made[a - 1], b < count and made[b]
        beside = (before and near(parent, element[a - 1], element[a])) or (
            after and near(parent, element[b - 1], element[b])
        )
        if (before and after) or (beside and formulas):
            made[a:b] = True


@helper
def put_tables(tag, parent, element, counts, rows, probability, made):
    """Of a table with rows of cells and no table in it, keeps all, where more than half of its blocks are kept, or some
    and what stands before and after it; or where a kept block stands before it in the same container, it is not
    improbable and has few links."""
    elements, count = len(tag), len(made)
    any_table = False
    for e in range(elements):
        any_table |= tag[e] == TABLE
    if not any_table:
        return
    around = np.empty(elements, np.int32)  # the innermost table around an element, or that it is
    for e in range(elements):
        around[e] = e if tag[e] == TABLE else (around[parent[e]] if parent[e] >= 0 else -1)
    held, chosen, first, last = (
        np.zeros(elements, np.int32), np.zeros(elements, np.int32), np.empty(elements, np.int32),
        np.empty(elements, np.int32),
    )  # fmt: skip
    words, likely, linked = np.zeros(elements), np.zeros(elements), np.zeros(elements)
    for b in range(count):
        table = around[element[b]]
        if table < 0:
            continue
        if held[table] == 0:
            first[table] = b
        last[table] = b
        held[table] += 1
        chosen[table] += made[b]
        size = counts[b, WORDS] + 1.0
        words[table] += size
        likely[table] += probability[b] * size
        linked[table] += rows[b, LINK_SHARE] * size
    whole = np.zeros(elements, np.bool_)
    for t in range(elements):
        if held[t] >= SMALLEST_TABLE and chosen[t] < held[t]:
            a, b = first[t], last[t]
            before, after = a > 0 and made[a - 1], b + 1 < count and made[b + 1]
            follows = before and likely[t] >= LIKELY * words[t] and linked[t] <= MOST_LINKED * words[t]
            whole[t] = (
                2 * chosen[t] > held[t]
                or (chosen[t] > 0 and before and after)
                or (follows and near(parent, element[a - 1], t))
            )
    for t in range(elements):
        if held[t] > 0 and parent[t] >= 0 and around[parent[t]] >= 0:
            whole[around[parent[t]]] = False
    for b in range(count):
        table = around[element[b]]
        if table >= 0 and whole[table]:
            made[b] = True


# --- readers' comments ------------------------------------------------------------------------------------------------

LEAST_TEXT = 100  # words beside the comments, or they are the text

TO_COMMENT, TO_FORUM, TO_REVIEW = (TO_BIT + BIT_NAMES.index(name) for name in ("comment", "forum", "review"))
TO_CODE = TO_KIND + KIND["pre"]
SAYS_FORUM, SAYS_PRODUCT = (SAYS + KNOWN.index(name) for name in ("forum", "product"))


@kernel
def find_comments(kept, counts, rows) -> Any:
    return comments_of(kept, counts, rows)


@helper
def comments_of(kept, counts, rows):
    """bool[blocks]: of the kept blocks, those that are readers' comments beside a text."""
    comments = np.zeros(len(kept), np.bool_)
    found, left = False, 0
    for b in range(len(kept)):
        if not kept[b]:
            continue
        if rows[b, TO_FORUM] < FAR or rows[b, SAYS_FORUM] > 0:
            return np.zeros(len(kept), np.bool_)
        comments[b] = rows[b, TO_COMMENT] < FAR and rows[b, TO_CODE] >= FAR
        comments[b] &= not (rows[b, SAYS_PRODUCT] > 0 and rows[b, TO_REVIEW] < FAR)
        found |= comments[b]
        if not comments[b]:
            left += counts[b, WORDS]
    return comments if found and left >= LEAST_TEXT else np.zeros(len(kept), np.bool_)
