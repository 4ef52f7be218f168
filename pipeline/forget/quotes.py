"""What else names forgotten documents or quotes them: reports, logs, kept answers, tables and text files of a user's.

A quote is 32 bytes in a row that no document holds that stays. What is searched for quotes is small beside the
documents. So its stretches of 32 bytes are gathered first; then the forgotten documents say which of them are theirs,
and those that stay, which are theirs too.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.base.types import Array, Hashes
from gristmill.kernels.common.files import whole_file
from gristmill.kernels.duplicates.windows import window_hashes
from gristmill.pipeline.forget.search import ROWS, UID, Search, batches, columns_of, hexed, string_columns
from gristmill.pipeline.store.forgotten import Forgotten
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.serialize import plain
from gristmill.pipeline.store.storage import Store, json_bytes

WIDTH = 32  # bytes of a quote
MOST = 1 << 22  # bytes that are looked at in one go
AROUND = "()[]{}<>\"',;:"  # a url in a text
QUOTING = ("log", "slowest")  # of a task's result: what may name a document or quote it
UNTOUCHED = ("tokenizer_json", "recipe")  # a tokenizer stays as it was trained


class Quotes:
    """Which strings name one of some documents or quote it."""

    def __init__(self, search: Search, wanted: Forgotten, uids: Array, names: set[str]) -> None:
        self.search, self.wanted, self.uids = search, wanted, uids
        self.hexed = frozenset(map(hexed, uids.tolist()))
        self.urls = frozenset(search.urls(uids) | names)
        self._seen: list[Hashes] = []
        self._theirs: Hashes = np.zeros(0, np.uint64)

    def look_through(self, strings: pa.Array) -> None:
        for some in slices(text_column(strings)):
            self._seen.append(np.unique(window_hashes(some, WIDTH)[0]))

    def compare(self) -> None:
        """All was looked through: keep what these documents hold, and no other."""
        candidates = np.unique(np.concatenate([*self._seen, np.zeros(0, np.uint64)]))
        are_theirs, self._seen = np.zeros(len(candidates), np.bool_), []
        for theirs in (True, False) if len(candidates) and len(self.uids) else ():
            for texts in self.search.texts(self.uids, theirs):
                for some in slices(text_column(texts)):
                    hashes = window_hashes(some, WIDTH)[0]
                    places = np.minimum(np.searchsorted(candidates, hashes), len(candidates) - 1)
                    are_theirs[places[candidates[places] == hashes]] = theirs
        self._theirs = candidates[are_theirs]

    def in_each(self, strings: pa.Array) -> Array:
        """Which of these strings have a uid, a url, an e-mail address that is asked for, or a quote in them."""
        found = self.wanted.of_emails(strings) | self._hold_quotes(text_column(strings))
        for row, string in enumerate(strings.to_pylist()):
            if string and not found[row]:
                words = string.split() if self.urls else ()
                found[row] = (
                    string in self.urls
                    or any(word.strip(AROUND) in self.urls for word in words)
                    or any(uid in self.hexed for uid in UID.findall(string))
                )
        return found

    def _hold_quotes(self, column: TextColumn) -> Array:
        found, done = np.zeros(len(column), np.bool_), 0
        for some in slices(column) if len(self._theirs) else ():
            hashes, first = window_hashes(some, WIDTH)
            places = np.minimum(np.searchsorted(self._theirs, hashes), len(self._theirs) - 1)
            hits = np.concatenate([[0], np.cumsum(self._theirs[places] == hashes)])
            found[done : done + len(some)] = hits[first[1:]] > hits[first[:-1]]
            done += len(some)
        return found


def slices(column: TextColumn) -> Iterable[TextColumn]:
    """Some texts at a time, about MOST bytes; one that is longer comes alone."""
    start, offsets = 0, column.offsets
    while start < len(column):
        end = max(start + 1, int(np.searchsorted(offsets, offsets[start] + MOST, side="right")) - 1)
        yield TextColumn(column.data, offsets[start : end + 1])
        start = end


# --- files in pieces --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edit:
    """A file without some of its rows or lines, or a JSON file as it will be."""

    rows: list[int] = field(default_factory=list)
    content: Any = None

    def carry_out(self, store: Store, path: str) -> None:
        """Write the file, whole or not at all."""
        if self.content is not None:
            store.write(path, json_bytes(self.content))
        elif path.endswith(".parquet"):
            schema = columns_of(store, path)
            with store.commit(path) as file, pq.ParquetWriter(cast(Any, file), schema, compression="zstd") as writer:
                for first, batch in batches(store, path):
                    stays = ~np.isin(np.arange(first, first + len(batch)), self.rows)
                    writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema).filter(pa.array(stays)))
        else:
            without_lines(store.at(path), set(self.rows))


def pieces_of(store: Store, path: str) -> Iterator[tuple[int, list[pa.Array]]]:
    """The strings of a file, some at a time: the number of the first row, and columns of a table; lines of a text; all
    strings of a JSON file."""
    if path.endswith(".parquet"):
        names = string_columns(columns_of(store, path))
        for first, batch in batches(store, path, names) if names else ():
            yield first, [as_strings(batch.column(name).to_pylist()) for name in names]
    elif (value := json_in(store, path)) is not None:
        yield 0, [as_strings(strings_in(value))]
    else:
        first = 0
        for lines in lines_of(store.at(path)):
            yield first, [as_strings(map(unescaped, lines))]
            first += len(lines)


def json_in(store: Store, path: str) -> Any:
    return store.read_json_if_whole(path) if path.endswith(".json") else None


def edits_of(store: Store, paths: Iterable[str], quotes: Quotes) -> dict[str, Edit]:
    """Files that name forgotten documents or quote them, without what does."""
    edits: dict[str, Edit] = {}
    for path in paths:
        rows: list[int] = []
        for first, columns in pieces_of(store, path):
            hit = np.any([quotes.in_each(column) for column in columns], axis=0)
            rows += (first + np.flatnonzero(hit)).tolist()
        value = json_in(store, path) if rows else None
        if value is not None:
            strings = list(strings_in(value))
            edits[path] = Edit(content=without_strings(value, {strings[row] for row in rows}))
        elif rows:
            edits[path] = Edit(rows)
    return edits


def quoting(journal: Journal) -> Iterator[tuple[str, pa.Array]]:
    """Tasks, and the strings in their results that may name documents or quote them."""
    for task, result in journal.done.items():
        yield task, as_strings(strings_in(plain([getattr(result, name, None) for name in QUOTING])))


# --- JSON and lines ---------------------------------------------------------------------------------------------------


def as_strings(values: Iterable[Any]) -> pa.Array:
    """Text as a column; bytes that are no UTF-8 and halves of surrogate pairs are replaced."""
    texts = (value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values)
    return pa.array([text and text.encode("utf-8", "replace").decode() for text in texts], pa.large_string())


def strings_in(value: Any) -> Iterator[str]:
    """All texts of plain data."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from () if name in UNTOUCHED else strings_in(inner)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)
    elif isinstance(value, str):
        yield value


