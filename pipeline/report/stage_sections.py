"""The section of the report that shows its stages, one by one."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from gristmill.pipeline.formatting import as_bytes, as_number, as_seconds, as_share, by_size
from gristmill.pipeline.look.run_folder import Told
from gristmill.pipeline.look.stage_view import SampleDocument
from gristmill.pipeline.report.blocks import drawn
from gristmill.pipeline.report.page import Section, fold, fragment, paragraphs, settings, tables
from gristmill.pipeline.report.run_sections import COUNTS, ReportData, as_text
from gristmill.pipeline.report.what_if import HOW_DRAWN, signals_of_stage
from gristmill.pipeline.report_data.figures import figures_of
from gristmill.pipeline.store.run_records import StageRecord
from gristmill.pipeline.tables import Table
from gristmill.stages.figures import StageFigures, count_bars

SAMPLES = 5  # of a reason; the rest are in the rejects


@dataclass(frozen=True)
class StagePart:
    """All that the page shows of a stage."""

    stage: StageRecord
    anchor: str
    is_open: bool
    about: Markup  # what it is, its settings, what the report lacks
    parts: list[tuple[str, Markup]]  # with their titles
    samples: list[tuple[str, list[SampleDocument]]]  # of what it dropped, by reason
    stays: list[SampleDocument]  # documents that all rules of its segment keep


def stage_by_stage(data: ReportData) -> Section:
    parts = [stage_part(stage, data) for stage in data.run.stages]
    values = {"parts_of_stages": parts, "how_drawn": HOW_DRAWN if data.surveys else ""}
    entries = [(part.anchor, part.stage.name) for part in parts]
    return Section("stages", "Stage by stage", fragment(STAGES, values), "Stages", entries=entries)


def stage_part(stage: StageRecord, data: ReportData) -> StagePart:
    report = data.reports.get(stage.name, {})
    own = figures_of(stage.recipe_name, report)
    parts = [("", tables(dropped(stage)))] if stage.drops else []
    parts += [(own.title, blocks_of(own))] if own is not None else []
    parts += [(title, html) for title, html in signals_of_stage(stage, data.surveys)]
    for title, table in (("Slowest documents", slowest(stage)), ("By source", by_source(stage))):
        parts += [("", fold(title, tables(table)))] if table.rows else []
    ready = report.get("samples") or {}
    order = [*(reason for reason, _ in by_size(stage.drops)), *sorted(set(ready) - set(stage.drops))]
    samples = [
        (reason, [SampleDocument.of(reason, row) for row in ready[reason][:SAMPLES]])
        for reason in order
        if ready.get(reason)
    ]
    stays = [
        SampleDocument.of("", row)
        for survey in data.surveys
        if list(survey.rules)[-1:] == [stage.name]
        for row in survey.kept
    ]
    return StagePart(
        stage, data.anchors[stage.name], bool(stage.drops or own), about(stage, report), parts, samples, stays
    )


def about(stage: StageRecord, report: Told) -> Markup:
    """What it is and was told, how much it read or wrote, and what the report lacks."""
    html = paragraphs([stage.about] if stage.about else []) + paragraphs([stage.place] if stage.place else [], "soft")
    if stage.settings:
        html += fold("Settings", settings((str(name), as_text(value)) for name, value in stage.settings.items()))
    return html + paragraphs((f"Not shown: {line}" for line in report.get("not_shown", ())), "soft")


def dropped(stage: StageRecord) -> Table:
    return count_bars(
        "Dropped, by first reason; shares of what came in", "reason", by_size(stage.drops), stage.count.docs_in
    )


def slowest(stage: StageRecord) -> Table:
    title = f"Documents on which {stage.name} spent longest; size is that of the page"
    rows = [
        (its.uid or "no uid", as_seconds(its.seconds), as_bytes(its.bytes), its.url or "no URL")
        for its in stage.slowest
    ]
    return Table.of(title, ("document", "time", "size", "url"), rows, words={0, 3})


def by_source(stage: StageRecord) -> Table:
    rows = [
        (
            name,
            *map(as_number, (count.docs_in, count.kept, count.lost, count.quarantined)),
            as_share(count.kept, count.docs_in),
        )
        for name, count in stage.sources.items()
    ]
    return Table.of(f"{stage.name}, by source", ("source", *COUNTS, "kept of in"), rows if len(rows) > 1 else [])


def blocks_of(figures: StageFigures) -> Markup:
    return Markup("").join(map(drawn, figures.blocks))


STAGES = """\
{% macro documents(title, found, look) %}
<details class="samples"><summary>{{ title }} <span class="soft">({{ found | length }})</span></summary>
{% for its in found %}{{ parts.sample(look, (its.uid or 'no uid') ~ (' · ' ~ its.source if its.source else ''), its.url, its.detail, its.pieces) }}{% endfor %}
</details>
{% endmacro %}
{{ how_drawn }}
{% for its in parts_of_stages %}
<details class="stage" id="{{ its.anchor }}"{{ ' open' if its.is_open }}>
<summary><h3>{{ its.stage.name }}</h3> <span class="soft">{{ its.stage.kind }} · {{ its.stage.count.docs_in | number }} in, {{ its.stage.count.kept | number }} kept ({{ share(its.stage.count.kept, its.stage.count.docs_in) }})</span></summary>
<div>
{{ its.about }}
{% for title, html in its.parts %}{% if title %}<h4>{{ title }}</h4>{% endif %}{{ html }}{% endfor %}
{% for reason, found in its.samples %}{{ documents('Samples: ' ~ reason, found, 'went') }}{% endfor %}
{% if its.stays %}{{ documents('Samples of what stays after these rules', its.stays, 'stays') }}{% endif %}
</div></details>
{% endfor %}
"""
