"""Where text stands on a page: characters to runs, runs to columns in reading order, columns to lines.

Columns are found by their gutter: the upright strip of white that the fewest runs cross, if on both sides of it lines
fill their column. Lines that span the gutter (titles, wide tables) cut the page into bands; of each band the left
column is read before the right one. Cells of a table do not fill their columns, so tables are read row by row.

Text that stands at another angle than most of the page is read after it, turned upright.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.stages.pdf.files import Page

SOFT_HYPHEN = 0xAD
HYPHENS = (2, SOFT_HYPHEN, 0xFFFE)  # what PDFium writes for a hyphen at a line's end, and what fonts do
BULLETS = (0xF0B7, 0xF0A7, 0xF076)  # of Symbol and Wingdings, which have no code of their own
LOST = 0xFFFD
CELL_GAP = 1.0  # of a line's height, between two runs
SPACE_GAP, WORD_GAP = 0.3, 0.12  # within a run, where PDFium saw none; between two runs of a line
COMPLEX_SPACE = 0.2  # of the height, between words of scripts of India
RTL_SPACE = 0.18  # of the height, between words from right to left
BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"), ("«", "»"), ("‹", "›"))
LEAST_LINES = 3  # of a column
FILLED = 0.55  # of a column's width, of a line that fills it
SPANS = 0.2  # of each column's width, that a line covers which spans both
SAME_LINE = 0.2  # of the height, that baselines of one run differ at most


@dataclass
class Run:
    """Characters side by side, as one piece of the file's drawing."""

    text: str
    left: float
    right: float
    base: float
    low: float
    high: float
    space: bool = False  # did white space stand before it?

    @property
    def height(self) -> float:
        return self.high - self.low

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


@dataclass
class Line:
    runs: list[Run]

    def __post_init__(self) -> None:
        self.runs.sort(key=lambda run: run.left)
        tallest = max(self.runs, key=lambda run: (len(run.text), run.height))
        self.left, self.right = self.runs[0].left, max(run.right for run in self.runs)
        self.base, self.height, self.low, self.high = tallest.base, tallest.height, tallest.low, tallest.high

    @property
    def cells(self) -> list[str]:
        """Its text, cut where gaps are wide."""
        cells, end = [""], self.runs[0].left
        for run in self.runs:
            gap = run.left - end
            if gap > CELL_GAP * self.height:
                cells.append("")
            elif cells[-1] and (run.space or gap > WORD_GAP * self.height):
                cells[-1] += " "
            cells[-1] += run.text
            end = max(end, run.right)
        return [cell for cell in cells if cell]

    @property
    def drawn_share(self) -> float:
        """Of its width, less the gaps between its runs."""
        return sum(run.right - run.left for run in self.runs) / max(self.right - self.left, 0.1)

    @property
    def text(self) -> str:
        return " ".join(self.cells)


