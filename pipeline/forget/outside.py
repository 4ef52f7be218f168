"""Copies and originals beside a run's folder.

- tables of `Recipe` in OUT-tables that hold one are removed; `Recipe.run` writes them without the rows;
- caches of crawls are emptied, and files fetched again when needed;
- answers of language models that stages keep for other runs;
- inputs are read again for documents in which `personal_data` has masked what a takedown names, since they cannot be
  found in what the run stores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.kernels.base.types import Array
from gristmill.pipeline.crawls import spool
from gristmill.pipeline.crawls.remote import folder_of
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.inputs.files import (
    REMEMBERED,
    Folders,
    NoOriginal,
    Remembered,
    addresses_of,
    open_input,
    reader_of,
    remembered_in,
    with_contents,
)
from gristmill.pipeline.store.forgotten import Forgotten, holds_strings
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.records import PhaseResult
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.store.storage import Store
from gristmill.stages.documents import Origin, uid_of
from gristmill.stages.inputs import InputFile
from gristmill.stages.read.cc import Cc
from gristmill.stages.stage import Reader
from gristmill.stages.text.personal_data import PersonalData

ROWS = 8192
UNREADABLE = (NoOriginal, RunFailed, OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError)
ANSWERS = "answers-*.jsonl"


def readers_of(record: RunRecord) -> Iterator[tuple[str, Reader]]:
    """The sources of a run with their readers, as far as they come with Gristmill."""
    for source in record.sources:
        try:
            yield source, reader_of(record.recipe, source)
        except NoOriginal:
            continue


def inputs_of(store: Store) -> dict[str, Remembered]:
    """Size, stamp and content of the input files that a run has read, by address."""
    return remembered_in(store.read(REMEMBERED)) if store.exists(REMEMBERED) else {}


# --- tables -----------------------------------------------------------------------------------------------------------


def tables_folder(out: str) -> Path:
    """Where `Recipe.run` puts the tables that it is given."""
    return Path(f"{out.rstrip('/')}-tables").resolve()


def tables_to_remove(store: Store, record: RunRecord, forgotten: Forgotten) -> dict[Path, int]:
    """Tables in OUT-tables that hold rows that a list means, and how many; and those that no source reads any more."""
    tables: dict[Path, int] = {}
    sources = {root: source for source, reader in readers_of(record) for root in reader.roots}
    for path in sorted(tables_folder(store.root).glob("*.parquet")):
        source = sources.get(str(path))
        rows = [] if source is None else rows_of_table(path, source, path.name, forgotten)
        if source is None or rows:
            tables[path] = len(rows)
    return tables


def rows_of_table(path: Path, source: str, name: str, forgotten: Forgotten) -> list[int]:
    """Rows of a table that a list means and that are not empty yet. Readers make uids from the file's `name`."""
    rows: list[int] = []
    first = 0
    with pq.ParquetFile(path) as table:
        for group in range(table.num_row_groups):
            begun = first
            for batch in table.iter_batches(batch_size=ROWS, row_groups=[group]):
                numbers = range(first - begun, first - begun + len(batch))
                uids = pa.array([uid_of(source, name, f"{group}:{row}") for row in numbers], pa.uint64())
                is_filled = np.any([column.is_valid().to_numpy(False) for column in batch.columns], axis=0)
                goes = is_filled & forgotten.matches(as_documents(batch, uids))
                rows += (first + np.flatnonzero(goes)).tolist()
                first += len(batch)
    return rows


def as_documents(batch: pa.RecordBatch, uids: pa.Array) -> pa.Table:
    """Columns of anyone's table under their names, with the uids that readers give."""
    columns = {"uid": uids}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        if name != "uid" and holds_strings(column.type):
            columns[f"{name} (nested)" if pa.types.is_nested(column.type) else name] = column
    return pa.table(columns)


def with_empty_rows(table: pa.Table, rows: Sequence[int]) -> pa.Table:
    """A table with some rows emptied. Rows keep their numbers, which uids are made from."""
    nullable = table.cast(pa.schema([field.with_nullable(True) for field in table.schema]))
    every = np.arange(len(table))
    return nullable.take(pa.array(every, mask=np.isin(every, rows)))


# --- copies of inputs -------------------------------------------------------------------------------------------------


