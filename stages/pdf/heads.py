"""Running heads, footers and page numbers: what stands in the outer rows of a page and comes again on other pages at
the same height, numbers aside."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from gristmill.stages.pdf.layout import Run, rows_of

OUTER_ROWS = 3  # of a head or a foot, at most
OUTER = 0.2  # of a page's height
NUMBER = re.compile(r"\d+|\b[ivxlc]+\b")
PAGE_NUMBER = re.compile(
    r"\W*(?:page|p\.|seite|página|стр\.?)?\s*(?:#|\d{1,4})(?:\s*(?:of|/|von|de|из)\s*(?:#|\d{1,4}))?\W*"
)
SAME_HEIGHT = 4.0  # points
LEAST_SHARE = 0.25  # of pages, of what comes twice; what comes three times is a head
LONGEST = 160  # characters
Key = tuple[bool, str]


def without_heads(pages: Sequence[list[Run]], heights: Sequence[float]) -> list[list[Run]]:
    """Pages' runs less their running heads; `heights` are those of the pages."""
    outer = [outer_rows(runs, height) for runs, height in zip(pages, heights, strict=True)]
    seen: Counter[tuple[Key, int]] = Counter()
    for rows in outer:
        for bucket in {(key, shift) for key, at, _ in rows for shift in near(at)}:
            seen[bucket] += 1
    kept = []
    for runs, rows in zip(pages, outer, strict=True):
        gone: set[int] = set()
        for at_top in (True, False):
            heads: list[list[Run]] = []
            for (_, text), at, row in (row for row in rows if row[0][0] is at_top):
                times = max(seen[(at_top, text), shift] for shift in near(at))
                alone = len(pages) == 1 and PAGE_NUMBER.fullmatch(text) and is_apart(row, runs)
                if not (alone or times >= 3 or (times >= 2 and times >= LEAST_SHARE * len(pages))):
                    break  # what is further in is text
                heads.append(row)
            if len(heads) <= OUTER_ROWS:  # else it is the page that comes again, and not its head
                gone |= {id(run) for row in heads for run in row}
        kept.append([run for run in runs if id(run) not in gone])
    return kept


def near(at: float) -> tuple[int, int]:
    """Two numbers of which neighbours share one."""
    return int(at // (2 * SAME_HEIGHT)) * 2, int((at + SAME_HEIGHT) // (2 * SAME_HEIGHT)) * 2 + 1


def outer_rows(runs: list[Run], height: float) -> list[tuple[Key, float, list[Run]]]:
    """Rows near the top edge and near the bottom edge, from outside in: key, height on the page, runs."""
    rows = rows_of(runs)
    found = []
    for at_top, some in ((True, rows[: OUTER_ROWS + 1]), (False, rows[: -OUTER_ROWS - 2 : -1])):
        for row in some:
            middle = row[0].middle
            if middle < (1 - OUTER) * height if at_top else middle > OUTER * height:
                break
            text = " ".join(run.text for run in sorted(row, key=lambda run: run.left))
            if len(text) > LONGEST:
                break
            found.append(((at_top, NUMBER.sub("#", text.lower())), middle, row))
    return found


def is_apart(row: list[Run], runs: list[Run]) -> bool:
    """Is there white between a row and all else?"""
    mine = {id(run) for run in row}
    distance = min((abs(run.middle - row[0].middle) for run in runs if id(run) not in mine), default=0.0)
    return distance > 2.5 * row[0].height
