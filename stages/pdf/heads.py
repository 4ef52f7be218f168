"""Running heads, footers and page numbers: what stands in the outer rows of a page and comes again on other pages at
the same height.

Rows that differ in figures alone are heads where the figure is the page's own number: its place in the file and a
constant. Other figures may differ only in a short row that is no sentence and no larger than the text. A page of which
all would go keeps it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from gristmill.stages.pdf.layout import Run, rows_of

OUTER_ROWS = 3  # of a head or a foot, at most
OUTER = 0.2  # of a page's height
NUMBER = re.compile(r"\d+|\b[ivxlc]+\b")
PAGE_NUMBER = re.compile(
    r"\W*(?:page|p\.|seite|página|стр\.?)?\s*(?:#|\d{1,4})(?:\s*(?:of|/|von|de|из)\s*(?:#|\d{1,4}))?\W*"
)
ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
MOST_DIGITS = 6  # of a page's number
WORD = re.compile(r"[^\W\d_]+")
SENTENCE, LONG = 4, 8  # words: with a full stop behind them a sentence; without one perhaps a part of it
STOPS = tuple(".!?…。！？")
LARGER = 1.12  # times the page's usual height of type: a title
SAME_HEIGHT = 4.0  # points
LEAST_SHARE = 0.25  # of pages, of what comes twice; what comes three times is a head
LONGEST = 160  # characters
Key = tuple[bool, str]


class Row(NamedTuple):
    """A row near an edge of its page: `keys` are what it may have in common with rows of other pages."""

    at_top: bool
    keys: list[Key]
    text: str
    middle: float
    runs: list[Run]


def without_heads(pages: Sequence[list[Run]], heights: Sequence[float]) -> tuple[list[list[Run]], int]:
    """Pages' runs less their running heads, and the number of rows taken; `heights` are those of the pages."""
    outer = [list(outer_rows(number, *page)) for number, page in enumerate(zip(pages, heights, strict=True))]
    seen: Counter[tuple[Key, int]] = Counter()
    for rows in outer:
        for bucket in {(key, shift) for row in rows for key in row.keys for shift in near(row.middle)}:
            seen[bucket] += 1
    kept, taken = [], 0
    for runs, rows in zip(pages, outer, strict=True):
        gone: list[list[Run]] = []
        for at_top in (True, False):
            heads: list[list[Run]] = []
            for row in (row for row in rows if row.at_top is at_top):
                times = max((seen[key, shift] for key in row.keys for shift in near(row.middle)), default=0)
                alone = len(pages) == 1 and PAGE_NUMBER.fullmatch(row.text) and is_apart(row.runs, runs)
                if not (alone or times >= 3 or (times >= 2 and times >= LEAST_SHARE * len(pages))):
                    break  # what is further in is text
                heads.append(row.runs)
            if len(heads) <= OUTER_ROWS:  # else it is the page that comes again, and not its head
                gone += heads
        ids = {id(run) for row in gone for run in row}
        left = [run for run in runs if id(run) not in ids]
        kept.append(left or runs)
        taken += len({id(row[0]) for row in gone}) if left else 0
    return kept, taken


def near(at: float) -> tuple[int, int]:
    """Two numbers of which neighbours share one."""
    return int(at // (2 * SAME_HEIGHT)) * 2, int((at + SAME_HEIGHT) // (2 * SAME_HEIGHT)) * 2 + 1


def outer_rows(page: int, runs: list[Run], height: float) -> Iterator[Row]:
    """Rows near the top edge and near the bottom edge, from outside in."""
    rows = rows_of(runs)
    usual = median([run.height for run in runs]) if runs else 0.0
    for at_top, some in ((True, rows[: OUTER_ROWS + 1]), (False, rows[: -OUTER_ROWS - 2 : -1])):
        for row in some:
            middle = row[0].middle
            if middle < (1 - OUTER) * height if at_top else middle > OUTER * height:
                break
            text = " ".join(run.text for run in sorted(row, key=lambda run: run.left)).lower()
            if len(text) > LONGEST:
                break
            larger = max(run.height for run in row) > LARGER * usual
            keys = [(at_top, key) for key in dict.fromkeys(keys_of(text, page, larger))]
            yield Row(at_top, keys, text, middle, row)


def keys_of(text: str, page: int, larger: bool) -> Iterator[str]:
    """A row's text; with the page's number as its distance from the page's place; and without figures."""
    yield text
    words = len(WORD.findall(NUMBER.sub("", text)))
    if words >= SENTENCE and text.rstrip().endswith(STOPS):
        return
    figures = NUMBER.findall(text)
    between = NUMBER.split(text)
    for number in {found for found in figures if len(found) <= MOST_DIGITS}:
        distance = f"#{value_of(number) - page}#"
        shown = [distance if found == number else found for found in figures]
        yield "".join(part for pair in zip(between, [*shown, ""], strict=True) for part in pair)
    if words < LONG and not larger:
        yield NUMBER.sub("#", text)


def value_of(number: str) -> int:
    """Of a figure, Arabic or Roman."""
    if number.isdigit():
        return int(number)
    values = [ROMAN[letter] for letter in number]
    return sum(-one if one < after else one for one, after in zip(values, [*values[1:], 0], strict=True))


def is_apart(row: list[Run], runs: list[Run]) -> bool:
    """Is there white between a row and all else?"""
    mine = {id(run) for run in row}
    distance = min((abs(run.middle - row[0].middle) for run in runs if id(run) not in mine), default=0.0)
    return distance > 2.5 * row[0].height