def crawl_caches(record: RunRecord) -> dict[str, Path]:
    """Where this machine keeps what it fetched of crawls, by source."""
    readers = [(source, reader) for source, reader in readers_of(record) if isinstance(reader, Cc)]
    return {source: folder_of(reader) for source, reader in readers if "://" in reader.root}


def remove_copy(folder: Path) -> None:
    if (folder / spool.PIECES).exists() and not spool.remove(folder):
        raise RunFailed(
            f"{folder}: another run is reading this cached file of a crawl; run the same command again when it has ended"
        )


# --- answers of language models ---------------------------------------------------------------------------------------


def answers_kept(record: RunRecord) -> list[tuple[str, str]]:
    """Stages that keep what a model answered, and where."""
    kept = ((stage.name, stage.settings.get("cache_path")) for stage in record.stages)
    return [(name, str(folder)) for name, folder in kept if folder]


def answers_elsewhere(store: Store, record: RunRecord) -> list[str]:
    """Files of answers that are not in the run's folder, by their paths as seen from there."""
    folders = {Path(folder).resolve() for _, folder in answers_kept(record) if folder.startswith("/")}
    root = Path(store.root).resolve()
    files = (path for folder in folders if not folder.is_relative_to(root) for path in folder.glob(ANSWERS))
    return sorted(os.path.relpath(path, root) for path in files)


# --- inputs read again ------------------------------------------------------------------------------------------------


def is_masked(record: RunRecord, wanted: Forgotten) -> bool:
    """May a stage have masked what a list asks for?"""
    for entry in record.stages:
        settings = entry.settings
        if entry.stage == PersonalData.recipe_name():
            texts = any(len(wanted.keys[kind]) for kind in ("sha256", "xxh3"))
            emails = len(wanted.keys["email"]) and "email" in cast(list[str], settings["kinds"])
            urls = settings.get("url") and any(len(wanted.keys[kind]) for kind in ("url", "host"))
            if texts or emails or urls:
                return True
    return False


def search_inputs(
    store: Store, record: RunRecord, journal: Journal, wanted: Forgotten, note: Callable[[str], None]
) -> tuple[Array, list[str]]:
    """The uids of the documents in the inputs that a list means; and files that could not be searched, and why."""
    read = (result.part for result in journal.done.values() if isinstance(result, PhaseResult))
    spans = dict.fromkeys(span for part in read for span in part.inputs if span.path)
    here = [(span.source, span.path, span.start, span.end) for span in spans if span.source in record.sources]
    note(f"reading the inputs again, for what is masked in the run: {len(here):,} stretches of files")
    remembered, unchanged = inputs_of(store), dict[str, bool]()
    found, unread = [np.zeros(0, np.uint64)], set[str]()
    for source, path, start, end in here:
        try:
            reader = reader_of(record.recipe, source)
            address, size = original_of(reader, path, remembered)
            if address not in unchanged:
                unchanged[address] = is_unchanged(store, source, address, path, remembered[address])
            if not unchanged[address]:
                raise NoOriginal(f"{address} is not as it was when the run read it")
            with open_input(address) as stream:
                for reading in reader.read(stream, Origin(source, path, size, start, end)):
                    uids = reading.documents.column("uid").to_numpy(zero_copy_only=False)
                    found.append(uids[wanted.matches(reading.documents)])
        except UNREADABLE as error:
            why = str(error) if isinstance(error, NoOriginal | RunFailed) else f"{type(error).__name__}: {error}"
            unread.add(f"{source}: {path}: {why}")
    return np.unique(np.concatenate(found)), sorted(unread)


def original_of(reader: Reader, path: str, remembered: dict[str, Remembered]) -> tuple[str, int]:
    """Address and size of the one file of this machine that a path below a source's root stands for."""
    addresses = list(addresses_of(remembered, path, reader))
    if len(addresses) != 1:
        raise NoOriginal("the journal does not say where it is" if not addresses else "several files may be it")
    if "://" in addresses[0][0]:
        raise NoOriginal(f"is not on this machine ({addresses[0][0]})")
    return addresses[0]


def is_unchanged(store: Store, source: str, address: str, path: str, before: Remembered) -> bool:
    facts = Folders().info(address)
    file = InputFile(address, path, int(str(facts["size"])), str(facts["stamp"]))
    [file] = with_contents([file], store, source, remember=False)
    return file.content == before[2]
