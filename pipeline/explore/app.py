"""Which page answers which address, and what it shows: jinja2 templates in which every value is escaped, and stripped
of control characters before that. What an address names is looked up in the folder's lists."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path, PurePath

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gristmill.pipeline.explore.answers import FRAME_POLICY, REPORT_POLICY, elsewhere, respond
from gristmill.pipeline.explore.originals import Originals, inert
from gristmill.pipeline.explore.search import (
    ADDRESS,
    PAGE,
    READ_ERRORS,
    UID,
    BadRequest,
    Deadline,
    Hit,
    Kind,
    Query,
    Searcher,
    address,
    as_typed,
    fields_of,
    marked,
    matches,
    number_of,
    query_of,
    texts_of,
    unread,
    words_of,
)
from gristmill.pipeline.formatting import as_hex, as_share, by_size, one_line, uids_meant
from gristmill.pipeline.inputs.files import NoOriginal
from gristmill.pipeline.look.history import Story, follow, refused, rejected
from gristmill.pipeline.look.run_folder import NotFound, RunFolder
from gristmill.pipeline.look.show_history import span_text
from gristmill.pipeline.progress.progress import PATH as PROGRESS
from gristmill.pipeline.report.page import environment as as_in_reports, fragment, tables
from gristmill.pipeline.report_data.documents import Span
from gristmill.pipeline.report_data.rejects import telling_digits
from gristmill.pipeline.store.run_records import OTHER_SHAPE
from gristmill.pipeline.tables import Table

SEARCHING, FINDING, READING_AGAIN = 4.0, 6.0, 30.0  # seconds of a search, of finding a document, an original
AT_ONCE = 2  # requests that read at once
PATIENCE = 20.0  # seconds after which one that waits gives up
FRESH, FRESH_REMOTE = 2.0, 10.0  # seconds for which what was found in the folder is taken as it was
PIECE = 20_000  # characters of a text on a page
BEFORE = 400  # of them before a match that is deep in a long text
LONGEST_SIGNAL = 240  # characters of a signal's value
LAST = 10**9  # the version of a text where none is asked for
LARGEST_REPORT = 64 << 20
HERE = Path(__file__).parent
STATES = {
    "running": "is running. What it has done so far is shown; its terminal and Dask’s dashboard show how it goes on",
    "silent": "has given no sign of life for minutes: it is suspended, or cut off from this folder",
    "stopped": "stopped without a message: its process is gone. Run the same command to resume",
    "failed": "failed. Run the same command to resume",
    "interrupted": "was interrupted. Run the same command to resume",
}
LINK = '<a href="{{ link }}">{{ name }}</a>'
REASONS = (
    '{% for reason, number, link in reasons %}<a href="{{ link }}" dir="auto">{{ reason }}</a>'
    ' <span class="soft">{{ number | number }}</span>{{ ", " if not loop.last }}{% endfor %}'
)

Asked = Mapping[str, str]  # fields behind the question mark
Answer = Callable[[RunFolder, Asked, Request], Response]


class Busy(Exception):
    """Too many want to read at once."""


class Explorer:
    """Answers for one run's folder. It reads the folder and never writes."""

    def __init__(self, out: str) -> None:
        self.out = out
        self.token = ""  # in links for others; the server's
        self._folder: RunFolder | None = None
        self._seen = 0.0
        self._stamp: object = None
        self._opening = threading.Lock()
        self._readers = threading.BoundedSemaphore(AT_ONCE)
        self._searcher = Searcher()
        self._originals = Originals()
        answers: dict[str, Answer] = {
            "/": self.overview,
            "/documents": partial(self.listing, "documents"),
            "/rejects": partial(self.listing, "rejects"),
            "/find": self.find,
            "/document/{uid}": self.document,
            "/document/{uid}/original": self.original,
            "/document/{uid}/frame": self.frame,
            "/report": self.report,
        }
        self.routes = [Route(path, partial(self._answer_or_problem, answer)) for path, answer in answers.items()]
        self.routes.append(Route("/style.css", lambda request: respond(style(), kind="text/css; charset=utf-8")))

    def folder(self) -> RunFolder:
        """The run's folder as it is now, its lists read: opened again once it is no longer fresh and has changed.
        Requests come in threads."""
        with self._opening:
            local = self._folder is None or self._folder.store.local
            if self._folder is None or time.monotonic() - self._seen > (FRESH if local else FRESH_REMOTE):
                folder = RunFolder(self.out, lenient=True)
                if not folder.store.local:
                    folder.fs.invalidate_cache()
                stamp = stamp_of(folder)
                if self._folder is None or stamp != self._stamp or self._folder.under_way:
                    _ = folder.record, folder.segments, folder.rules_by_name, folder.rejects()
                    self._folder, self._stamp = folder, stamp
                self._seen = time.monotonic()
            return self._folder

    @contextlib.contextmanager
    def reading(self, seconds: float) -> Iterator[Deadline]:
        """Time to read, once others are done."""
        if not self._readers.acquire(timeout=PATIENCE):
            raise Busy("others are reading; ask again in a moment")
        try:
            yield Deadline(seconds)
        finally:
            self._readers.release()

    def _answer_or_problem(self, answer: Answer, request: Request) -> Response:
        folder = self.folder()
        try:
            return answer(folder, fields_of(request.scope["query_string"].decode("latin-1")), request)
        except BadRequest as error:
            return problem(folder, 400, "Not understood", str(error))
        except (NotFound, NoOriginal) as error:
            return problem(folder, 404, "Not found", str(error))
        except Busy as error:
            return problem(folder, 503, "Busy", str(error))
        except (*READ_ERRORS, *OTHER_SHAPE) as error:
            return problem(folder, 500, "Cannot be read", f"{type(error).__name__}: {error}"[:600])

    def nothing(self, request: Request, error: Exception) -> Response:
        return problem(self.folder(), 404, "No such page", "There is nothing at this address.")

    def overview(self, folder: RunFolder, asked: Asked, _: Request) -> Response:
        """The stages with what each dropped, each reason with a link to its rejects."""
        rows = []
        for stage in folder.record.stages:
            count, name = stage.count, stage.name
            rejects = Query("rejects", stage=name)
            reasons = [
                (reason, number, replace(rejects, reason=reason).link()) for reason, number in by_size(stage.drops)
            ]
            counts = (count.docs_in, count.kept, count.lost, count.quarantined, as_share(count.gone, count.docs_in))
            head = fragment(LINK, {"link": rejects.link(), "name": name}) if reasons else name
            rows.append((head, *counts, fragment(REASONS, {"reasons": reasons})))
        state = STATES.get(folder.state, "")
        title = f"What came into each stage and what it dropped{', so far' if state else ''}"
        heads = ("stage", "in", "kept", "dropped", "quarantined", "gone", "reasons")
        values = {"table": tables(Table.of(title, heads, rows, words={0, 6})), "state": state}
        return page("overview.html", folder, "overview", "Overview", values)

    def listing(self, kind: Kind, folder: RunFolder, asked: Asked, _: Request) -> Response:
        query, start = query_of(kind, asked, folder), number_of(asked, "at", 0)
        with self.reading(SEARCHING) as deadline:
            found = self._searcher.search(folder, query, deadline, start)
        onward = query.link(at=found.after) if not found.ended and (found.hits or found.out_of_time) else None
        before = query.link(at=max(0, start - PAGE) or "") if start and not query.filtered else None
        values = {
            "query": query,
            "words": as_typed(query.words),
            "found": found,
            "lines": [(hit, link_of(query, hit)) for hit in found.hits],
            "start": start,
            "onward": onward,
            "before": before,
            "reasons": sorted({reason for stage in folder.record.stages for reason in stage.drops}),
        }
        return page("list.html", folder, kind, kind.capitalize(), values)

    def find(self, folder: RunFolder, asked: Asked, _: Request) -> Response:
        """One box for everything: a uid, an address, or words."""
        wanted = asked.get("q", "")
        if UID.fullmatch(wanted):
            return elsewhere(f"/document/{wanted.lower()}")
        if wanted.isdecimal() and len(wanted) > 12 and (uids := uids_meant(wanted)):
            return elsewhere(f"/document/{uids[0]:016x}")
        if "://" in wanted or wanted.startswith("www.") or ADDRESS.fullmatch(wanted):
            return elsewhere(Query("documents", url=wanted).link())
        return elsewhere(query_of("documents", {"words": wanted}, folder).link())

    def document(self, folder: RunFolder, asked: Asked, request: Request) -> Response:
        words = words_of(asked.get("words", ""))
        with self.reading(FINDING) as deadline:
            found = document_of(folder, request, asked, deadline)
            number = min(number_of(asked, "version", LAST), len(found.versions) - 1)
            text, spans = found.text(folder, number), found.spans(folder, number, words)
            if words and not spans and "from" not in asked and number > 0:
                first = found.spans(folder, 0, words)  # lists look for words there
                number, text, spans = (0, found.text(folder, 0), first) if first else (number, text, spans)
        start = spans[0][0] - BEFORE if spans and spans[0][1] > PIECE else 0
        piece = TextPiece.of(text, number_of(asked, "from", max(0, start)), spans)
        story, of = found.story, {"part": found.part, "words": as_typed(words)}
        base = f"/document/{story.uid}"
        names = enumerate(version.segment for version in found.versions)
        values = {
            "found": found,
            "story": story,
            "signals": tables(*signals_of(story)),
            "texts": [(name, address(base, **of, version=number) + "#text") for number, name in names],
            "version": number,
            "piece": piece,
            "pieces": piece.links(address(base, **of, version=number if number >= 0 else ""), "#text"),
            "original": address(f"{base}/original", part=found.part) if story.read_from else None,
            "read_from": [span_text(span) for span in story.read_from[:8]],
            "link": address(base, part=found.part, token=self.token),
        }
        return page("document.html", folder, "documents", story.uid or "a record", values)

    def original(self, folder: RunFolder, asked: Asked, request: Request) -> Response:
        """The page as it was crawled, in a frame, next to what was extracted, before anything was repaired."""
        why_not, original = "", None
        with self.reading(READING_AGAIN) as deadline:
            found = document_of(folder, request, asked, deadline)
            try:
                original = self._originals.find(folder, found.story, deadline)
            except NoOriginal as error:
                why_not = str(error)
            piece = TextPiece.of(found.text(folder, min(0, len(found.versions) - 1)), 0)
        values = {"story": found.story, "original": original, "why_not": why_not, "piece": piece}
        values |= {"base": f"/document/{found.story.uid}", "part": address("", part=found.part)}
        title = f"{found.story.uid}: original"
        return page("original.html", folder, "documents", title, values, 200 if original else 404)

    def frame(self, folder: RunFolder, asked: Asked, request: Request) -> Response:
        with self.reading(READING_AGAIN) as deadline:
            found = document_of(folder, request, asked, deadline)
            return respond(inert(self._originals.find(folder, found.story, deadline).markup), policy=FRAME_POLICY)

    def report(self, folder: RunFolder, asked: Asked, _: Request) -> Response:
        """report.html of the run, in an origin of its own."""
        if not folder.has("report.html"):
            raise NotFound("this run has no report.html yet")
        with folder.open("report.html") as file:
            return respond(file.read(LARGEST_REPORT), policy=REPORT_POLICY)


