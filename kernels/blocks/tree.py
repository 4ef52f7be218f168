"""The tree of a page's blocks: sums over the contents of each element, groups of like elements, and the chain of
elements that leads to most of the text.

Parents stand before their children, so one pass up and one pass down suffice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.compiled import helper, kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.blocks import text as block_text

# Columns of `sums` over what is inside an element.
S_CHARACTERS, S_LINKED, S_PUNCTUATION, S_TERMINALS, S_BLOCKS, S_PROSE = range(6)
PROSE = 60  # characters of a block of prose at least


class ElementGroups(NamedTuple):
    """Elements with the same parent, tag and first class, as `tree_shape` fills them."""

    of_element: Array  # int32[elements]; -1 where no block is inside the element
    index: Array  # int32[elements]: the element's place in its group, from 0
    sizes: Array  # int32[groups]
    sums: Array  # int64[groups, S_...]


class Chain(NamedTuple):
    """The way from the root down to most of a page's text."""

    rank: Array  # int32[elements]: 0 for the root; -1 beside the chain
    end: int  # the innermost element


@helper
def share(part, whole):
    return np.float32(part) / np.float32(whole) if whole > 0 else np.float32(0)


@helper
def is_prose(counts, linked):
    return (
        counts[block_text.CHARACTERS] >= PROSE
        and counts[block_text.TERMINALS] > 0
        and 2 * linked < counts[block_text.CHARACTERS]
    )


@kernel
def sum_up(parent, element, linked, counts, sums):
    """sums[element, S_...] over the blocks inside each element; a parent stands before its children."""
    for b in range(len(element)):
        row, c = sums[element[b]], counts[b]
        row[S_CHARACTERS] += c[block_text.CHARACTERS]
        row[S_LINKED] += min(linked[b], c[block_text.CHARACTERS])
        row[S_PUNCTUATION] += c[block_text.PUNCTUATIONS]
        row[S_TERMINALS] += c[block_text.TERMINALS]
        row[S_BLOCKS] += 1
        if is_prose(c, linked[b]):
            row[S_PROSE] += c[block_text.CHARACTERS]
    for e in range(len(parent) - 1, 0, -1):
        if parent[e] >= 0:
            sums[parent[e]] += sums[e]


@kernel
def tree_shape(parent, alike, sums, path, groups):
    """Fills a hash of each element's path, and the groups of like elements."""
    n = len(parent)
    size = 16
    while size < 2 * n:
        size *= 2
    keys, numbers = np.zeros(size, np.uint64), np.zeros(size, np.int32)
    mask = np.uint64(size - 1)
    count = 0
    for e in range(n):
        up = parent[e]
        path[e] = block_text.mixed(path[up] if up >= 0 else block_text.SEED, alike[e])
        if sums[e, S_BLOCKS] == 0:  # no block is inside: no group needs it
            groups.of_element[e], groups.index[e] = -1, 0
            continue
        key = block_text.mixed(block_text.mixed(block_text.SEED, up + 1), alike[e]) | np.uint64(1)
        place = key & mask
        while keys[place] != 0 and keys[place] != key:
            place = (place + np.uint64(1)) & mask
        if keys[place] == 0:
            keys[place] = key
            numbers[place] = count
            groups.sizes[count] = 0
            groups.sums[count] = 0
            count += 1
        g = numbers[place]
        groups.of_element[e], groups.index[e] = g, groups.sizes[g]
        groups.sizes[g] += 1
        groups.sums[g] += sums[e]


@kernel
def chain(parent, sums, column, ranks):
    """Fills ranks[element] along the chain from the root to the innermost element with half of the page's sum in a
    column; -1 beside it. Returns the end of the chain."""
    n = len(parent)
    heaviest = np.full(n, -1, np.int32)
    for e in range(n):
        up = parent[e]
        ranks[e] = -1
        if up >= 0 and (heaviest[up] < 0 or sums[e, column] > sums[heaviest[up], column]):
            heaviest[up] = e
    e, rank = 0, 0
    ranks[0] = 0
    while heaviest[e] >= 0 and sums[0, column] > 0 and 2 * sums[heaviest[e], column] >= sums[0, column]:
        e, rank = heaviest[e], rank + 1
        ranks[e] = rank
    return e
