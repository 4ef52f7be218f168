"""What the choice of blocks may not tear apart: formulas and code between chosen blocks, rows of chosen tables.

The model sees blocks of words. A formula on a line of its own has hardly any, and neither has code, so that both were
often left out of a text that goes on around them.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.kernels.html.names import TAGS
from gristmill.kernels.html.places import tables_around
from gristmill.kernels.html.segment import Page

PREFORMATTED = np.zeros(256, np.bool_)
PREFORMATTED[[TAGS.index(name) for name in ("pre", "listing", "xmp", "plaintext")]] = True
MOST = 12  # blocks of code and formulas between two chosen ones
DOLLARS = b"$$"
TABLE = TAGS.index("table")
SMALLEST = 6  # blocks of a table


def with_structure(page: Page, kept: Array) -> Array:
    """The choice, and with it the code between its blocks, the displayed formulas between or beside them, and the rest
    of tables that are mostly in it."""
    if not kept.any():
        return kept
    code = PREFORMATTED[page.tag[page.element]]
    formula = displayed(page)
    whole = (code | formula) & ~kept
    if whole.any():
        kept = with_runs(page, kept, np.flatnonzero(whole), formula)
    return with_tables(page, kept) if (page.tag == TABLE).any() else kept


def with_runs(page: Page, kept: Array, places: Array, formula: Array) -> Array:
    kept = kept.copy()
    chosen = np.flatnonzero(kept)
    first, last = int(chosen[0]), int(chosen[-1])
    for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
        a, b = int(run[0]), int(run[-1])
        if len(run) > MOST or b < first - 1 or a > last + 1:
            continue
        before, after = a > 0 and bool(kept[a - 1]), b + 1 < len(kept) and bool(kept[b + 1])
        beside = (before and near(page, a - 1, a)) or (after and near(page, b, b + 1))
        if (before and after) or (beside and formula[run].all()):
            kept[run] = True
    return kept


def with_tables(page: Page, kept: Array) -> Array:
    """Of a table with rows of cells and no table in it: all of it, where more than half of its blocks were chosen, or
    some and what stands before and after it."""
    table_of = tables_around(page.tag, page.parent)
    of_block = table_of[page.element]
    cells = np.flatnonzero(of_block >= 0)
    tables, place, count = np.unique(of_block[cells], return_inverse=True, return_counts=True)
    if not len(tables):
        return kept
    chosen = np.bincount(place, weights=kept[cells], minlength=len(tables))
    outer = table_of[page.parent[tables]]
    first = np.full(len(tables), len(kept))
    np.minimum.at(first, place, cells)
    last = np.zeros(len(tables), np.int64)
    np.maximum.at(last, place, cells)
    between = (chosen > 0) & kept[np.maximum(first - 1, 0)] & kept[np.minimum(last + 1, len(kept) - 1)]
    between &= (first > 0) & (last + 1 < len(kept))
    mostly = ((2 * chosen > count) | between) & (chosen < count) & (count >= SMALLEST) & ~np.isin(tables, outer)
    if not mostly.any():
        return kept
    kept = kept.copy()
    kept[cells[mostly[place]]] = True
    return kept


def displayed(page: Page) -> Array:
    """bool[blocks]: those that are nothing but `$$...$$`."""
    start, end = page.start[:-1], page.start[1:]
    found = np.zeros(len(start), np.bool_)
    if DOLLARS not in page.text.tobytes():
        return found
    long = np.flatnonzero(end - start > 2 * len(DOLLARS))
    dollar = ord("$")
    text = page.text
    a, b = start[long], end[long]
    found[long] = (text[a] == dollar) & (text[a + 1] == dollar) & (text[b - 1] == dollar) & (text[b - 2] == dollar)
    return found


def near(page: Page, left: int, right: int) -> bool:
    """Whether two blocks stand in one container, or one of them in a child of it."""
    above = [int(page.element[left]), int(page.element[right])]
    chains = []
    for element in above:
        chain = [element]
        while len(chain) < 4 and chain[-1] > 0:
            chain.append(int(page.parent[chain[-1]]))
        chains.append(chain)
    return not set(chains[0]).isdisjoint(chains[1])
