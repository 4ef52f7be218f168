"""report.html from run.json, what each stage reported, and the survey of each segment. Crawled text in it is hostile:
see `sections.environment`."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from gristmill.pipeline.formatting import as_bytes, as_energy, as_money, as_requests, by_size, plain
from gristmill.pipeline.inputs.notes import fetches_of, notes_of
from gristmill.pipeline.look.funnel import Funnel
from gristmill.pipeline.look.overview import written_each
from gristmill.pipeline.look.published import beside_published, within_of
from gristmill.pipeline.look.run_folder import RunFolder, Told
from gristmill.pipeline.look.stage_view import SampleDocument
from gristmill.pipeline.report.ablation_section import ablations
from gristmill.pipeline.report.blocks import section_of
from gristmill.pipeline.report.funnel import FunnelTable, funnel
from gristmill.pipeline.report.sections import MAKERS, TOPICS, Section, SectionMaker, environment, sections_of
from gristmill.pipeline.report.sliders import data_of, effects, explained, languages, signal_sections
from gristmill.pipeline.report_data.histograms import SurveyRecord
from gristmill.pipeline.store.counts import Counts, DocumentCounts
from gristmill.pipeline.store.run_records import RunRecord, StageRecord
from gristmill.pipeline.tables import as_html
from gristmill.stages.figures import count_bars

SAMPLES = 5  # of a reason; the rest are in the rejects
READERS = 4  # shown one by one; more are folded into one line
FAILED = {"failed": "The run failed", "interrupted": "The run was interrupted"}
HERE = Path(__file__).parent


@dataclass(frozen=True)
class SourceFate:
    """What became of a source: records, what was kept at the end, and the stage and reason that took most."""

    name: str
    count: DocumentCounts
    kept: int
    lost: int
    quarantined: int
    worst: str
    worst_count: int


@dataclass(frozen=True)
class StagePage:
    """All that the page shows of a stage."""

    stage: StageRecord
    anchor: str
    settings: list[tuple[str, str]]
    drops: Markup | None
    samples: list[tuple[str, list[SampleDocument]]]
    stays: list[SampleDocument]  # documents that all rules of its segment keep
    sections: list[Section]
    topics: list[str]  # where else the page tells of it
    not_shown: list[str]  # what the report lacks, and why


@dataclass(frozen=True)
class Topic:
    """A part of the page that is about one thing and not one stage."""

    key: str
    title: str
    about: str
    sections: list[tuple[str, Section]]  # with the name of the stage


def build_report(folder: RunFolder, makers: Mapping[str, SectionMaker] = MAKERS) -> str:
    """The text of report.html for an output folder; the caller writes it."""
    reports, trained, where = folder.reports(), ablations(folder), shlex.quote(plain(folder.out))
    return page_of(folder.record, reports, makers, folder.surveys, trained, where)


def page_of(
    run: RunRecord,
    reports: Mapping[str, Told],
    makers: Mapping[str, SectionMaker] = MAKERS,
    surveys: Sequence[SurveyRecord] = (),
    trained: Sequence[Section] = (),
    where: str = "OUT",
) -> str:
    """The page, from run.json and the stages' reports by name. A stage without a report (a run that failed) has its
    counts alone."""
    counted = Funnel.of(run, reports)
    pages, by_topic = [], []
    for number, stage in enumerate(run.stages):
        page, elsewhere = stage_page(stage, number, reports.get(stage.name, {}), makers, surveys)
        pages.append(page)
        by_topic += [(stage.name, section) for section in elsewhere]
    spoken = languages(surveys)
    by_topic += [("", spoken)] if spoken is not None else []
    by_topic += [("", section) for section in trained]
    seen: set[str] = set()
    pages = [replace(page, sections=explained(page.sections, seen)) for page in pages]
    folded = [page for page in pages if page.stage.kind == "read"] if len(run.readers) > READERS else []
    script = (HERE / "script.js").read_text("utf-8")
    values = {
        "run": run,
        "funnel": funnel(run, counted) if run.readers or run.stages else FunnelTable.empty(),
        "published": beside_published(run, counted),
        "within": within_of(run),
        "input_notes": [*fetches_of(run.inputs), *notes_of(run.inputs)],
        "sources": [fate(run, reader) for reader in run.readers],
        "stages": [page for page in pages if page not in folded],
        "folded": folded,
        "readers": as_one(run.readers) if folded else None,
        "failure": (FAILED.get(run.status, "What went wrong"), run.error) if run.error else None,
        "topics": topics_of(by_topic),
        "effects": effects(surveys, run),
        "anchors": {page.stage.name: page.anchor for page in pages},
        "data": data_of(surveys, run, counted.volumes, where),
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "costs": costs(run),
        "recipe": json.dumps(run.recipe, indent=2, ensure_ascii=False),
        "machine": [
            (key, as_bytes(value) if key == "memory" and isinstance(value, int) else as_text(value))
            for key, value in run.machine.items()
        ],
        "versions": sorted(run.versions.items()),
    }
    return environment().get_template("page.html").render(values)


def as_one(readers: Sequence[StageRecord]) -> StageRecord:
    """All sources as one line of a table."""
    total = Counts()
    for reader in readers:
        its = reader.count
        total.add(Counts(its.docs_in, its.kept, Counter(its.dropped), its.quarantined, its.seconds, its.bytes_in))
    peak = max((reader.peak_memory for reader in readers if reader.peak_memory), default=None)
    return StageRecord(f"{len(readers)} sources", kind="read", count=total.in_record(), peak_memory=peak)


def costs(run: RunRecord) -> dict[str, str]:
    """What a run took beside time, in words; empty where nobody measured it."""
    peak = max((stage.peak_memory for stage in run.stages if stage.peak_memory), default=None)
    written, documents = run.bytes_written or None, sum(reader.count.kept for reader in run.readers)
    amounts = {
        "peak_memory": (peak, as_bytes(peak)),
        "disk": (run.disk_bytes, as_bytes(run.disk_bytes)),
        "written": (written, written_each(written, documents) if written else ""),
        "energy": (run.joules, as_energy(run.joules)),
        "requests": (run.requests or None, as_requests(run.requests or {})),
        "money": (run.cost, as_money(run.cost.amount, run.cost.currency) if run.cost else ""),
    }
    return {name: "" if amount is None else words for name, (amount, words) in amounts.items()}


def topics_of(sections: Sequence[tuple[str, Section]]) -> list[Topic]:
    return [
        Topic(key, title, about, of_topic)
        for key, (title, about) in TOPICS.items()
        if (of_topic := [(stage, section) for stage, section in sections if section.topic == key])
    ]


def fate(run: RunRecord, reader: StageRecord) -> SourceFate:
    """One source's way through all stages that it passed."""
    passed = [(reader.name, reader.count)]
    passed += [
        (stage.name, stage.sources[reader.name])
        for stage in run.stages
        if stage.kind != "read" and reader.name in stage.sources
    ]
    takers = [(n, f"{name}: {reason}") for name, count in passed for reason, n in count.dropped.items()]
    worst_count, worst = max(takers, default=(0, ""))
    lost, quarantined = (sum(count.lost for _, count in passed), sum(count.quarantined for _, count in passed))
    return SourceFate(reader.name, reader.count, passed[-1][1].kept, lost, quarantined, worst, worst_count)


