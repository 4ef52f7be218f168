"""Features for a second look at the blocks of a page: a first model's probabilities of the blocks around each.

Main text is contiguous, but the first model sees each block alone. The second model also gets the first one's mean
probability, weighted by characters, over the neighbours, the containers, the blocks on the same path, the section under
the same heading, and the page.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.blocks import text as block_text
from gristmill.kernels.blocks.columns import FEATURES, LEVELS
from gristmill.kernels.blocks.features import LOOK_UP
from gristmill.kernels.blocks.tree import S_BLOCKS, share

CONTEXT = (
    "said", "said_-2", "said_-1", "said_+1", "said_+2", "said_within_4", "said_within_12",
    *(f"said_{level}_up" for level in LEVELS),
    "said_alike", "said_siblings", "said_page", "said_section", "said_last_section", "rank", "after_first",
    "before_last",
)  # fmt: skip
COLUMNS = len(FEATURES) + len(CONTEXT)
AT_CONTEXT = len(FEATURES)
AT_LEVELS = AT_CONTEXT + 7
AT_ALIKE = AT_LEVELS + len(LEVELS)
STEPS = 64  # of rank


@kernel
def context_features(first, counts, parent, element, tree_sums, path, group, heading, out) -> None:
    """Fills the columns from AT_CONTEXT on; `first` are the first model's probabilities, float32[blocks]."""
    n, elements = len(first), len(parent)
    inside = np.zeros((elements, 2))  # characters, and characters times probability
    ends = np.zeros((n + 1, 2))
    ranks = np.zeros(STEPS + 1)
    begin, finish = -1, -1
    for b in range(n):
        weight = counts[b, block_text.CHARACTERS]
        weighted = weight * np.float64(first[b])
        inside[element[b], 0] += weight
        inside[element[b], 1] += weighted
        ends[b + 1, 0] = ends[b, 0] + weight
        ends[b + 1, 1] = ends[b, 1] + weighted
        ranks[np.int64(first[b] * STEPS)] += weight
        if first[b] > 0.5:
            begin = b if begin < 0 else begin
            finish = b
    for e in range(elements - 1, 0, -1):
        if parent[e] >= 0:
            inside[parent[e]] += inside[e]
    size = 16
    while size < 4 * n:
        size *= 2
    keys, alike = np.zeros(size, np.uint64), np.zeros((size, 2))
    among = np.zeros((elements, 2))
    for e in range(elements):
        if group[e] >= 0:
            among[group[e]] += inside[e]
    mask = np.uint64(size - 1)
    places = np.empty(n, np.int64)
    for b in range(n):
        key = path[element[b]] | np.uint64(1)
        place = key & mask
        while keys[place] != 0 and keys[place] != key:
            place = (place + np.uint64(1)) & mask
        keys[place] = key
        alike[place] += ends[b + 1] - ends[b]
        places[b] = place
    above = ends[n, 0]
    for step in range(STEPS + 1):
        above -= ranks[step]
        ranks[step] = above
    section_from, section_to, last_section = 0, -1, np.float32(-1)
    for b in range(n):
        row = out[b]
        row[AT_CONTEXT] = first[b]
        column = AT_CONTEXT + 1
        for d in (-2, -1, 1, 2):
            row[column] = first[b + d] if 0 <= b + d < n else -1
            column += 1
        for reach in (4, 12):
            low, high = max(b - reach, 0), min(b + reach + 1, n)
            row[column] = share(ends[high, 1] - ends[low, 1], ends[high, 0] - ends[low, 0])
            column += 1
        ancestor, steps, branch, held, nearest = element[b], 0, 0, -1, -1
        while ancestor >= 0 and steps < LOOK_UP:
            if tree_sums[ancestor, S_BLOCKS] > held:
                held = tree_sums[ancestor, S_BLOCKS]
                for level in range(len(LEVELS)):
                    if LEVELS[level] == branch:
                        row[AT_LEVELS + level] = share(inside[ancestor, 1], inside[ancestor, 0])
                branch += 1
            around = max(parent[ancestor], 0)
            if nearest < 0 and group[ancestor] >= 0 and tree_sums[ancestor, S_BLOCKS] < tree_sums[around, S_BLOCKS]:
                nearest = group[ancestor]
            steps += 1
            ancestor = parent[ancestor]
        for level in range(len(LEVELS)):
            if LEVELS[level] >= branch:
                row[AT_LEVELS + level] = share(inside[0, 1], inside[0, 0])
        row[AT_ALIKE] = share(alike[places[b], 1], alike[places[b], 0])
        row[AT_ALIKE + 1] = share(among[nearest, 1], among[nearest, 0]) if nearest >= 0 else -1
        row[AT_ALIKE + 2] = share(ends[n, 1], ends[n, 0])
        if b > section_to:  # a section: one heading or several in a row, and the blocks up to the next heading
            if section_to >= 0:
                last_section = share(ends[b, 1] - ends[section_from, 1], ends[b, 0] - ends[section_from, 0])
            section_from = section_to = b
            while section_to + 1 < n and heading[section_to + 1] > 0 and heading[section_to] > 0:
                section_to += 1
            while section_to + 1 < n and heading[section_to + 1] == 0:
                section_to += 1
        row[AT_ALIKE + 3] = share(
            ends[section_to + 1, 1] - ends[section_from, 1], ends[section_to + 1, 0] - ends[section_from, 0]
        )
        row[AT_ALIKE + 4] = last_section
        row[AT_ALIKE + 5] = share(ranks[np.int64(first[b] * STEPS)], ends[n, 0])
        row[AT_ALIKE + 6] = b - begin if begin >= 0 else 10_000
        row[AT_ALIKE + 7] = finish - b if begin >= 0 else 10_000
