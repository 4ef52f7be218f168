"""What a request asks for, and the documents or rejects that it means: files are read in order, batch by batch, until
a page is full or time is up.

A place is a number: how many rows of all files, in their order, stand before it. A search that ran out of time says how
far it came, and goes on from there when asked to.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal
from urllib.parse import parse_qsl, urlencode

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.pipeline.formatting import as_hex, nearest
from gristmill.pipeline.look.run_folder import RunFile, RunFolder
from gristmill.pipeline.look.stage_view import details_of
from gristmill.pipeline.report_data.documents import Span, around
from gristmill.pipeline.report_data.rejects import rows_of

PAGE = 50  # documents on a page
LONGEST_QUERY = 4096  # bytes behind the question mark
LONGEST_FIELD = 500  # characters
MOST_WORDS = 8
LARGEST_NUMBER = 10**12
PHRASE = re.compile(r'"([^"]+)"|([^\s"]+)')
UID = re.compile(r"[0-9a-fA-F]{16}")
# a host by its name, perhaps with a path
ADDRESS = re.compile(r"(?:[\w-]{1,63}\.)+[^\W\d_]{2,24}(?::[0-9]{1,5})?(?:/\S*)?")
BATCH = 1024  # rows looked at between two looks at the clock
SHOWN = 280  # characters of a text in a list
READ_ERRORS = (OSError, pa.ArrowInvalid, pa.ArrowException, KeyError, ValueError, EOFError)
COLUMNS = ("uid", "url", "source", "reason", "detail")

Kind = Literal["documents", "rejects"]


# --- what is asked for ------------------------------------------------------------------------------------------------


class BadRequest(ValueError):
    """A request that means nothing here; the message says what was expected."""


@dataclass(frozen=True)
class Query:
    """Which documents or rejects are wanted. Empty fields want nothing of the kind."""

    kind: Kind
    words: tuple[str, ...] = ()
    url: str = ""
    source: str = ""
    stage: str = ""  # of rejects, and the reason
    reason: str = ""
    outcome: str = ""  # of documents: kept or gone

    @property
    def filtered(self) -> bool:
        return self != Query(self.kind, stage=self.stage)

    def link(self, **more: object) -> str:
        """The address of this list."""
        asked = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("kind", "words")}
        asked = {"words": as_typed(self.words)} | asked | more
        return address(f"/{self.kind}", **asked)


def address(path: str, **asked: object) -> str:
    given = {name: value for name, value in asked.items() if value not in ("", None)}
    return path + (f"?{urlencode(given)}" if given else "")


def as_typed(words: tuple[str, ...]) -> str:
    return " ".join(f'"{word}"' if len(word.split()) != 1 or word != word.strip() else word for word in words)


def fields_of(query: str) -> dict[str, str]:
    """The fields behind a question mark: the first of each name, in any encoding."""
    if len(query) > LONGEST_QUERY:
        raise BadRequest(f"the query is longer than {LONGEST_QUERY:,} bytes")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="replace", max_num_fields=40)
    except ValueError as error:
        raise BadRequest("too many fields") from error
    asked: dict[str, str] = {}
    for name, value in pairs:
        asked.setdefault(name, value.strip())
    for name, value in asked.items():
        if len(value) > LONGEST_FIELD:
            raise BadRequest(f"{name[:40]}: longer than {LONGEST_FIELD:,} characters")
    return asked


def number_of(asked: Mapping[str, str], name: str, usual: int) -> int:
    """A number in a request: digits alone, within reason."""
    text = asked.get(name, "")
    if not text:
        return usual
    if not re.fullmatch(r"[0-9]{1,13}", text) or int(text) > LARGEST_NUMBER:
        raise BadRequest(f"{name}: a whole number up to {LARGEST_NUMBER:,} was expected, not {text[:40]!r}")
    return int(text)


def query_of(kind: Kind, asked: Mapping[str, str], folder: RunFolder) -> Query:
    """The query that a request means; sources and stages are those of the run."""
    source, stage, outcome = (asked.get(name, "") for name in ("source", "stage", "outcome"))
    for name, value, names in (
        ("source", source, [reader.name for reader in folder.record.readers]),
        ("stage", stage, folder.stage_names),
        ("outcome", outcome, ["kept", "gone"]),
    ):
        if value and value not in names:
            raise BadRequest(f"no {name} {value!r} in this run{nearest(value, names)}")
    words, url, reason = words_of(asked.get("words", "")), asked.get("url", ""), asked.get("reason", "")
    if kind == "rejects":
        return Query(kind, words, url, source, stage, reason)
    return Query(kind, words, url, source, outcome=outcome)


def words_of(text: str) -> tuple[str, ...]:
    """Words that must all be in a text; what stands in quotation marks is one."""
    words = [quoted or single for quoted, single in PHRASE.findall(text)]
    if len(words) > MOST_WORDS:
        raise BadRequest(f"words: {MOST_WORDS} at most; put what belongs together in quotation marks")
    return tuple(words)


# --- words in texts ---------------------------------------------------------------------------------------------------


def folded(text: str) -> str:
    """In small letters, each in its place: one character may not become two."""
    small = text.lower()
    if len(small) == len(text):
        return small
    return "".join(letter.lower() if len(letter.lower()) == 1 else letter for letter in text)


def matches(text: str, words: Iterable[str]) -> Iterator[Span]:
    """Where the words stand in a text; the longer, where one begins another."""
    longest_first = sorted({folded(word) for word in words if word}, key=lambda word: (-len(word), word))
    if longest_first:
        for match in re.finditer("|".join(map(re.escape, longest_first)), folded(text)):
            yield match.span()


def marked(text: str, spans: Iterable[Span]) -> list[tuple[str, bool]]:
    """A text in pieces, and which of them are to be marked."""
    pieces, end = [], 0
    for start, stop in spans:
        pieces += [(text[end:start], False), (text[start:stop], True)]
        end = stop
    return [piece for piece in (*pieces, (text[end:], False)) if piece[0]]


# --- lists ------------------------------------------------------------------------------------------------------------


@dataclass
class Deadline:
    """The time that one request has to read."""

    seconds: float
    began: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        return time.monotonic() - self.began > self.seconds


@dataclass
class Hit:
    """A row of a list."""

    file: int  # which of the files that the query looks at
    row: int
    part: int | None  # its part among the documents' files
    uid: str | None
    url: str | None
    source: str | None
    stage: str | None = None  # who took it; None: nobody
    reason: str | None = None
    detail: str | None = None
    shown: list[tuple[str, bool]] = field(default_factory=list)  # of its text
    characters: int | None = None


@dataclass
class SearchPage:
    """A page of a list, and how far the search came."""

    hits: list[Hit] = field(default_factory=list)
    after: int = 0  # the place where it goes on
    total: int | None = None  # rows of all files; None: not counted in time
    out_of_time: bool = False
    troubles: list[str] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.total is not None and self.after >= self.total


Fates = Mapping[int, tuple[str, str]]  # of documents that went, by uid: stage and reason


class Searcher:
    """Looks through a run's files for a query."""

    def __init__(self) -> None:
        self._lengths: dict[str, int] = {}  # in rows, of files, which never change

    def search(self, folder: RunFolder, query: Query, deadline: Deadline, start: int) -> SearchPage:
        page = SearchPage(after=start)
        stages = [query.stage] if query.stage else folder.stage_names
        files = folder.documents if query.kind == "documents" else folder.rejects(stages)
        place, counted = 0, True
        for number, file in enumerate(files):
            if deadline.over and file.path not in self._lengths:
                counted = False
                page.out_of_time |= len(page.hits) < PAGE
                break
            try:
                rows = self._length(folder, file)
            except READ_ERRORS as error:
                page.troubles.append(unread(file, error))
                continue
            if place + rows > start and len(page.hits) < PAGE and not page.out_of_time:
                page.out_of_time = deadline.over
                if not page.out_of_time:
                    search_file(folder, query, deadline, page, number, file, place, rows)
            place += rows
        page.total = place if counted else None
        show_texts(folder, query, files, page, deadline)
        give_numbers(folder, page.hits, deadline)
        return page

    def _length(self, folder: RunFolder, file: RunFile) -> int:
        if file.path not in self._lengths:
            self._lengths[file.path] = folder.length(file.path)
        return self._lengths[file.path]