def stamp_of(folder: RunFolder) -> object:
    """What changes when a run's manifests do."""
    stamp = []
    for path in ("run.json", PROGRESS, *(f"partitions/{name}/manifest.json" for name in folder.names("partitions"))):
        info = folder.fs.info(folder.full(path)) if folder.has(path) else {}
        stamp.append([info.get(name) for name in ("size", "mtime", "ino", "ETag", "LastModified")])
    return stamp


# --- pages ------------------------------------------------------------------------------------------------------------


@cache
def environment() -> Environment:
    jinja = as_in_reports(HERE / "templates")
    jinja.filters |= {"one_line": one_line}
    return jinja


@cache
def style() -> str:
    """The report's colors and type, and what these pages add."""
    return "".join((HERE / path).read_text("utf-8") for path in ("../report/style.css", "templates/explore.css"))


def page(
    template: str, folder: RunFolder, here: str, title: str, values: Mapping[str, object], status: int = 200
) -> Response:
    name = PurePath(folder.out if "://" in folder.out else Path(folder.out).resolve()).name or folder.out
    common = {"folder": folder, "run": folder.record, "place": name, "here": here, "title": title}
    common |= {"has_report": folder.has("report.html")}
    return respond(environment().get_template(template).render(common | dict(values)), status)


def problem(folder: RunFolder, status: int, title: str, message: str) -> Response:
    return page("problem.html", folder, "", title, {"message": message}, status)


