"""Copies and originals outside a run's folder.

- tables of `Recipe` in OUT-tables lose the rows;
- files of crawls in the cache of `cc` are removed whole, and fetched again when needed;
- answers of language models that stages keep for other runs: which of them are about forgotten documents;
- inputs are read again for documents in which `personal_data` has masked what a takedown names, since they cannot be
  found in what the run stores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict, TypeGuard, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.kernels.base.types import Array
from gristmill.kernels.common.files import whole_file
from gristmill.pipeline.crawls import spool
from gristmill.pipeline.crawls.dumps import facts_in
from gristmill.pipeline.crawls.remote import facts_path, folder_of
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
    sources_of,
    sum_of,
    with_contents,
)
from gristmill.pipeline.store.forgotten import Forgotten, holds_strings
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.records import InputSpan, PhaseResult
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.store.storage import Store, hash_of_content
from gristmill.stages.documents import Origin, uid_of
from gristmill.stages.edits.editor import Editor
from gristmill.stages.edits.refine import Refine
from gristmill.stages.edits.rephrase import Rephrase
from gristmill.stages.inputs import InputFile
from gristmill.stages.judge.llm_label import LlmLabel
from gristmill.stages.judge.llm_score import AsksModel, LlmScore
from gristmill.stages.judge.ocr import Ocr
from gristmill.stages.read.cc import Cc
from gristmill.stages.text.personal_data import PersonalData

ROWS = 8192
UNREADABLE = (NoOriginal, RunFailed, OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError)
KEY = re.compile(rb'"key":\s?"([0-9a-f]{64})"')
ANSWERS = "answers-*.jsonl"
Asker = AsksModel | Ocr | Editor
ASKERS: tuple[type[Asker], ...] = (LlmScore, LlmLabel, Ocr, Refine, Rephrase)


class OutsideEdit(TypedDict):
    """Rows of a table that are emptied; None: the table is removed, because no source reads it."""

    checksum: str
    rows: list[int] | None


# --- tables -----------------------------------------------------------------------------------------------------------


def tables_folder(out: str) -> Path:
    """Where `Recipe.run` puts the tables that it is given."""
    return Path(f"{out.rstrip('/')}-tables").resolve()


def sources_of_tables(store: Store, record: RunRecord) -> dict[Path, str | None]:
    """The tables in OUT-tables, each with the source that reads it; None: no source reads it any more."""
    tables: dict[Path, str | None] = dict.fromkeys(sorted(tables_folder(store.root).glob("*.parquet")))
    for source in sources_of(record):
        try:
            reader = reader_of(record, source)
        except NoOriginal:
            continue
        if isinstance(reader.path, str) and Path(reader.path) in tables:
            tables[Path(reader.path)] = source
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


def keep_identity(store: Store, paths: Iterable[Path]) -> None:
    """Keep the identity that inputs had before they were edited: only parts that held the rows are made again."""
    remembered = remembered_in(store.read(REMEMBERED)) if store.exists(REMEMBERED) else {}
    for path in paths:
        if str(path) in remembered:
            facts = Folders().info(str(path))
            remembered[str(path)] = [int(str(facts["size"])), str(facts["stamp"]), remembered[str(path)][2]]
    store.write(REMEMBERED, json.dumps({"sum": sum_of(remembered), "files": remembered}).encode())


def edit_tables(store: Store, tables: Mapping[str, OutsideEdit]) -> None:
    """Empty rows of tables, and remove tables that no source reads. A second call changes nothing: the checksum of a
    table is another then."""
    for name, edit in tables.items():
        path = Path(name)
        if path.exists() and hash_of_content(name) == edit["checksum"]:
            if edit["rows"] is None:
                path.unlink()
            else:
                blank(path, edit["rows"])
    keep_identity(store, [Path(name) for name, edit in tables.items() if edit["rows"] is not None])


# --- the cache of crawls ----------------------------------------------------------------------------------------------


def crawls_of(record: RunRecord) -> Iterator[tuple[str, Cc]]:
    """Sources that fetch what they read, with their readers."""
    for source in sources_of(record):
        try:
            reader = reader_of(record, source)
        except NoOriginal:
            continue
        if isinstance(reader, Cc) and "://" in reader.root:
            yield source, reader


def cached(record: RunRecord, read: Mapping[str, set[str]]) -> list[str]:
    """Folders of this machine's cache with the crawl files that were `read`, by source, and with tables of the crawl's
    index, which hold urls."""
    folders: list[Path] = []
    for source, reader in crawls_of(record):
        place, root = folder_of(reader) / "files", reader.root.rstrip("/")
        tags = {name: facts.tag for name, facts in facts_in(facts_path(reader, root)).items()}
        names = [
            *sorted(read.get(source, ())),
            *(name for name in tags if read.get(source) and name.endswith(".parquet")),
        ]
        for name in names:
            folders += [spool.folder_of_file(place, f"{root}/{name}", tag) for tag in {"", tags.get(name, "")}]
    return sorted({str(folder) for folder in folders if (folder / spool.PIECES).exists()})


def remove_cached(folders: Iterable[str]) -> None:
    for folder in folders:
        if (Path(folder) / spool.PIECES).exists() and not spool.remove(Path(folder)):
            raise RunFailed(
                f"{folder}: another run is reading this cached file of a crawl; run the same command again when it has "
                "ended"
            )


# --- answers of language models ---------------------------------------------------------------------------------------

# An answer is kept under a hash of its prompt and model. Of an endpoint both are known from the recipe alone, so the
# hash can be made again; a model in this process would have to be loaded, and the pictures of pages that `ocr` asked
# about are gone. There only answers that quote a document are found.


def askers_of(record: RunRecord) -> list[Asker]:
    """Stages that keep answers, as run.json has them; one that can no longer be built (its description is gone) is left
    out."""
    kinds = {kind.recipe_name(): kind for kind in ASKERS}
    askers: list[Asker] = []
    for entry in record["stages"]:
        if entry["stage"] in kinds and entry["settings"].get("cache_path"):
            try:
                askers.append(kinds[entry["stage"]].model_validate(entry["settings"]))
            except ValueError:
                continue
    return askers


def caches_elsewhere(store: Store, askers: Iterable[Asker]) -> list[str]:
    """Files of answers that do not lie in the run's folder, by their whole paths."""
    folders = {Path(asker.cache_path).resolve() for asker in askers if Path(asker.cache_path).is_absolute()}
    root = Path(store.root).resolve()
    return sorted(str(path) for f in folders if not f.is_relative_to(root) for path in f.glob(ANSWERS))


