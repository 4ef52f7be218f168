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
    its = found.documents
    values = {
        "title": title_of(found),
        "runs": list(zip("AB", found.outs, [one.run for one in found.overviews], strict=True)),
        "found": found,
        "totals": stacked(tables.totals(found)),
        "fields": fields(found),
        "alone": [(pair, stacked(tables.settings(pair))) for pair in found.stages if pair.state.startswith("only")],
        "moved": [pair.name for pair in found.stages if pair.moved],
        "versions": some(tables.differences("Package versions", found.versions)),
        "machines": some(tables.differences("Machines", found.machine)),
        "same_stages": [pair.name for pair in found.stages if pair.state == "same" and not pair.moved],
        "documents": its,
        "printed": PRINTED,
        "headline": tables.headline(its) if its else None,
        "sides": striped(its.sides) if its else [],
        "stripes": STRIPES,
        "sides_table": stacked(tables.sides(its)) if its else None,
        "ways": some(tables.ways("Where the documents that changed sides were dropped", its.ways)) if its else None,
        "other": some(tables.ways("Dropped in both, but not by the same rule", its.other_reasons)) if its else None,
        "draw_line": tables.draw_line(its) if its and its.drawn else None,
        "drawn": striped(its.drawn) if its and its.drawn else [],
        "drawn_table": stacked(tables.drawn(its)) if its and its.drawn else None,
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
    a, b = (one.run.name for one in found.overviews)
    folders = [out.rstrip("/").rsplit("/", 1)[-1] for out in found.outs]
    return f"{a}: {folders[0]} and {folders[1]}" if a == b else f"{a} and {b}"


def fields(found: Comparison) -> list[tuple[str, bool, list[tuple[str, str, str]]]]:
    """Settings that differ: by stage, whether rules brought it in, and field, A, B; what stands beside the stages
    first."""
    stages = [("", False, found.head)] if found.head else []
    stages += [(pair.name, pair.inserted, pair.differences) for pair in found.stages if pair.state == "changed"]
    return [
        (name, inserted, [(one.field, *tables.shortened(one.a, one.b)) for one in differing])
        for name, inserted, differing in stages
    ]


def some(figures: Figures) -> Markup | None:
    return stacked(figures) if figures.rows else None


def striped(sides: Sequence[Sides]) -> list[tuple[str, Markup]]:
    """All documents first, then each source, where there are several."""
    return [(one.source or "all", stripes(one)) for one in (sides[-1], *(sides[:-1] if len(sides) > 2 else []))]


def stripes(one: Sides) -> Markup:
    counts = (one.both_kept, one.only_a, one.only_b, one.both_gone)
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