def runs_of(page: Page) -> list[list[Run]]:
    """The runs of a page by their angle, in quarter turns; most characters first."""
    codes, boxes = page.codes_N.copy(), page.boxes_N4
    hyphen = np.isin(codes, HYPHENS)
    codes[hyphen] = SOFT_HYPHEN
    codes[np.isin(codes, BULLETS)] = ord("•")
    finite = np.isfinite(boxes).all(axis=1) & np.isfinite(page.places_N2).all(axis=1) & np.isfinite(page.angles_N)
    near = (np.abs(np.where(finite[:, None], boxes, 0)) < 1e5).all(axis=1)
    white = (codes <= 32) | np.isin(codes, (0x7F, 0xA0, 0x2028, 0x2029, 0x200B, 0x3000)) | ~finite | ~near
    visible = np.flatnonzero(~white)
    if not len(visible):
        return []
    codes = codes[visible]
    codes[codes > 0x10FFFF] = LOST
    boxes, places = boxes[visible].astype(np.float64), page.places_N2[visible].astype(np.float64)
    beside_the_letter_before(codes, boxes, places)
    space = np.zeros(len(visible), bool)
    space[1:] = np.diff(visible) > 1
    clockwise = np.rint(np.clip(page.angles_N[visible], -10, 10) / (np.pi / 2)).astype(np.int64)
    turns = -clockwise % 4
    upright: list[tuple[int, list[Run]]] = []
    for turn in np.unique(turns):
        rows = np.flatnonzero(turns == turn)
        left, right, low, high, base = turned(boxes[rows], places[rows], int(turn))
        letters, spaces = codes[rows], space[rows]
        if from_right_to_left(letters):
            left, right = -right, -left
            low, high = at_least_usual(low, high, base)
            order, left, right, spaces = in_order(letters, left, right, low, high, base)
            letters, low, high, base = letters[order], low[order], high[order], base[order]
        elif 2 * is_complex(letters).sum() > len(letters):  # PDFium gives letters of a cluster a part of its width
            low, high = at_least_usual(low, high, base)
            if not page.own_spaces:
                gaps = np.concatenate([[0.0], left[1:] - right[:-1]])
                spaces = gaps > COMPLEX_SPACE * (high - low)
        upright.append((len(rows), list(runs(letters, spaces, left, right, low, high, base))))
    return [found for _, found in sorted(upright, key=lambda pair: -pair[0])]


def beside_the_letter_before(codes: Any, boxes: Any, places: Any) -> None:
    """PDFium gives hyphens at lines' ends no place: they get that of the letter before."""
    for row in np.flatnonzero((codes == SOFT_HYPHEN) & ~boxes.any(axis=1)).tolist():
        if row:
            boxes[row], places[row] = boxes[row - 1], places[row - 1]


def from_right_to_left(codes: Any) -> bool:
    """Is most of it in Hebrew, Arabic and their like?"""
    return bool(2 * is_rtl(codes).sum() > len(codes))


def is_rtl(codes: Any) -> Any:
    return ((codes >= 0x590) & (codes <= 0x8FF)) | ((codes >= 0xFB1D) & (codes <= 0xFDFF)) | (
        (codes >= 0xFE70) & (codes <= 0xFEFC)
    )  # fmt: skip


def at_least_usual(low: Any, high: Any, base: Any) -> tuple[Any, Any]:
    """Heights of letters as those of a line: PDFium gives low letters less in fonts that do not say their height."""
    below, above = np.percentile(base - low, 90), np.percentile(high - base, 90)
    return np.minimum(low, base - below), np.maximum(high, base + above)


def is_complex(codes: Any) -> Any:
    """Scripts of India and its neighbours, whose letters join to clusters."""
    return (codes >= 0x900) & (codes <= 0xFFF)


def in_order(codes: Any, left: Any, right: Any, low: Any, high: Any, base: Any) -> tuple[Any, Any, Any, Any]:
    """Characters of mirrored text by their places, for PDFium's order is neither that of the eye nor of the reader:
    their order, left and right in it, and which have white before them. Words of other scripts and numbers go from left
    to right, so they are mirrored back."""
    height = np.maximum(high - low, 0.5)
    lines = np.concatenate([[0], np.cumsum(np.abs(np.diff(base)) > SAME_LINE * np.maximum(height[1:], height[:-1]))])
    kinds = [unicodedata.category(chr(int(code))) for code in codes]
    mark, wordlike = np.array([kind == "Mn" for kind in kinds]), np.array([kind[0] in "LN" for kind in kinds])
    order = np.lexsort((mark, left, lines))
    np.maximum.at(tallest := np.zeros(int(lines[-1]) + 1), lines, height)
    left, right, lines, mark = left[order], right[order], lines[order], mark[order]
    space = np.concatenate([[False], (left[1:] - right[:-1] > RTL_SPACE * tallest[lines[1:]]) & ~mark[1:]])
    foreign = (wordlike & ~is_rtl(codes))[order]
    foreign[1:-1] |= foreign[:-2] & foreign[2:]  # the point in a number
    for one, other in BRACKETS:  # drawn by the glyph of the other
        here, there = ((codes[order] == ord(bracket)) & ~foreign for bracket in (one, other))
        codes[order[here]], codes[order[there]] = ord(other), ord(one)
    line_ends = np.concatenate([[True], np.diff(lines) > 0])
    starts = np.flatnonzero(foreign & (line_ends | ~np.concatenate([[False], foreign[:-1]])))
    for start in starts.tolist():
        end = start + 1
        while end < len(order) and foreign[end] and not line_ends[end]:
            end += 1
        order[start:end] = order[start:end][::-1]
        sides = left[start] + right[start:end].max()
        left[start:end], right[start:end] = (sides - right[start:end])[::-1], (sides - left[start:end])[::-1]
        space[start + 1 : end] = space[start + 1 : end][::-1]
    return order, left, right, space


