"""Tables of data told from tables that lay a page out, and written with their spans: rows of cells, header, columns.

A cell may hold paragraphs, lists, headings, links and buttons: they are written in one line. Which tables hold data was
chosen on the tables of real pages, read one by one (benchmarks/text/tables.py).

A cell that spans rows or columns stands in the first of its places; the others are empty, so that columns stay columns.
The size is bounded by the cells that are there: spans that would blow a table up are not followed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gristmill.kernels.html.names import HEAD_CELL, TAGS
from gristmill.kernels.html.segment import Page

TD, TH = TAGS.index("td"), TAGS.index("th")
WIDEST = 200  # columns; wider tables are written without spans
SLACK = 10_000  # places of a table beyond eight for each cell
LONGEST_CELL = 1_000  # bytes; a table without <th> that holds a longer one is for layout
LONGEST_CARD = 300  # the same, where most rows have a cell of several blocks
LONGEST_WITH_HEADER = 2_000  # bytes of a cell of several blocks in a table with <th>
CROWDED = 5  # blocks for each cell: a longer list or text is none of a table
OUTSIDE = -1  # the cell of text that stands in a row and in none of its cells: browsers move it before the table
MOST_CODE = 4  # code in lines is at most one part in so many of a table


class CellBlock(NamedTuple):
    """A chosen block that stands in a row."""

    table: int
    row: int
    cell: int
    heading: int  # its level, 0 for none
    code: bool
    size: int


@dataclass(slots=True)
class Cell:
    """What the chosen blocks of a cell come to."""

    blocks: int = 0
    size: int = 0
    code: int = 0  # bytes of it
    heading: int = 0  # the highest level, 0 for none

    def add(self, block: CellBlock) -> None:
        self.blocks += 1
        self.size += block.size
        self.code += block.size * block.code
        self.heading = min(self.heading or block.heading, block.heading or self.heading)


def table_rows(page: Page, blocks: list[CellBlock], nested: set[int]) -> dict[int, list[int]]:
    """The rows that are written as rows, with all their cells: those of tables of data, and elsewhere those that are a
    line, where two cells or more have one block each."""
    tables: dict[int, dict[int, dict[int, Cell]]] = {}
    for block in blocks:
        if block.row not in nested:
            tables.setdefault(block.table, {}).setdefault(block.row, {}).setdefault(block.cell, Cell()).add(block)
    lines = {row for rows in tables.values() for row, cells in rows.items() if is_line(cells)}
    headed: set[int] = set(page.parent[page.tag == TH].tolist())
    for table, rows in tables.items():
        if table not in nested and is_data(rows, not headed.isdisjoint(rows)):
            first = next(iter(rows.values()))
            title = first if len(first) == 1 and any(cell.heading for cell in first.values()) else None
            lines |= {row for row, cells in rows.items() if OUTSIDE not in cells and cells is not title}
    if not lines:
        return {}
    cells_of: dict[int, list[int]] = {row: [] for row in lines}
    places = np.flatnonzero((page.tag == TD) | (page.tag == TH))
    parents = page.parent[places]
    inside = np.zeros(len(page.tag), np.bool_)
    inside[list(lines)] = True
    chosen = inside[parents]
    for cell, row in zip(places[chosen].tolist(), parents[chosen].tolist(), strict=True):
        cells_of[row].append(cell)
    return cells_of


def is_line(cells: dict[int, Cell]) -> bool:
    plain = all(cell.blocks == 1 and not cell.heading and not cell.code for cell in cells.values())
    return plain and len(cells) > 1 and OUTSIDE not in cells


def is_data(rows: dict[int, dict[int, Cell]], headed: bool) -> bool:
    """Whether all rows of a table belong to it: most have several cells, and no cell holds a text of its own."""
    several = [cells for cells in rows.values() if len(cells) > 1]
    if 2 * len(several) < len(rows) or len(several) < (1 if headed and len(rows) > 1 else 2):
        return False
    cells = [cell for row in rows.values() for cell in row.values()]
    if sum(cell.blocks for cell in cells) > CROWDED * len(cells):
        return False
    code = sum(cell.code for cell in cells)
    if headed:
        longest = max((cell.size for cell in cells if cell.blocks > 1), default=0)
        return longest <= LONGEST_WITH_HEADER and MOST_CODE * code <= sum(cell.size for cell in cells)
    if code or any(0 < cell.heading < 4 for cell in cells):
        return False
    longest, lines = max(cell.size for cell in cells), sum(map(is_line, several))
    if lines > 1 and 2 * lines >= len(several):
        return longest <= LONGEST_CELL
    with_single = sum(any(cell.blocks == 1 for cell in row.values()) for row in several)
    return len(several) > 2 and 2 * with_single >= len(several) and longest <= LONGEST_CARD


def written_table(
    page: Page, texts: dict[int, dict[int, str]], rows: dict[int, list[int]], markdown: bool
) -> list[str]:
    """The rows of one table: a title that spans all of it as a part of its own, and the table."""
    spans = spans_of(page, texts, rows)
    lines = grid(texts, rows, spans) if spans else None
    if lines is None:
        lines = [[texts[row].get(cell, "") for cell in rows[row]] for row in texts]
    width = max(map(len, lines))
    if width * len(lines) <= 8 * sum(map(len, lines)) + SLACK:
        lines = [line + [""] * (width - len(line)) for line in lines]
        filled = [any(line[column] for line in lines) for column in range(width)]
        if not all(filled):
            lines = [[cell for cell, kept in zip(line, filled, strict=True) if kept] for line in lines]
    if not markdown:
        return ["\n".join(" | ".join(line).rstrip(" |") for line in lines)]
    title: list[str] = []
    order = list(texts)
    if len(lines) > 2 and width > 1 and lines[0][0] and not any(lines[0][1:]) and is_header(page, rows[order[1]]):
        title, lines = [lines[0][0]], lines[1:]
    if len(lines[0]) == 1 and max(map(len, lines)) == 1:
        return title + [line[0] for line in lines]
    bars = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return [*title, "\n".join([bars[0], "|" + " --- |" * len(lines[0]), *bars[1:]])]


def is_header(page: Page, cells: list[int]) -> bool:
    return len(cells) > 1 and all(page.tag[cell] == TH for cell in cells)


def spans_of(page: Page, texts: dict[int, dict[int, str]], rows: dict[int, list[int]]) -> dict[int, tuple[int, int]]:
    """Rows and columns of each cell of the table that spans several."""
    noted = np.flatnonzero(page.head_kind == HEAD_CELL)
    if not len(noted):
        return {}
    first, last = min(rows[row][0] for row in texts), max(rows[row][-1] for row in texts)
    cells = page.head_start[noted]
    near = noted[np.searchsorted(cells, first) : np.searchsorted(cells, last, "right")]
    return {
        cell: (code >> 16 or 1, (code & 0xFFFF) or 1)
        for cell, code in zip(page.head_start[near].tolist(), page.head_end[near].tolist(), strict=True)
    }


def grid(
    texts: dict[int, dict[int, str]], rows: dict[int, list[int]], spans: dict[int, tuple[int, int]]
) -> list[list[str]] | None:
    """Each cell in its column; None where spans make the table much larger than its cells."""
    budget = 8 * sum(len(rows[row]) for row in texts) + SLACK
    lines: list[list[str]] = []
    taken: dict[int, int] = {}  # column -> rows that a cell above still covers
    for row in texts:
        line: list[str] = []
        below: dict[int, int] = {}
        for cell in rows[row]:
            while len(line) in taken:
                line.append("")
            tall, wide = spans.get(cell, (1, 1))
            column = len(line)
            if column + wide > WIDEST:
                return None
            line.append(texts[row].get(cell, ""))
            line += [""] * (wide - 1)
            if tall > 1:
                below |= {column + step: tall - 1 for step in range(wide)}
        while len(line) in taken:
            line.append("")
        taken = {column: left - 1 for column, left in taken.items() if left > 1} | below
        budget -= len(line) + len(taken)
        if budget < 0:
            return None
        lines.append(line)
    return lines
