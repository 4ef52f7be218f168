"""One stage of a run: its counts, what it dropped with samples, what it tells of itself; in a terminal too.

Crawled text is hostile: nothing of it reaches a terminal before `plain` took its control characters, or as rich markup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gristmill.pipeline.formatting import (
    as_bytes,
    as_hex,
    as_number,
    as_seconds,
    as_share,
    by_size,
    nearest,
    one_line,
    plain,
)
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.look.run_folder import NotFound, RunFolder, one_of
from gristmill.pipeline.report_data.documents import SampleEntry, around
from gristmill.pipeline.report_data.figures import figures_of
from gristmill.pipeline.store.run_records import StageRecord
from gristmill.pipeline.tables import TerminalTable, render_block
from gristmill.stages.figures import StageFigures

SLOW_SHOWN = 5
OF_COUNT = ("docs_in", "kept", "dropped", "quarantined", "text_bytes", "made")  # for `--json`
OF_STAGE = ("seconds", "bytes_in", "bytes_out")


@dataclass(frozen=True)
class SampleDocument:
    """A document that went, and why."""

    reason: str
    uid: str | None
    url: str | None
    source: str | None
    detail: str | None
    text: str | None
    match: tuple[int, int] | None = None  # of the text, what it went for

    @classmethod
    def of(cls, reason: str, row: SampleEntry) -> SampleDocument:
        uid, url, source, detail, text = (
            None if row.get(name) is None else str(row.get(name)) for name in ("uid", "url", "source", "detail", "text")
        )
        start, end = row.get("match") or (0, 0)
        return cls(reason, uid, url, source, detail, text, (start, end) if end else None)

    @property
    def pieces(self) -> list[tuple[str, bool]]:
        """The text in pieces, and which of them is the match."""
        start, end = self.match or (0, 0)
        text = self.text or ""
        return [piece for piece in ((text[:start], False), (text[start:end], True), (text[end:], False)) if piece[0]]


@dataclass(frozen=True)
class StageView:
    """A stage's counts and some of what it dropped."""

    stage: StageRecord
    reason: str | None
    samples: list[SampleDocument]
    told: JSONObject = field(default_factory=dict)  # what the stage itself put into its report
    figures: StageFigures | None = None  # of `told`, for a terminal

    def as_data(self) -> dict[str, Any]:
        data = asdict(self)
        del data["figures"]
        return data | {"stage": as_data(self.stage)}


def as_data(stage: StageRecord) -> JSONObject:
    """A stage for `--json`."""
    counts = {source: asdict(count) for source, count in stage.sources.items()}
    whole = asdict(stage.count)
    return {
        **{name: getattr(stage, name) for name in ("name", "kind", "about", "settings")},
        "count": {name: whole[name] for name in OF_COUNT},
        "sources": {source: {name: count[name] for name in OF_COUNT} for source, count in counts.items()},
        **{name: whole[name] for name in OF_STAGE},
        "peak_memory": stage.peak_memory,
        "cost": stage.cost,
        "slowest": [asdict(slow) for slow in stage.slowest],
    }


def stage_view(folder: RunFolder, stage: str, reason: str | None = None, limit: int = 10) -> StageView:
    """A stage's counts with up to `limit` samples of what it dropped, of one reason or evenly of all."""
    entry = folder.stage(stage)
    reasons = list(entry.drops)
    if reason is not None and reason not in reasons:
        raise NotFound(f"stage {stage} dropped nothing for reason {one_line(reason)!r}{nearest(reason, reasons)}")
    wanted = [reason] if reason is not None else reasons
    report = folder.report(stage)
    by_reason = {name: samples_of(folder, stage, name, report.get("samples") or {}, limit) for name in wanted}
    turns = [
        (turn, order, sample) for order, group in enumerate(by_reason.values()) for turn, sample in enumerate(group)
    ]
    chosen = sorted(sorted(turns, key=lambda item: item[:2])[:limit], key=lambda item: (item[1], item[0]))
    samples = [sample for _, _, sample in chosen]
    if reason is not None:
        return StageView(entry, reason, samples)
    told = {key: value for key, value in report.items() if key not in {*entry.to_json(), "samples"}}
    return StageView(entry, reason, samples, told, figures_of(entry.recipe_name, report))