def turned(boxes: Any, places: Any, turn: int) -> tuple[Any, ...]:
    """Left, right, low, high and base as the reader of text at this angle sees them."""
    x0, y1, x1, y0 = boxes.T
    x, y = places.T
    x0, x1, y0, y1 = np.minimum(x0, x1), np.maximum(x0, x1), np.minimum(y0, y1), np.maximum(y0, y1)
    if turn == 1:
        return y0, y1, -x1, -x0, -x
    if turn == 2:
        return -x1, -x0, -y1, -y0, -y
    if turn == 3:
        return -y1, -y0, x0, x1, x
    return x0, x1, y0, y1, y


def runs(codes: Any, space: Any, left: Any, right: Any, low: Any, high: Any, base: Any) -> Iterator[Run]:
    height = np.maximum(high - low, 0.5)
    gap = left[1:] - right[:-1]
    tall = np.maximum(height[1:], height[:-1])
    back = left[1:] < left[:-1] - 0.5 * tall  # letters of a ligature have one box, and do not go back
    breaks = (np.abs(np.diff(base)) > SAME_LINE * tall) | (gap > CELL_GAP * tall) | back
    starts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    ends = np.append(starts[1:], len(codes))
    spaced = space.copy()
    spaced[1:] |= gap > SPACE_GAP * tall
    at_start = space[starts]
    spaced[starts] = False
    places = np.arange(len(codes)) + np.cumsum(spaced)
    text = np.full(len(codes) + int(spaced.sum()), 32, np.uint32)
    text[places] = codes
    letters = text.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
    columns = (
        np.minimum.reduceat(left, starts), np.maximum.reduceat(right, starts), np.minimum.reduceat(low, starts),
        np.maximum.reduceat(high, starts),
    )  # fmt: skip
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        written = letters[places[start] : places[end - 1] + 1]
        x0, x1, y0, y1 = (float(values[i]) for values in columns)
        yield Run(written, x0, x1, float(base[(start + end) // 2]), y0, y1, bool(at_start[i]))


def lines_of(some: list[Run]) -> list[Line]:
    """Runs of one column as its lines, from the top. A run is of a line whose height its middle stands in."""
    lines: list[list[Run]] = []
    bounds: list[tuple[float, float, float]] = []
    for run in sorted(some, key=lambda run: (-run.base, run.left)):
        for i in range(len(lines) - 1, max(-1, len(lines) - 4), -1):
            low, high, size = bounds[i]
            inside = low < run.middle < high or (run.low < (low + high) / 2 < run.high and run.height < 2 * size)
            if inside:
                lines[i].append(run)
                if run.height * len(run.text) > size * 4:
                    bounds[i] = (min(low, run.low), max(high, run.high), size) if run.height < 1.5 * size else bounds[i]
                break
        else:
            lines.append([run])
            bounds.append((run.low, run.high, run.height))
    return sorted((Line(found) for found in lines), key=lambda line: (-line.base, line.left))


def columns_of(some: list[Run]) -> list[list[Run]]:
    """The runs in reading order: parts that are each read line by line."""
    gutter = gutter_of(some)
    if gutter is None:
        return [some]
    parts: list[list[Run]] = []
    band: list[Run] = []
    edges = (min(run.left for run in some), max(run.right for run in some))

    def close() -> None:
        for side in (
            [run for run in band if run.right + run.left <= 2 * gutter],
            [run for run in band if run.right + run.left > 2 * gutter],
        ):
            if side:
                parts.extend(columns_of(side))
        band.clear()

    spanning: list[Run] = []
    for row in rows_of(some):
        if any(spans(run, gutter, edges) for run in row):
            if band:
                close()
            spanning += row
        else:
            if spanning:
                parts.append(spanning)
                spanning = []
            band += row
    if spanning:
        parts.append(spanning)
    close()
    return parts


def rows_of(some: list[Run]) -> list[list[Run]]:
    """Runs at one height of the page, from the top."""
    rows: list[list[Run]] = []
    for run in sorted(some, key=lambda run: -run.middle):
        if rows and rows[-1][0].middle - run.middle < 0.5 * min(run.height, rows[-1][0].height):
            rows[-1].append(run)
        else:
            rows.append([run])
    return rows


def spans(run: Run, gutter: float, edges: tuple[float, float]) -> bool:
    """Does a run belong to both columns? One that starts with the left column and ends a little beyond it is an
    overfull line."""
    if not run.left + 1 < gutter < run.right - 1:
        return False
    left, right = gutter - run.left, run.right - gutter
    least = SPANS * (gutter - edges[0]), SPANS * (edges[1] - gutter)
    return (left > least[0] and right > least[1]) or run.left > edges[0] + least[0] / 2


def gutter_of(some: list[Run]) -> float | None:
    """Where two columns part, if this is set in columns."""
    if len(some) < 2 * LEAST_LINES:
        return None
    left, right = np.array([run.left for run in some]), np.array([run.right for run in some])
    heights = np.array([run.height for run in some])
    first, last = float(left.min()), float(right.max())
    margin, white = 0.12 * (last - first), max(1.5, 0.2 * float(np.median(heights)))
    places = np.arange(first + margin, last - margin, 1.0)
    if not len(places):
        return None
    before = np.searchsorted(np.sort(right), places - white, side="right")
    after = len(some) - np.searchsorted(np.sort(left), places + white, side="left")
    crossing = len(some) - before - after
    crossing[(before < LEAST_LINES) | (after < LEAST_LINES)] = len(some)
    fewest = int(crossing.min())
    if fewest > len(some) - 2 * LEAST_LINES:
        return None
    for start, end in widest_first(np.flatnonzero(crossing == fewest)):
        place = float(places[(start + end) // 2])
        if is_filled(some, place, first, last):
            return place
    return None


def widest_first(places: Any) -> list[tuple[int, int]]:
    """Stretches of numbers that follow each other."""
    cuts = np.flatnonzero(np.diff(places) > 1) + 1
    stretches = [(int(part[0]), int(part[-1])) for part in np.split(places, cuts)]
    return sorted(stretches, key=lambda ends: (ends[0] - ends[1], ends[0]))[:4]


def is_filled(some: list[Run], gutter: float, first: float, last: float) -> bool:
    """Do lines on both sides fill their columns? Cells of a table do not."""
    for side in ([run for run in some if run.right < gutter], [run for run in some if run.left > gutter]):
        if len(side) < LEAST_LINES:
            return False
        start, end = min(run.left for run in side), max(run.right for run in side)
        rows = [(sum(run.right - run.left for run in row), sum(len(run.text) for run in row)) for row in rows_of(side)]
        wide = sum(letters for drawn, letters in rows if drawn > FILLED * (end - start) and letters > 12)
        if end - start < 0.15 * (last - first):
            return False
        if wide < 0.5 * sum(letters for _, letters in rows) and gutter_of(side) is None:  # it may be two columns itself
            return False
    return True
