"""What a stage shows of itself: facts, warnings, tables and examples, as text that nobody has escaped yet.

`Stage.figures` makes such blocks of the stage's report.json. A terminal shows facts, warnings and tables; a page
shows all. Names of sources and tasks are anyone's; whoever shows them makes them harmless.

Presentation only: fingerprints leave out every module of stages that is named `figures`, so no result may depend on
one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

from gristmill.stages.formatting import as_percent, as_share, as_short, with_minus

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
class Column:
    """A column of a table. Text stands left and wraps; numbers stand right; a share is a number from 0 to 1."""

    name: str
    kind: Literal["text", "number", "share"] = "number"
    spare: int = 0  # where a terminal is too narrow, the column with 1 goes first


Bar = Sequence[tuple[float, str]]  # pieces from left to right: how much of the whole width, and a class of style.css


@dataclass(frozen=True)
class Table:
    """A table. Values are text, numbers, None where nobody knows, or a list of which a terminal shows what fits."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[object]]
    bars: Sequence[Sequence[Bar]] = ()  # for a page: the bars of each row, one below the other; or none at all
    note: str = ""

    @classmethod
    def of(
        cls,
        title: str,
        names: Iterable[str],
        rows: Iterable[Sequence[object]],
        words: int | Collection[int] = 1,
        bars: Sequence[float | Sequence[Bar]] = (),
        note: str = "",
        *,
        shares: Collection[str] = (),
        spared: Sequence[int] = (),
    ) -> Self:
        """The first `words` columns, or those named, are text, the others numbers; a bar may be its length alone."""
        text = range(words) if isinstance(words, int) else words
        columns = [
            Column(
                name,
                "text" if place in text else "share" if name in shares else "number",
                spare=spared.index(place) + 1 if place in spared else 0,
            )
            for place, name in enumerate(names)
        ]
        drawn = [[[(bar, "kept-shape")]] if isinstance(bar, int | float) else bar for bar in bars]
        return cls(title, columns, [tuple(row) for row in rows], drawn, note)

    def texts(self, row: Sequence[object]) -> list[str]:
        """A row as people read it."""
        return [as_text(value, column) for value, column in zip(row, self.columns, strict=True)]

    def first(self, most: int = MOST, where: str = "report.json") -> Table:
        """The first rows of a long table, and a title that says which file has all."""
        if len(self.rows) <= most:
            return self
        title = f"{self.title} (the first {most:,} of {len(self.rows):,}; {where} has all)"
        return replace(self, title=title, rows=self.rows[:most], bars=self.bars[:most])


def as_text(value: object, column: Column) -> str:
    if value is None:
        return "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if column.kind == "text" or isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, str) else str(value)  # markup stays markup
    if column.kind == "share":
        return as_percent(value)
    return with_minus(f"{value:,}") if isinstance(value, int) else as_short(value)


@dataclass(frozen=True)
class Sentence:
    """A line of text; for a page."""

    text: str


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
class Samples:
    """A few documents of each group: its name, and (uid, url, beginning of the text) of each; for a page."""

    title: str
    groups: Sequence[tuple[str, Sequence[tuple[str, str, str]]]]


Block = FactList | Warnings | Table | Sentence | TextPair | Samples
BLOCKS: dict[str, type[Block]] = {
    kind.__name__: kind for kind in (FactList, Warnings, Table, Sentence, TextPair, Samples)
}


@dataclass(frozen=True)
class StageFigures:
    """All that a stage shows of itself."""

    title: str
    blocks: Sequence[Block]

    def as_data(self) -> dict[str, Any]:
        """For report.json, of a stage that does not come with the mill: its code may be gone when the report is made
        again."""
        blocks = [{"kind": type(block).__name__, **asdict(block)} for block in self.blocks]
        return {"title": self.title, "blocks": blocks}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> StageFigures:
        return cls(str(data["title"]), [block_from(block) for block in data["blocks"]])


def block_from(data: Mapping[str, Any]) -> Block:
    values = {name: value for name, value in data.items() if name != "kind"}
    if data["kind"] == "Table":
        values["columns"] = [Column(**column) for column in values["columns"]]
    return BLOCKS[data["kind"]](**values)


@dataclass(frozen=True)
class TokenCounts:
    """Tokens after a stage, by source; `by_source` is None where it drew documents by something else than their source,
    so that nobody knows. `bytes_per_token` is what a token of each source holds, of a stage that made tokens."""

    by_source: Mapping[str, int] | None
    bytes_per_token: Mapping[str, float] = field(default_factory=dict)


LEAST_FULL = 0.05  # of a whole: what a full bar stands for at least


def count_bars(title: str, head: str, rows: Sequence[tuple[str, int]], whole: int, of: str = "documents") -> Table:
    """Counts with their shares of a whole, and bars."""
    longest = longest_of([count for _, count in rows], whole)
    bars = [[[(count / longest, "gone-shape")]] for _, count in rows]
    return Table.of(title, (head, of, "share"), [(*row, as_share(row[1], whole)) for row in rows], bars=bars)


def longest_of(values: Sequence[float], whole: float) -> float:
    """What a full bar stands for: the longest, but never less than a twentieth of the whole, so that next to nothing
    looks like it."""
    return max(max(values, default=0), whole * LEAST_FULL) or 1


def as_ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def relative(values: Sequence[float]) -> list[float]:
    """Lengths of bars: of the longest, 1."""
    longest = max(values, default=0)
    return [value / longest if longest else 0.0 for value in values]
