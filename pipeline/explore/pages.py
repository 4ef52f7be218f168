"""Pages of `explore` as HTML: jinja2 templates in which every value is escaped, and stripped of control characters before that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.explore.document import PIECE, Found, Piece, Version
from pipeline.explore.originals import Original
from pipeline.explore.query import PAGE, Query
from pipeline.explore.search import Findings, Hit
from pipeline.explore.shelf import Shelf
from pipeline.inspect import by_size
from pipeline.overview import overview_of, reports_of
from pipeline.report.sections import harmless, is_web, moment
from pipeline.words import as_bytes, as_number, as_seconds, as_share, as_tokens, one_line

HERE = Path(__file__).parent
PALETTE = HERE.parent / "report" / "style.css"
LONGEST_SIGNAL = 240  # characters of a signal's value


@cache
def environment() -> Environment:
    made = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=FileSystemLoader(HERE / "templates"),
        finalize=harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": as_number,
        "seconds": as_seconds,
        "bytes": as_bytes,
        "tokens": as_tokens,
        "moment": moment,
        "one_line": one_line,
    }
    made.tests |= {"web": is_web}
    made.globals |= {"share": as_share}
    return made


@cache
def style() -> str:
    """The report's colours and type, and what these pages add."""
    return PALETTE.read_text(encoding="utf-8") + (HERE / "templates" / "explore.css").read_text(encoding="utf-8")


@cache
def script() -> str:
    return (HERE / "templates" / "live.js").read_text(encoding="utf-8")


def rendered(template: str, shelf: Shelf, here: str, title: str, values: Mapping[str, Any]) -> str:
    common = {"shelf": shelf, "run": shelf.run, "here": here, "title": title, "has_report": shelf.folder.has("report.html")}
    return environment().get_template(template).render(common | dict(values))


def problem(shelf: Shelf, title: str, message: str) -> str:
    return rendered("problem.html", shelf, "", title, {"message": message})


@dataclass(frozen=True)
class StageLine:
    """A stage in the overview: the counts that `inspect` gives, and links to what they count."""

    name: str
    kind: str
    about: str
    count: Any
    reasons: list[tuple[str, int, str]]  # reason, documents, address
    link: str
    kept_width: float  # percent of the widest
    gone_width: float


def overview(shelf: Shelf, live: Mapping[str, Any]) -> str:
    seen = overview_of(shelf.record, reports_of(shelf.folder, shelf.record))
    widest = max((stage.count.docs_in for stage in shelf.run.stages), default=0) or 1
    lines = []
    for stage in shelf.run.stages:
        count = stage.count
        reasons = by_size(count.dropped | ({stage.troubled: count.quarantined} if count.quarantined else {}))
        named = [(reason, n, Query("rejects", stage=stage.name, reason=reason).link()) for reason, n in reasons]
        widths = (100 * count.kept / widest, 100 * (count.lost + count.quarantined) / widest)
        lines.append(
            StageLine(stage.name, stage.kind, stage.about, count, named, Query("rejects", stage=stage.name).link(), *map(rounded, widths))
        )
    return rendered("overview.html", shelf, "overview", "Overview", {"totals": seen.totals, "stages": lines, "live": live})


def rounded(value: float) -> float:
    return round(value, 3)


@dataclass(frozen=True)
class Line:
    """A row of a list, with the address of the whole."""

    hit: Hit
    link: str


