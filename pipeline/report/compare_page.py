"""compare.html: two runs side by side, for eyes. One file, no network, no script; crawled text in it is hostile (`sections.environment`)."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from pipeline.figures import Figures
from pipeline.report import compare_tables as tables
from pipeline.report.blend import table
from pipeline.report.charts import Piece, row_bar
from pipeline.report.compare import Comparison, Documents, Level, Sides
from pipeline.report.sections import environment
from pipeline.words import as_number

STRIPES = (("kept-shape", "kept in both"), ("series-3", "kept in A only"), ("series-2", "kept in B only"), ("all-shape", "dropped in both"))


@dataclass(frozen=True)
class Line:
    """A stage of the funnel, all sources together, with a bar for each run."""

    stage: str
    bars: tuple[Markup | None, Markup | None]
    left: tuple[str, str]
    difference: str
    only: str  # the run that has it, where one has not


def page_of(found: Comparison) -> str:
    """The text of compare.html; the caller writes it."""
    whole = found.documents.sides[-1] if found.documents else None
    values = {
        "title": title_of(found),
        "runs": list(zip("AB", found.outs, [one.run for one in found.overviews], strict=True)),
        "found": found,
        "whole": whole,
        "totals": table(tables.totals(found)),
        "fields": fields(found),
        "alone": [(pair, table(tables.settings(pair))) for pair in found.stages if pair.state.startswith("only")],
        "moved": [pair.name for pair in found.stages if pair.moved],
        "table": table,
        "differences": tables.differences,
        "same_stages": [pair.name for pair in found.stages if pair.state == "same" and not pair.moved],
        "documents": found.documents,
        "sides": [(one.source or "all", stripes(one), one) for one in shown_sides(found.documents)],
        "stripes": STRIPES,
        "sides_table": table(tables.sides(found.documents.sides)) if found.documents else None,
        "ways": tables.ways("Where the documents that changed sides were dropped", found.documents.ways) if found.documents else None,
        "other": tables.ways("Dropped in both, but not by the same rule", found.documents.other_reasons) if found.documents else None,
        "lines": funnel_lines(found),
        "funnel": table(tables.funnel(found)),
        "reasons": some(tables.reasons(found)),
        "medians": some(tables.medians(found)),
        "costs": table(tables.costs(found)),
    }
    return environment().get_template("compare.html").render(values)


def title_of(found: Comparison) -> str:
    """Names of both runs; of two runs of one recipe, of their folders too."""
    a, b = (one.run.name for one in found.overviews)
    folders = [out.rstrip("/").rsplit("/", 1)[-1] for out in found.outs]
    return f"{a}: {folders[0]} and {folders[1]}" if a == b else f"{a} and {b}"


def fields(found: Comparison) -> list[tuple[str, bool, list[tuple[str, str, str]]]]:
    """Settings that differ: by stage, whether rules brought it in, and field, A, B; what stands beside the stages first."""
    stages = [("", False, found.head)] if found.head else []
    stages += [(pair.name, pair.inserted, pair.differences) for pair in found.stages if pair.state == "changed"]
    return [(name, inserted, [(one.field, *tables.shortened(one.a, one.b)) for one in differing]) for name, inserted, differing in stages]


def some(figures: Figures) -> Markup | None:
    return table(figures) if figures.rows else None


def shown_sides(documents: Documents | None) -> list[Sides]:
    """All documents first, then each source, where there are several."""
    if documents is None:
        return []
    return [documents.sides[-1], *(documents.sides[:-1] if len(documents.sides) > 2 else [])]


def stripes(one: Sides) -> Markup:
    counts = (one.both_kept, one.only_a, one.only_b, one.both_gone)
    whole = sum(counts) or 1
    return row_bar([Piece(count / whole, look) for count, (look, _) in zip(counts, STRIPES, strict=True)])


def funnel_lines(found: Comparison) -> list[Line]:
    levels = [level for level in found.funnel if level.source is None]
    widest = max((value for level in levels for value in (level.a, level.b) if value is not None), default=0) or 1
    return [line(level, widest) for level in levels]


def line(level: Level, widest: int) -> Line:
    both = (level.a, level.b)
    bars = tuple(
        None if value is None else row_bar([Piece(value / widest, look)])
        for value, look in zip(both, ("series-3", "series-2"), strict=True)
    )
    only = "" if None not in both else "only in A" if level.b is None else "only in B"
    difference = "" if level.a is None or level.b is None else tables.signed(level.b - level.a)
    return Line(level.stage, (bars[0], bars[1]), (as_number(level.a), as_number(level.b)), difference, only)
