"""Trains the model of blocks: what the reviewed text says of each block, which blocks are learned from, and forests as
flat arrays.

A block's label is the share of its words that stand in the reviewed text in the same three words in a row, across block
borders too, so that a price between two names counts and a menu's "Home" does not. Where the page repeats a block more
often than the text does, the copies beside other main text count. Every page weighs the same, a block as many as its
words; a long page is sampled by that weight.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gristmill.classifiers.blocks.model import BlockModel, MeasuredPage, add_context, choose_blocks
from gristmill.kernels.base.types import Array
from gristmill.kernels.blocks.choice import Forest, predict, splits_of
from gristmill.kernels.blocks.columns import AT_AROUND, AT_WINDOWS, FEATURES
from gristmill.kernels.blocks.features import CONTEXT, WORDS
from gristmill.kernels.html.segment import Page

WORD = re.compile(r"\w+")
SURE = 0.05  # labels nearer to 0 or 1 count as that
SEED = 20_26
# The first forest is a quick one and leaves out what stands around a block; the second sees all of it.
FIRST_COLUMNS = np.array([column for column in range(len(FEATURES)) if not AT_AROUND <= column < AT_WINDOWS])
SECOND_COLUMNS = np.arange(len(FEATURES) + len(CONTEXT))


class ForestSettings(NamedTuple):
    trees: int
    rate: float
    leaves: int
    depth: int
    blocks: int  # learned from on a page, about


FIRST = ForestSettings(trees=40, rate=0.25, leaves=20, depth=7, blocks=60)
SECOND = ForestSettings(trees=160, rate=0.08, leaves=24, depth=7, blocks=90)
SHARPNESS = 1.8


class Example(NamedTuple):
    """One page to learn from or to be judged on."""

    page: Page
    measured: MeasuredPage
    words: list[list[str]]  # of each block
    labels: Array  # float64[blocks], nan where a block has no word
    gold: list[str]  # words of the reviewed text
    site: str


def words_of(text: str) -> list[str]:
    return WORD.findall(text.lower())


def block_words(page: Page) -> list[list[str]]:
    text = page.text.tobytes()
    edges = page.start.tolist()
    return [words_of(text[a:b].decode("utf-8", "replace")) for a, b in pairwise(edges)]


def labels_of(blocks: list[list[str]], gold: list[str]) -> Array:
    wanted = set(zip(gold, gold[1:], gold[2:], strict=False))
    flat = [word for block in blocks for word in block]
    hit = np.zeros(len(flat), bool)
    for i, three in enumerate(zip(flat, flat[1:], flat[2:], strict=False)):
        if three in wanted:
            hit[i : i + 3] = True
    labels = np.full(len(blocks), np.nan)
    place = 0
    for b, block in enumerate(blocks):
        if block:
            labels[b] = hit[place : place + len(block)].mean()
            place += len(block)
    reject_extra_copies(blocks, labels, " " + " ".join(gold) + " ")
    return labels


def reject_extra_copies(blocks: list[list[str]], labels: Array, gold: str) -> None:
    """Of copies beyond what the reviewed text repeats, those with the least main text around them are not wanted."""
    copies: dict[str, list[int]] = {}
    for b, block in enumerate(blocks):
        if block and labels[b] > 0.5:
            copies.setdefault(" ".join(block), []).append(b)
    around = np.nan_to_num(labels)
    for phrase, places in copies.items():
        allowed = max(gold.count(f" {phrase} "), 1)
        if len(places) > allowed:
            places.sort(key=lambda b: (-around[max(0, b - 4) : b].sum() - around[b + 1 : b + 5].sum(), b))
            labels[places[allowed:]] = 0.0


def word_f1(words: list[str], gold: list[str]) -> float:
    a, b = Counter(words), Counter(gold)
    both = len(words) + len(gold)
    return 2 * sum((a & b).values()) / both if both else 1.0


def kept_words(example: Example, kept: Array) -> list[str]:
    return [word for block, keep in zip(example.words, kept.tolist(), strict=True) if keep for word in block]


def sample(examples: list[Example], columns: Array, blocks: int) -> tuple[Array, Array, Array]:
    """Rows, whether each is wanted, and weights. A block of which half is wanted stands twice, once for each answer."""
    random = np.random.default_rng(SEED)
    rows, shares, weights = [], [], []
    for example in examples:
        seen = np.flatnonzero(~np.isnan(example.labels))
        if not len(seen):
            continue
        weight = example.measured.counts[seen, WORDS] + 2.0
        weight /= weight.sum()
        likely = np.minimum(1, blocks * weight + blocks / 3 / len(seen))
        taken = random.random(len(seen)) < likely
        seen, weight = seen[taken], (weight / likely)[taken]
        rows.append(example.measured.rows[np.ix_(seen, columns)])
        shares.append(example.labels[seen])
        weights.append(weight)
    row, share, weight = np.concatenate(rows), np.concatenate(shares), np.concatenate(weights)
    weight *= len(weight) / weight.sum()
    wanted = share > 0.5
    unsure = (share > SURE) & (share < 1 - SURE)
    trust = np.where(unsure, np.maximum(share, 1 - share), 1.0)
    return (
        np.concatenate([row, row[unsure]]),
        np.concatenate([wanted, ~wanted[unsure]]),
        np.concatenate([weight * trust, (weight * (1 - trust))[unsure]]),
    )


def fit(examples: list[Example], settings: ForestSettings, columns: Array) -> Forest:
    from sklearn.ensemble import HistGradientBoostingClassifier  # type: ignore[import-untyped]

    rows, wanted, weights = sample(examples, columns, settings.blocks)
    trees = HistGradientBoostingClassifier(
        max_iter=settings.trees,
        learning_rate=settings.rate,
        max_leaf_nodes=settings.leaves,
        max_depth=settings.depth,
        l2_regularization=1.0,
        min_samples_leaf=40,
        max_features=0.3,
        max_bins=63,
        random_state=SEED,
        early_stopping=False,
    )
    return flatten_trees(trees.fit(rows, wanted, sample_weight=weights), columns)


def flatten_trees(trees: Any, columns: Array) -> Forest:
    """scikit-learn's trees as kernels/blocks/choice.py reads them, with the columns of the whole matrix."""
    columns_of_nodes: tuple[list[Any], ...] = ([], [], [], [])
    feature, threshold, child, value = columns_of_nodes
    root: list[int] = []
    depth: list[int] = []
    for (tree,) in trees._predictors:
        nodes = tree.nodes
        base = len(feature)
        root.append(base)
        depth.append(int(nodes["depth"].max()))
        order = [0]
        for old in order:  # children beside each other, after their parent
            node = nodes[old]
            here = len(feature)
            if node["is_leaf"]:
                added: tuple[Any, ...] = (0, np.inf, here, node["value"])
            else:
                added = columns[node["feature_idx"]], round_down(node["num_threshold"]), base + len(order), 0.0
                order += [int(node["left"]), int(node["right"])]
            for column, value_of_node in zip(columns_of_nodes, added, strict=True):
                column.append(value_of_node)
    return Forest(
        np.array(root, np.int32),
        np.array(depth, np.int32),
        np.array(feature, np.int32),
        np.array(threshold, np.float32),
        np.array(child, np.int32),
        np.array(value, np.float32),
        float(np.ravel(trees._baseline_prediction)[0]),
    )


