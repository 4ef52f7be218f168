"""Chosen blocks of a page as text for a language model: paragraphs, headings, lists, quotes, code and tables keep their
shape.

`text` has list markers and cells between bars, and no other marks. `markdown` adds what GitHub's dialect writes for
headings, quotes, code and tables; characters that mean something there (`*`, `_`) are left as they are, since text is
read here, not laid out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from gristmill.kernels.html.names import HEAD_LIST, TAGS
from gristmill.kernels.html.segment import Page

Form = Literal["text", "markdown"]

LI, OL, TR, TD, TH, TABLE, DT, DD, BLOCKQUOTE = (
    TAGS.index(name) for name in ["li", "ol", "tr", "td", "th", "table", "dt", "dd", "blockquote"]
)
HEADINGS = {TAGS.index(f"h{level}"): level for level in range(1, 7)}
PREFORMATTED = frozenset(TAGS.index(name) for name in ["pre", "listing", "xmp", "plaintext"])
SHAPING = frozenset([LI, TR, TD, TH, TABLE, DT, DD, BLOCKQUOTE, *HEADINGS, *PREFORMATTED])
DEEPEST_LIST = DEEPEST_QUOTE = 16  # lists and quotes that lie deeper are shown as deep as this
LONGEST_TAG = 4096
ATTRIBUTE_START = re.compile(rb"(?i)[\s\"'/]start\s{0,9}=\s{0,9}[\"']?\s{0,9}([-+]?\d{1,9})(?!\d)")
ATTRIBUTE_REVERSED = re.compile(rb"(?i)[\s\"'/]reversed[\s=>/]")
BACKTICKS = re.compile("`{3,}")


class Place(NamedTuple):
    """Where a block stands: elements by number, -1 for none."""

    heading: int = 0
    items: tuple[int, ...] = ()
    table: int = -1
    row: int = -1
    cell: int = -1
    code: int = -1
    quotes: int = 0
    term: int = 0  # DT, DD, 0


class Numbers(NamedTuple):
    """How the items of a list are numbered."""

    first: int = 1
    step: int = 1


FROM_ONE = Numbers()


class Unit(NamedTuple):
    """Blocks that are one thing: a paragraph, a heading, all of a code block, a table."""

    text: str
    place: Place


def render(
    page: Page, chosen: np.ndarray[Any, np.dtype[np.bool_]], form: Form, numbers: Mapping[int, Numbers] | None = None
) -> str:
    """The text of the chosen blocks; `numbers` of lists that do not count from 1."""
    units = _units(page, np.flatnonzero(chosen).tolist(), form)
    marked = _marked_items(page, units, numbers or {})
    return _joined(units, marked, form)


def numbered(data: bytes, page: Page) -> dict[int, Numbers]:
    """Of the <ol> that say `start` or `reversed`: what their items are called. `data` is the page's source."""
    numbers: dict[int, Numbers] = {}
    tags = np.flatnonzero(page.head_kind == HEAD_LIST)
    if not len(tags):
        return numbers
    lists = np.flatnonzero(page.tag == OL)
    items = np.bincount(page.parent[page.tag == LI], minlength=len(page.tag))
    for tag, element in zip(tags.tolist(), lists.tolist(), strict=True):
        source = data[page.head_start[tag] : min(page.head_end[tag], page.head_start[tag] + LONGEST_TAG)]
        first, reverse = ATTRIBUTE_START.search(source), ATTRIBUTE_REVERSED.search(source)
        if first or reverse:
            unsaid = int(items[element]) if reverse else 1
            numbers[element] = Numbers(int(first[1]) if first else unsaid, -1 if reverse else 1)
    return numbers


def _units(page: Page, blocks: list[int], form: Form) -> list[Unit]:
    text, edges, elements = page.text.tobytes(), page.start.tolist(), page.element.tolist()
    places = _places(page, {elements[block] for block in blocks})
    rows = _rows(page, [places[elements[block]] for block in blocks])
    units: list[Unit] = []
    tables: dict[int, dict[int, str]] = {}  # of one table: row -> {cell: text}
    previous = Place()
    for block in blocks:
        place = places[elements[block]]
        words = text[edges[block] : edges[block + 1]].decode("utf-8", "replace")
        if tables and (place.row not in rows or place.table != previous.table):
            units.append(Unit(_table(tables, rows, form), _of_table(previous)))
            tables = {}
        if place.row in rows:
            tables.setdefault(place.row, {})[place.cell] = " ".join(words.split("\n"))
        elif place.code >= 0 and units and place.code == previous.code:
            units[-1] = Unit(f"{units[-1].text}\n{words}", place)
        else:
            units.append(Unit(words, place))
        previous = place
    if tables:
        units.append(Unit(_table(tables, rows, form), _of_table(previous)))
    return units


def _places(page: Page, elements: set[int]) -> dict[int, Place]:
    """For these elements and all above them. A parent comes before its children."""
    tags, parents = page.tag.tolist(), page.parent.tolist()
    places: dict[int, Place] = {-1: Place()}
    for element in sorted(elements):
        path = []
        while element not in places:
            path.append(element)
            element = parents[element]
        for below in reversed(path):
            place, tag = places[parents[below]], tags[below]
            places[below] = _inside(place, tag, below) if tag in SHAPING else place
    return places


