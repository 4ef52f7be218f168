"""What a stage shows of itself: facts, warnings, tables, charts and examples, as text that nobody has escaped yet.

`Stage.figures` makes such blocks of the stage's report.json. A terminal shows facts, warnings, tables and planes; a
page shows all. Names of sources and tasks are anyone's; whoever shows them makes them harmless.

Presentation only: fingerprints leave out every module of stages that is named `figures`, so no result may depend on
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

Report = Mapping[str, Any]  # report.json of a stage: its counts, and its metrics (`Flow.report`)
LICENSE = "license/"  # in `noted`, before the name of a license that documents state: for the dataset card
MOST = 50  # rows of a table; report.json has all


@dataclass(frozen=True)
class FactList:
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


@dataclass(frozen=True)
class Sentence:
    """A line of text; for a page."""

    text: str


@dataclass(frozen=True)
class CountBars:
    """Counts with bars, each beside its share of a whole; for a page."""

    caption: str
    head: str
    rows: Sequence[tuple[str, int]]
    whole: int
    of: str = "documents"


@dataclass(frozen=True)
class ValueBars:
    """Values with bars: label, the value as text, and the length of its bar in percent; for a page."""

    caption: str
    head: tuple[str, str]
    rows: Sequence[tuple[str, str, float]]


@dataclass(frozen=True)
class TextPair:
    """A document that went, beside the one it is like, with their differences marked; for a page."""

    uid: str
    url: str | None
    text: str | None
    like: str
    like_url: str | None
    like_text: str | None
    similarity: str


@dataclass(frozen=True)
class PagePairs:
    """Some pages: the text that was extracted, beside all that they show; for a page."""

    pages: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class HeatCell:
    """A field of a heat map: `heat` from -3 (far less than before) to 3 (far more), two short lines, and all its
    numbers in words."""

    row: str
    column: str
    heat: int
    lines: tuple[str, str]
    words: str


@dataclass(frozen=True)
class HeatMap:
    """Cells by two columns, coloured by how a mix changes their share; for a page. A table beside it has the
    numbers."""

    title: str
    across: str
    down: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[HeatCell]
    note: str = ""


@dataclass(frozen=True)
class Samples:
    """A few documents of each group: its name, and (uid, url, beginning of the text) of each; for a page."""

    title: str
    groups: Sequence[tuple[str, Sequence[tuple[str, str, str]]]]


Block = (
    FactList | Warnings | Figures | Plane | Sentence | CountBars | ValueBars | TextPair | PagePairs | HeatMap | Samples
)
BLOCKS: dict[str, type[Block]] = {
    kind.__name__: kind
    for kind in (
        FactList,
        Warnings,
        Figures,
        Plane,
        Sentence,
        CountBars,
        ValueBars,
        TextPair,
        PagePairs,
        HeatMap,
        Samples,
    )
}


@dataclass(frozen=True)
class StageFigures:
    """All that a stage shows of itself. It stands with the stage, or in the part of the report that `topic` names
    (`TOPICS` in pipeline/report/sections.py)."""

    title: str
    blocks: Sequence[Block]
    topic: str = ""

    def as_data(self) -> dict[str, Any]:
        """For report.json, of a stage that does not come with the mill: its code may be gone when the report is made
        again."""
        blocks = [{"kind": type(block).__name__, **asdict(block)} for block in self.blocks]
        return {"title": self.title, "topic": self.topic, "blocks": blocks}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> StageFigures:
        return cls(str(data["title"]), [block_from(block) for block in data["blocks"]], str(data["topic"]))


def block_from(data: Mapping[str, Any]) -> Block:
    values = {name: value for name, value in data.items() if name != "kind"}
    if data["kind"] == "Plane":
        return Plane([Point(**point) for point in values["points"]], Figures(**values["table"]))
    if data["kind"] == "HeatMap":
        cells = [HeatCell(**{**cell, "lines": tuple(cell["lines"])}) for cell in values.pop("cells")]
        return HeatMap(cells=cells, **values)
    return BLOCKS[data["kind"]](**values)


@dataclass(frozen=True)
class TokenCounts:
    """Tokens after a stage, by source; `by_source` is None where it drew documents by something else than their source,
    so that nobody knows. `bytes_per_token` is what a token of each source holds, of a stage that made tokens."""

    by_source: Mapping[str, int] | None
    bytes_per_token: Mapping[str, float] = field(default_factory=dict)


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
