"""Copies and originals beside a run's folder.

- tables of `Recipe` in OUT-tables lose the rows;
- copies that readers keep of their inputs are removed whole, and fetched again when needed;
- answers of language models that stages keep for other runs: which are about forgotten documents;
- inputs are read again for documents in which `personal_data` has masked what a takedown names, since they cannot be
  found in what the run stores.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.kernels.base.types import Array
from gristmill.kernels.common.files import whole_file
from gristmill.kernels.common.settings import SettingsError
from gristmill.pipeline.crawls import spool
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.inputs.files import (
    REMEMBERED,
    Access,
    Folders,
    NoOriginal,
    Remembered,
    addresses_of,
    open_input,
    reader_of,
    remembered_in,
    sum_of,
    with_contents,
)
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.store.forgotten import Forgotten, holds_strings
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.records import InputSpan, PhaseResult
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.store.storage import Store
from gristmill.stages.documents import Origin, uid_of
from gristmill.stages.inputs import Copies, InputFile
from gristmill.stages.judge.back_end import BackEnd
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


def tables_to_edit(store: Store, record: RunRecord, forgotten: Forgotten) -> dict[Path, list[int] | None]:
    """Tables in OUT-tables with the rows to empty; None for one to remove, since no source reads it any more."""
    tables: dict[Path, list[int] | None] = {}
    sources = {root: source for source, reader in readers_of(record) for root in reader.roots}
    for path in sorted(tables_folder(store.root).glob("*.parquet")):
        source = sources.get(str(path))
        rows = None if source is None else rows_of_table(path, source, path.name, forgotten)
        if rows is None or rows:
            tables[path] = rows
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


def blank(path: Path, rows: Iterable[int]) -> None:
    """Empty some rows of a table. Rows keep their numbers, which uids are made from."""
    gone, first = np.fromiter(rows, np.int64), 0
    with pq.ParquetFile(path) as table, whole_file(path) as draft:
        schema = pa.schema([field.with_nullable(True) for field in table.schema_arrow])
        with pq.ParquetWriter(draft, schema) as writer:
            for group in range(table.num_row_groups):
                batches = []
                for batch in table.iter_batches(batch_size=ROWS, row_groups=[group]):
                    is_gone = np.isin(np.arange(first, first + len(batch)), gone)
                    batches.append(batch.take(pa.array(np.arange(len(batch)), mask=is_gone)))
                    first += len(batch)
                whole = pa.Table.from_batches(batches).cast(schema)
                writer.write_table(whole, row_group_size=max(1, len(whole)))


def edit_table(store: Store, path: Path, rows: list[int] | None) -> None:
    """Empty rows of a table, or remove it. It keeps the identity that it had as an input: only parts that held the rows
    are made again."""
    if rows is None:
        path.unlink(missing_ok=True)
        return
    blank(path, rows)
    keep_identity(store, path)


def keep_identity(store: Store, path: Path) -> None:
    remembered, name = inputs_of(store), str(path)
    if name in remembered:
        facts = Folders().info(name)
        remembered[name] = [int(str(facts["size"])), str(facts["stamp"]), remembered[name][2]]
        store.write(REMEMBERED, json.dumps({"sum": sum_of(remembered), "files": remembered}).encode())


# --- copies of inputs -------------------------------------------------------------------------------------------------


def copies_kept(record: RunRecord, read: Iterable[InputSpan] = ()) -> dict[str, Copies]:
    """What readers keep on this machine of the files that were `read`, by source."""
    read = list(read)
    kept = {
        source: reader.copies({span.path for span in read if span.source == source}, Access())
        for source, reader in readers_of(record)
    }
    return {source: copies for source, copies in kept.items() if copies.folder}


def remove_copy(folder: Path) -> None:
    if (folder / spool.PIECES).exists() and not spool.remove(folder):
        raise RunFailed(
            f"{folder}: another run is reading this cached file of a crawl; run the same command again when it has ended"
        )


# --- answers of language models ---------------------------------------------------------------------------------------


class Asking(NamedTuple):
    """A stage that keeps what a model answered."""

    name: str
    folder: str
    stage: BackEnd


def asking_stages(record: RunRecord) -> list[Asking]:
    """As run.json has them. One that can no longer be built (its description is gone) is left out."""
    stages: list[Asking] = []
    for entry in record.stages:
        folder = entry.settings.get("cache_path")
        if folder and entry.stage in registry.names():
            try:
                stage = registry.build({"stage": entry.stage, "settings": dict(entry.settings), "code": None})
            except (SettingsError, ValueError):
                continue
            stages.append(Asking(entry.name, str(folder), cast(BackEnd, stage)))
    return stages


def answers_elsewhere(store: Store, record: RunRecord) -> list[str]:
    """Files of answers that are not in the run's folder, by their paths as seen from there."""
    folders = {Path(asking.folder).resolve() for asking in asking_stages(record) if asking.folder.startswith("/")}
    root = Path(store.root).resolve()
    files = (path for folder in folders if not folder.is_relative_to(root) for path in folder.glob(ANSWERS))
    return sorted(os.path.relpath(path, root) for path in files)


# --- inputs read again ------------------------------------------------------------------------------------------------


def parts_read(journal: Journal) -> Iterator[tuple[str, list[InputSpan]]]:
    """The key of each part that was read from inputs, and the stretches of files that it was read from."""
    for result in journal.done.values():
        if isinstance(result, PhaseResult) and result.part.source in result.counts:
            yield result.part.key, [span for span in result.part.inputs if span.path]


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
    stretches = dict.fromkeys(
        (span.source, span.path, span.start, span.end) for _, spans in parts_read(journal) for span in spans
    )
    here = [stretch for stretch in stretches if stretch[0] in record.sources]
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
