"""The public summary as one page of HTML, offline, and as a table for a terminal."""

from __future__ import annotations

from markupsafe import Markup
from rich.console import Group, RenderableType
from rich.text import Text

from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.report.sections import environment
from gristmill.pipeline.summary.points import DRAFT, LAW, NOT_VERIFIED, Cell, PublicSummary
from gristmill.pipeline.tables import Table, TerminalTable, as_html

MOST = 1000  # rows of a table for people; the JSON file has all


def page_of(summary: PublicSummary) -> str:
    jinja = environment()
    jinja.filters |= {"shown": shown, "table": for_people}
    values = {"summary": summary, "law": LAW, "draft": DRAFT, "missing": NOT_VERIFIED}
    return jinja.get_template("summary.html").render(values)


def shown(value: Cell) -> str:
    """A value as people read it; of a table's cell that is not known, a dash."""
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def for_people(table: Table) -> Markup:
    return as_html(table.first(MOST, "the JSON file"))


def render(summary: PublicSummary) -> RenderableType:
    rows = (
        (
            point.title,
            point.status,
            "; ".join(f"{name} {shown(value)}" for name, value in point.facts if value is not None),
        )
        for point in summary.points
    )
    head = Text.assemble((one_line(summary.name), "bold"), f"  {LAW['act']}")
    return Group(head, Text(DRAFT, style="dim"), Text(), TerminalTable.of("", ("point", "status", "facts"), rows, 3))
