"""A run at a glance: what was read and kept, the funnel by source, time and throughput by stage, peak memory, alarms.

All of it comes from run.json alone. The terminal (`gristmill inspect`), its `--json` and report.html show these numbers and no others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pipeline.inspect import Folder, Run, StageCount, by_size, grid
from pipeline.words import as_bytes, as_number, as_rate, as_seconds, as_share, one_line


@dataclass(frozen=True)
class Totals:
    """The run in seven numbers."""

    records: int
    documents: int
    kept: int
    bytes_read: int
    worker_seconds: float
    peak_memory: int | None
    disk_bytes: int | None


@dataclass(frozen=True)
class Level:
    """What is left of one source after a stage, and what went there. `gone` counts all reasons and what was quarantined."""

    stage: str
    source: str
    left: int
    gone: int


@dataclass(frozen=True)
class Cost:
    """What a stage took, and how fast it was. Seconds are those of workers, added up."""

    stage: str
    docs_in: int
    seconds: float | None
    documents_per_second: float | None
    bytes_in: int | None
    bytes_per_second: float | None
    bytes_out: int | None
    peak_memory: int | None


@dataclass(frozen=True)
class Overview:
    """run.json, and what follows from it."""

    run: Run
    totals: Totals
    funnel: list[Level]
    costs: list[Cost]


def overview(out: str) -> Overview:
    """The run as a whole."""
    return overview_of(Folder.open(out).json("run.json"))


def overview_of(found: Mapping[str, Any]) -> Overview:
    run = Run.of(found)
    levels = funnel(run)
    memory = [stage.peak_memory for stage in run.stages if stage.peak_memory]
    totals = Totals(
        records=sum(reader.count.docs_in for reader in run.readers),
        documents=sum(reader.count.kept for reader in run.readers),
        kept=sum(left_at_last(levels).values()),
        bytes_read=sum(reader.bytes_in or 0 for reader in run.readers),
        worker_seconds=round(sum(stage.seconds or 0.0 for stage in run.stages), 4),
        peak_memory=max(memory, default=None),
        disk_bytes=found.get("disk_bytes"),
    )
    return Overview(run, totals, levels, [cost(stage) for stage in run.stages])


def funnel(run: Run) -> list[Level]:
    """For each source its reader, then the stages that it passed, in order."""
    levels = [
        Level(reader.name, source, its.kept, its.lost + its.quarantined)
        for reader in run.readers
        for source, its in by_source(reader).items()
    ]
    levels += [
        Level(stage.name, source, its.kept, its.lost + its.quarantined)
        for stage in run.stages
        if stage.kind != "read"
        for source, its in stage.sources.items()
    ]
    return levels


def by_source(reader: StageCount) -> Mapping[str, Any]:
    return reader.sources or {reader.name: reader.count}


def left_at_last(levels: Sequence[Level]) -> dict[str, int]:
    """What is left of each source in the end."""
    return {level.source: level.left for level in levels}


def cost(stage: StageCount) -> Cost:
    def each_second(amount: int | None) -> float | None:
        return amount / stage.seconds if amount and stage.seconds else None

    speed = each_second(stage.count.docs_in)
    rates = (stage.bytes_in, each_second(stage.bytes_in), stage.bytes_out, stage.peak_memory)
    return Cost(stage.name, stage.count.docs_in, stage.seconds, speed, *rates)


def plain(seen: Overview) -> dict[str, Any]:
    """For `--json`: what run.json says, with totals, funnel and costs beside it."""
    return dataclasses.asdict(seen.run) | {
        "totals": dataclasses.asdict(seen.totals),
        "funnel": [dataclasses.asdict(level) for level in seen.funnel],
        "costs": [dataclasses.asdict(one) for one in seen.costs],
    }


# --- terminal --------------------------------------------------------------------------------------------------------


def render(seen: Overview) -> RenderableType:
    run, totals = seen.run, seen.totals
    head = Text.assemble((one_line(run.name), "bold"), f"  {one_line(run.status)}  {one_line(run.started)}  {as_seconds(run.seconds)}")
    alarms = [Text(f"alarm: {one_line(alarm)}", style="bold red") for alarm in run.alarms]
    words = (
        f"{as_number(totals.records)} records, {as_number(totals.documents)} documents, {as_number(totals.kept)} kept"
        f" ({as_share(totals.kept, totals.documents)}); {as_bytes(totals.bytes_read)} read in {as_seconds(totals.worker_seconds)} of workers"
        f", at most {as_bytes(totals.peak_memory)} of memory in one, {as_bytes(totals.disk_bytes)} on disk"
    )
    tables = [grid("Stages", ("stage", "kind", "in", "kept", "dropped", "quarantined", "gone"), map(counts_of, run.stages), 2)]
    if len(run.readers) > 1:
        tables.append(grid("Left of each source", *by_sources(seen)))
    tables.append(grid("Time", ("stage", "seconds", "docs/s", "read", "read/s", "memory"), map(cost_of, seen.costs)))
    tables.append(grid("Drops", ("stage", "reason", "documents", "of its input"), drops_of(run), 2))
    return Group(head, *alarms, Text(words, style="dim"), *(part for table in tables for part in (Text(), table)))


def counts_of(stage: StageCount) -> Sequence[object]:
    count = stage.count
    numbers = [as_number(n) for n in (count.docs_in, count.kept, count.lost, count.quarantined)]
    return (stage.name, stage.kind, *numbers, as_share(count.lost + count.quarantined, count.docs_in))


def cost_of(cost: Cost) -> Sequence[object]:
    speed = f"{as_bytes(cost.bytes_per_second)}" if cost.bytes_per_second else "–"
    return (
        cost.stage,
        as_seconds(cost.seconds),
        as_rate(cost.docs_in, cost.seconds),
        as_bytes(cost.bytes_in),
        speed,
        as_bytes(cost.peak_memory),
    )


def by_sources(seen: Overview) -> tuple[Sequence[str], Iterator[Sequence[object]]]:
    """The funnel with a column for each source; a stage that a source does not pass has a dash there."""
    sources = list(dict.fromkeys(level.source for level in seen.funnel))
    left: dict[str, dict[str, Level]] = {}
    for level in seen.funnel:
        left.setdefault(level.stage, {})[level.source] = level
    shown = {stage: [as_number(its[source].left) if source in its else "–" for source in sources] for stage, its in left.items()}
    return ("after", *sources), ((stage, *numbers) for stage, numbers in shown.items())


def drops_of(run: Run) -> Iterator[Sequence[object]]:
    for stage in run.stages:
        for reason, n in by_size(stage.count.dropped):
            yield stage.name, reason, as_number(n), as_share(n, stage.count.docs_in)