def _inside(place: Place, tag: int, element: int) -> Place:
    """In an element whose tag is one of SHAPING."""
    if tag == LI:
        if place.code >= 0:  # lines of code, whose numbers are none of it
            return place
        return place._replace(items=(*place.items[: DEEPEST_LIST - 1], element), term=0)
    if tag == TR:
        return place._replace(row=element, cell=-1)
    if tag in (TD, TH):
        return place._replace(cell=element)
    if tag == TABLE:
        return place._replace(table=element, row=-1, cell=-1)
    if tag in HEADINGS:
        return place._replace(heading=HEADINGS[tag])
    if tag in PREFORMATTED:
        return place._replace(code=element)
    if tag == BLOCKQUOTE:
        return place._replace(quotes=min(place.quotes + 1, DEEPEST_QUOTE))
    return place._replace(term=tag)


def _rows(page: Page, places: list[Place]) -> dict[int, list[int]]:
    """Rows that are one line, with their cells: two cells or more have text, none more than a block of it, and none
    code."""
    cells: dict[int, list[int]] = {}
    for place in places:
        if place.row >= 0:
            cells.setdefault(place.row, []).append(-1 if place.code >= 0 else place.cell)
    lines = {row for row, seen in cells.items() if len(seen) > 1 and len(set(seen)) == len(seen) and -1 not in seen}
    if not lines:
        return {}
    rows: dict[int, list[int]] = {row: [] for row in lines}
    for cell in np.flatnonzero(
        (page.tag == TD) | (page.tag == TH)
    ).tolist():  # empty ones too, so that columns stay columns
        row = int(page.parent[cell])
        if row in rows:
            rows[row].append(cell)
    return rows


def _of_table(place: Place) -> Place:
    return place._replace(heading=0, row=-1, cell=-1)


def _table(texts: dict[int, dict[int, str]], rows: dict[int, list[int]], form: Form) -> str:
    lines = [[texts[row].get(cell, "") for cell in rows[row]] for row in texts]
    if form == "text":
        return "\n".join(" | ".join(line).rstrip(" |") for line in lines)
    bars = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([bars[0], "|" + " --- |" * len(lines[0]), *bars[1:]])


def _marked_items(page: Page, units: list[Unit], called: Mapping[int, Numbers]) -> dict[int, str]:
    """The marker of each list item. One that holds a heading is a card rather than an item, and has none."""
    cards = {item for unit in units if unit.place.heading for item in unit.place.items}
    items = {item for unit in units for item in unit.place.items} - cards
    if not items:
        return {}
    markers: dict[int, str] = {}
    next_of: dict[int, int] = {}
    for item in np.flatnonzero(page.tag == LI).tolist():
        parent = int(page.parent[item])
        first, step = called.get(parent, FROM_ONE)
        number = next_of.get(parent, first)
        next_of[parent] = number + step
        if item in items:
            markers[item] = f"{number}. " if page.tag[parent] == OL else "- "
    return markers


def _joined(units: list[Unit], markers: dict[int, str], form: Form) -> str:
    parts: list[str] = []
    begun: set[int] = set()  # items whose marker is written
    before: Place | None = None
    for text, place in units:
        items, indent, marker = [], "", ""
        if place.items:
            items = [item for item in place.items if item in markers]
            indent = "".join(" " * len(markers[item]) for item in items if item in begun)
            if items and items[-1] not in begun:
                marker = markers[items[-1]]
                begun.add(items[-1])
        quoted = "> " * place.quotes if place.quotes and form == "markdown" else ""
        first, rest = quoted + indent + marker, quoted + indent + " " * len(marker)
        shaped = _shaped(text, place, form)
        if before is not None:
            parts.append(_between(before, place, items, markers, quoted, form))
        parts.append(first + (shaped.replace("\n", "\n" + rest) if rest else shaped))
        before = place
    return "".join(parts)


def _shaped(text: str, place: Place, form: Form) -> str:
    if place.code >= 0:
        if form == "text":
            return text
        fence = "`" * max(3, 1 + max((len(run) for run in BACKTICKS.findall(text)), default=0))
        return f"{fence}\n{text}\n{fence}"
    if form == "markdown" and place.heading:
        return "#" * place.heading + " " + text.replace("\n", " ")
    if form == "markdown" and place.term == DD:
        return ": " + text
    return text


def _between(before: Place, place: Place, items: list[int], markers: dict[int, str], quoted: str, form: Form) -> str:
    """A line's end inside a list, a term and its definition, rows of a table; else an empty line."""
    in_list = items and any(item in markers for item in before.items)
    defined = place.term == DD and before.term in (DT, DD)
    one_row_each = form == "text" and 0 <= place.table == before.table and before.row != place.row
    code_begins = form == "markdown" and (before.code >= 0 or place.code >= 0)
    if (in_list or defined or one_row_each) and before.quotes == place.quotes and not code_begins:
        return "\n"
    shared = "> " * min(before.quotes, place.quotes) if quoted else ""
    return f"\n{shared.rstrip()}\n"
