"""How a table looks: in a terminal (and in a notebook, which shows what a terminal would), and on a page.

In a terminal a table is as wide as it needs to be, and never wider than the terminal. Numbers are never wrapped. Where
a table is too wide, heads of several words are set on several lines, and then the widest column of text becomes
narrower, but for its longest word: rich breaks names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from markupsafe import Markup
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from gristmill.stages.figures import Bar, Block, Column, FactList, Table, Warnings, as_text
from gristmill.stages.formatting import one_line, plain

__all__ = ["Bar", "Column", "Table", "TerminalTable", "as_html", "cell", "render_block", "row_bar"]
GAP = 2  # blanks between columns
LONGEST_WORD = 34  # cells that a word may claim
NARROW = 8  # cells that text has at least
Justify: TypeAlias = Literal["left", "right"]
READABLE = 100  # cells of a column of words on a wide terminal


def cell(value: object) -> Text:
    """Anything as one line of a table, never as markup."""
    return Text("–" if value is None else one_line(str(value)))


# --- terminal ---------------------------------------------------------------------------------------------------------

Cell: TypeAlias = "Text | list[str]"  # a list of items is one line with as many of them, whole, as fit


@dataclass(frozen=True)
class TerminalTable(Table):
    """A table that rich prints. Values may be text of rich, with its style."""

    @classmethod
    def showing(cls, table: Table) -> TerminalTable:
        return cls(table.title, table.columns, table.rows, table.bars, table.note)

    def cells(self) -> list[list[Cell]]:
        return [[cell_of(value, column) for value, column in zip(row, self.columns, strict=True)] for row in self.rows]

    def widths(self, rows: Sequence[Sequence[Cell]], room: int) -> dict[int, int]:
        """Of each column that is shown, so that all fit into `room` cells."""
        columns = self.columns
        natural = {c: max(cell_len(column.name), widest(rows, c)) for c, column in enumerate(columns)}
        natural = {c: min(wide, READABLE) if columns[c].kind == "text" else wide for c, wide in natural.items()}
        least = {c: self.least(rows, c) for c in natural}
        for spare in sorted((c for c in natural if columns[c].spare), key=lambda c: columns[c].spare):
            if sum(least.values()) + GAP * (len(least) - 1) <= room:
                break
            natural.pop(spare)
            least.pop(spare)
        room -= GAP * (len(least) - 1)
        widths = dict(natural)
        while sum(widths.values()) > room:
            narrower = [c for c in widths if widths[c] > least[c]]
            narrower = narrower or [c for c in widths if columns[c].kind == "text" and widths[c] > NARROW]
            if not narrower:
                break
            widths[max(narrower, key=lambda c: (columns[c].kind != "text", widths[c]))] -= 1  # heads of numbers first
        return widths

    def least(self, rows: Sequence[Sequence[Cell]], column: int) -> int:
        """How narrow a column may become: numbers not at all, text to the longest of its words."""
        head = max((cell_len(word) for word in self.columns[column].name.split()), default=0)
        if self.columns[column].kind != "text":
            return max(head, widest(rows, column))
        cells = (row[column] for row in rows)
        words = (value[:1] if isinstance(value, list) else value.plain.split() for value in cells)
        return max(head, *(min(cell_len(word), LONGEST_WORD) for some in words for word in some), 0)

    def grid(self, room: int) -> RichTable:
        rows, columns = self.cells(), self.columns
        widths = self.widths(rows, room)
        grid = RichTable(
            header_style="dim", box=None, pad_edge=False, padding=(0, GAP, 0, 0),
            show_header=any(column.name for column in columns),
        )  # fmt: skip
        for c, width in widths.items():
            justify: Justify = "left" if columns[c].kind == "text" else "right"
            grid.add_column(Text(columns[c].name), justify=justify, overflow="fold", width=width)
        for row in rows:
            grid.add_row(*(shown(row[c], width) for c, width in widths.items()))
        return grid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Without the blanks at the ends of lines, which a terminal would wrap when it is made narrower."""
        if self.title:
            yield Text(one_line(self.title), style="bold")
        for line in console.render_lines(self.grid(options.max_width), options, pad=False):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
            yield from line
            yield Segment.line()
        if self.note:
            yield Text(one_line(self.note), style="dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return self.grid(options.max_width).__rich_measure__(console, options)


def cell_of(value: object, column: Column) -> Cell:
    if isinstance(value, list):
        return [one_line(str(item)) for item in value]
    return value if isinstance(value, Text) else cell(as_text(value, column))


def length(value: Cell) -> int:
    return cell_len(", ".join(value)) if isinstance(value, list) else value.cell_len


def widest(rows: Sequence[Sequence[Cell]], column: int) -> int:
    return max((length(row[column]) for row in rows), default=0)


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


def render_block(block: Block) -> list[RenderableType]:
    """What a stage shows of itself, for a terminal; nothing of blocks that are for a page alone."""
    if isinstance(block, FactList):
        title = [Text(one_line(block.title), style="bold")] if block.title else []
        pairs = RichTable.grid(padding=(0, 2))
        for name, value in block.pairs:
            pairs.add_row(Text(one_line(name), style="dim"), cell(value))
        return [*title, pairs]
    if isinstance(block, Warnings):
        return [Text(f"warning: {one_line(line)}", style="bold red") for line in block.lines]
    return [TerminalTable.showing(block)] if isinstance(block, Table) else []


# --- page -------------------------------------------------------------------------------------------------------------


def as_html(table: Table) -> Markup:
    """On a phone each row is stacked, and names its numbers: every number stays in sight. Bars stand before the first
    number. Everything is escaped, and harmless."""
    columns = table.columns
    track = next((place for place, column in enumerate(columns) if column.kind != "text"), len(columns))
    names = [tag("th", column.name, look_of(column), scope="col") for column in columns]
    lines = []
    for at, row in enumerate(table.rows):
        texts = zip(table.texts(row), columns, strict=True)
        cells = [html_cell(place, *each, alone=track == 1) for place, each in enumerate(texts)]
        if table.bars:
            bars = Markup("").join(map(row_bar, table.bars[at]))
            cells.insert(track, Markup('<td class="track" aria-hidden="true">{}</td>').format(bars))
        lines.append(tag("tr", Markup("").join(cells)))
    if table.bars:
        names.insert(track, Markup("<td></td>"))
    return PAGE.format(
        title=plain(table.title),
        head=tag("tr", Markup("").join(names)),
        body=Markup("\n").join(lines),
        note=tag("p", table.note, "soft note") if table.note else "",
    )


PAGE = Markup("""\
<figure class="stacked">
<div class="scroll" role="group" aria-label="{title}" tabindex="0">
<table><caption>{title}</caption>
<thead>{head}</thead>
<tbody>
{body}
</tbody></table></div>
{note}
</figure>
""")


def tag(name: str, content: str, look: str = "", **attributes: str) -> Markup:
    """An element; its content is escaped unless it is markup."""
    pairs = {**({"class": look} if look else {}), **{key.replace("_", "-"): value for key, value in attributes.items()}}
    inside = content if isinstance(content, Markup) else plain(content)
    written = Markup("").join(Markup(' {}="{}"').format(key, plain(value)) for key, value in pairs.items())
    return Markup("<{name}{written}>{inside}</{name}>").format(name=name, written=written, inside=inside)


def look_of(column: Column) -> str:
    return "" if column.kind == "text" else "n"


def html_cell(place: int, text: str, column: Column, alone: bool) -> Markup:
    """The first column is the head of its row; `alone` where it is the only one of text."""
    if place == 0:
        named = {} if alone else {"data_head": column.name}
        return tag("th", text, scope="row", dir="auto", **named)
    if column.kind == "text":
        return tag("td", text, dir="auto", data_head=column.name)
    return tag("td", text, look_of(column), data_head=column.name)


def row_bar(pieces: Bar) -> Markup:
    """A bar of pieces for a cell of a table; the numbers stand beside it, so that it is hidden from screen readers."""
    parts, at = [], 0.0
    for share, look in pieces:
        width = 100 * max(0.0, min(1.0, share))
        if width:
            parts.append(
                Markup('<rect class="{}" x="{:.2f}%" width="{:.2f}%" height="100%"/>').format(look, at, max(width, 0.1))
            )
        at += width
    return tag("svg", Markup("").join(parts), "row-bar", aria_hidden="true")
