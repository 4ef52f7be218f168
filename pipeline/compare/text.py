"""Two runs side by side in a terminal: what cannot be compared, what differs, which documents changed sides. The page
has the rest."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gristmill.pipeline.compare import tables
from gristmill.pipeline.compare.compare import Comparison
from gristmill.pipeline.figures import Figures
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.look.run_folder import grid

ROWS = 12  # of a table; compare.html has all


def render(found: Comparison) -> RenderableType:
    parts: list[RenderableType] = []
    for letter, out, overview in zip("AB", found.outs, found.overviews, strict=True):
        parts.append(
            Text.assemble(
                (f"{letter}  ", "bold"),
                f"{one_line(overview.run.name)}  {one_line(overview.run.status)}  {one_line(overview.run.started)} "
                f" {out}",
            )
        )
    parts += [Text(f"take care: {one_line(line)}", style="bold yellow") for line in found.unlike]
    parts += [Text(), shown(tables.totals(found)), Text(), *recipes(found)]
    if found.documents is not None:
        documents = found.documents
        parts += [Text(), Text(tables.headline(documents), style="bold"), Text(), shown(tables.sides(documents))]
        parts += [Text(), shown(tables.ways("What became of them", documents.ways))] if documents.ways else []
        parts += (
            [Text(), Text(tables.draw_line(documents)), Text(), shown(tables.drawn(documents))]
            if documents.drawn
            else []
        )
    for figures in (tables.reasons(found), tables.medians(found)):
        parts += [Text(), shown(figures)] if figures.rows else []
    return Group(*parts)


def recipes(found: Comparison) -> Iterator[RenderableType]:
    changed = [pair for pair in found.stages if pair.state != "same" or pair.moved]
    if not changed and not found.head:
        yield Text("The recipes are the same.", style="bold")
        return
    yield Text("Recipes", style="bold")
    if found.head:
        yield shown(tables.differences("", found.head))
    for pair in changed:
        note = [pair.state] if pair.state != "same" else []
        note += ["stands elsewhere"] if pair.moved else []
        note += ["put in by what rules need"] if pair.inserted else []
        yield Text(f"{one_line(pair.name)}: {', '.join(note)}")
        if pair.state == "changed":
            yield shown(tables.differences("", pair.differences))


def shown(figures: Figures) -> Table:
    more = f" ({len(figures.rows) - ROWS:,} more in compare.html)" if len(figures.rows) > ROWS else ""
    table = grid(figures.title + more, figures.head, iter(figures.rows[:ROWS]), figures.words)
    if not figures.title:
        table.title = None
    return table
