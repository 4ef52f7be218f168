"""What the choice of blocks may not tear apart: headings, formulas and code between chosen blocks, rows of chosen
tables, tables of data after chosen blocks.

The model sees blocks of words. A formula on a line of its own has hardly any, and neither has a heading, code or a cell
of a table, so that all were often left out of a text that goes on around them.
"""

from __future__ import annotations

import numpy as np

from gristmill.classifiers.blocks.model import MeasuredPage
from gristmill.kernels.base.types import Array
from gristmill.kernels.blocks.columns import LINK_SHARE
from gristmill.kernels.blocks.features import WORDS
from gristmill.kernels.html.names import TAGS
from gristmill.kernels.html.paragraphs import tables_around
from gristmill.kernels.html.segment import Page

PREFORMATTED = np.zeros(256, np.bool_)
PREFORMATTED[[TAGS.index(name) for name in ("pre", "listing", "xmp", "plaintext")]] = True
MOST = 12  # blocks of code and formulas between two chosen ones
DOLLARS = b"$$"
TABLE = TAGS.index("table")
SMALLEST = 6  # blocks of a table
LIKELY = 0.15  # the mean probability of a table that is kept for what stands before it
MOST_LINKED = 0.3  # of its words


def with_structure(page: Page, measured: MeasuredPage, probability: Array, kept: Array) -> Array:
    """The choice, and with it the code between its blocks, the displayed formulas between or beside them, the rest of
    tables that are mostly in it, and tables of data right after its blocks."""
    if not kept.any():
        return kept
    code = PREFORMATTED[page.tag[page.element]]
    formula = displayed(page)
    whole = (code | formula) & ~kept
    if whole.any():
        kept = with_runs(page, kept, np.flatnonzero(whole), formula)
    return with_tables(page, measured, probability, kept) if (page.tag == TABLE).any() else kept


def with_headings(page: Page, measured: MeasuredPage, kept: Array) -> Array:
    """The choice, and with it the headings between its blocks."""
    level = measured.tree.heading
    between = np.flatnonzero((level[1:-1] > 0) & ~kept[1:-1] & kept[:-2] & kept[2:]) + 1
    headings = [b for b in between.tolist() if near(page, int(page.element[b]), int(page.element[b + 1]))]
    if not headings:
        return kept
    kept = kept.copy()
    kept[headings] = True
    return kept


def with_runs(page: Page, kept: Array, places: Array, formula: Array) -> Array:
    kept = kept.copy()
    chosen = np.flatnonzero(kept)
    first, last = int(chosen[0]), int(chosen[-1])
    for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
        a, b = int(run[0]), int(run[-1])
        if len(run) > MOST or b < first - 1 or a > last + 1:
            continue
        before, after = a > 0 and bool(kept[a - 1]), b + 1 < len(kept) and bool(kept[b + 1])
        element = page.element[max(a - 1, 0) : b + 2].tolist()
        beside = (before and near(page, element[0], element[1])) or (after and near(page, element[-2], element[-1]))
        if (before and after) or (beside and formula[run].all()):
            kept[run] = True
    return kept


def with_tables(page: Page, measured: MeasuredPage, probability: Array, kept: Array) -> Array:
    """Of a table with rows of cells and no table in it: all of it, where more than half of its blocks were chosen, or
    some and what stands before and after it; or where a chosen block stands before it in the same container, it is not
    improbable and has few links."""
    table_of = tables_around(page.tag, page.parent)
    of_block = table_of[page.element]
    cells = np.flatnonzero(of_block >= 0)
    tables, place, count = np.unique(of_block[cells], return_inverse=True, return_counts=True)
    if not len(tables):
        return kept

    def sums(values: Array) -> Array:
        return np.bincount(place, weights=values, minlength=len(tables))

    chosen = sums(kept[cells])
    whole = (chosen < count) & (count >= SMALLEST) & ~np.isin(tables, table_of[page.parent[tables]])
    if not whole.any():
        return kept
    first = np.full(len(tables), len(kept))
    np.minimum.at(first, place, cells)
    last = np.zeros(len(tables), np.int64)
    np.maximum.at(last, place, cells)
    before = (first > 0) & kept[np.maximum(first - 1, 0)]
    after = (last + 1 < len(kept)) & kept[np.minimum(last + 1, len(kept) - 1)]
    words = measured.counts[cells, WORDS] + 1.0
    likely = sums(probability[cells] * words) >= LIKELY * sums(words)
    unlinked = sums(measured.rows[cells, LINK_SHARE] * words) <= MOST_LINKED * sums(words)
    follows = before & likely & unlinked
    follows[follows] = [
        near(page, int(page.element[block - 1]), table)
        for block, table in zip(first[follows].tolist(), tables[follows].tolist(), strict=True)
    ]
    whole &= (2 * chosen > count) | ((chosen > 0) & before & after) | follows
    if not whole.any():
        return kept
    kept = kept.copy()
    kept[cells[whole[place]]] = True
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
    """Whether two elements stand in one container, or one of them in a child of it."""
    chains = []
    for element in (left, right):
        chain = [element]
        while len(chain) < 4 and chain[-1] > 0:
            chain.append(int(page.parent[chain[-1]]))
        chains.append(chain)
    return not set(chains[0]).isdisjoint(chains[1])
