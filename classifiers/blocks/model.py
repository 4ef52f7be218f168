"""The model that tells main text from the rest of a page: two forests over features of blocks, and the choice of the
blocks to keep.

The first forest sees each block by itself, the second also what the first said of the blocks around it
(kernels/blocks/features.py). Blocks are sorted by probability and cut where the expected
F-measure is highest: after k blocks it is (1 + B) * (words expected in the k) / (words in the k + B * words expected on
the page), with B the square of BETA.

The file is a .npz of plain arrays, without pickle. The one that is shipped was trained by stages/extract/train.py on
pages of several makers: the development split of WCXB (Murrough Foley 2026, CC-BY-4.0), article-extraction-benchmark
(Scrapinghub, MIT), pages of Readability's tests (Mozilla, Apache-2.0), of trafilatura's (Adrien Barbaresi, Apache-2.0)
and of recipe-scrapers (hhursev, MIT); and on pages made here of novels from Project Gutenberg (public domain).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.kernels.blocks.choice import BrokenForest, Forest, Splits, check, choose, predict, splits_of
from gristmill.kernels.blocks.columns import FEATURES
from gristmill.kernels.blocks.features import COLUMNS, CONTEXT, WORDS, context_features
from gristmill.kernels.blocks.page import Choosing
from gristmill.kernels.html.segment import Page

SHIPPED = Path(__file__).parent / "models" / "blocks.npz"
FORESTS = ("first", "second")
LARGEST = 4 << 20  # bytes of a model file
# What the first forest says less of is not looked at again: nearly half of all blocks. On 570 real pages the second
# forest gives none of them 0.3, and one in 2,000 as much as 0.08.
HOPELESS = 0.03
# Recall counts so many times as much as precision. On pages of other makers the model loses precision: below 1 they
# gain more than WCXB loses (docs/extraction.md).
BETA = 0.9
LEAST = 0.08  # a block that is less probable is not kept, unless there is none better


class BlockModelError(ValueError):
    """A file that is no model of blocks, or one for other features."""


class MeasuredPage(NamedTuple):
    """A page's blocks as numbers: rows of features with room for the second look, and what they were made from."""

    rows: Array
    counts: Array
    tree: Any


@dataclass(frozen=True)
class BlockModel:
    first: Forest
    second: Forest
    sharpness: float  # above 1, the choice takes probabilities as more decided than they are

    @cached_property
    def splits(self) -> tuple[Splits, Splits]:
        return splits_of(self.first), splits_of(self.second)

    def choosing(self, beta: float = BETA) -> Choosing:
        """How a page's blocks are chosen; recall counts `beta` times as much as precision."""
        return Choosing(*self.splits, HOPELESS, self.sharpness, beta * beta, LEAST)

    def probabilities(self, page: Page, measured: MeasuredPage) -> Array:
        """float32[blocks]."""
        first, second = self.splits
        found = predict(first, measured.rows)
        add_context(page, measured, found)
        hopeful = found >= HOPELESS
        found[hopeful] = predict(second, np.ascontiguousarray(measured.rows[hopeful]))
        return found

    def keep(self, probability: Array, measured: MeasuredPage, beta: float = BETA) -> Array:
        """bool[blocks]; recall counts `beta` times as much as precision."""
        return choose_blocks(probability, measured.counts[:, WORDS], self.sharpness, beta)


def untaught() -> BlockModel:
    """A model that finds every block as probable as the next, for pages that another one is trained on."""
    leaf, ends = np.zeros(1, np.int32), np.full(1, np.inf, np.float32)
    forest = Forest(leaf, leaf, leaf, ends, leaf, np.zeros(1, np.float32), 0.0)
    return BlockModel(forest, forest, 1.0)


def add_context(page: Page, measured: MeasuredPage, first: Array) -> None:
    """Writes what the first forest said into the columns that the second one reads."""
    tree = measured.tree
    context_features(
        first, measured.counts, page.parent, page.element, tree.sums, tree.path, tree.group, tree.heading, measured.rows
    )


def choose_blocks(probability: Array, words: Array, sharpness: float, beta: float = BETA) -> Array:
    made: Array = choose(probability, np.ascontiguousarray(words), sharpness, beta * beta, LEAST)
    return made


def save(model: BlockModel, path: str | os.PathLike[str]) -> None:
    arrays: dict[str, Any] = {"features": np.array([*FEATURES, *CONTEXT]), "sharpness": np.float64(model.sharpness)}
    for name in FORESTS:
        forest: Forest = getattr(model, name)
        arrays |= {f"{name}_{field}": np.asarray(getattr(forest, field)) for field in Forest._fields}
    np.savez_compressed(path, **arrays)


@lru_cache(maxsize=4)
def load(path: str | os.PathLike[str] = SHIPPED) -> BlockModel:
    """The model of a file, checked so that no kernel can read out of bounds on it."""
    where = Path(path)
    try:
        if where.stat().st_size > LARGEST:
            raise BlockModelError(f"{where}: {where.stat().st_size:,} bytes; a model of blocks has {LARGEST:,} at most")
        with np.load(where, allow_pickle=False) as file:
            if tuple(file["features"].tolist()) != FEATURES + CONTEXT:
                raise BlockModelError(
                    f"{where}: trained for other features; train it again: python -m gristmill.stages.extract.train "
                    f"DATA {where}"
                )
            first, second = (check(read_forest(file, name), COLUMNS) for name in FORESTS)
            model = BlockModel(first, second, float(file["sharpness"]))
            _ = model.splits  # raises for trees of too many leaves
            return model
    except BlockModelError:
        raise
    except BrokenForest as error:
        raise BlockModelError(f"{where}: the model is damaged ({error})") from error
    except (OSError, KeyError, ValueError, EOFError) as error:
        raise BlockModelError(f"{where}: the model cannot be read ({error})") from error


def read_forest(file: Any, name: str) -> Forest:
    def fixed(field: str, kind: Any) -> Array:
        array = np.ascontiguousarray(file[f"{name}_{field}"]).astype(kind)
        if array.ndim != 1:
            raise BrokenForest(f"{name}_{field} is no list")
        array.flags.writeable = False
        return array

    integers = {field: fixed(field, np.int32) for field in ("root", "depth", "feature", "child")}
    numbers = {field: fixed(field, np.float32) for field in ("threshold", "value")}
    return Forest(**integers, **numbers, base=float(file[f"{name}_base"]))
