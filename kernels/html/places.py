"""Where elements stand: the heading, list item, table, row, cell, code and quotes around each; one pass, since a parent
comes before its children."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.html.names import TAGS

HEADING, ITEM, TABLE, ROW, CELL, CODE, QUOTES, TERM = range(8)  # columns of a place; elements by number, -1 for none
NOWHERE = np.array([0, -1, -1, -1, -1, -1, 0, 0], np.int32)
IN_ITEM, IN_ROW, IN_CELL, IN_TABLE, IN_CODE, IN_QUOTE, IN_TERM, IN_HEADING = range(1, 9)  # IN_HEADING + its level
DEEPEST_LIST = DEEPEST_QUOTE = 16  # lists and quotes that lie deeper are shown as deep as this

WHAT = np.zeros(256, np.uint8)
for _what, _names in (
    (IN_ITEM, ["li"]),
    (IN_ROW, ["tr"]),
    (IN_CELL, ["td", "th"]),
    (IN_TABLE, ["table"]),
    (IN_CODE, ["pre", "listing", "xmp", "plaintext"]),
    (IN_QUOTE, ["blockquote"]),
    (IN_TERM, ["dt", "dd"]),
):
    WHAT[[TAGS.index(name) for name in _names]] = _what
WHAT[[TAGS.index(f"h{level}") for level in range(1, 7)]] = np.arange(IN_HEADING + 1, IN_HEADING + 7)


class Places(NamedTuple):
    """Of all elements, but filled only for those asked for and all above them."""

    rows: Array  # int32[elements, 8]
    item: Array  # int32[elements]: of an <li> the one around it; those around it are at most DEEPEST_LIST with it
    nested: Array  # bool[elements]: tables and rows that hold a table


def places_of(tag: Array, parent: Array, elements: Array) -> Places:
    rows, item = np.empty((len(tag), 8), np.int32), np.empty(len(tag), np.int32)
    nested, used = np.zeros(len(tag), np.bool_), np.zeros(len(tag), np.bool_)
    find_places(tag, parent, elements, WHAT, NOWHERE, used, rows, item, np.zeros(len(tag), np.uint8), nested)
    return Places(rows, item, nested)


def tables_around(tag: Array, parent: Array) -> Array:
    """int32[elements]: the innermost table around each element or that it is, -1 for none."""
    around = np.empty(len(tag), np.int32)
    find_tables(tag, parent, WHAT, around)
    return around


@kernel
def find_tables(tag, parent, what, around):
    for e in range(len(tag)):
        if what[tag[e]] == IN_TABLE:
            around[e] = e
        else:
            around[e] = around[parent[e]] if parent[e] >= 0 else -1


@kernel
def find_places(tag, parent, elements, what, nowhere, used, rows, item, deep, nested):
    for element in elements:
        while element >= 0 and not used[element]:
            used[element] = True
            element = parent[element]
    for e in range(len(tag)):
        if not used[e]:
            continue
        above = rows[parent[e]] if parent[e] >= 0 else nowhere
        for column in range(8):
            rows[e, column] = above[column]
        kind = what[tag[e]]
        if kind == 0:
            continue
        if kind == IN_ITEM:
            if rows[e, CODE] < 0:  # lines of code are no items, and their numbers none of it
                outer = rows[e, ITEM]
                if outer >= 0 and deep[outer] == DEEPEST_LIST:  # stands where the one around it does
                    item[e], deep[e] = item[outer], DEEPEST_LIST
                else:
                    item[e] = outer
                    deep[e] = deep[outer] + 1 if outer >= 0 else 1
                rows[e, ITEM], rows[e, TERM] = e, 0
        elif kind == IN_ROW:
            rows[e, ROW], rows[e, CELL] = e, -1
        elif kind == IN_CELL:
            rows[e, CELL] = e
        elif kind == IN_TABLE:
            if rows[e, TABLE] >= 0:
                nested[rows[e, TABLE]] = True
                if rows[e, ROW] >= 0:
                    nested[rows[e, ROW]] = True
            rows[e, TABLE], rows[e, ROW], rows[e, CELL] = e, -1, -1
        elif kind == IN_CODE:
            rows[e, CODE] = e
        elif kind == IN_QUOTE:
            rows[e, QUOTES] = min(rows[e, QUOTES] + 1, DEEPEST_QUOTE)
        elif kind == IN_TERM:
            rows[e, TERM] = tag[e]
        else:
            rows[e, HEADING] = kind - IN_HEADING
