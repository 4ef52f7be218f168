"""Pages of `explore` as HTML: jinja2 templates in which every value is escaped, and stripped of control characters
before that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from urllib.parse import urlencode

from jinja2 import Environment

from gristmill.pipeline.explore.document import PIECE, FoundDocument, TextPiece, Version
from gristmill.pipeline.explore.matches import marked
from gristmill.pipeline.explore.originals import Original
from gristmill.pipeline.explore.query import ADDRESS, PAGE, Query, as_typed
from gristmill.pipeline.explore.search import Hit, SearchPage
from gristmill.pipeline.formatting import as_hex, by_size, one_line
from gristmill.pipeline.look.overview import overview as overview_of
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.show_history import span_text
from gristmill.pipeline.report.page import environment as as_in_reports
from gristmill.pipeline.report_data.documents import Row
from gristmill.pipeline.report_data.rejects import telling_digits
from gristmill.pipeline.store.counts import DocumentCounts

HERE = Path(__file__).parent
PALETTE = HERE.parent / "report" / "style.css"
LONGEST_SIGNAL = 240  # characters of a signal's value


@cache
def environment() -> Environment:
    jinja = as_in_reports(HERE / "templates")
    jinja.filters |= {"one_line": one_line, "marked": marked}
    return jinja


@cache
def style() -> str:
    """The report's colours and type, and what these pages add."""
    return PALETTE.read_text(encoding="utf-8") + (HERE / "templates" / "explore.css").read_text(encoding="utf-8")


def rendered(template: str, folder: RunFolder, here: str, title: str, values: Mapping[str, object]) -> str:
    common = {
        "folder": folder,
        "run": folder.record,
        "here": here,
        "title": title,
        "has_report": folder.has("report.html"),
    }
    return environment().get_template(template).render(common | dict(values))


def problem(folder: RunFolder, title: str, message: str) -> str:
    return rendered("problem.html", folder, "", title, {"message": message})


STATES = {
    "running": "is running. What it has done so far is shown; its terminal and Dask’s dashboard show how it goes on",
    "silent": "has given no sign of life for minutes: it is suspended, or cut off from this folder",
    "stopped": "stopped without a message: its process is gone. Run the same command to resume",
    "failed": "failed. Run the same command to resume",
    "interrupted": "was interrupted. Run the same command to resume",
}


@dataclass(frozen=True)
class StageLine:
    """A stage in the overview: the counts that `inspect` gives, and links to what they count."""

    name: str
    kind: str
    about: str
    count: DocumentCounts
    reasons: list[tuple[str, int, str]]  # reason, documents, address
    link: str
    kept_width: float  # percent of the widest
    gone_width: float


def overview(folder: RunFolder) -> str:
    seen = overview_of(folder)
    widest = max((stage.count.docs_in for stage in folder.record.stages), default=0) or 1
    lines = []
    for stage in folder.record.stages:
        count = stage.count
        reasons = by_size(stage.drops)
        named = [(reason, n, Query("rejects", stage=stage.name, reason=reason).link()) for reason, n in reasons]
        widths = (100 * count.kept / widest, 100 * count.gone / widest)
        lines.append(
            StageLine(
                stage.name,
                stage.kind,
                stage.about,
                count,
                named,
                Query("rejects", stage=stage.name).link(),
                *map(rounded, widths),
            )
        )
    values = {"totals": seen.totals, "stages": lines, "state": STATES.get(folder.state, "")}
    return rendered("overview.html", folder, "overview", "Overview", values)


def rounded(value: float) -> float:
    return round(value, 3)


@dataclass(frozen=True)
class ListLine:
    """A row of a list, with the address of the whole."""

    hit: Hit
    link: str


