"""The tree that blocks hang in: sums over what each element holds, elements that are alike, and the way down to most of
a page's text.

A parent stands before its children, so one pass up and one down are all that it takes.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.compiled import helper, kernel
from gristmill.kernels.blocks import text as said

# Columns of `sums` over what is inside an element.
S_CHARACTERS, S_LINKED, S_PUNCTUATION, S_TERMINALS, S_BLOCKS, S_PROSE = range(6)
PROSE = 60  # characters of a block of prose at least


@helper
def share(part, whole):
    return np.float32(part) / np.float32(whole) if whole > 0 else np.float32(0)


@helper
def is_prose(counts, linked):
    return counts[said.CHARACTERS] >= PROSE and counts[said.TERMINALS] > 0 and 2 * linked < counts[said.CHARACTERS]


@kernel
def sum_up(parent, element, linked, counts, sums):
    """sums[element, S_...] over the blocks inside each element; a parent stands before its children."""
    for b in range(len(element)):
        row, c = sums[element[b]], counts[b]
        row[S_CHARACTERS] += c[said.CHARACTERS]
        row[S_LINKED] += min(linked[b], c[said.CHARACTERS])
        row[S_PUNCTUATION] += c[said.PUNCTUATIONS]
        row[S_TERMINALS] += c[said.TERMINALS]
        row[S_BLOCKS] += 1
        if is_prose(c, linked[b]):
            row[S_PROSE] += c[said.CHARACTERS]
    for e in range(len(parent) - 1, 0, -1):
        if parent[e] >= 0:
            sums[parent[e]] += sums[e]


@kernel
def tree_shape(parent, alike, sums, path, group, siblings, sibling, group_sums):
    """For each element: a hash of its path, and its group: the elements with the same parent, tag and first class (how
    many, which of them, and the sums over all of them)."""
    n = len(parent)
    size = 16
    while size < 2 * n:
        size *= 2
    keys, numbers = np.zeros(size, np.uint64), np.zeros(size, np.int32)
    mask = np.uint64(size - 1)
    groups = 0
    for e in range(n):
        up = parent[e]
        path[e] = said.mixed(path[up] if up >= 0 else said.SEED, alike[e])
        if sums[e, S_BLOCKS] == 0:  # nothing is in it: no group needs it
            group[e], sibling[e] = -1, 0
            continue
        key = said.mixed(said.mixed(said.SEED, up + 1), alike[e]) | np.uint64(1)
        place = key & mask
        while keys[place] != 0 and keys[place] != key:
            place = (place + np.uint64(1)) & mask
        if keys[place] == 0:
            keys[place] = key
            numbers[place] = groups
            siblings[groups] = 0
            group_sums[groups] = 0
            groups += 1
        g = numbers[place]
        group[e], sibling[e] = g, siblings[g]
        siblings[g] += 1
        group_sums[g] += sums[e]


@kernel
def chain(parent, sums, column, core):
    """core[element]: its rank on the way down from the root to the innermost element with half of the page's sum; -1
    beside it. Its end."""
    n = len(parent)
    heaviest = np.full(n, -1, np.int32)
    for e in range(n):
        up = parent[e]
        core[e] = -1
        if up >= 0 and (heaviest[up] < 0 or sums[e, column] > sums[heaviest[up], column]):
            heaviest[up] = e
    e, rank = 0, 0
    core[0] = 0
    while heaviest[e] >= 0 and sums[0, column] > 0 and 2 * sums[heaviest[e], column] >= sums[0, column]:
        e, rank = heaviest[e], rank + 1
        core[e] = rank
    return e