def can_be_known(asker: Asker) -> TypeGuard[AsksModel | Editor]:
    """Can the keys of its answers be made again? Not those of pictures, which are gone."""
    return not isinstance(asker, Ocr) and bool(asker.endpoint) and asker.form != "tokens"


def keys_of(askers: Iterable[Asker], texts: list[str]) -> set[bytes]:
    """The keys of all that was asked about these texts."""
    from gristmill.classifiers.llm.model import request_key
    from gristmill.classifiers.rating.sample import cut_texts
    from gristmill.stages.judge.back_end import BackEnd

    keys = set()
    for asker in askers:
        if can_be_known(asker):
            identity = BackEnd(**{name: getattr(asker, name) for name in BackEnd.model_fields}).opened().identity
            if isinstance(asker, Editor):
                requests = [request for text in texts for request in asker.requests_for(text)]
            else:
                asking = asker.asking()
                requests = [asking.request(text) for text in cut_texts(texts, asker.cut)]
            keys |= {request_key(request, identity).encode() for request in requests}
    return keys


def are_answers_to(lines: list[bytes], keys: set[bytes]) -> list[bool]:
    return [bool(keys) and (match := KEY.search(line)) is not None and match[1] in keys for line in lines]


# --- inputs read again ------------------------------------------------------------------------------------------------


def parts_read(journal: Journal) -> Iterator[tuple[str, list[InputSpan]]]:
    """The key of each part that was read from inputs, and the stretches of files that it was read from."""
    for result in journal.done.values():
        if isinstance(result, PhaseResult) and result.part.source in result.counts:
            yield result.part.key, [span for span in result.part.inputs if span.path]


def is_masked(record: RunRecord, wanted: Forgotten) -> bool:
    """May a stage have masked what a list asks for?"""
    for entry in record["stages"]:
        settings = entry["settings"]
        if entry["stage"] == PersonalData.recipe_name():
            texts = any(len(wanted.keys[kind]) for kind in ("sha256", "xxh3"))
            emails = len(wanted.keys["email"]) and "email" in cast(list[str], settings["kinds"])
            urls = settings.get("url") and any(len(wanted.keys[kind]) for kind in ("url", "host"))
            if texts or emails or urls:
                return True
    return False


class InputSearch:
    """`uids` of the documents in the inputs that a list means; `unread` names the files not searched, and why."""

    def __init__(self, store: Store, record: RunRecord, wanted: Forgotten) -> None:
        self.store, self.record, self.wanted = store, record, wanted
        self.uids: list[Array] = []
        self.unread: list[str] = []
        try:
            self._remembered: dict[str, Remembered] = remembered_in(store.read(REMEMBERED))
        except FileNotFoundError:
            self._remembered = {}
        self._unchanged: dict[str, bool] = {}  # by address

    def run(self, journal: Journal, note: Callable[[str], None]) -> None:
        stretches: dict[tuple[Any, ...], None] = {}
        for _, spans in parts_read(journal):
            stretches |= dict.fromkeys((s.source, s.path, s.start, s.end) for s in spans)
        here = [stretch for stretch in stretches if stretch[0] in sources_of(self.record)]
        note(f"reading the inputs again, for what is masked in the run: {len(here):,} stretches of files")
        for source, path, start, end in here:
            try:
                self._read(source, path, start, end)
            except UNREADABLE as error:
                why = str(error) if isinstance(error, NoOriginal | RunFailed) else f"{type(error).__name__}: {error}"
                self.unread.append(f"{source}: {path}: {why}")
        self.unread = sorted(set(self.unread))

    def _read(self, source: str, path: str, start: int, end: int | None) -> None:
        reader = reader_of(self.record, source)
        if isinstance(reader, Cc) and "://" in reader.root:
            raise NoOriginal(f"is not on this machine ({reader.root})")
        addresses = list(addresses_of(self._remembered, path, reader))
        if len(addresses) != 1:
            raise NoOriginal("the journal does not say where it is" if not addresses else "several files may be it")
        [(address, size)] = addresses
        if "://" in address:
            raise NoOriginal(f"is not on this machine ({address})")
        if address not in self._unchanged:
            facts = Folders().info(address)
            file = InputFile(address, path, int(str(facts["size"])), str(facts["stamp"]))
            [file] = with_contents([file], self.store, source, remember=False)
            self._unchanged[address] = file.content == self._remembered[address][2]
        if not self._unchanged[address]:
            raise NoOriginal(f"{address} is not as it was when the run read it")
        with open_input(address) as stream:
            for reading in reader.read(stream, Origin(source, path, size, start, end)):
                goes = self.wanted.matches(reading.documents)
                if goes.any():
                    self.uids.append(reading.documents.column("uid").to_numpy(zero_copy_only=False)[goes])

    @property
    def found(self) -> Array:
        return np.unique(np.concatenate([*self.uids, np.zeros(0, np.uint64)]))
