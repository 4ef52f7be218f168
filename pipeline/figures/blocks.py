"""What a stage tells of itself: facts, warnings, tables and points, as text that nobody has escaped yet.

Names of sources and tasks are anyone's; whoever shows them, in a terminal or on a page, makes them harmless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Report = Mapping[str, Any]
MOST = 50  # rows of a table; report.json has all


@dataclass(frozen=True)
class Facts:
    """Names and what is to be said of them."""

    title: str
    pairs: list[tuple[str, str]]


@dataclass(frozen=True)
class Warnings:
    """What a stage warns of."""

    lines: list[str]


@dataclass(frozen=True)
class Figures:
    """A table. Its first `words` columns are words, the others numbers; `bars` are lengths from 0 to 1, one a row, or
    none at all."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    words: int = 1
    bars: Sequence[float] | None = None
    note: str = ""


@dataclass(frozen=True)
class Point:
    """A mix on the plane of risk and distance. `kind`: frontier, chosen, proportional or unimax."""

    kind: str
    name: str
    risk: float
    distance: float


@dataclass(frozen=True)
class Plane:
    """Mixes by risk and distance, to be drawn; `table` has them in numbers."""

    points: list[Point]
    table: Figures


Block = Facts | Warnings | Figures | Plane


def as_ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def relative(values: Sequence[float]) -> list[float]:
    """Lengths of bars: of the longest, 1."""
    longest = max(values, default=0)
    return [value / longest if longest else 0.0 for value in values]


def first_of(figures: Figures) -> Figures:
    """The first rows of a long table, and a title that says how many there are."""
    if len(figures.rows) <= MOST:
        return figures
    title = f"{figures.title} (the first {MOST} of {len(figures.rows):,}; report.json has all)"
    return replace(figures, title=title, rows=figures.rows[:MOST], bars=figures.bars[:MOST] if figures.bars else None)
