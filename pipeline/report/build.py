"""report.html from run.json and what each stage reported. Crawled text in it is hostile: see `sections.environment`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from pipeline.inspect import Count, Folder, Run, Sample, StageCount, by_size
from pipeline.report.makers import MAKERS
from pipeline.report.sections import Section, SectionMaker, bars, environment, sections_of

SAMPLES = 5  # of a reason; the rest are in the rejects


@dataclass(frozen=True)
class Level:
    """A line of the funnel, in percent of the widest."""

    name: str
    kept: int
    gone: int
    width: float
    gone_width: float


@dataclass(frozen=True)
class SourceFate:
    """What became of a source: records, what was kept at the end, and the stage and reason that took most."""

    name: str
    count: Count
    kept: int
    lost: int
    quarantined: int
    worst: str
    worst_count: int


@dataclass(frozen=True)
class StagePage:
    """All that the page shows of a stage."""

    stage: StageCount
    anchor: str
    settings: list[tuple[str, str]]
    drops: Markup | None
    samples: list[tuple[str, list[Sample]]]
    sections: list[Section]


def build_report(out: str, makers: Mapping[str, SectionMaker] = MAKERS) -> str:
    """The text of report.html for an output folder; the caller writes it."""
    folder = Folder.open(out)
    run = folder.json("run.json")
    paths = {str(entry["name"]): f"stages/{entry['name']}/report.json" for entry in run.get("stages") or []}
    return page_of(run, {name: folder.json(path) for name, path in paths.items() if folder.has(path)}, makers)


def page_of(found: Mapping[str, Any], reports: Mapping[str, Mapping[str, Any]], makers: Mapping[str, SectionMaker] = MAKERS) -> str:
    """The page, from run.json and the stages' reports by name. A stage without a report (a run that failed) has its counts alone."""
    run = Run.of(found)
    entries = zip(run.stages, found.get("stages") or [], strict=True)
    values = {
        "run": run,
        "levels": levels(run),
        "sources": [fate(run, reader) for reader in run.readers],
        "stages": [stage_page(stage, number, entry, reports.get(stage.name, {}), makers) for number, (stage, entry) in enumerate(entries)],
        "recipe": json.dumps(run.recipe, indent=2, ensure_ascii=False),
        "machine": [(key, shown(value)) for key, value in run.machine.items()],
        "versions": sorted(run.versions.items()),
    }
    return environment().get_template("page.html").render(values)


def levels(run: Run) -> list[Level]:
    steps = run.steps()
    widest = max((step.kept + step.gone for step in steps), default=0) or 1
    return [Level(step.name, step.kept, step.gone, 100 * step.kept / widest, 100 * step.gone / widest) for step in steps]


def fate(run: Run, reader: StageCount) -> SourceFate:
    """One source's way through all stages that it passed."""
    passed = [(reader.name, reader.count)]
    passed += [(stage.name, stage.sources[reader.name]) for stage in run.stages if stage.kind != "read" and reader.name in stage.sources]
    takers = [(n, f"{name}: {reason}") for name, count in passed for reason, n in count.dropped.items()]
    worst_count, worst = max(takers, default=(0, ""))
    lost, quarantined = (sum(count.lost for _, count in passed), sum(count.quarantined for _, count in passed))
    return SourceFate(reader.name, reader.count, passed[-1][1].kept, lost, quarantined, worst, worst_count)


def stage_page(
    stage: StageCount, number: int, entry: Mapping[str, Any], report: Mapping[str, Any], makers: Mapping[str, SectionMaker]
) -> StagePage:
    reasons = by_size(stage.count.dropped | ({stage.troubled: stage.count.quarantined} if stage.count.quarantined else {}))
    drops = bars("Dropped, by first reason; share of what came in", "reason", reasons, stage.count.docs_in) if reasons else None
    ready = report.get("samples") or {}
    order = [reason for reason, _ in reasons if ready.get(reason)] + sorted(set(ready) - {reason for reason, _ in reasons})
    samples = [(reason, [sample_of(reason, row) for row in ready[reason][:SAMPLES]]) for reason in order]
    settings = [(str(name), shown(value)) for name, value in stage.settings.items()]
    return StagePage(stage, f"stage-{number}", settings, drops, samples, sections_of(entry, report, makers))


def sample_of(reason: str, row: Mapping[str, Any]) -> Sample:
    return Sample(reason, *(None if row.get(key) is None else str(row[key]) for key in ("uid", "url", "source", "detail", "text")))


def shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