def link_of(query: Query, hit: Hit) -> str | None:
    """The page of a document, where words are marked. A record that never was a document has none."""
    if hit.uid is None:
        return None
    return address(f"/document/{hit.uid}", part=hit.part, words=as_typed(query.words)) + "#match" * bool(query.words)


# --- one document -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Version:
    """The text of a document as a segment left it."""

    segment: str
    path: str
    row: int


@dataclass
class FoundDocument:
    """A document and all that the run knows of it."""

    story: Story
    part: int | None  # the place of its part among the documents' files
    versions: Sequence[Version] = ()
    troubles: list[str] = field(default_factory=list)

    def text(self, folder: RunFolder, number: int) -> str:
        """The text that a segment left; of what is in rejects alone, the beginning that its story holds."""
        if number < 0:
            return self.story.text or ""
        version = self.versions[number]
        return next(iter(texts_of(folder, version.path, [version.row])), "")

    def spans(self, folder: RunFolder, number: int, words: Sequence[str]) -> list[Span]:
        """What is marked in it: the words looked for, or else what it went for."""
        text, last = self.text(folder, number), self.story.verdicts[-1:]
        if words or not last or last[0].verdict == "kept":
            return list(matches(text, words))
        place = folder.places.of(last[0].stage, last[0].reason or "", text)
        return [] if place is None else [place]


