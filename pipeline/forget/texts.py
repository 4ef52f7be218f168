"""What other files say of forgotten documents: reports, logs, and tables and text files of a user's.

A passage is a stretch of 32 bytes that no document holds that stays. What is searched for passages is small beside the
documents. So its stretches are gathered first; then the forgotten documents say which of them are theirs, and those
that stay, which are theirs too.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.base.types import Array, Hashes
from gristmill.kernels.duplicates.windows import window_hashes
from gristmill.pipeline.forget.outside import are_answers_to, askers_of, caches_elsewhere, keys_of
from gristmill.pipeline.forget.search import (
    ROWS,
    Edit,
    Search,
    batches,
    hexed,
    string_columns,
    text_columns,
    uids_of,
)
from gristmill.pipeline.store.forgotten import Forgotten
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.records import Result
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.store.serialize import plain
from gristmill.pipeline.store.storage import hash_of_content

WIDTH = 32  # bytes of a passage
MOST = 1 << 22  # bytes that are looked at in one go
UID = re.compile(r"\b[0-9a-f]{16}\b")
MARKS = ("uid", "like")  # keys under which reports name a document
QUOTING = ("log", "slowest", "pages")  # of a task's result: what may name a document or quote it
OWN_REPORTS = ("/manifest.json", "/rules.json", "/survey.json", "/report.json")
UNTOUCHED = ("tokenizer_json", "recipe")  # a tokenizer stays as it was trained


class Passages:
    """The stretches of some texts that were searched, less those that do not count."""

    def __init__(self) -> None:
        self._seen: list[Hashes] = []
        self.candidates: Hashes = np.zeros(0, np.uint64)
        self._theirs: Array = np.zeros(0, np.bool_)

    def look_through(self, texts: pa.Array | pa.ChunkedArray) -> None:
        for part in slices(text_column(texts)):
            self._seen.append(np.unique(window_hashes(part, WIDTH)[0]))

    def compare(self, search: Search, uids: Array) -> None:
        """All was looked through: keep what forgotten documents hold, and no document that stays."""
        self.candidates = np.unique(np.concatenate([*self._seen, np.zeros(0, np.uint64)]))
        self._theirs, self._seen = np.zeros(len(self.candidates), np.bool_), []
        for theirs in (True, False):
            for path in search.tables("uid") if len(self.candidates) else ():
                names = [name for name in text_columns(search.schema(path)) if not name.startswith("html")]
                for _, batch in batches(search.store, path, ["uid", *names]) if names else ():
                    rows = pa.array(np.isin(uids_of(batch), uids) == theirs)
                    for name in names:
                        for places in self._places(batch.column(name).filter(rows)):
                            self._theirs[places] = theirs

    def _places(self, texts: pa.Array | pa.ChunkedArray) -> Iterable[Array]:
        for part in slices(text_column(texts)):
            hashes = window_hashes(part, WIDTH)[0]
            places = np.minimum(np.searchsorted(self.candidates, hashes), len(self.candidates) - 1)
            yield places[self.candidates[places] == hashes]

    def in_each(self, texts: pa.Array | pa.ChunkedArray) -> Array:
        """Which texts hold a passage."""
        column = text_column(texts)
        found = np.zeros(len(column), np.bool_)
        if not self._theirs.any():
            return found
        theirs, done = self.candidates[self._theirs], 0
        for part in slices(column):
            hashes, first = window_hashes(part, WIDTH)
            places = np.minimum(np.searchsorted(theirs, hashes), len(theirs) - 1)
            hits = np.concatenate([[0], np.cumsum(theirs[places] == hashes)])
            found[done : done + len(part)] = hits[first[1:]] > hits[first[:-1]]
            done += len(part)
        return found


def slices(column: TextColumn) -> Iterable[TextColumn]:
    """Some texts at a time, about MOST bytes; one that is longer comes alone."""
    start, offsets = 0, column.offsets
    while start < len(column):
        end = max(start + 1, int(np.searchsorted(offsets, offsets[start] + MOST, side="right")) - 1)
        yield TextColumn(column.data, offsets[start : end + 1])
        start = end


class Scrubber:
    """Removes from plain data entries of lists that name a document, hold a passage of it, or an e-mail address."""

    def __init__(
        self, uids: Iterable[str], urls: Iterable[str], wanted: Forgotten, strings: list[str], passages: Passages
    ) -> None:
        self.wanted = wanted
        self.uids = frozenset(uids)
        self.urls = frozenset(urls)
        found = passages.in_each(as_array(strings)).tolist()
        self.texts = frozenset(string for string, is_found in zip(strings, found, strict=True) if is_found)

    def names(self, text: str) -> bool:
        """Does a text name one of them, or hold a passage?"""
        if text in self.urls or text in self.texts:
            return True
        if len(self.wanted.keys["email"]) and self.wanted.named_in(text.encode("utf-8", "replace")):
            return True
        words = (word.strip("()[]<>\"',;:") for word in text.split()) if self.urls else ()
        return any(uid in self.uids for uid in UID.findall(text)) or any(word in self.urls for word in words)

    def clean(self, value: Any) -> Any:
        """Plain data without them."""
        if isinstance(value, dict):
            return {name: inner if name in UNTOUCHED else self.clean(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.clean(item) for item in value if not self.is_of_one(item)]
        return "" if isinstance(value, str) and self.names(value) else value

    def is_of_one(self, item: Any) -> bool:
        """Is an entry of a list about one of them?"""
        if isinstance(item, str):
            return self.names(item)
        if not isinstance(item, dict):
            return False
        if any(item.get(mark) in self.uids for mark in MARKS):
            return True
        return any(isinstance(text, str) and self.names(text) for text in item.values())


def strings_in(value: Any, key: str = "") -> Iterator[str]:
    """All texts of plain data that are long enough to hold a passage."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from strings_in(inner, name)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)
    elif isinstance(value, str) and len(value) * 4 >= WIDTH and key not in UNTOUCHED:
        yield value