def listing(shelf: Shelf, query: Query, found: Findings, start: int, page: int) -> str:
    lines = [Line(hit, link_of(query, hit)) for hit in found.hits]
    pages = -(-found.total // PAGE) if found.total is not None and not query.filtered else None
    reasons = sorted({reason for stage in shelf.run.stages for reason in [*stage.count.dropped, stage.troubled]})
    onward = None if found.ended or not (found.hits or found.out_of_time) else query.link(at=found.after) if query.filtered else None
    values = {"query": query, "found": found, "lines": lines, "page": page, "pages": pages, "start": start, "onward": onward}
    values |= {"reasons": reasons, "page_size": PAGE, "words": " ".join(f'"{word}"' if " " in word else word for word in query.words)}
    return rendered("list.html", shelf, query.kind, query.kind.capitalize(), values)


def link_of(query: Query, hit: Hit) -> str:
    """Documents by uid and part; records that never were documents, and what broke a reader, by their row."""
    if hit.uid is not None:
        return f"/document/{hit.uid}" + (f"?part={hit.part}" if hit.part is not None else "")
    return Query("rejects", stage=hit.stage or "").link(file=hit.file, row=hit.row).replace("/rejects", "/reject", 1)


def signals_of(found: Found) -> list[tuple[str, list[tuple[str, str]]]]:
    """By the leg that measured them, in the order of legs: names and values."""
    return [
        (one.leg, [(name, value_of(value)) for name, value in sorted(one.signals.items())]) for one in found.story.passages if one.signals
    ]


def value_of(value: object) -> str:
    """A signal as people read it; long ones are cut."""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if value is None:
        return "–"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    text = str(value) if isinstance(value, str | int) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_SIGNAL else f"{text[:LONGEST_SIGNAL]}… ({len(text):,} characters)"


def document(shelf: Shelf, found: Found, version: int, piece: Piece | None) -> str:
    story = found.story
    base = f"/document/{story.uid}"
    part = f"part={found.part}&" if found.part is not None else ""
    texts = [(one.leg, f"{base}?{part}version={number}#text") for number, one in enumerate(found.versions)]
    values = {"story": story, "signals": signals_of(found), "troubles": found.troubles, "texts": texts, "version": version, "piece": piece}
    values |= {"base": base, "part": part, "original": f"{base}/original?{part}".rstrip("?&") if story.read_from else None}
    values |= {"pieces": pieces(piece, f"{base}?{part}version={version}&from=", "#text") if piece else []}
    return rendered("document.html", shelf, "documents", story.uid or "a record", values)


def pieces(piece: Piece, link: str, fragment: str) -> list[tuple[str, str]]:
    """Links to the other parts of a long text."""
    found = []
    if piece.start > 0:
        found.append(("from the beginning", f"{link}0{fragment}"))
        found.append(("before", f"{link}{max(0, piece.start - PIECE)}{fragment}"))
    if piece.end < piece.characters:
        found.append(("more", f"{link}{piece.end}{fragment}"))
        found.append(("to the end", f"{link}{max(0, piece.characters - PIECE)}{fragment}"))
    return found


def original(shelf: Shelf, found: Found, page: Original | None, why_not: str, piece: Piece, version: Version | None) -> str:
    story = found.story
    part = f"?part={found.part}" if found.part is not None else ""
    values = {"story": story, "page": page, "why_not": why_not, "piece": piece, "version": version, "part": part}
    return rendered("original.html", shelf, "documents", f"{story.uid}: original", values | {"base": f"/document/{story.uid}"})


def markup(shelf: Shelf, found: Found, piece: Piece) -> str:
    base = f"/document/{found.story.uid}"
    part = f"part={found.part}&" if found.part is not None else ""
    values = {"story": found.story, "piece": piece, "base": base, "part": part, "pieces": pieces(piece, f"{base}/markup?{part}from=", "")}
    return rendered("markup.html", shelf, "documents", f"{found.story.uid}: markup", values)


def not_yet(shelf: Shelf, uid: str, parts: int, of: int) -> str:
    return rendered("not_yet.html", shelf, "documents", uid, {"uid": uid, "parts": parts, "of": of})


def reject(shelf: Shelf, stage: str, row: Mapping[str, Any], piece: Piece, links: list[tuple[str, str]]) -> str:
    return rendered("reject.html", shelf, "rejects", f"Rejected by {stage}", {"stage": stage, "row": row, "piece": piece, "pieces": links})