def listing(folder: RunFolder, query: Query, found: SearchPage, start: int, page: int) -> str:
    lines = [ListLine(hit, link_of(query, hit)) for hit in found.hits]
    pages = -(-found.total // PAGE) if found.total is not None and not query.filtered else None
    reasons = sorted({reason for stage in folder.record.stages for reason in [*stage.count.dropped, stage.troubled]})
    onward = (
        None
        if found.ended or not (found.hits or found.out_of_time)
        else query.link(at=found.after)
        if query.filtered
        else None
    )
    values = {
        "query": query,
        "found": found,
        "lines": lines,
        "page": page,
        "pages": pages,
        "start": start,
        "onward": onward,
    }
    values |= {"reasons": reasons, "words": as_typed(query.words), "elsewhere": elsewhere(query)}
    return rendered("list.html", folder, query.kind, query.kind.capitalize(), values)


def link_of(query: Query, hit: Hit) -> str:
    """Documents by uid and part; records that never were documents, and what broke a reader, by their row. Words go
    along, to be marked there."""
    to_match = "#match" if query.words else ""
    if hit.uid is not None:
        asked = {
            name: value
            for name, value in (("part", hit.part), ("words", as_typed(query.words)))
            if value not in ("", None)
        }
        return f"/document/{hit.uid}" + (f"?{urlencode(asked)}" if asked else "") + to_match
    return (
        Query("rejects", query.words, stage=hit.stage or "")
        .link(file=hit.name, row=hit.row)
        .replace("/rejects", "/reject", 1)
        + to_match
    )


def elsewhere(query: Query) -> str | None:
    """What looks like an address may be looked for among urls, or in the texts: the other of the two."""
    if query.url and not query.words and ADDRESS.fullmatch(query.url):
        return replace(query, url="", words=(query.url,)).link()
    if len(query.words) == 1 and not query.url and ADDRESS.fullmatch(query.words[0]):
        return replace(query, url=query.words[0], words=()).link()
    return None


@dataclass(frozen=True)
class SignalLine:
    """A signal as a page shows it; `limit` where the document was beyond it."""

    name: str
    value: str
    limit: str | None


def signals_of(found: FoundDocument) -> list[tuple[str, list[SignalLine]]]:
    """By the segment that measured them, in the order of segments; first those that the document was beyond."""
    limits: dict[str, dict[str, None]] = {}
    for held in found.story.why:
        if held.threshold is not None and held.value is not None and held.column is not None:
            names = held.column.split(" + ")
            sign = held.sign if len(names) == 1 else f"{held.column} {held.sign}"
            for name in names:
                limits.setdefault(name, {})[f"{sign} {telling_digits(held.value, held.threshold)[1]}"] = None
    limit_of = {name: ", ".join(limits_of_signal) for name, limits_of_signal in limits.items()}
    return [
        (
            passage.segment,
            [
                SignalLine(name, value_of(passage.signals[name]), limit_of.get(name))
                for name in sorted(passage.signals, key=lambda n: (n not in limit_of, n))
            ],
        )
        for passage in found.story.passages
        if passage.signals
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


def document(
    folder: RunFolder, found: FoundDocument, version: int, piece: TextPiece | None, words: tuple[str, ...]
) -> str:
    story = found.story
    base = f"/document/{story.uid}"
    part = f"part={found.part}&" if found.part is not None else ""
    part += urlencode({"words": as_typed(words)}) + "&" if words else ""
    texts = [(one.segment, f"{base}?{part}version={number}#text") for number, one in enumerate(found.versions)]
    values = {
        "story": story,
        "signals": signals_of(found),
        "troubles": found.troubles,
        "texts": texts,
        "version": version,
        "piece": piece,
    }
    values |= {"words": words, "original": f"{base}/original?{part}".rstrip("?&") if story.read_from else None}
    values |= {"read_from": [span_text(span) for span in story.read_from[:8]]}
    values |= {"pieces": pieces(piece, f"{base}?{part}version={version}&from=", "#text") if piece else []}
    return rendered("document.html", folder, "documents", story.uid or "a record", values)


def pieces(piece: TextPiece, link: str, fragment: str) -> list[tuple[str, str]]:
    """Links to the other parts of a long text."""
    links = []
    if piece.start > 0:
        links.append(("from the beginning", f"{link}0{fragment}"))
        links.append(("before", f"{link}{max(0, piece.start - PIECE)}{fragment}"))
    if piece.end < piece.characters:
        links.append(("more", f"{link}{piece.end}{fragment}"))
        links.append(("to the end", f"{link}{max(0, piece.characters - PIECE)}{fragment}"))
    return links


def original(
    folder: RunFolder,
    found: FoundDocument,
    page: Original | None,
    why_not: str,
    piece: TextPiece,
    version: Version | None,
) -> str:
    story = found.story
    part = f"?part={found.part}" if found.part is not None else ""
    values = {"story": story, "page": page, "why_not": why_not, "piece": piece, "version": version, "part": part}
    return rendered(
        "original.html", folder, "documents", f"{story.uid}: original", values | {"base": f"/document/{story.uid}"}
    )


def markup(folder: RunFolder, found: FoundDocument, piece: TextPiece) -> str:
    base = f"/document/{found.story.uid}"
    part = f"part={found.part}&" if found.part is not None else ""
    values = {
        "story": found.story,
        "piece": piece,
        "base": base,
        "part": part,
        "pieces": pieces(piece, f"{base}/markup?{part}from=", ""),
    }
    return rendered("markup.html", folder, "documents", f"{found.story.uid}: markup", values)


def not_yet(folder: RunFolder, uid: str, parts: int, of: int) -> str:
    return rendered("not_yet.html", folder, "documents", uid, {"uid": uid, "parts": parts, "of": of})


def reject(
    folder: RunFolder,
    stage: str,
    row: Row,
    piece: TextPiece,
    links: list[tuple[str, str]],
    words: tuple[str, ...],
) -> str:
    values = {
        "stage": stage,
        "row": row,
        "piece": piece,
        "pieces": links,
        "words": words,
        "uid": hex_of(row),
    }
    return rendered("reject.html", folder, "rejects", f"Rejected by {stage}", values)


def hex_of(row: Row) -> str | None:
    uid = row.get("uid")
    return as_hex(uid) if isinstance(uid, int) else None
