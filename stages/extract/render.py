"""Chosen blocks of a page as text for a language model: paragraphs, headings, lists, quotes, code and tables keep their
shape.

`text` has list markers and cells between bars, and no other marks. `markdown` adds what GitHub's dialect writes for
headings, quotes, code and tables; characters that mean something there (`*`, `_`) are left as they are, since text is
read here, not laid out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.kernels.html import paragraphs as html_places
from gristmill.kernels.html.names import HEAD_ITEM, HEAD_LIST, HEAD_PRE, TAGS
from gristmill.kernels.html.paragraphs import Places, places_of, written_paragraphs
from gristmill.kernels.html.segment import Page
from gristmill.stages.extract.choices import Form
from gristmill.stages.extract.tables import CellBlock, table_rows, written_table

LI, OL, DT, DD, PRE = (TAGS.index(name) for name in ["li", "ol", "dt", "dd", "pre"])
LONGEST_TAG = 4096
ATTRIBUTE_START = re.compile(rb"(?i)[\s\"'/]start\s{0,9}=\s{0,9}[\"']?\s{0,9}([-+]?\d{1,9})(?!\d)")
ATTRIBUTE_REVERSED = re.compile(rb"(?i)[\s\"'/]reversed[\s=>/]")
ATTRIBUTE_LANGUAGE = re.compile(rb"\sdata-language=([a-z0-9+#.-]{1,20})[\s>]")
BACKTICKS = re.compile("`{3,}")
NOWHERE = html_places.NOWHERE.tolist()


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


PLAIN = Place()


class Numbers(NamedTuple):
    """How the items of a list are numbered; of an item that states its number: that, and a step of 0."""

    first: int = 1
    step: int = 1


FROM_ONE = Numbers()


class Markers(NamedTuple):
    """What stands before items of lists, and at which units a list of Markdown begins right after another."""

    of_item: dict[int, str]
    begins: set[int]


class Unit(NamedTuple):
    """Blocks that are one thing: a paragraph, a heading, all of a code block, a table."""

    text: str
    place: Place


def render(
    page: Page,
    chosen: np.ndarray[Any, np.dtype[np.bool_]],
    form: Form,
    numbers: Mapping[int, Numbers] | None = None,
    languages: Mapping[int, str] | None = None,
) -> str:
    """The text of the chosen blocks; `numbers` of lists that do not count from 1, `languages` of code."""
    blocks = np.flatnonzero(chosen)
    elements = page.element[blocks]
    places = places_of(page.tag, page.parent, elements)
    around = places.rows[elements]
    rows = _rows_of_tables(page, blocks, around, places.nested)
    if not rows and (around[:, html_places.CODE] < 0).all():
        lists = np.array([(ol, *called) for ol, called in (numbers or {}).items()], np.int64).reshape(-1, 3)
        written = written_paragraphs(
            page.text, page.start, blocks, around, places.item, page.tag, page.parent, lists, form == "markdown"
        )
        return written.decode("utf-8", "replace")
    units = _units(page, blocks.tolist(), form, places, around, rows)
    return _joined(units, _marked_items(page, units, numbers or {}, form), form, languages or {})


def numbered(data: bytes, page: Page) -> dict[int, Numbers]:
    """Of the <ol> that say `start` or `reversed`, and of the <li> that say `value`: what they are called. `data` is the
    page's source."""
    stated = np.flatnonzero(page.head_kind == HEAD_ITEM)
    items_stated = zip(page.head_start[stated].tolist(), page.head_end[stated].tolist(), strict=True)
    numbers = {item: Numbers(number, 0) for item, number in items_stated}
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


def languages(data: bytes, page: Page) -> dict[int, str]:
    """Of each <pre> that names one: the language of its code."""
    tags = np.flatnonzero(page.head_kind == HEAD_PRE)
    named: dict[int, str] = {}
    for tag, element in zip(tags.tolist(), np.flatnonzero(page.tag == PRE).tolist(), strict=True):
        source = data[page.head_start[tag] : min(page.head_end[tag], page.head_start[tag] + LONGEST_TAG)]
        if found := ATTRIBUTE_LANGUAGE.search(source):
            named[element] = found[1].decode()
    return named


