"""Which page answers which address. What an address names is looked up in the folder's lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gristmill.pipeline.explore import pages
from gristmill.pipeline.explore.answers import (
    FRAME_POLICY,
    REPORT_POLICY,
    elsewhere,
    respond,
)
from gristmill.pipeline.explore.current_run import CurrentRun
from gristmill.pipeline.explore.document import PIECE, FoundDocument, StillSearching, TextCache, TextPiece, find
from gristmill.pipeline.explore.matches import first_match
from gristmill.pipeline.explore.originals import Originals, inert
from gristmill.pipeline.explore.query import (
    ADDRESS,
    PAGE,
    UID,
    BadRequest,
    Kind,
    Query,
    fields_of,
    number_of,
    query_of,
    words_of,
)
from gristmill.pipeline.explore.reading_turns import Busy, Turn, Turns
from gristmill.pipeline.explore.search import READ_ERRORS, Searcher
from gristmill.pipeline.formatting import uids_meant
from gristmill.pipeline.inputs.files import NoOriginal
from gristmill.pipeline.look.run_folder import NotFound, RunFolder
from gristmill.pipeline.store.run_records import OTHER_SHAPE

SEARCHING = 4.0  # seconds of one search
FINDING = 6.0  # seconds in which a document is found
READING_AGAIN = 30.0  # seconds of reading an input file for an original
LARGEST_REPORT = 64 << 20

Fields = Mapping[str, str]
Answer = Callable[[RunFolder, Fields, Request], Response]


class Explorer:
    """Answers for one run's folder. It reads the folder and never writes."""

    def __init__(self, out: str) -> None:
        self.run = CurrentRun(out)
        self.searcher = Searcher(self.run)
        self.turns = Turns()
        self.texts = TextCache()
        self.originals = Originals()
        answers: dict[str, Answer] = {
            "/": self.overview,
            "/documents": partial(self.listing, "documents"),
            "/rejects": partial(self.listing, "rejects"),
            "/find": self.find,
            "/document/{uid}": self.document,
            "/document/{uid}/original": self.original,
            "/document/{uid}/frame": self.frame,
            "/document/{uid}/markup": self.markup,
            "/reject": self.reject,
            "/report": self.report,
        }
        self.routes = [
            *(Route(path, partial(self._answer_or_problem, answer)) for path, answer in answers.items()),
            Route("/style.css", lambda request: respond(pages.style(), kind="text/css; charset=utf-8")),
        ]

    def _answer_or_problem(self, answer: Answer, request: Request) -> Response:
        folder = self.run.now()
        try:
            return answer(folder, fields_of(request.scope["query_string"].decode("latin-1")), request)
        except BadRequest as error:
            return respond(pages.problem(folder, "Not understood", str(error)), 400)
        except (NotFound, NoOriginal) as error:
            return respond(pages.problem(folder, "Not found", str(error)), 404)
        except Busy as error:
            return respond(pages.problem(folder, "Busy", str(error)), 503)
        except (*READ_ERRORS, *OTHER_SHAPE) as error:
            return respond(pages.problem(folder, "Cannot be read", f"{type(error).__name__}: {error}"[:600]), 500)

    def nothing(self, request: Request, error: Exception) -> Response:
        return respond(pages.problem(self.run.now(), "No such page", "There is nothing at this address."), 404)

    def overview(self, folder: RunFolder, asked: Fields, _: Request) -> Response:
        return respond(pages.overview(folder))

    def listing(self, kind: Kind, folder: RunFolder, asked: Fields, _: Request) -> Response:
        query = query_of(kind, asked, folder)
        number = number_of(asked, "page", 1, 1)
        start = number_of(asked, "at", 0, 0) if query.filtered else (number - 1) * PAGE
        with self.turns.turn(SEARCHING) as turn:
            found = self.searcher.search(folder, query, turn, start)
        if number > 1 and not query.filtered and found.total is not None and start >= found.total:
            raise NotFound(f"there is no page {number:,}: the last is {max(1, -(-found.total // PAGE)):,}")
        return respond(pages.listing(folder, query, found, start, number))

    def find(self, folder: RunFolder, asked: Fields, _: Request) -> Response:
        """One box for everything: a uid, an address, or words."""
        wanted = asked.get("q", "")
        if UID.fullmatch(wanted):
            return elsewhere(f"/document/{wanted.lower()}")
        if wanted.isdecimal() and len(wanted) > 12 and (uids := uids_meant(wanted)):
            return elsewhere(f"/document/{uids[0]:016x}")
        if "://" in wanted or wanted.startswith("www.") or ADDRESS.fullmatch(wanted):
            return elsewhere(Query("documents", url=wanted).link())
        return elsewhere(query_of("documents", {"words": wanted}, folder).link())

    def document(self, folder: RunFolder, asked: Fields, request: Request) -> Response:
        version, words = number_of(asked, "version", 0, LAST), words_of(asked.get("words", ""))
        with self.turns.turn(FINDING) as turn:
            found = self._found(folder, request, asked, turn)
            if isinstance(found, StillSearching):
                return respond(pages.not_yet(folder, request.path_params["uid"], found.parts, found.of))
            number = min(version, len(found.versions) - 1)
            piece = self._piece(folder, found, number, number_of(asked, "from", 0, 0))
            if words and "from" not in asked and piece is not None:
                number, piece = self._with_match(folder, found, number, piece, words)
            return respond(pages.document(folder, found, number, piece, words))

    def original(self, folder: RunFolder, asked: Fields, request: Request) -> Response:
        """The page as it was crawled, in a frame, beside what was extracted."""
        why_not, original = "", None
        with self.turns.turn(READING_AGAIN) as turn:
            found = self._surely_found(folder, request, asked, turn)
            try:
                original = self.originals.find(folder, found.story, turn)
            except NoOriginal as error:
                why_not = str(error)
            first = found.versions[0] if found.versions else None  # as extraction left it, before anything was repaired
            piece = self._piece(folder, found, 0, number_of(asked, "from", 0, 0)) or TextPiece("", 0, 0)
        return respond(pages.original(folder, found, original, why_not, piece, first), 200 if original else 404)

    def frame(self, folder: RunFolder, asked: Fields, request: Request) -> Response:
        with self.turns.turn(READING_AGAIN) as turn:
            found = self._surely_found(folder, request, asked, turn)
            return respond(inert(self.originals.find(folder, found.story, turn).markup), policy=FRAME_POLICY)

    def markup(self, folder: RunFolder, asked: Fields, request: Request) -> Response:
        start = number_of(asked, "from", 0, 0)
        with self.turns.turn(READING_AGAIN) as turn:
            found = self._surely_found(folder, request, asked, turn)
            text = self.originals.find(folder, found.story, turn).markup
        start = min(start, len(text))
        return respond(pages.markup(folder, found, TextPiece(text[start : start + PIECE], start, len(text))))

    def reject(self, folder: RunFolder, asked: Fields, _: Request) -> Response:
        """A record that never became a document: by stage, file and row, as a list named it."""
        stage = asked.get("stage", "")
        query = query_of("rejects", {"stage": stage} if stage else {}, folder)
        file = next(
            (file for file in self.searcher.files(folder, query) if stage and file.name == asked.get("file")), None
        )
        row = number_of(asked, "row", 0, 0)
        if file is None or row >= self.run.length(folder, file):
            raise NotFound("no such record among the rejects of this run")
        record = folder.row(file.path, row)
        text, start = str(record.get("text") or ""), number_of(asked, "from", 0, 0)
        start = min(start, len(text))
        piece = TextPiece(text[start : start + PIECE], start, len(text))
        words = words_of(asked.get("words", ""))
        link = replace(query, words=words).link(file=file.name, row=row).replace("/rejects", "/reject", 1)
        return respond(pages.reject(folder, file.stage, record, piece, pages.pieces(piece, f"{link}&from=", ""), words))

    def report(self, folder: RunFolder, asked: Fields, _: Request) -> Response:
        """report.html of the run, in an origin of its own."""
        if not folder.has("report.html"):
            raise NotFound("this run has no report.html yet")
        with folder.open("report.html") as file:
            return respond(file.read(LARGEST_REPORT), policy=REPORT_POLICY)

    def _found(self, folder: RunFolder, request: Request, asked: Fields, turn: Turn) -> FoundDocument | StillSearching:
        uid = request.path_params["uid"]
        if not UID.fullmatch(uid):
            raise NotFound("a document's address ends in its uid, 16 hex digits")
        part = number_of(asked, "part", 0, -1)
        return find(folder, uids_meant(uid), part if part >= 0 else None, number_of(asked, "skip", 0, 0), turn)

    def _surely_found(self, folder: RunFolder, request: Request, asked: Fields, turn: Turn) -> FoundDocument:
        found = self._found(folder, request, asked, turn)
        if isinstance(found, StillSearching):
            raise NotFound(f"time was up after {found.parts:,} of {found.of:,} parts; open the document first")
        return found

    def _with_match(
        self, folder: RunFolder, found: FoundDocument, number: int, piece: TextPiece, words: tuple[str, ...]
    ) -> tuple[int, TextPiece]:
        """The stretch in which the words first stand: of the version asked for, or else of the first, in which lists
        look for them."""
        for candidate in dict.fromkeys([number, 0]) if found.versions else []:
            at = first_match(self.texts.whole(folder, found.versions[candidate]), words)
            if at is not None:
                return candidate, self.texts.piece(
                    folder, found.versions[candidate], 0 if at < PIECE - BEFORE else at - BEFORE
                )
        return number, piece

    def _piece(self, folder: RunFolder, found: FoundDocument, number: int, start: int) -> TextPiece | None:
        """A stretch of the text that a segment left; of what is in rejects alone, the beginning that its story
        holds."""
        if 0 <= number < len(found.versions):
            return self.texts.piece(folder, found.versions[number], start)
        text = found.story.text
        return TextPiece(text[start:], min(start, len(text)), len(text)) if text else None


BEFORE = 400  # characters shown before a match that lies deep in a long text
LAST = 10**9  # the version of a text where none is asked for
