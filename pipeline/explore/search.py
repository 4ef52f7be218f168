"""Documents and rejects, page by page and by what they hold: files are read in order, batch by batch, until a page is
full or time is up.

A place is a number: how many rows of all files, in their order, stand before it. A search that ran out of time says how
far it came, and goes on from there when asked to.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.pipeline.explore.current_run import CurrentRun
from gristmill.pipeline.explore.matches import Stretch, excerpt
from gristmill.pipeline.explore.query import PAGE, Query
from gristmill.pipeline.explore.reading_turns import Turn
from gristmill.pipeline.formatting import as_hex
from gristmill.pipeline.look.run_folder import RunFile, RunFolder
from gristmill.pipeline.look.where import conditions_of, holds
from gristmill.pipeline.report_data.rejects import reasons_by_uid

BATCH = 1024  # rows looked at between two looks at the clock
BEGINNING = 280  # characters of a text in a list
REMEMBERED = 64  # parts whose fates are remembered
READ_ERRORS = (OSError, pa.ArrowInvalid, pa.ArrowException, KeyError, ValueError, EOFError)


class RejectFates(NamedTuple):
    """What became of the documents of a part that lie in rejects."""

    uid: npt.NDArray[np.uint64]  # sorted
    code: npt.NDArray[np.int32]  # of each: its place in `reasons`
    reasons: list[tuple[str, str]]  # stage and reason


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
    numbers: str = ""  # what it was beyond
    shown: list[Stretch] = field(default_factory=list)  # of its text: where the words stand, or the beginning
    characters: int | None = None
    name: str = ""  # of the file


@dataclass
class SearchPage:
    """A page of a list, and how far the search came."""

    hits: list[Hit] = field(default_factory=list)
    after: int = 0  # the place where it goes on
    looked: int = 0  # rows that were looked at
    total: int | None = None  # rows of all files; None: not counted in time
    out_of_time: bool = False
    troubles: list[str] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.total is not None and self.after >= self.total


class Searcher:
    """Looks through a run's files for a query."""

    def __init__(self, run: CurrentRun) -> None:
        self.run = run
        self._fates: OrderedDict[str, RejectFates] = OrderedDict()
        self._cells: OrderedDict[tuple[str, str], npt.NDArray[np.uint64]] = OrderedDict()
        self._lock = threading.Lock()

    def files(self, folder: RunFolder, query: Query) -> list[RunFile]:
        if query.kind == "documents":
            return folder.documents
        return folder.rejects([query.stage] if query.stage else folder.stage_names)

    def search(self, folder: RunFolder, query: Query, turn: Turn, start: int) -> SearchPage:
        page = SearchPage(after=start)
        files = self.files(folder, query)
        place = 0
        for number, file in enumerate(files):
            try:
                rows = self.run.length(folder, file)
            except READ_ERRORS as error:
                page.troubles.append(unread(file, error))
                continue
            if turn.over and place + rows > start:
                page.out_of_time = True
                break
            if place + rows > start and len(page.hits) < PAGE:
                self._search_file(folder, query, turn, page, number, file, place)
                if page.out_of_time or len(page.hits) >= PAGE:
                    break
                page.after = place + rows
            place += rows
        page.total = self._total(folder, files, turn)
        self._show_texts(folder, query, files, page, turn)
        give_numbers(folder, page.hits, turn)
        return page

    def _total(self, folder: RunFolder, files: list[RunFile], turn: Turn) -> int | None:
        total = 0
        for file in files:
            if turn.over and file.path not in self.run.lengths:
                return None
            try:
                total += self.run.length(folder, file)
            except READ_ERRORS:
                continue
        return total

    def _search_file(
        self, folder: RunFolder, query: Query, turn: Turn, page: SearchPage, number: int, file: RunFile, place: int
    ) -> None:
        """One file from `found.after` on; leaves there where it stopped."""
        try:
            fates = self.fates(folder, file) if query.kind == "documents" else None
            cell = self.cell(folder, file.key, query.where, page) if query.where else None
            for row, batch in batches(folder, file, query, max(0, page.after - place)):
                mask = chosen(batch, query, fates)
                if cell is not None:
                    mask &= np.isin(column(batch, "uid", pa.uint64()).fill_null(0).to_numpy(), cell)
                for at in np.flatnonzero(mask).tolist():
                    page.hits.append(hit_of(batch, at, number, row + at, file, fates))
                    page.hits[-1].part = number if fates is not None else folder.part_of.get(file.key)
                    if len(page.hits) == PAGE:
                        page.looked += at + 1
                        page.after = place + row + at + 1
                        return
                page.looked += len(batch)
                page.after = place + row + len(batch)
                if turn.over:
                    page.out_of_time = True
                    return
        except READ_ERRORS as error:
            page.troubles.append(unread(file, error))

    def fates(self, folder: RunFolder, file: RunFile) -> RejectFates:
        """What became of the documents of a part that lie in rejects: uid, stage and reason of each."""
        beside = folder.rejects_of_part(file.key)
        name = "\n".join(reject.path for reject in beside)
        with self._lock:
            fates = self._fates.get(name)
        if fates is None:
            fates = fates_of(folder, beside)
            with self._lock:
                self._fates[name] = fates
                while len(self._fates) > REMEMBERED:
                    self._fates.popitem(last=False)
        return fates

    def cell(self, folder: RunFolder, key: str, where: str, page: SearchPage) -> npt.NDArray[np.uint64]:
        """Uids of a part's documents that have all the values; none where a signal is in none of its files."""
        name = ("\n".join(folder.signal_files.get(key, [])), where)
        with self._lock:
            uids = self._cells.get(name)
        if uids is None:
            uids, lacking = uids_where(folder, key, conditions_of(where))
            if lacking:
                trouble = f"some documents have no signal {', '.join(lacking)}"
                page.troubles += [trouble] if trouble not in page.troubles else []
            with self._lock:
                self._cells[name] = uids
                while len(self._cells) > REMEMBERED:
                    self._cells.popitem(last=False)
        return uids

    def _show_texts(self, folder: RunFolder, query: Query, files: list[RunFile], page: SearchPage, turn: Turn) -> None:
        """What was looked for in each text that was found, or its first words, as long as there is time."""
        by_file: dict[int, list[Hit]] = {}
        for hit in page.hits:
            by_file.setdefault(hit.file, []).append(hit)
        for number, hits in by_file.items():
            try:
                for hit, text in texts_at(folder, files[number].path, hits, turn):
                    around = excerpt(text, query.words) if query.words and not turn.over else None
                    hit.shown, hit.characters = around or [(text[:BEGINNING], False)], len(text)
            except READ_ERRORS as error:
                page.troubles.append(unread(files[number], error))


