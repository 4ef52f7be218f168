"""The points of the public summary that Article 53(1)(d) of the European Union's AI Act asks for, filled from a run.

What the template asks for is taken as the Commission's notice of 24 July 2025, C(2025) 8311, is reported: sources,
modalities and sizes, crawl periods, the behaviour of crawlers, the top 10 % of domains by size of content, synthetic
data. Nobody has checked it here against the official text. A value that the run does not know is None, and is shown as
`NOT_VERIFIED`; none is guessed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gristmill.pipeline.formatting import by_size
from gristmill.pipeline.look.run_folder import Told
from gristmill.pipeline.report_data.figures import figures_of
from gristmill.pipeline.store.run_records import RunRecord, StageRecord
from gristmill.pipeline.summary.content import UNNAMED, Content, Total, Totals
from gristmill.pipeline.tables import Table
from gristmill.stages.read.warc import CRAWLER

Cell = str | int | float | None

NOT_VERIFIED = "not verified"
SIZES = ("documents", "text bytes", "share")
FORGOTTEN = "forgotten"  # a reason of readers: the document was removed on request, and does not come back
LAW = {
    "act": "AI Act of the European Union, Article 53(1)(d)",
    "template": "template for the public summary of training content, 24 July 2025, C(2025) 8311",
    "applies": "duties since 2 August 2025; fines by the AI Office since 2 August 2026",
}
DRAFT = (
    "A draft from the counts of one run. It is no legal advice, and Gristmill's authors have not checked it against the"
    " official text of the template."
)


@dataclass(frozen=True)
class Point:
    """One thing that the template asks for. Of `facts` a value of None is not known."""

    key: str
    title: str
    facts: list[tuple[str, Cell]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        """`from the run`, `in part` where some of it is not known, `not verified` where nothing is."""
        values = [value for _, value in self.facts]
        known = any(value is not None for value in values) or any(table.rows for table in self.tables)
        return NOT_VERIFIED if not known else "in part" if None in values else "from the run"


@dataclass(frozen=True)
class PublicSummary:
    """All that is said of a run."""

    name: str
    run: dict[str, Cell]
    points: list[Point]

    def point(self, key: str) -> Point:
        return next(point for point in self.points if point.key == key)

    def plain(self) -> dict[str, object]:
        """For the JSON file: a fact that is not known is null, a share is a number from 0 to 1."""
        points = [
            {
                "key": point.key,
                "title": point.title,
                "status": point.status,
                "facts": dict(point.facts),
                "tables": [
                    {
                        "title": table.title,
                        "rows": [
                            dict(zip([column.name for column in table.columns], row, strict=True)) for row in table.rows
                        ],
                    }
                    for table in point.tables
                ],
                "notes": point.notes,
            }
            for point in self.points
        ]
        return {"for": "eu", "law": LAW, "draft": DRAFT, "name": self.name, "run": self.run, "points": points}


def summary_of(
    run: RunRecord, reports: Mapping[str, Told], content: Content, synthetic: Sequence[str]
) -> PublicSummary:
    """`synthetic` are sources that the team says hold synthetic data."""
    points = [
        general(run, reports, content),
        sources(run, reports, content),
        periods(content),
        crawlers(run.stages),
        domains(content),
        licenses(content),
        made_up(content, synthetic),
        reservations(run.stages, reports),
        processing(run.stages),
        Point("rest", "Whatever else the template asks for", [("provider, model, other points", None)]),
    ]
    head: dict[str, Cell] = {
        "finished": run.finished,
        "gristmill": run.gristmill,
        "documents written by": content.sink,
    }
    return PublicSummary(run.name, head, points)


def packings(reports: Mapping[str, Told]) -> list[Told]:
    return [report["packing"] for report in reports.values() if isinstance(report.get("packing"), dict)]


def general(run: RunRecord, reports: Mapping[str, Told], content: Content) -> Point:
    """Modalities and sizes."""
    whole = content.whole
    packed = packings(reports)
    tokens = content.tokens if content.columns and "token_count" in content.columns else None
    facts: list[tuple[str, Cell]] = [
        ("modality", "text"),
        ("documents", whole.documents),
        ("text, bytes of UTF-8", whole.text_bytes),
        ("tokens", packed[-1]["tokens"] if packed else tokens),
    ]
    notes = ["Stages of Gristmill write text alone: images, sound and video of a source are not in the data."]
    if packed:
        notes.append("Tokens are those of the token shards, with the copies that `mix` drew.")
    if any("estimate" in given for given in run.inputs.values()):
        notes.append("The run read a part of its inputs (--limit or --sample). These are the counts of that part.")
    names = [stage.name for stage in run.stages]
    after = run.stages[names.index(content.sink) + 1 :] if content.sink in names else []
    if later := {stage.name: stage.count.gone for stage in after if stage.count.gone}:
        dropped = ", ".join(f"{name} {gone:,}" for name, gone in later.items())
        notes.append(f"Stages after `{content.sink}` dropped documents that are counted here: {dropped}.")
    tables = [table_of("Languages", "language", content.languages, whole)] if content.languages.named else []
    return Point("content", "Modality and size", facts, tables, notes)


def sources(run: RunRecord, reports: Mapping[str, Told], content: Content) -> Point:
    """Where documents come from, and how much of each source is left."""
    whole = content.whole
    packed = packings(reports)
    tokens = packed[-1].get("sources") or {} if packed else {}
    rows = []
    for reader in run.readers:
        name = reader.name
        left, given = content.sources.get(name, Total()), run.inputs.get(name) or {}
        of_source = (name, reader.recipe_name, given.get("files"), given.get("bytes"), reader.count.docs_in)
        rows.append((*of_source, *left.beside(whole), (tokens.get(name) or {}).get("tokens")))
    head = ("source", "kind", "files", "bytes", "records", *SIZES, "tokens")
    table = Table.of("Sources", head, rows, 2, shares=["share"])
    return Point("sources", "Sources", [("sources", len(rows))], [table])


def periods(content: Content) -> Point:
    """When documents were fetched, or dated by their source."""
    rows = []
    for source, period in sorted(content.periods.items()):
        dated = content.sources[source].documents - period.undated
        rows.append((source, day(period.first), day(period.last), dated, period.undated))
    known = [period for period in content.periods.values() if period.first is not None and period.last is not None]
    facts: list[tuple[str, Cell]] = [
        ("first", day(min((period.first or 0 for period in known), default=None))),
        ("last", day(max((period.last or 0 for period in known), default=None))),
    ]
    tables = [Table.of("By source", ("source", "first", "last", "dated documents", "undated documents"), rows, 3)]
    note = "Dates are those that sources give: of a web archive the day of the fetch."
    return Point("periods", "Periods of collection", facts, tables if known else [], [note])


def day(moment: int | None) -> str | None:
    """A date, of microseconds since 1970."""
    if moment is None:
        return None
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)).date().isoformat()
    except OverflowError:
        return None


def crawlers(stages: Sequence[StageRecord]) -> Point:
    """What web archives say of the crawler that made them."""
    rows: list[tuple[Any, ...]] = []
    for entry in stages:
        for note, times in sorted(entry.count.noted.items()):
            if note.startswith(f"{CRAWLER} "):
                told = json.loads(note.removeprefix(f"{CRAWLER} "))
                named = (told.get(key) for key in ("software", "http-header-user-agent", "robots", "ispartof"))
                rows.append((entry.name, *named, times))
    head = ("source", "software", "user agent", "robots.txt", "part of", "archives")
    facts: list[tuple[str, Cell]] = [
        ("crawlers", len(rows) or None),
        ("user agents", ", ".join(sorted({str(row[2]) for row in rows if row[2]})) or None),
        ("treatment of robots.txt", ", ".join(sorted({str(row[3]) for row in rows if row[3]})) or None),
    ]
    notes = ["From the `warcinfo` records of web archives, as their maker wrote them."] if rows else []
    return Point("crawlers", "Crawlers and their behaviour", facts, [Table.of("Crawlers", head, rows, 5)], notes)


def domains(content: Content) -> Point:
    """The top 10 % of domains by size of content; of a tenth that is no whole number, one more."""
    named, unnamed = content.domains.named, content.domains.unnamed
    top = named[: math.ceil(len(named) / 10)]
    held, of_named = sum(total.text_bytes for _, total in top), sum(total.text_bytes for _, total in named)
    rows = [(name, *total.beside(Total(0, of_named))) for name, total in top]
    facts: list[tuple[str, Cell]] = [
        ("domains", len(named) or None),
        ("domains in the top 10 %", len(top) or None),
        ("text of the top 10 %, bytes", held if top else None),
        ("share of the text of all domains", f"{held / of_named:.1%}" if of_named else None),
        ("documents without an address", unnamed.documents),
    ]
    note = "Registered domains by the Public Suffix List, in the order of the text that was kept, largest first."
    table = Table.of("Top 10 % of domains", ("domain", *SIZES), rows, shares=["share"])
    return Point("domains", "Top 10 % of domains by size of content", facts, [table], [note])


def licenses(content: Content) -> Point:
    """What documents or sources state."""
    known = content.licenses.named
    stated = sum(total.documents for _, total in known)
    facts: list[tuple[str, Cell]] = [
        ("documents with a stated license", stated if known else None),
        ("documents without", content.whole.documents - stated if known else None),
    ]
    tables = [table_of("Licenses", "license", content.licenses, content.whole)] if known else []
    note = "From the columns `license_stated` (by pages) and `license_source` (by sources): what they say themselves, checked by nobody."
    return Point("licenses", "Licenses", facts, tables, [note])


def made_up(content: Content, synthetic: Sequence[str]) -> Point:
    """Synthetic data: sources that the team names, documents whose column `synthetic` says so."""
    named = [content.sources[name] for name in synthetic if name in content.sources]
    declared = Total(sum(each.documents for each in named), sum(each.text_bytes for each in named))
    by_column, whole = content.synthetic, content.whole
    known = bool(synthetic) or "synthetic" in content.columns
    text = declared.text_bytes if synthetic else by_column.text_bytes
    facts: list[tuple[str, Cell]] = [
        ("documents", (declared if synthetic else by_column).documents if known else None),
        ("text, bytes of UTF-8", text if known else None),
        ("share of the text", f"{text / whole.text_bytes if whole.text_bytes else 0.0:.1%}" if known else None),
    ]
    notes = ["Of Gristmill's stages only `rephrase` writes new text with a model; it marks what it writes."]
    if synthetic:
        notes.append(f"Sources that the team declares synthetic: {', '.join(sorted(synthetic))}.")
    elif known:
        notes.append("Documents whose column `synthetic` says so.")
    else:
        notes.append("Name synthetic sources with --synthetic SOURCE, or give documents a column `synthetic`.")
    return Point("synthetic", "Synthetic data", facts, [], notes)


def reservations(stages: Sequence[StageRecord], reports: Mapping[str, Told]) -> Point:
    """Opt-outs that were honoured: documents that went, by the reason of the stage `opt_out`, and those that stayed
    away because somebody asked."""
    rows = []
    for entry in stages:
        came, name = entry.count.docs_in, entry.name
        for reason, gone in by_size(entry.count.dropped):
            if entry.recipe_name == "opt_out" or reason == FORGOTTEN:
                rows.append((name, reason, gone, gone / came if came else 0.0))
    asking = [entry for entry in stages if entry.recipe_name == "opt_out"]
    gone = sum(int(row[2] or 0) for row in rows)
    facts: list[tuple[str, Cell]] = [("documents left out", gone if asking or rows else None)]
    notes = [] if asking else ["No stage `opt_out` is in the recipe."]
    head = ("stage", "reason", "documents", "share")
    told = [figures_of("opt_out", reports.get(entry.name) or {}) for entry in asking]
    blocks = [block for each in told if each is not None for block in each.blocks if isinstance(block, Table)]
    tables = [Table.of("Documents left out, by reservation", head, rows, 2, shares=["share"]), *blocks]
    return Point("reservations", "Reservations of rights that were honoured", facts, tables, notes)


def processing(stages: Sequence[StageRecord]) -> Point:
    """What was done to the documents, stage by stage."""
    rows = []
    for entry in stages:
        reasons = ", ".join(f"{reason} {gone:,}" for reason, gone in by_size(entry.count.dropped))
        counts = (entry.count.docs_in, entry.count.kept, entry.count.gone)
        rows.append((entry.name, entry.about, reasons, *counts))
    head = ("stage", "what it does", "dropped, by reason", "in", "kept", "gone")
    return Point("processing", "Processing", [("stages", len(rows))], [Table.of("Stages", head, rows, 3)])


def table_of(title: str, name: str, totals: Totals, whole: Total) -> Table:
    named = [*totals.named, *([("none stated", totals.unnamed)] if UNNAMED in totals else [])]
    return Table.of(title, (name, *SIZES), [(each, *total.beside(whole)) for each, total in named], shares=["share"])
