"""Sections of the report that are about the run as a whole: what went wrong, overview, funnel, figures of its
publishers, time and memory, sources."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup

from gristmill.pipeline.formatting import (
    as_amount,
    as_bytes,
    as_change,
    as_energy,
    as_money,
    as_number,
    as_rate,
    as_requests,
    as_seconds,
    as_share,
    as_tokens,
)
from gristmill.pipeline.inputs.notes import fetches_of, notes_of
from gristmill.pipeline.look.funnel import FunnelStep, Volume
from gristmill.pipeline.look.overview import Overview, overview_of, written_each
from gristmill.pipeline.look.published import WITHIN
from gristmill.pipeline.look.run_folder import Told
from gristmill.pipeline.report.charts import SERIES, key_of, series_class
from gristmill.pipeline.report.page import Section, alarms, facts, fold, fragment, paragraphs, settings, tables
from gristmill.pipeline.report_data.histograms import SurveyRecord
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.tables import Table

FAILED = {"failed": "The run failed", "interrupted": "The run was interrupted"}
OTHERS = "other sources"
COUNTS = ("in", "kept", "dropped", "quarantined")


@dataclass(frozen=True)
class ReportData:
    """What the report shows: run.json, reports of stages, surveys of segments, and verdicts of ablations."""

    run: RunRecord
    reports: Mapping[str, Told]
    surveys: Sequence[SurveyRecord] = ()
    trained: Markup | None = None
    where: str = "OUT"  # the folder, as a command line has it

    @cached_property
    def seen(self) -> Overview:
        return overview_of(self.run, self.reports)

    @property
    def steps(self) -> list[FunnelStep]:
        return self.seen.funnel.steps

    @cached_property
    def anchors(self) -> dict[str, str]:
        return {stage.name: f"stage-{number}" for number, stage in enumerate(self.run.stages)}

    def link(self, stage: str) -> str:
        """A stage's name, as a link to its part of the page."""
        if stage not in self.anchors:
            return stage
        return fragment('<a href="#{{ anchor }}">{{ name }}</a>', {"anchor": self.anchors[stage], "name": stage})


SectionMaker = Callable[[ReportData], Section | None]


def failure(data: ReportData) -> Section | None:
    run = data.run
    if not run.error:
        return None
    template = '<p dir="auto">{{ error }}</p>{% if stages %}<p class="soft">Below is what was counted up to then.</p>{% endif %}'
    html = fragment(template, {"error": run.error, "stages": run.stages})
    return Section("failure", FAILED.get(run.status, "What went wrong"), html, "What went wrong", look="alarms failure")


def alarms_of_run(data: ReportData) -> Section | None:
    count = len(data.run.alarms)
    return alarms("alarms", f"{count} alarm{'s' if count > 1 else ''}", data.run.alarms, f"Alarms ({count})")


def overview(data: ReportData) -> Section:
    run, totals = data.run, data.seen.totals
    pairs = [
        ("records read", as_number(totals.records)),
        ("documents kept", as_number(totals.kept)),
        ("kept of read", as_share(totals.kept, totals.records)),
        ("text kept", None if totals.text_bytes is None else as_bytes(totals.text_bytes)),
        ("tokens", None if totals.tokens is None else as_tokens(totals.tokens, totals.tokens_counted)),
        ("bytes read", as_bytes(totals.bytes_read)),
        ("time", as_seconds(run.seconds)),
        ("records a second", as_rate(totals.records, run.seconds)),
        ("peak memory of a worker", as_bytes(totals.peak_memory) if totals.peak_memory else None),
        ("on disk", None if run.disk_bytes is None else as_bytes(run.disk_bytes)),
    ]
    pairs += [("energy", as_energy(run.joules))] if run.joules is not None else []
    pairs += [("requests", as_requests(run.requests))] if run.requests else []
    pairs += [("cost", as_money(run.cost.amount, run.cost.currency))] if run.cost else []
    notes = [
        *(["Energy was not measured."] if run.joules is None else []),
        *(["A cost needs `prices` in the recipe."] if not run.cost else []),
    ]
    machine = [
        (name, as_bytes(value) if name == "memory" and isinstance(value, int) else as_text(value))
        for name, value in run.machine.items()
    ]
    recipe = json.dumps(run.recipe, indent=2, ensure_ascii=False)
    parts = [
        facts(pairs),
        paragraphs([" ".join(notes)], "soft note") if notes else Markup(""),
        fold("Machine and versions", settings([*machine, *sorted(run.versions.items())])),
        fold("Recipe", fragment("<pre>{{ recipe }}</pre>", {"recipe": recipe})),
    ]
    return Section("overview", "Overview", Markup("").join(parts))


def as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# --- funnel -----------------------------------------------------------------------------------------------------------


