"""Tables of data told from tables that lay a page out, and written with their spans: rows of cells, header, columns.

A cell that spans rows or columns stands in the first of its places; the others are empty, so that columns stay columns.
The size is bounded by the cells that are there: spans that would blow a table up are not followed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.html.names import HEAD_CELL, TAGS
from gristmill.kernels.html.segment import Page

TD, TH = TAGS.index("td"), TAGS.index("th")
WIDEST = 200  # columns; wider tables are written without spans
SLACK = 10_000  # places of a table beyond eight for each cell
LONGEST_CELL = 1_000  # bytes; a table without <th> that holds a longer one is for layout


class CellBlock(NamedTuple):
    """A chosen block that stands in a row."""

    table: int
    row: int
    cell: int
    shaped: bool  # a heading, or code
    size: int


def table_rows(page: Page, blocks: list[CellBlock], nested: set[int]) -> dict[int, list[int]]:
    """The rows that are written as rows, with all their cells: those of tables of data, and elsewhere those that are a
    line, where two cells or more have one block each."""
    seen: dict[int, list[CellBlock]] = {}
    for block in blocks:
        seen.setdefault(block.row, []).append(block)
    lines = {row for row, cells in seen.items() if row not in nested and is_line(cells)}
    if not lines:
        return {}
    tables: dict[int, set[int]] = {}
    for row, cells in seen.items():
        tables.setdefault(cells[0].table, set()).add(row)
    headed = set(page.parent[page.tag == TH].tolist())
    for table, rows in tables.items():
        if table not in nested and is_data(rows, rows & lines, seen, not headed.isdisjoint(rows)):
            lines |= rows
    cells_of: dict[int, list[int]] = {row: [] for row in lines}
    places = np.flatnonzero((page.tag == TD) | (page.tag == TH))
    parents = page.parent[places]
    inside = np.zeros(len(page.tag), np.bool_)
    inside[list(lines)] = True
    chosen = inside[parents]
    for cell, row in zip(places[chosen].tolist(), parents[chosen].tolist(), strict=True):
        cells_of[row].append(cell)
    return cells_of


def is_line(cells: list[CellBlock]) -> bool:
    return (
        len(cells) > 1
        and len({block.cell for block in cells}) == len(cells)
        and not any(block.shaped and block.cell >= 0 for block in cells)
    )


def is_data(rows: set[int], lines: set[int], seen: dict[int, list[CellBlock]], headed: bool) -> bool:
    """Whether all rows of a table belong to it: most are lines, and no cell holds what is a text of its own."""
    if not lines or (len(lines) < 2 and not (headed and len(rows) > 1)) or 2 * len(lines) < len(rows):
        return False
    for row in rows:
        sizes: dict[int, int] = {}
        for block in seen[row]:
            if block.shaped:
                return False
            sizes[block.cell] = sizes.get(block.cell, 0) + block.size
        if not headed and max(sizes.values()) > LONGEST_CELL:
            return False
    return True


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