def _units(
    page: Page, blocks: list[int], form: Form, places: Places, around: Array, rows: dict[int, list[int]]
) -> list[Unit]:
    text, edges = page.text.tobytes(), page.start.tolist()
    parts = [text[edges[block] : edges[block + 1]] for block in blocks]
    plain = (around[:, 1:] == html_places.NOWHERE[1:]).all(1)
    if form == "markdown":
        plain &= around[:, html_places.HEADING] == 0
    around = np.where(plain[:, None], html_places.NOWHERE, around)
    units: list[Unit] = []
    pending: dict[int, dict[int, str]] = {}  # of one table: row -> {cell: text}
    previous = PLAIN

    def end_table() -> None:
        place = _place(places.rows[previous.table].tolist(), places.item)._replace(
            term=0
        )  # a table begins with its bar
        units.extend(Unit(part, place) for part in written_table(page, pending, rows, form == "markdown"))
        pending.clear()

    begins = np.ones(len(blocks), np.bool_)
    begins[1:] = (around[1:] != around[:-1]).any(1)
    for first, last in pairwise([*np.flatnonzero(begins).tolist(), len(blocks)]):  # blocks of one place
        place, run = _place(around[first].tolist(), places.item), parts[first:last]
        if pending and (place.row not in rows or place.table != previous.table):
            end_table()
        if place.row in rows:
            line = " ".join(" ".join(part.decode("utf-8", "replace").split("\n")) for part in run)
            cells = pending.setdefault(place.row, {})
            written = cells.get(place.cell)
            cells[place.cell] = line if written is None else written + _in_cell(written, previous, place) + line
        elif place is PLAIN:
            units.append(Unit(b"\n\n".join(run).decode("utf-8", "replace"), PLAIN))
        elif place.code >= 0:
            code = b"\n".join(run).decode("utf-8", "replace")
            goes_on = bool(units) and place.code == previous.code
            units[-1 if goes_on else len(units) :] = [Unit(f"{units[-1].text}\n{code}" if goes_on else code, place)]
        else:
            units.extend(Unit(part.decode("utf-8", "replace"), place) for part in run)
        previous = place
    if pending:
        end_table()
    return units


def _in_cell(text: str, before: Place, place: Place) -> str:
    """What parts two blocks of a cell: items of a list would run into each other."""
    next_item = before.items and place.items and before.items != place.items and place.cell == before.cell
    return "; " if next_item and text[-1:].isalnum() else " "


def _rows_of_tables(page: Page, blocks: Array, around: Array, nested: Array) -> dict[int, list[int]]:
    """The rows that are written as rows, with their cells."""
    inside = around[:, html_places.ROW] >= 0
    if not inside.any():
        return {}
    held = blocks[inside]
    lengths = (page.start[held + 1] - page.start[held]).tolist()
    cells = [
        CellBlock(table, row, cell, heading, code >= 0, length)
        for (heading, _, table, row, cell, code, _, _), length in zip(around[inside].tolist(), lengths, strict=True)
    ]
    return table_rows(page, cells, set(np.flatnonzero(nested).tolist()))


def _place(row: list[int], around: Array) -> Place:
    """A row of `places_of`; `around` has for an item the one around it."""
    if row == NOWHERE:
        return PLAIN
    heading, item, *rest = row
    items: list[int] = []
    while item >= 0:
        items.append(item)
        item = around.item(item)
    return Place(heading, tuple(reversed(items)), *rest)