def document_of(folder: RunFolder, request: Request, asked: Asked, deadline: Deadline) -> FoundDocument:
    """The document whose uid an address names. `part` says where a list saw it."""
    uid = request.path_params["uid"]
    if not UID.fullmatch(uid):
        raise NotFound("a document's address ends in its uid, 16 hex digits")
    troubles: list[str] = []
    files, seen = folder.documents, number_of(asked, "part", LAST)
    numbers = dict.fromkeys([*([seen] if seen < len(files) else []), *range(len(files))])
    for looked, number in enumerate(numbers):
        if deadline.over:
            there = f"{uid} is not in the first {looked:,} of {len(files):,} parts; then time was up"
            raise NotFound(f"{there}. `gristmill inspect {folder.out} --uid {uid}` takes the time it needs")
        for meant in uids_meant(uid):
            try:
                row = folder.row_with(files[number].path, meant)
            except (*READ_ERRORS, IndexError) as error:
                troubles.append(unread(files[number], error))
                continue
            if row is not None:
                return followed(folder, meant, number, row, troubles)
    for meant in uids_meant(uid):
        for stage, reject in rejected(folder, meant, None):  # it broke the stage that read it
            return FoundDocument(refused(stage, reject, folder.record), None, troubles=troubles)
    raise NotFound(f"no document {uid} in this run, and nothing that its stages rejected has that uid")


def followed(folder: RunFolder, uid: int, number: int, row: int, troubles: list[str]) -> FoundDocument:
    """The story of a document of one part; where a file of it cannot be read, as much as its part and the rejects
    say."""
    file = folder.documents[number]
    try:
        story = follow(folder, uid, file.key)
    except (NotFound, *READ_ERRORS, TypeError, IndexError) as error:
        troubles.append(f"its story is not whole: {type(error).__name__}: {error}"[:400])
        story = Story(as_hex(uid), file.source)
        for stage, reject in rejected(folder, uid, file.key):
            story = refused(stage, reject, folder.record)
    versions = [
        Version(passage.segment, passage.file, passage.row)
        for passage in story.passages
        if passage.file.endswith(".documents.parquet")
    ]
    return FoundDocument(story, number, versions or [Version(file.stage, file.path, row)], troubles)


@dataclass(frozen=True)
class TextPiece:
    """A part of a text, in pieces of which some are marked."""

    shown: list[tuple[str, bool]]
    start: int
    end: int
    characters: int

    @classmethod
    def of(cls, text: str, start: int, spans: Sequence[Span] = ()) -> TextPiece:
        start = min(start, len(text))
        end = min(start + PIECE, len(text))
        inside = [(a - start, b - start) for a, b in spans if start <= a and b <= end]
        return cls(marked(text[start:end], inside), start, end, len(text))

    def links(self, base: str, fragment: str) -> list[tuple[str, str]]:
        """Links to the other parts of a long text."""
        base += "&" if "?" in base else "?"
        last = max(0, self.characters - PIECE)
        places = [("from the beginning", 0), ("before", max(0, self.start - PIECE))] if self.start > 0 else []
        places += [("more", self.end), ("to the end", last)] if self.end < self.characters else []
        return [(name, f"{base}from={place}{fragment}") for name, place in places]


def signals_of(story: Story) -> list[Table]:
    """Signals with their values, by the segment that measured them; first those that the document was beyond, with the
    limit."""
    limits: dict[str, dict[str, None]] = {}
    for held in story.why:
        if held.threshold is not None and held.value is not None and held.column is not None:
            names = held.column.split(" + ")
            sign = held.sign if len(names) == 1 else f"{held.column} {held.sign}"
            for name in names:
                limits.setdefault(name, {})[f"{sign} {telling_digits(held.value, held.threshold)[1]}"] = None
    return [
        Table.of(
            f"Measured in {passage.segment}",
            ("signal", "value", "limit that it is beyond"),
            [
                (name, value_of(passage.signals[name]), ", ".join(limits.get(name, ())))
                for name in sorted(passage.signals, key=lambda name: (name not in limits, name))
            ],
            words=3,
        )
        for passage in story.passages
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