def as_array(strings: list[str]) -> pa.Array:
    return pa.array([string.encode("utf-8", "replace") for string in strings], pa.large_binary())


class TextSearch:
    """Everything that is no table of the run's own, searched for what names documents or quotes them."""

    def __init__(
        self, search: Search, record: RunRecord, journal: Journal, wanted: Forgotten, uids: Array, names: set[str]
    ) -> None:
        self.search, self.record, self.journal, self.wanted, self.uids = search, record, journal, wanted, uids
        self.store = store = search.store
        self.askers = askers_of(record)
        self.texts = {store.at(path): path for path in search.files.texts if not is_report(path)}
        self.texts |= {path: path for path in caches_elsewhere(store, self.askers)}
        self.reports = ["run.json", *sorted(p for p in store.files("stages") if p.endswith("/report.json"))]
        self.passages = Passages()
        self.scrubber = self._compare(names)

    def _compare(self, names: set[str]) -> Scrubber:
        strings = sorted(set(self._strings()))
        self.passages.look_through(as_array(strings))
        for path in self.search.strange_tables():
            for _, columns in self._cells(path):
                for column in columns:
                    self.passages.look_through(column)
        for path in self.texts:
            for lines in lines_of(path):
                self.passages.look_through(unescaped(lines))
        self.passages.compare(self.search, self.uids)
        return Scrubber(map(hexed, self.uids.tolist()), self._urls() | names, self.wanted, strings, self.passages)

    def _strings(self) -> Iterator[str]:
        """Texts in the journal, in reports and in JSON files."""
        for result in self.journal.done.values():
            for name in QUOTING:
                yield from strings_in(plain(getattr(result, name, None)))
        for path in [*self.reports, *(path for path in self.texts.values() if path.endswith(".json"))]:
            yield from strings_in(self.store.read_json_if_whole(path))

    def _cells(self, path: str) -> Iterator[tuple[int, list[pa.Array]]]:
        """Text cells of a table, some rows at a time."""
        names = string_columns(self.search.schema(path))
        for first, batch in batches(self.store, path, names) if names else ():
            yield first, [batch.column(name) for name in names]

    def _urls(self) -> set[str]:
        """Addresses of the documents that are forgotten, and of no other."""
        sides: dict[bool, set[str]] = {True: set(), False: set()}
        for theirs in (True, False) if len(self.uids) else ():
            for _, _, batch in self.search.rows("uid", "url"):
                rows = pa.array(np.isin(uids_of(batch), self.uids) == theirs)
                some = {url for url in batch.column("url").filter(rows).to_pylist() if url}
                sides[theirs] |= some if theirs else some & sides[True]
        return sides[True] - sides[False]

    def tables(self) -> dict[str, Edit]:
        """Rows of a user's tables to remove."""
        edits: dict[str, Edit] = {}
        for path in self.search.strange_tables():
            goes: list[int] = []
            for first, columns in self._cells(path):
                hit = [self.passages.in_each(column) | self.wanted.of_emails(column) for column in columns]
                goes += (first + np.flatnonzero(np.any(hit, axis=0))).tolist()
            if goes:
                edits[path] = {"checksum": hash_of_content(self.store.at(path)), "goes": goes}
        return edits

    def lines(self) -> dict[str, Edit]:
        """Lines of text files to remove, answers of language models among them."""
        answered = keys_of(self.askers, self._own_texts()) if self.askers and len(self.uids) else set()
        edits: dict[str, Edit] = {}
        for path, name in self.texts.items():
            goes: list[int] = []
            row = 0
            for lines in lines_of(path):
                hit = self.passages.in_each(unescaped(lines)) | np.array(are_answers_to(lines, answered), bool)
                hit |= np.array([self.scrubber.names(line.decode("utf-8", "replace").strip()) for line in lines], bool)
                goes += (row + np.flatnonzero(hit)).tolist()
                row += len(lines)
            if goes:
                edits[name] = {"checksum": hash_of_content(path), "goes": goes}
        return edits

    def _own_texts(self) -> list[str]:
        """All versions of the texts of the documents that are forgotten."""
        texts = set[str]()
        for path in self.search.tables("uid", "text"):
            names = [name for name in text_columns(self.search.schema(path)) if name != "html"]
            for _, batch in batches(self.store, path, ["uid", *names]):
                own = pa.array(np.isin(uids_of(batch), self.uids))
                texts |= {text for name in names for text in batch.column(name).filter(own).to_pylist() if text}
        return sorted(texts)

    def cleaned(self, paths: Iterable[str]) -> dict[str, Any]:
        """JSON files without what names the documents, of those that do."""
        values = {path: self.store.read_json(path) for path in paths}
        return {path: new for path, value in values.items() if (new := self.scrubber.clean(value)) != value}

    def quotes(self, result: Result) -> bool:
        """Does a result of the journal name a document, or quote it?"""
        value = {name: plain(getattr(result, name, None)) for name in QUOTING}
        return bool(self.scrubber.clean(value) != value)