def funnel(data: ReportData) -> Section | None:
    """Documents, text and tokens that are left after each stage, and a bar of sources for each."""
    steps = data.steps
    if not steps:
        return None
    groups = sources_shown(data.run)
    looks = [series_class(k) if name != OTHERS else "series-0" for k, name in enumerate(groups)]
    looks = looks if len(groups) > 1 else ["kept-shape"]
    widest = max((step.kept + step.gone for step in steps), default=0) or 1
    bars = []
    for step in steps:
        parts = [sum(step.left.get(name, 0) for name in names) for names in groups.values()]
        parts = parts if sum(parts) == step.kept else [step.kept]  # sources that a stage does not tell apart
        pieces = [(count / widest, look) for count, look in zip(parts, looks, strict=False)]
        bars.append([[*pieces, (step.gone / widest, "lost-shape")]])
    volumes = [step.volume for step in steps]
    columns: dict[str, list[str]] = {
        "after": [data.link(step.name) for step in steps],
        "left": [as_number(step.kept) for step in steps],
        "gone here": [as_change(-step.gone) for step in steps],
    }
    measures = {
        "text": (as_size, any(volume.text_bytes is not None for volume in volumes)),
        "tokens": (as_count, any(volume.tokens is not None for volume in volumes)),
    }
    columns |= {name: [words(volume) for volume in volumes] for name, (words, there) in measures.items() if there}
    estimated = any(volume.tokens and not volume.counted for volume in volumes)
    note = (
        "~: estimated from the text, at the bytes that a token of its source turned out to hold." if estimated else ""
    )
    table = Table.of(
        "The length of a bar is the number of documents",
        columns,
        zip(*columns.values(), strict=True),
        bars=bars,
        note=note,
    )
    names = list(zip(looks, groups, strict=True)) if len(groups) > 1 else [("kept-shape", "left")]
    html = key_of([*names, ("lost-shape", "gone here")]) + tables(table)
    html += paragraphs((f"`{stage.name}` {stage.place}" for stage in data.run.stages if stage.place), "soft note")
    return Section("funnel", "Documents left after each stage", html, "Funnel")


def sources_shown(run: RunRecord) -> dict[str, list[str]]:
    """Sources by what they are called on the page, the largest first: where there are many, the last name stands for
    several."""
    names = [reader.name for reader in sorted(run.readers, key=lambda reader: (-reader.count.kept, reader.name))]
    if len(names) <= SERIES:
        return {name: [name] for name in names}
    return {**{name: [name] for name in names[: SERIES - 1]}, OTHERS: names[SERIES - 1 :]}


def as_size(volume: Volume) -> str:
    return as_bytes(volume.text_bytes)


def as_count(volume: Volume) -> str:
    return as_tokens(volume.tokens, volume.counted)


def published(data: ReportData) -> Section | None:
    """The run beside what the publishers of its recipe report."""
    found = data.seen.published
    if not found:
        return None
    about = (
        "What the publishers of this recipe report, and this run. A dash: the run does not know."
        f" Far off: a share by more than {100 * WITHIN:.0f} points, or what stays threefold; a size"
        " threefold, tokens a document twofold."
    )
    rows = [
        (
            data.link(its.what),
            its.measure,
            its.in_words(its.published),
            its.in_words(its.ours),
            "far off" if its.far else "",
            its.source,
        )
        for its in found
    ]
    head = ("step", "figure", "published", "this run", "", "source")
    html = paragraphs([about]) + tables(Table.of("", head, rows, words={0, 1, 4, 5}))
    return Section("published", "Beside the published pipeline", html, "Published")


# --- time -------------------------------------------------------------------------------------------------------------


def time(data: ReportData) -> Section:
    run = data.run
    priced = bool(run.cost)
    head = ("stage", *COUNTS, "gone", "time", "docs/s", "memory", *(["cost"] if priced else []))
    rows = [
        (
            data.link(stage.name),
            *map(as_number, (stage.count.docs_in, stage.count.kept, stage.count.lost, stage.count.quarantined)),
            as_share(stage.count.gone, stage.count.docs_in),
            as_seconds(stage.count.seconds),
            as_rate(stage.count.docs_in, stage.count.seconds),
            as_bytes(stage.peak_memory),
            *([as_amount(stage.cost)] if priced else []),
        )
        for stage in run.stages
    ]
    longest = max((stage.count.seconds for stage in run.stages), default=0.0) or 1.0
    bars = [[[(stage.count.seconds / longest, "all-shape")]] for stage in run.stages]
    about = (
        "In = kept + dropped + quarantined, for every stage. For sources: records = documents + skipped + damaged. Time"
        " is summed over workers, and drawn as a bar."
    )
    html = fragment('<div class="times">{{ table }}</div>', {"table": tables(Table.of(about, head, rows, bars=bars))})
    if run.bytes_written:
        documents = sum(reader.count.kept for reader in run.readers)
        html += paragraphs([f"Written: {written_each(run.bytes_written, documents)}."], "soft note")
    return Section("table", "Time and memory", html)


# --- sources ----------------------------------------------------------------------------------------------------------


def sources(data: ReportData) -> Section | None:
    """What became of each source, over all stages that it passed, and the stage and reason that took most."""
    rows = []
    for reader in data.run.readers:
        passed = [(reader.name, reader.count)]
        passed += [
            (stage.name, stage.sources[reader.name])
            for stage in data.run.stages
            if stage.kind != "read" and reader.name in stage.sources
        ]
        takers = [(n, f"{name}: {reason}") for name, count in passed for reason, n in count.dropped.items()]
        most, worst = max(takers, default=(0, ""))
        kept, lost = passed[-1][1].kept, sum(count.lost for _, count in passed)
        quarantined = sum(count.quarantined for _, count in passed)
        rows.append(
            (
                reader.name,
                *map(as_number, (reader.count.docs_in, kept)),
                as_share(kept, reader.count.docs_in),
                *map(as_number, (lost, quarantined)),
                f"{worst} ({most:,})" if worst else "–",
            )
        )
    if not rows:
        return None
    head = ("source", "records", "kept", "share", "dropped", "quarantined", "most went by")
    notes = [*fetches_of(data.run.inputs), *notes_of(data.run.inputs)]
    html = tables(Table.of("What became of each source, over all stages", head, rows, words={0, 6}))
    if notes:
        html += fragment('<ul>{% for note in notes %}<li dir="auto">{{ note }}</li>{% endfor %}</ul>', {"notes": notes})
    return Section("sources", "Sources", html)


def trained(data: ReportData) -> Section | None:
    """Whether models that learned from this data got better."""
    return Section("ablations", "Ablations", data.trained) if data.trained else None