def samples_of(
    folder: RunFolder, stage: str, reason: str, reported: Mapping[str, Sequence[SampleEntry]], limit: int
) -> list[SampleDocument]:
    """Samples that the stage's report holds; where they are too few, the rejects themselves."""
    samples = [SampleDocument.of(reason, row) for row in reported.get(reason) or []]
    if len(samples) >= limit:
        return samples[:limit]
    rejected: list[SampleDocument] = []
    for file in folder.rejects([stage]):
        rows = [row for _, row in folder.reject_rows([file], "reason", one_of(reason), limit - len(rejected))]
        details = details_of(folder, stage, file.key, [row.uid for row in rows if row.uid is not None])
        for row in rows:
            text, match = None, None
            if row.text is not None:
                text, match = around(row.text, folder.places.of(stage, reason, row.text))
            detail = row.detail if row.uid is None else details.get(row.uid, row.detail)
            rejected.append(SampleDocument(reason, as_hex(row.uid), row.url, row.source, detail, text, match))
        if len(rejected) >= limit:
            break
    return rejected if len(rejected) > len(samples) else samples


def details_of(folder: RunFolder, stage: str, key: str, uids: Sequence[int]) -> dict[int, str]:
    """What a rule dropped documents of a part for, in numbers, by uid."""
    if stage not in folder.rules_by_name:
        return {}
    from gristmill.pipeline.report_data.rejects import detail_of, reasons_by_uid  # with rules and their kernels

    bound = [each for pairs in folder.rules_by_name.values() for each in pairs]
    details: dict[int, str] = {}
    for part in [part for _, part in folder.rules_by_name[stage] if part.key == key]:
        rules = [rule for rule, its in bound if its == part]
        for uid, answer in reasons_by_uid(folder.open, rules, part, uids):
            detail = detail_of(stage, answer)
            if detail is not None:
                details[uid] = detail
    return details


# --- terminal ---------------------------------------------------------------------------------------------------------


def render_stage(view: StageView) -> RenderableType:
    count = view.stage.count
    reasons = by_size(view.stage.drops)
    rows = ((reason, n, as_share(n, count.docs_in)) for reason, n in reasons)
    settings = [
        Text(f"  {one_line(str(key))} = {one_line(json.dumps(value))}", style="dim")
        for key, value in view.stage.settings.items()
    ]
    head = Text.assemble((one_line(view.stage.name), "bold"), f"  {one_line(view.stage.about)}")
    made = f"{as_number(count.made)} made of them, " if count.made else ""
    passed = Text(f"{as_number(count.docs_in)} in, {made}{as_number(count.kept)} kept", style="dim")
    parts: list[RenderableType] = [head, *settings, passed]
    parts += [Text(), TerminalTable.of("Drops", ("reason", "documents", "of its input"), rows)] if reasons else []
    slowest = (
        (slow.uid, slow.url, as_bytes(slow.bytes), as_seconds(slow.seconds)) for slow in view.stage.slowest[:SLOW_SHOWN]
    )
    parts += (
        [Text(), TerminalTable.of("Slowest documents", ("uid", "url", "size", "time"), slowest, 2)]
        if view.stage.slowest
        else []
    )
    for block in view.figures.blocks if view.figures is not None else ():
        shown = render_block(block)
        parts += [Text(), *shown] if shown else []
    for sample in view.samples:
        title = " · ".join(one_line(part) for part in (sample.reason, sample.source, sample.uid, sample.detail) if part)
        lines = [Text(title, style="bold"), Text(one_line(sample.url or "no URL"), style="cyan")]
        excerpt = Text.assemble(*((plain(piece), "reverse" if match else "") for piece, match in sample.pieces))
        parts += [Text(), *lines, *([Padding(excerpt, (0, 0, 0, 2))] if excerpt.plain else [])]
    return Group(*parts)