def is_report(path: str) -> bool:
    """Is it a record or report of the run, which is cleaned as a whole or written again?"""
    own = path.startswith(("legs/", "stages/")) and path.endswith(OWN_REPORTS)
    return own or path in ("run.json", "report.html")


# --- files of lines ---------------------------------------------------------------------------------------------------


def lines_of(path: str) -> Iterator[list[bytes]]:
    """Lines of a text file, packed or not, some at a time."""
    with Path(path).open("rb") as file:
        stream: Any = file
        if path.endswith(".gz"):
            stream = gzip.GzipFile(fileobj=file)
        elif path.endswith(".zst"):
            stream = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
        some: list[bytes] = []
        for line in stream:
            some.append(line)
            if len(some) == ROWS:
                yield some
                some = []
        if some:
            yield some


def unescaped(lines: list[bytes]) -> pa.Array:
    """Lines as what they say: escapes of JSON are read."""

    def plain(line: bytes) -> bytes:
        if b"\\" not in line:
            return line
        try:
            return json.dumps(json.loads(line), ensure_ascii=False).replace("\\n", "\n").replace('\\"', '"').encode()
        except (ValueError, RecursionError):
            return line

    return pa.array([plain(line) for line in lines], pa.large_binary())


def without_lines(path: str, goes: Iterable[int]) -> bytes:
    """The content of a file of lines without some of them, packed as it was."""
    gone, row = set(goes), 0
    content = io.BytesIO()
    out: Any = content
    if path.endswith(".gz"):
        out = gzip.GzipFile(fileobj=content, mode="wb", mtime=0)
    elif path.endswith(".zst"):
        out = zstandard.ZstdCompressor().stream_writer(content, closefd=False)
    for lines in lines_of(path):
        for line in lines:
            if row not in gone:
                out.write(line)
            row += 1
    if out is not content:
        out.close()
    return content.getvalue()
