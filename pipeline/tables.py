"""Tables for a terminal: as wide as they need to be, and never wider than the terminal.

Numbers are never wrapped. Where a table is too wide, columns of words become narrower, the widest first, but for their
longest word: rich breaks names. Heads of several words are set on several lines first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gristmill.stages.figures import Block, FactList, Figures, Plane, Warnings
from gristmill.stages.formatting import one_line

GAP = 2  # blanks between columns
LONGEST_WORD = 34  # cells that a word may claim
Justify: TypeAlias = Literal["left", "right"]
READABLE = 100  # cells of a column of words on a wide terminal


def cell(value: object) -> Text:
    """Anything as one line of a table, never as markup."""
    return Text("–" if value is None else one_line(str(value)))


Cell: TypeAlias = "Text | list[str]"  # a list of items is one line with as many of them, whole, as fit


@dataclass
class Grid:
    """A table whose columns of words are the first ones, or those named; the others are numbers."""

    title: str
    columns: Sequence[str]
    words: int | Collection[int] = 1
    spared: Sequence[int] = ()  # columns that go, the first one first, where the table is too wide
    rows: list[list[Cell]] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)
    note: str = ""  # below the table

    @classmethod
    def of(
        cls,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        words: int | Collection[int] = 1,
        spared: Sequence[int] = (),
    ) -> Grid:
        table = cls(title, columns, words, spared)
        for row in rows:
            table.add_row(*row)
        return table

    def add_row(self, *values: object, style: str = "") -> None:
        self.rows.append([value if isinstance(value, Text | list) else cell(value) for value in values])
        self.styles.append(style)

    def is_words(self, column: int) -> bool:
        return column < self.words if isinstance(self.words, int) else column in self.words

    def widths(self, room: int) -> dict[int, int]:
        """Of each column that is shown, so that all fit into `room` cells."""
        shown = list(range(len(self.columns)))
        natural = {c: max(cell_len(self.columns[c]), self.widest(c)) for c in shown}
        natural = {c: min(wide, READABLE) if self.is_words(c) else wide for c, wide in natural.items()}
        least = {c: self.least(c) for c in shown}
        for spare in self.spared:
            if sum(least.values()) + GAP * (len(least) - 1) <= room:
                break
            natural.pop(spare)
            least.pop(spare)
        room -= GAP * (len(least) - 1)
        if sum(natural.values()) <= room:
            return natural
        widths = {c: max(least[c], wide) if self.is_words(c) else least[c] for c, wide in natural.items()}
        for limits in (least, {c: min(8, wide) for c, wide in least.items()}):
            while sum(widths.values()) > room:
                wide_ones = [c for c in widths if self.is_words(c) and widths[c] > limits[c]]
                if not wide_ones:
                    break
                widths[max(wide_ones, key=lambda c: widths[c])] -= 1
        return widths

    def widest(self, column: int) -> int:
        return max(
            (cell_len(", ".join(v)) if isinstance(v, list) else v.cell_len for v in self.cells_of(column)), default=0
        )

    def least(self, column: int) -> int:
        """How narrow a column may become: numbers not at all, words to the longest of them."""
        head = max((cell_len(word) for word in self.columns[column].split()), default=0)
        if not self.is_words(column):
            return max(head, self.widest(column))
        words = (v[:1] if isinstance(v, list) else v.plain.split() for v in self.cells_of(column))
        return max(head, *(min(cell_len(word), LONGEST_WORD) for some in words for word in some), 0)

    def cells_of(self, column: int) -> list[Cell]:
        return [row[column] for row in self.rows]

    def table(self, room: int) -> Table:
        widths = self.widths(room)
        table = Table(
            title=Text(one_line(self.title), style="bold") if self.title else None, title_justify="left", title_style="bold",
            header_style="dim", box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=any(self.columns),
        )  # fmt: skip
        for c, width in widths.items():
            justify: Justify = "left" if self.is_words(c) else "right"
            table.add_column(Text(self.columns[c]), justify=justify, overflow="fold", width=width)
        for row, style in zip(self.rows, self.styles, strict=True):
            table.add_row(*(shown(row[c], width) for c, width in widths.items()), style=style)
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Without the blanks at the ends of lines, which a terminal would wrap when it is made narrower."""
        lines = console.render_lines(self.table(options.max_width), options, pad=False)
        for line in lines:
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
            yield from line
            yield Segment.line()
        if self.note:
            yield cell(self.note)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return self.table(options.max_width).__rich_measure__(console, options)


def shown(value: Cell, width: int) -> Text:
    """A list is one line, however narrow."""
    return Text(fitting(value, width), no_wrap=True, overflow="ellipsis") if isinstance(value, list) else value


def fitting(items: Sequence[str], width: int) -> str:
    """As many items as fit in a line, whole, joined by commas."""
    for count in range(len(items), 0, -1):
        line = ", ".join([*items[:count], *(["…"] if count < len(items) else [])])
        if cell_len(line) <= width:
            return line
    return items[0] if items else ""


# --- what stages show of themselves (stages/figures.py) ---------------------------------------------------------------


def render_block(block: Block) -> list[RenderableType]:
    """A block in a terminal; nothing of those that are for a page alone."""
    if isinstance(block, FactList):
        title = [Text(one_line(block.title), style="bold")] if block.title else []
        pairs = Table.grid(padding=(0, 2))
        for name, value in block.pairs:
            pairs.add_row(Text(one_line(name), style="dim"), cell(value))
        return [*title, pairs]
    if isinstance(block, Warnings):
        return [Text(f"warning: {one_line(line)}", style="bold red") for line in block.lines]
    if not isinstance(block, Figures | Plane):
        return []
    figures = block.table if isinstance(block, Plane) else block
    note = [Text(figures.note, style="dim")] if figures.note else []
    heading = Text(one_line(figures.title), style="bold")  # not the grid's own, which is no wider than the table
    return [heading, Grid.of("", figures.head, figures.rows, figures.words), *note]