def round_down(value: float) -> np.float32:
    """The largest float32 that is no larger: the same float32 rows are at most either."""
    rounded = np.float32(value)
    return rounded if rounded <= value else np.nextafter(rounded, np.float32(-np.inf))


def train(examples: list[Example]) -> BlockModel:
    """For the second forest, each half of the sites hears of the first what the other half taught it, as it will be on
    new pages."""
    halves = folds_of([example.site for example in examples], 2)
    for half in (0, 1):
        others = [e for e, h in zip(examples, halves, strict=True) if h == half]
        taught = splits_of(fit(others, FIRST, FIRST_COLUMNS))
        for example, h in zip(examples, halves, strict=True):
            if h != half and len(example.measured.rows):
                add_context(example.page, example.measured, predict(taught, example.measured.rows))
    second = fit(examples, SECOND, SECOND_COLUMNS)
    return BlockModel(fit(examples, FIRST, FIRST_COLUMNS), second, SHARPNESS)


def folds_of(sites: list[str], folds: int) -> Array:
    """The fold of each page; a site is in one, the largest sites dealt out first."""
    sizes = Counter(sites)
    fold: dict[str, int] = {}
    load = [0] * folds
    for site, size in sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0])):
        fold[site] = load.index(min(load))
        load[fold[site]] += size
    return np.array([fold[site] for site in sites])


__all__ = [
    "Example",
    "block_words",
    "choose_blocks",
    "folds_of",
    "kept_words",
    "labels_of",
    "train",
    "word_f1",
    "words_of",
]