def search_file(
    folder: RunFolder,
    query: Query,
    deadline: Deadline,
    page: SearchPage,
    number: int,
    file: RunFile,
    place: int,
    rows: int,
) -> None:
    """Add the hits of one file from `page.after` on; `place` is that of its first row."""
    try:
        fates = fates_of(folder, file.key) if query.kind == "documents" else None
        for row, batch in batches(folder, file, query, max(0, page.after - place)):
            mask = chosen(batch, query, fates)
            for at in np.flatnonzero(mask).tolist():
                part = number if fates is not None else folder.part_of.get(file.key)
                page.hits.append(hit_of(batch, at, number, row + at, part, file, fates))
                if len(page.hits) == PAGE:
                    page.after = place + row + at + 1
                    return
            page.after = place + row + len(batch)
            if deadline.over and page.after < place + rows:
                page.out_of_time = True
                return
    except READ_ERRORS as error:
        page.troubles.append(unread(file, error))
    page.after = place + rows


def unread(file: RunFile, error: Exception) -> str:
    return f"{file.path}: cannot be read: {type(error).__name__}: {error}"[:400]


def batches(folder: RunFolder, file: RunFile, query: Query, start: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of a file from a row on, each with its first row; text only where words are looked for."""
    with folder.open(file.path) as opened:
        parquet = pq.ParquetFile(opened, pre_buffer=False)
        wanted = (*COLUMNS, "text") if query.words else COLUMNS
        columns = [name for name in wanted if name in parquet.schema_arrow.names]
        row = 0
        for group in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            if row + rows > start:
                first = row
                for batch in parquet.iter_batches(batch_size=BATCH, row_groups=[group], columns=columns):
                    skip = min(len(batch), max(0, start - first))
                    if skip < len(batch):
                        yield first + skip, batch.slice(skip)
                    first += len(batch)
            row += rows


def column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    """A column as plain values of one type; nulls where the file has none of that name."""
    return batch.column(name).cast(kind) if name in batch.schema.names else pa.nulls(len(batch), kind)


def chosen(batch: pa.RecordBatch, query: Query, fates: Fates | None) -> npt.NDArray[np.bool_]:
    """Which rows of a batch a query means."""
    mask = np.ones(len(batch), bool)

    def only(condition: pa.Array) -> None:
        np.logical_and(mask, pc.fill_null(condition, False).to_numpy(zero_copy_only=False), out=mask)

    if query.source:
        only(pc.equal(column(batch, "source", pa.string()), query.source))
    if query.url:
        only(pc.match_substring(column(batch, "url", pa.string()), query.url, ignore_case=True))
    if query.reason:
        only(pc.equal(column(batch, "reason", pa.string()), query.reason))
    if query.outcome and fates is not None:
        gone = np.isin(column(batch, "uid", pa.uint64()).fill_null(0).to_numpy(), np.array([*fates], np.uint64))
        mask &= gone if query.outcome == "gone" else ~gone
    for word in query.words:
        if mask.any():  # words are looked for only in what is left
            rows = np.flatnonzero(mask)
            texts = column(batch, "text", pa.large_string()).take(pa.array(rows))
            there = pc.fill_null(pc.match_substring(texts, word, ignore_case=True), False)
            mask[rows[~there.to_numpy(zero_copy_only=False)]] = False
    return mask


def hit_of(
    batch: pa.RecordBatch, at: int, number: int, row: int, part: int | None, file: RunFile, fates: Fates | None
) -> Hit:
    values = {name: batch.column(name)[at].as_py() for name in batch.schema.names if name != "text"}
    uid, source = values.get("uid"), values.get("source") or file.source
    hit = Hit(number, row, part, as_hex(uid), values.get("url"), source)
    if fates is None:
        hit.stage, hit.reason, hit.detail = file.stage, values.get("reason"), values.get("detail")
    elif uid is not None and uid in fates:
        hit.stage, hit.reason = fates[uid]
    return hit


def fates_of(folder: RunFolder, key: str) -> Fates:
    """The documents of a part that lie in rejects; the first stage that took one is the one that it went by."""
    fates: dict[int, tuple[str, str]] = {}
    for file in folder.rejects_of_part(key):
        try:
            table = folder.column(file.path, ["uid", "reason"])
        except READ_ERRORS:
            continue  # the list of rejects says so
        for uid, reason in zip(table.column("uid").to_pylist(), table.column("reason").to_pylist(), strict=True):
            if uid is not None:
                fates.setdefault(uid, (file.stage, reason or ""))
    return fates


def show_texts(folder: RunFolder, query: Query, files: list[RunFile], page: SearchPage, deadline: Deadline) -> None:
    """Of each text the place where the first word stands, or what it went for, or its beginning; as long as there is
    time."""
    by_file: dict[int, list[Hit]] = {}
    for hit in page.hits:
        by_file.setdefault(hit.file, []).append(hit)
    for number, hits in by_file.items():
        if deadline.over:
            break
        try:
            texts = texts_of(folder, files[number].path, [hit.row for hit in hits])
        except READ_ERRORS as error:
            page.troubles.append(unread(files[number], error))
            continue
        for hit, text in zip(hits, texts, strict=False):
            place = next(matches(text, query.words), None)
            if place is None and query.kind == "rejects" and hit.stage is not None:
                place = folder.places.of(hit.stage, hit.reason or "", text)
            shown, match = around(text, place, SHOWN)
            spans = matches(shown, query.words) if query.words else [match] if match is not None else []
            hit.shown, hit.characters = marked(shown, spans), len(text)


def texts_of(folder: RunFolder, path: str, rows: Sequence[int]) -> list[str]:
    """Texts in rows of a file, by growing number; none of a file without texts."""
    table = rows_of(folder.open, path, rows, {"text"})
    return [text or "" for text in table.column("text").to_pylist()] if table.num_columns else []


def give_numbers(folder: RunFolder, hits: list[Hit], deadline: Deadline) -> None:
    """For what rules took by stored signals: what they were beyond, as long as there is time."""
    wanted: dict[tuple[str, int], dict[int, Hit]] = {}  # by stage and part
    for hit in hits:
        if hit.uid is not None and hit.part is not None and hit.stage in folder.rules_by_name:
            wanted.setdefault((str(hit.stage), hit.part), {})[int(hit.uid, 16)] = hit
    for (stage, number), by_uid in wanted.items():
        if not deadline.over:
            for uid, detail in details_of(folder, stage, folder.documents[number].key, list(by_uid)).items():
                by_uid[uid].detail = detail