def _marked_items(page: Page, units: list[Unit], called: Mapping[int, Numbers], form: Form) -> Markers:
    """The marker of each list item. One that holds a heading is a card rather than an item, and has none."""
    cards = {item for unit in units if unit.place.heading for item in unit.place.items}
    items = {item for unit in units for item in unit.place.items} - cards
    if not items:
        return Markers({}, set())
    begins, others = set[int](), set[int]()
    for place, (above, below) in enumerate(pairwise(units) if form == "markdown" else (), 1):
        if items.isdisjoint(above.place.items) or items.isdisjoint(below.place.items):
            continue
        ended, begun = _lists_apart(page, above.place.items, below.place.items)
        if begun >= 0:
            begins.add(place)
            if (page.tag[ended] == OL) == (page.tag[begun] == OL) and page.tag[begun] != LI:
                (others.discard if ended in others else others.add)(begun)
    markers: dict[int, str] = {}
    next_of: dict[int, int] = {}
    wanted = np.unique(page.parent[list(items)])
    places = np.flatnonzero((page.tag == LI) & np.isin(page.parent, wanted))
    parents = page.parent[places]
    ordered = page.tag[parents] == OL
    for item, parent, is_ordered in zip(places.tolist(), parents.tolist(), ordered.tolist(), strict=True):
        first, step = called.get(parent, FROM_ONE)
        number = called[item].first if item in called else next_of.get(parent, first)
        next_of[parent] = number + step
        if item in items:
            other = parent in others
            markers[item] = f"{number}{')' if other else '.'} " if is_ordered else "* " if other else "- "
    return Markers(markers, begins)


def _lists_apart(page: Page, before: tuple[int, ...], items: tuple[int, ...]) -> tuple[int, int]:
    """The outermost lists that two items do not share: where one ends and the other begins between them. -1 where they
    share all, or one list is inside the other."""
    for one, other in zip(before, items, strict=False):
        if one != other:
            first, second = int(page.parent[one]), int(page.parent[other])
            return (-1, -1) if _is_inside(page, first, second) or _is_inside(page, second, first) else (first, second)
    return -1, -1


def _is_inside(page: Page, element: int, container: int) -> bool:
    while element > container:
        element = int(page.parent[element])
    return element == container


def _joined(units: list[Unit], marked: Markers, form: Form, named: Mapping[int, str]) -> str:
    markers = marked.of_item
    parts: list[str] = []
    begun: set[int] = set()  # items whose marker is written
    before: Place | None = None
    for number, (text, place) in enumerate(units):
        if place is PLAIN:
            parts += [text] if before is None else ["\n\n", text]
            before = place
            continue
        items, indent, marker = [], "", ""
        if place.items:
            items = [item for item in place.items if item in markers]
            indent = "".join(" " * len(markers[item]) for item in items if item in begun)
            if items and items[-1] not in begun:
                marker = markers[items[-1]]
                begun.add(items[-1])
        quoted = "> " * place.quotes if place.quotes and form == "markdown" else ""
        first, rest = quoted + indent + marker, quoted + indent + " " * len(marker)
        shaped = text
        if place.code >= 0 or place.heading or place.term:
            shaped = _shaped(text, place, form, named.get(place.code, ""))
        if before is not None:
            in_list = bool(items) and number not in marked.begins and any(item in markers for item in before.items)
            parts.append(_between(before, place, in_list, quoted, form))
        parts.append(first + (shaped.replace("\n", "\n" + rest) if rest else shaped))
        before = place
    return "".join(parts)


def _shaped(text: str, place: Place, form: Form, language: str) -> str:
    if place.code >= 0:
        if form == "text":
            return text
        fence = "`" * max(3, 1 + max((len(run) for run in BACKTICKS.findall(text)), default=0))
        return f"{fence}{language}\n{text}\n{fence}"
    if form == "markdown" and place.heading:
        return "#" * place.heading + " " + text.replace("\n", " ")
    if form == "markdown" and place.term == DD:
        return ": " + text
    return text


def _between(before: Place, place: Place, in_list: bool, quoted: str, form: Form) -> str:
    """A line's end inside a list, a term and its definition, rows of a table; else an empty line."""
    defined = place.term == DD and before.term in (DT, DD)
    one_row_each = form == "text" and 0 <= place.table == before.table and before.row != place.row
    code_begins = form == "markdown" and (before.code >= 0 or place.code >= 0)
    if (in_list or defined or one_row_each) and before.quotes == place.quotes and not code_begins:
        return "\n"
    shared = "> " * min(before.quotes, place.quotes) if quoted else ""
    return f"\n{shared.rstrip()}\n"