def without_strings(value: Any, strings: set[str]) -> Any:
    """Plain data without entries of lists that have one of some strings, and with empty texts in their place
    elsewhere."""
    if isinstance(value, dict):
        return {name: inner if name in UNTOUCHED else without_strings(inner, strings) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_strings(item, strings) for item in value if not is_about(item, strings)]
    return "" if isinstance(value, str) and value in strings else value


def is_about(item: Any, strings: set[str]) -> bool:
    """Is an entry of a list one of some strings, or does it have one of its own?"""
    texts = item.values() if isinstance(item, dict) else [item]
    return any(isinstance(text, str) and text in strings for text in texts)


def lines_of(path: str) -> Iterator[list[bytes]]:
    """Lines of a text file, some at a time."""
    with Path(path).open("rb") as file:
        while some := list(itertools.islice(file, ROWS)):
            yield some


def unescaped(line: bytes) -> bytes:
    """A line as what it says: escapes of JSON are read."""
    if b"\\" not in line:
        return line.strip()
    try:
        text = json.dumps(json.loads(line), ensure_ascii=False)
    except (ValueError, RecursionError):
        return line.strip()
    return text.replace("\\n", "\n").replace('\\"', '"').encode("utf-8", "replace")


def without_lines(path: str, gone: set[int]) -> None:
    """Write a file of lines without some of them."""
    row = 0
    with whole_file(Path(path)) as file:
        for lines in lines_of(path):
            file.writelines(line for number, line in enumerate(lines, row) if number not in gone)
            row += len(lines)