def stage_page(
    stage: StageRecord,
    number: int,
    report: Told,
    makers: Mapping[str, SectionMaker],
    surveys: Sequence[SurveyRecord],
) -> tuple[StagePage, list[Section]]:
    """What stands with the stage, and its sections that stand elsewhere."""
    reasons = by_size(stage.drops)
    drops = (
        as_html(count_bars("Dropped, by first reason; share of what came in", "reason", reasons, stage.count.docs_in))
        if reasons
        else None
    )
    ready = report.get("samples") or {}
    order = [reason for reason, _ in reasons if ready.get(reason)] + sorted(
        set(ready) - {reason for reason, _ in reasons}
    )
    samples = [(reason, [SampleDocument.of(reason, row) for row in ready[reason][:SAMPLES]]) for reason in order]
    stays = [
        SampleDocument.of("", row)
        for survey in surveys
        if list(survey["rules"])[-1:] == [stage.name]
        for row in survey["kept"]
    ]
    settings = [(str(name), as_text(value)) for name, value in stage.settings.items()]
    own = section_of(stage, report)
    made = [*([own] if own is not None else []), *sections_of(stage, report, makers), *signal_sections(stage, surveys)]
    apart = [section for section in made if section.topic]
    with_it = [section for section in made if not section.topic]
    topics = list(dict.fromkeys(section.topic for section in apart))
    return StagePage(
        stage, f"stage-{number}", settings, drops, samples, stays, with_it, topics, list(report.get("not_shown", []))
    ), apart


def as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
