"""compare.html: two runs side by side, for eyes. One file, no network, no script; crawled text in it is hostile
(`sections.environment`)."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from gristmill.pipeline.compare import tables
from gristmill.pipeline.compare.compare import Comparison
from gristmill.pipeline.compare.sides import Sides
from gristmill.pipeline.figures import Figures
from gristmill.pipeline.report.charts import BarPiece, row_bar
from gristmill.pipeline.report.sections import environment
from gristmill.pipeline.report.stacked import stacked

STRIPES = (
    ("kept-shape", "kept in both"),
    ("series-3", "kept in A only"),
    ("series-2", "kept in B only"),
    ("all-shape", "dropped in both"),
)


PRINTED = 5  # ways whose documents are printed, folded or not
LONG = 150  # rows of a folded table, above which it is not printed


def page_of(found: Comparison) -> str:
    """The text of compare.html; the caller writes it."""
    documents = found.documents
    values = {
        "title": title_of(found),
        "runs": list(zip("AB", found.outs, [overview.run for overview in found.overviews], strict=True)),
        "found": found,
        "totals": stacked(tables.totals(found)),
        "fields": fields(found),
        "alone": [(pair, stacked(tables.settings(pair))) for pair in found.stages if pair.state.startswith("only")],
        "moved": [pair.name for pair in found.stages if pair.moved],
        "versions": some(tables.differences("Package versions", found.versions)),
        "machines": some(tables.differences("Machines", found.machine)),
        "same_stages": [pair.name for pair in found.stages if pair.state == "same" and not pair.moved],
        "documents": documents,
        "printed": PRINTED,
        "headline": tables.headline(documents) if documents else None,
        "sides": striped(documents.sides) if documents else [],
        "stripes": STRIPES,
        "sides_table": stacked(tables.sides(documents)) if documents else None,
        "ways": some(tables.ways("Where the documents that changed sides were dropped", documents.ways))
        if documents
        else None,
        "other": some(tables.ways("Dropped in both, but not by the same rule", documents.other_reasons))
        if documents
        else None,
        "draw_line": tables.draw_line(documents) if documents and documents.drawn else None,
        "drawn": striped(documents.drawn) if documents and documents.drawn else [],
        "drawn_table": stacked(tables.drawn(documents)) if documents and documents.drawn else None,
        "funnel": funnel(found),
        "by_source": stacked(*tables.funnel_by_source(found)),
        "long": len(found.funnel) > LONG,
        "reasons": some(tables.reasons(found)),
        "medians": some(tables.medians(found)),
        "costs": stacked(*tables.costs(found)),
    }
    return environment().get_template("compare.html").render(values)


def title_of(found: Comparison) -> str:
    """Names of both runs; of two runs of one recipe, of their folders too."""
    a, b = (overview.run.name for overview in found.overviews)
    folders = [out.rstrip("/").rsplit("/", 1)[-1] for out in found.outs]
    return f"{a}: {folders[0]} and {folders[1]}" if a == b else f"{a} and {b}"


def fields(found: Comparison) -> list[tuple[str, bool, list[tuple[str, str, str]]]]:
    """Settings that differ: by stage, whether rules brought it in, and field, A, B; what stands beside the stages
    first."""
    stages = [("", False, found.head)] if found.head else []
    stages += [(pair.name, pair.inserted, pair.differences) for pair in found.stages if pair.state == "changed"]
    return [
        (
            name,
            inserted,
            [(difference.field, *tables.shortened(difference.a, difference.b)) for difference in differing],
        )
        for name, inserted, differing in stages
    ]


def some(figures: Figures) -> Markup | None:
    return stacked(figures) if figures.rows else None


def striped(sides: Sequence[Sides]) -> list[tuple[str, Markup]]:
    """All documents first, then each source, where there are several."""
    return [(side.source or "all", stripes(side)) for side in (sides[-1], *(sides[:-1] if len(sides) > 2 else []))]


def stripes(sides: Sides) -> Markup:
    counts = (sides.both_kept, sides.only_a, sides.only_b, sides.both_gone)
    whole = sum(counts) or 1
    return row_bar([BarPiece(count / whole, look) for count, (look, _) in zip(counts, STRIPES, strict=True)])


def funnel(found: Comparison) -> Markup:
    """With a bar of documents for each run."""
    levels = [level for level in found.funnel if level.source is None]
    widest = max((value for level in levels for value in (level.a, level.b) if value is not None), default=0) or 1
    bars = [
        Markup("").join(
            row_bar([BarPiece(value / widest, look)])
            for value, look in ((level.a, "series-3"), (level.b, "series-2"))
            if value is not None
        )
        for level in levels
    ]
    return stacked(*tables.funnel(found), bars)
