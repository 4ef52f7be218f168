"""A run at a glance: what was read and kept, the funnel by source, time and throughput by stage, peak memory, alarms.

All of it comes from run.json, and tokens from what stages told. The terminal (`gristmill inspect`), its `--json` and
report.html show these numbers and no others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from gristmill.pipeline.formatting import (
    as_amount,
    as_bytes,
    as_energy,
    as_moment,
    as_money,
    as_number,
    as_rate,
    as_requests,
    as_seconds,
    as_share,
    as_tokens,
    by_size,
    one_line,
)
from gristmill.pipeline.look.funnel import Funnel, SourceLevel, Volume
from gristmill.pipeline.look.published import Beside, beside_published
from gristmill.pipeline.look.run_folder import RunFolder, Told
from gristmill.pipeline.look.stage_view import as_data
from gristmill.pipeline.store.run_records import RunRecord, StageRecord
from gristmill.pipeline.tables import TerminalTable

OF_RUN = (
    "name", "status", "error", "started", "finished", "seconds", "alarms", "gristmill", "versions", "machine", "recipe"
)  # for `--json`  # fmt: skip


@dataclass(frozen=True)
class Totals:
    """The run in a few numbers."""

    records: int
    documents: int
    kept: int
    bytes_read: int
    worker_seconds: float
    peak_memory: int | None
    disk_bytes: int | None
    bytes_written: Mapping[str, int] | None
    text_bytes: int | None
    tokens: int | None
    tokens_counted: bool  # and not estimated from the text
    joules: float | None
    requests: Mapping[str, int] | None  # to object stores
    cost: float | None
    currency: str | None


@dataclass(frozen=True)
class StageCost:
    """What a stage took, and how fast it was. Seconds are those of workers, added up."""

    stage: str
    docs_in: int
    seconds: float | None
    documents_per_second: float | None
    bytes_in: int | None
    bytes_per_second: float | None
    bytes_out: int | None
    peak_memory: int | None
    cost: float | None


@dataclass(frozen=True)
class Overview:
    """run.json, and what follows from it."""

    run: RunRecord
    totals: Totals
    funnel: Funnel
    costs: list[StageCost]
    published: list[Beside]  # what the recipe's publisher reports, and this run


def overview(folder: RunFolder) -> Overview:
    """The run as a whole."""
    return overview_of(folder.record, folder.reports("global"))


def overview_of(run: RunRecord, reports: Mapping[str, Told]) -> Overview:
    funnel = Funnel.of(run, reports)
    last = funnel.steps[-1].volume if funnel.steps else Volume()
    memory = [stage.peak_memory for stage in run.stages if stage.peak_memory]
    totals = Totals(
        records=sum(reader.count.docs_in for reader in run.readers),
        documents=sum(reader.count.kept for reader in run.readers),
        kept=sum(funnel.left.values()),
        bytes_read=sum(reader.count.bytes_in for reader in run.readers),
        worker_seconds=round(sum(stage.count.seconds for stage in run.stages), 4),
        peak_memory=max(memory, default=None),
        disk_bytes=run.disk_bytes,
        bytes_written=run.bytes_written or None,
        text_bytes=last.text_bytes,
        tokens=last.tokens,
        tokens_counted=last.counted,
        joules=run.joules,
        requests=run.requests,
        cost=run.cost.amount if run.cost else None,
        currency=run.cost.currency if run.cost else None,
    )
    return Overview(run, totals, funnel, [cost(stage) for stage in run.stages], beside_published(run, funnel))


def cost(stage: StageRecord) -> StageCost:
    def each_second(amount: int | None) -> float | None:
        return amount / count.seconds if amount and count.seconds else None

    count = stage.count
    rates = (count.bytes_in, each_second(count.bytes_in), count.bytes_out, stage.peak_memory, stage.cost)
    return StageCost(stage.name, count.docs_in, count.seconds, each_second(count.docs_in), *rates)


def plain(seen: Overview) -> Mapping[str, object]:
    """For `--json`: what run.json says, with totals, funnel and costs beside it."""
    run = {name: getattr(seen.run, name) for name in OF_RUN}
    return run | {
        "stages": [as_data(stage) for stage in seen.run.stages],
        "totals": dataclasses.asdict(seen.totals),
        "funnel": [dataclasses.asdict(level) for level in seen.funnel.levels],
        "costs": [dataclasses.asdict(cost) for cost in seen.costs],
        "published": [dataclasses.asdict(beside) for beside in seen.published],
    }


def written_each(bytes_written: Mapping[str, int], documents: int) -> str:
    """What a run wrote for each document that it read, those files that went again too."""
    each = {use: as_bytes(round(size / max(1, documents))) for use, size in bytes_written.items()}
    whole = as_bytes(round(sum(bytes_written.values()) / max(1, documents)))
    return f"{whole} a document ({', '.join(f'{use} {size}' for use, size in each.items())})"


# --- terminal ---------------------------------------------------------------------------------------------------------


def render(seen: Overview) -> RenderableType:
    run, totals = seen.run, seen.totals
    head = Text.assemble(
        (one_line(run.name), "bold"),
        "  ".join(("", one_line(run.status), one_line(as_moment(run.started)), as_seconds(run.seconds))),
    )
    failure = [Text(one_line(run.error), style="bold red")] if run.error else []
    alarms = [Text(f"alarm: {one_line(alarm)}", style="bold red") for alarm in run.alarms]
    written = written_each(totals.bytes_written, totals.documents) if totals.bytes_written else ""
    spent = [
        *([] if totals.joules is None else [as_energy(totals.joules)]),
        *([] if totals.cost is None else [as_money(totals.cost, totals.currency)]),
    ]
    amounts = [
        f"{as_number(totals.records)} records, {as_number(totals.documents)} documents, {as_number(totals.kept)} kept"
        f" ({as_share(totals.kept, totals.documents)})",
        f"{as_bytes(totals.text_bytes)} of text left, {as_tokens(totals.tokens, totals.tokens_counted)} tokens",
        f"{as_bytes(totals.bytes_read)} read in {as_seconds(totals.worker_seconds)} of workers,"
        f" at most {as_bytes(totals.peak_memory)} of memory in one",
        f"{as_bytes(totals.disk_bytes)} on disk" + (f", written {written}" if written else ""),
        *([f"requests: {as_requests(totals.requests)}"] if totals.requests else []),
        *([", ".join(spent)] if spent else []),
    ]
    heads = ("stage", "kind", "in", "kept", "dropped", "quarantined", "gone", "text", "tokens")
    tables = [
        TerminalTable.of(
            "Stages", heads, (counts_of(stage, seen.funnel.levels) for stage in run.stages), 2, spared=(1, 8)
        )
    ]
    if len(run.readers) > 1:
        tables.append(TerminalTable.of("Left of each source", *by_sources(seen)))
    if seen.published:
        rows = (
            (b.what, b.measure, b.in_words(b.published), b.in_words(b.ours), "far off" if b.far else "")
            for b in seen.published
        )
        tables.append(TerminalTable.of("Published", ("step", "figure", "published", "this run", ""), rows, 2))
    priced = totals.cost is not None
    head_of_time = ("stage", "seconds", "docs/s", "read", "read/s", "memory", *(["cost"] if priced else []))
    tables.append(TerminalTable.of("Time", head_of_time, (cost_of(cost)[: len(head_of_time)] for cost in seen.costs)))
    tables.append(TerminalTable.of("Drops", ("stage", "reason", "documents", "of its input"), drops_of(run), 2))
    return Group(
        head,
        *failure,
        *alarms,
        *(Text(amount, style="dim") for amount in amounts),
        *(part for table in tables for part in (Text(), table)),
    )


def counts_of(stage: StageRecord, levels: Sequence[SourceLevel]) -> Sequence[object]:
    count = stage.count
    volume = Volume.of_all(level.volume for level in levels if level.stage == stage.name)
    left = as_bytes(volume.text_bytes), as_tokens(volume.tokens, volume.counted)
    numbers = (count.docs_in, count.kept, count.lost, count.quarantined)
    return (stage.name, stage.kind, *numbers, as_share(count.gone, count.docs_in), *left)


def cost_of(cost: StageCost) -> Sequence[object]:
    speed = f"{as_bytes(cost.bytes_per_second)}" if cost.bytes_per_second else "–"
    return (
        cost.stage,
        as_seconds(cost.seconds),
        as_rate(cost.docs_in, cost.seconds),
        as_bytes(cost.bytes_in or None),
        speed,
        as_bytes(cost.peak_memory),
        as_amount(cost.cost),
    )


def by_sources(seen: Overview) -> tuple[Sequence[str], Iterator[Sequence[object]]]:
    """The funnel with a column for each source; a stage that a source does not pass has a dash there."""
    sources = list(dict.fromkeys(level.source for level in seen.funnel.levels))
    by_stage: dict[str, dict[str, int]] = {}
    for level in seen.funnel.levels:
        by_stage.setdefault(level.stage, {})[level.source] = level.left
    rows = ((stage, *(left.get(source) for source in sources)) for stage, left in by_stage.items())
    return ("after", *sources), rows


def drops_of(run: RunRecord) -> Iterator[Sequence[object]]:
    for stage in run.stages:
        for reason, n in by_size(stage.count.dropped):
            yield stage.name, reason, n, as_share(n, stage.count.docs_in)
