"""Blocks as text or Markdown: an empty line between paragraphs, items of lists with their markers and indentation, in
Markdown headings, quotes and definitions too; by where each element stands: the heading, list item, table, row, cell,
code and quotes around it (one pass, since a parent comes before its children).

Paragraphs are written here where there is neither code nor rows of tables; stages/extract/render.py writes those, and
says the same of the rest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gristmill.kernels.base import bare
from gristmill.kernels.base.compiled import helper, kernel
from gristmill.kernels.base.types import Array, Bytes
from gristmill.kernels.html.names import TAGS

# --- places of elements -----------------------------------------------------------------------------------------------

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
    return Places(*find_places(tag, parent, elements))


@kernel
def find_places(tag, parent, elements) -> Any:
    return places_in(tag, parent, elements)


@helper
def places_in(tag, parent, elements):
    """The fields of `Places`."""
    rows, item = np.empty((len(tag), 8), np.int32), np.empty(len(tag), np.int32)
    nested, used, deep = np.zeros(len(tag), np.bool_), np.zeros(len(tag), np.bool_), np.zeros(len(tag), np.uint8)
    put_places(tag, parent, elements, WHAT, NOWHERE, used, rows, item, deep, nested)
    return rows, item, nested


@bare.helper
def put_places(tag, parent, elements, what, nowhere, used, rows, item, deep, nested):
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


# --- paragraphs -------------------------------------------------------------------------------------------------------

LI, OL, DT, DD = (TAGS.index(name) for name in ("li", "ol", "dt", "dd"))
NEWLINE, SPACE, DASH, DOT, ZERO, SHARP, QUOTE, COLON = (ord(character) for character in "\n -.0#>:")
STAR, BRACKET = ord("*"), ord(")")
UNMARKED, PLANNED, WRITTEN = range(3)  # of an item's marker: it has none, it is still to come, it stands
OTHER = 3  # of a list in Markdown: its markers are `*` and `1)`, since it follows a list with `-` or `1.`


def written_paragraphs(
    text: Bytes,
    start: Array,
    blocks: Array,
    places: Array,
    around: Array,
    tag: Array,
    parent: Array,
    lists: Array,
    markdown: bool = False,
) -> bytes:
    """`places` of the blocks and what is around each item (`places_of`); `lists`: int64[n, 3], an <ol>, the
    number of its first item and the step to the next, of those that do not count from 1; or an <li>, the number that
    it states, and 0."""
    written: Array = write_paragraphs(text, start, blocks, places, around, tag, parent, lists, markdown)
    return written.tobytes()


@kernel
def write_paragraphs(text, start, blocks, places, around, tag, parent, lists, markdown) -> Any:
    return paragraphs_of(text, start, blocks, places, around, tag, parent, lists, markdown)


@helper
def paragraphs_of(text, start, blocks, places, around, tag, parent, lists, markdown):
    """What `written_paragraphs` returns, as an array."""
    state, number = plan_markers(places, around, tag, parent, lists)
    size = write(
        text, start, blocks, places, around, tag, parent, state.copy(), number, markdown, np.empty(0, np.uint8)
    )
    out = np.empty(size, np.uint8)
    write(text, start, blocks, places, around, tag, parent, state, number, markdown, out)
    return out


@helper
def plan_markers(places, around, tag, parent, lists):
    """Which items have a marker (one that holds a heading is a card and has none), and the numbers of those in <ol>."""
    state, any_item = np.zeros(len(tag), np.uint8), False
    for i in range(len(places)):
        item = places[i, ITEM]
        while item >= 0:
            state[item] = PLANNED
            any_item = True
            item = around[item]
    if not any_item:
        return state, np.zeros(0, np.int64)
    for i in range(len(places)):
        if places[i, HEADING] > 0:
            item = places[i, ITEM]
            while item >= 0:
                state[item] = UNMARKED
                item = around[item]
    number, following, step = np.zeros(len(tag), np.int64), np.ones(len(tag), np.int64), np.ones(len(tag), np.int64)
    for i in range(len(lists)):
        following[lists[i, 0]], step[lists[i, 0]] = lists[i, 1], lists[i, 2]
    for e in range(len(tag)):
        if tag[e] == LI:
            if step[e] == 0:
                following[parent[e]] = following[e]
            number[e] = following[parent[e]]
            following[parent[e]] += step[parent[e]]
    return state, number


@bare.inlined
def put(out, at, character):
    if at < len(out):
        out[at] = character
    return at + 1


@bare.helper
def width(number):
    """Of a number and the dot and space after it."""
    digits, rest = 3, abs(number) // 10
    while rest > 0:
        digits, rest = digits + 1, rest // 10
    return digits + 1 if number < 0 else digits


@bare.helper
def put_number(out, at, number, dot):
    end = at + width(number)
    place, rest = end - 3, abs(number)
    while True:
        put(out, place, ZERO + rest % 10)
        place, rest = place - 1, rest // 10
        if rest == 0:
            break
    if number < 0:
        put(out, at, DASH)
    put(out, end - 2, dot)
    put(out, end - 1, SPACE)
    return end


@bare.helper
def put_line_start(out, at, quotes, indent):
    for _ in range(quotes):
        at = put(out, put(out, at, QUOTE), SPACE)
    for _ in range(indent):
        at = put(out, at, SPACE)
    return at


@bare.helper
def is_marked(item, around, state):
    """Whether an item or one around it has a marker."""
    while item >= 0:
        if state[item] != UNMARKED:
            return True
        item = around[item]
    return False


@bare.helper
def lists_apart(before, item, around, parent):
    """Of two items, the outermost lists that they do not share: where the first ends and the second begins between
    them. -1 where they share all, or one list is inside the other."""
    deeper, other = depth_of(before, around), depth_of(item, around)
    while deeper > other:
        before, deeper = around[before], deeper - 1
    while other > deeper:
        item, other = around[item], other - 1
    outer, next_outer = -1, -1
    while before != item:
        outer, next_outer, before, item = before, item, around[before], around[item]
    if outer < 0:
        return -1, -1
    first, second = parent[outer], parent[next_outer]
    if is_inside(first, second, parent) or is_inside(second, first, parent):
        return -1, -1
    return first, second


@bare.helper
def depth_of(item, around):
    depth = 0
    while item >= 0:
        item, depth = around[item], depth + 1
    return depth


@bare.helper
def is_inside(element, container, parent):
    """Whether an element is that container or in it; a container has the lower number."""
    while element > container:
        element = parent[element]
    return element == container


@bare.helper
def write(text, start, blocks, places, around, tag, parent, state, number, markdown, out):
    """The number of bytes; as many as fit are written."""
    at = 0
    for i in range(len(blocks)):
        indent, innermost = 0, -1
        item = places[i, ITEM]
        while item >= 0:
            if state[item] != UNMARKED:
                if innermost < 0:
                    innermost = item
                if state[item] == WRITTEN:
                    indent += width(number[item]) if tag[parent[item]] == OL else 2
            item = around[item]
        quotes = places[i, QUOTES] if markdown else 0
        if i > 0:
            in_list = innermost >= 0 and is_marked(places[i - 1, ITEM], around, state)
            defined = places[i, TERM] == DD and (places[i - 1, TERM] == DT or places[i - 1, TERM] == DD)
            next_row = not markdown and 0 <= places[i, TABLE] == places[i - 1, TABLE]
            next_row = next_row and places[i, ROW] != places[i - 1, ROW]
            if in_list and markdown:
                ended, begun = lists_apart(places[i - 1, ITEM], places[i, ITEM], around, parent)
                in_list = begun < 0
                if begun >= 0 and (tag[ended] == OL) == (tag[begun] == OL) and tag[begun] != LI:
                    state[begun] = UNMARKED if state[ended] == OTHER else OTHER
            at = put(out, at, NEWLINE)
            if not ((in_list or defined or next_row) and places[i, QUOTES] == places[i - 1, QUOTES]):
                for level in range(min(quotes, places[i - 1, QUOTES])):
                    at = put(out, at if level == 0 else put(out, at, SPACE), QUOTE)
                at = put(out, at, NEWLINE)
        at = put_line_start(out, at, quotes, indent)
        if innermost >= 0 and state[innermost] == PLANNED:
            state[innermost] = WRITTEN
            other = state[parent[innermost]] == OTHER
            if tag[parent[innermost]] == OL:
                size = width(number[innermost])
                at = put_number(out, at, number[innermost], BRACKET if other else DOT)
            else:
                size = 2
                at = put(out, put(out, at, STAR if other else DASH), SPACE)
            indent += size
        heading = places[i, HEADING] if markdown else 0
        if heading > 0:
            for _ in range(heading):
                at = put(out, at, SHARP)
            at = put(out, at, SPACE)
        elif markdown and places[i, TERM] == DD:
            at = put(out, put(out, at, COLON), SPACE)
        first, last = start[blocks[i]], start[blocks[i] + 1]
        if indent == 0 and quotes == 0 and heading == 0:
            if at + last - first <= len(out):
                for k in range(last - first):
                    out[at + k] = text[first + k]
            at += last - first
            continue
        for k in range(first, last):
            if text[k] != NEWLINE:
                at = put(out, at, text[k])
            elif heading > 0:
                at = put(out, at, SPACE)
            else:
                at = put_line_start(out, put(out, at, NEWLINE), quotes, indent)
    return at