def uids_where(folder: RunFolder, key: str, conditions: Mapping[str, str]) -> tuple[npt.NDArray[np.uint64], list[str]]:
    """Each signal is read from the last file that has it; those that no file has are named."""
    found: npt.NDArray[np.uint64] | None = None
    lacking = dict(conditions)
    for path in reversed(folder.signal_files.get(key, [])):
        with folder.open(path) as opened:
            parquet = pq.ParquetFile(opened, pre_buffer=False)
            here = {name: lacking.pop(name) for name in list(lacking) if name in parquet.schema_arrow.names}
            if here:
                table = parquet.read(columns=["uid", *here])
                uids = table["uid"].to_numpy()[holds(table, here)]
                found = uids if found is None else np.intersect1d(found, uids)
        if not lacking:
            break
    return (np.zeros(0, np.uint64) if found is None or lacking else found), list(lacking)


def give_numbers(folder: RunFolder, hits: list[Hit], turn: Turn) -> None:
    """For what rules took by stored signals: the number of the reason by which it went, as long as there is time."""
    wanted: dict[tuple[str, int], dict[int, Hit]] = {}  # by stage and part
    for hit in hits:
        if hit.uid is not None and hit.part is not None and hit.stage in folder.rules_by_name:
            wanted.setdefault((str(hit.stage), hit.part), {})[int(hit.uid, 16)] = hit
    for (stage, number), by_uid in wanted.items():
        key = folder.documents[number].key
        for deciding, part in folder.rules_by_name[stage]:
            if part.key == key and not turn.over:
                for uid, reasons in reasons_by_uid(folder.open, [deciding], part, list(by_uid)):
                    by_uid[uid].numbers = next(
                        (held.words for held in reasons.held if held.reason == by_uid[uid].reason), ""
                    )


def unread(file: RunFile, error: Exception) -> str:
    return f"{file.path}: cannot be read: {type(error).__name__}: {error}"[:400]


def batches(folder: RunFolder, file: RunFile, query: Query, start: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of a file from a row on, each with its first row; text only where words are looked for."""
    wanted = [
        "uid",
        "url",
        "source",
        *(["reason", "detail"] if query.kind == "rejects" else []),
        *(["text"] if query.words else []),
    ]
    with folder.open(file.path) as opened:
        parquet = pq.ParquetFile(opened, pre_buffer=False)
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
    """A column as plain values of one type; nulls where the file has none of that name or of another type."""
    if name not in batch.schema.names:
        return pa.nulls(len(batch), kind)
    return batch.column(name).cast(kind)


def chosen(batch: pa.RecordBatch, query: Query, fates: RejectFates | None) -> npt.NDArray[np.bool_]:
    """Which rows of a batch a query means."""
    mask = np.ones(len(batch), bool)

    def only(condition: pa.Array) -> None:
        np.logical_and(mask, pc.fill_null(condition, False).to_numpy(zero_copy_only=False), out=mask)

    if query.source:
        only(pc.equal(column(batch, "source", pa.string()), query.source))
    if query.url:
        only(pc.match_substring(column(batch, "url", pa.string()), query.url, ignore_case=True))
    if query.kind == "rejects" and query.reason:
        only(pc.equal(column(batch, "reason", pa.string()), query.reason))
    if fates is not None and (query.outcome or query.stage or query.reason):
        code = codes_of(batch, fates)
        wanted = [index for index, (stage, reason) in enumerate(fates.reasons) if is_meant(query, stage, reason)]
        mask &= code < 0 if query.outcome == "kept" else np.isin(code, wanted)
    for word in query.words:
        if mask.any():  # words are looked for only in what is left
            rows = np.flatnonzero(mask)
            texts = column(batch, "text", pa.large_string()).take(pa.array(rows))
            there = pc.fill_null(pc.match_substring(texts, word, ignore_case=True), False).to_numpy(
                zero_copy_only=False
            )
            mask[rows[~there]] = False
    return mask


def is_meant(query: Query, stage: str, reason: str) -> bool:
    return (not query.stage or stage == query.stage) and (not query.reason or reason == query.reason)


def codes_of(batch: pa.RecordBatch, fates: RejectFates) -> npt.NDArray[np.int32]:
    """For each document who took it and why, as an index into `reasons`; -1: it is in no rejects."""
    uid, known = column(batch, "uid", pa.uint64()).to_numpy(zero_copy_only=False), fates.uid
    if not len(known):
        return np.full(len(uid), -1, np.int32)
    at = np.minimum(np.searchsorted(known, uid), len(known) - 1)
    return np.where(known[at] == uid, fates.code[at], -1).astype(np.int32)


def hit_of(batch: pa.RecordBatch, at: int, number: int, row: int, file: RunFile, fates: RejectFates | None) -> Hit:
    values = {name: batch.column(name)[at].as_py() for name in batch.schema.names if name != "text"}
    hit = Hit(
        number,
        row,
        None,
        as_hex(values.get("uid")),
        values.get("url"),
        values.get("source") or file.source,
        name=file.name,
    )
    if fates is None:
        hit.stage, hit.reason, hit.detail = file.stage, values.get("reason"), values.get("detail")
    else:
        code = int(codes_of(batch.slice(at, 1), fates)[0])
        if code >= 0:
            hit.stage, hit.reason = fates.reasons[code]
    return hit


def fates_of(folder: RunFolder, files: list[RunFile]) -> RejectFates:
    """The first stage that took a document is the one that it went by."""
    reasons_taken: dict[tuple[str, str], int] = {}
    uids, codes = [np.empty(0, np.uint64)], [np.empty(0, np.int32)]
    for file in files:
        try:
            table = folder.column(file.path, ["uid", "reason"])
        except READ_ERRORS:
            continue  # the list of rejects says so
        table = table.filter(pc.is_valid(table.column("uid")))
        reasons = pc.fill_null(table.column("reason").cast(pa.string()), "").combine_chunks().dictionary_encode()
        names = [
            reasons_taken.setdefault((file.stage, str(name)), len(reasons_taken))
            for name in reasons.dictionary.to_pylist()
        ]
        uids.append(table.column("uid").to_numpy().astype(np.uint64))
        codes.append(
            np.array(names, np.int32)[reasons.indices.to_numpy(zero_copy_only=False)]
            if names
            else np.empty(0, np.int32)
        )
    uid, code = np.concatenate(uids), np.concatenate(codes)
    order = np.argsort(uid, kind="stable")
    return RejectFates(uid[order], code[order], list(reasons_taken))


def texts_at(folder: RunFolder, path: str, hits: list[Hit], turn: Turn) -> Iterator[tuple[Hit, str]]:
    """The texts of rows of a file; of a row group the column of texts is read once."""
    with folder.open(path) as opened:
        parquet = pq.ParquetFile(opened, pre_buffer=False)
        if "text" not in parquet.schema_arrow.names:
            return
        first = 0
        for group in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            in_group = [hit for hit in hits if first <= hit.row < first + rows]
            if in_group and not turn.over:
                texts = parquet.read_row_group(group, columns=["text"]).column("text")
                for hit in in_group:
                    text = texts[hit.row - first].as_py()
                    if text is not None:
                        yield hit, text
            first += rows
