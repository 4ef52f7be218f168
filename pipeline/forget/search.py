"""Search a finished run: the documents that a list means, where their rows are, and copies of them.

Copies are texts that are the same, and texts that share most of their 5-grams of words (MinHash nominates, sets of
n-grams decide).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, NamedTuple, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from gristmill.classifiers.artifact import DESCRIPTION as JUDGE
from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.duplicates.minhash import band_hashes, bands_for
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.shuffle.saved_index import read_index, rows_schema
from gristmill.pipeline.store.forgotten import FORGOTTEN, HIDDEN, Forgotten, holds_strings
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.summary.files import CROISSANT, FOLDER as SUMMARY
from gristmill.shards.index import FORMAT, NAME
from gristmill.shards.reader import open_shards
from gristmill.stages.edits.made import MADE_FROM
from gristmill.stages.extract.choices import other_uids

OWN = ("journal/", "forgotten/", ".lock")
TEXTS = (".json", ".jsonl", ".txt", ".log", ".md", ".html", ".csv", ".tsv", ".yaml", ".yml", ".prom")
FIND_INDEX = "index/find-"  # and the name of a set of shards
WHOLE = (FIND_INDEX, f"{SUMMARY}/")  # search indexes, the public summary
ROWS = 8192
NAMED = re.compile(r"\b[0-9a-f]{16}\b")  # the uid of a survivor in the detail of a reject
OF_A_PART = re.compile(r"([^/.]+-[0-9a-f]{12})\.[0-9a-f]{8}(?:\.[a-z]+)?\.parquet$")  # the key, of any file of a part
REJECTS = re.compile(r"stages/([^/]+)/rejects/")
SIMILAR = 0.7  # Jaccard similarity of the sets of 5-grams
NGRAM = 5
BANDS, BAND_ROWS = bands_for(SIMILAR, 128, 0.99)


# --- files ------------------------------------------------------------------------------------------------------------


@dataclass
class Files:
    """Paths by kind."""

    tables: list[str] = field(default_factory=list)  # Parquet
    whole: list[str] = field(default_factory=list)  # removed whole, since they can be made again
    sets: list[str] = field(default_factory=list)  # folders of token shards
    indexes: list[str] = field(default_factory=list)  # folders of rows for later runs
    texts: list[str] = field(default_factory=list)  # lines
    judges: list[str] = field(default_factory=list)  # folders of judges
    others: list[str] = field(default_factory=list)


def files_of(store: Store, skipped: Sequence[str] = ()) -> Files:
    """All files below a folder but those of the journal and of takedowns; none below the folders `skipped`."""
    files, paths = Files(), sorted(store.files(""))
    paths = [path for path in paths if not path.startswith((*OWN, *(f"{folder}/" for folder in skipped)))]
    owned = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if name == NAME:
            facts = _facts(store, path)
            if facts.get("format") == FORMAT:
                owned[folder] = files.sets
            elif isinstance(facts.get("files"), list) and "buckets" in facts and "of" in facts:
                owned[folder] = files.indexes
        elif name == JUDGE:
            owned[folder] = files.judges
    for folder, kind in sorted(owned.items()):
        kind.append(folder)
    for path in paths:
        folder = path.rpartition("/")[0]
        above = {folder, folder.rpartition("/")[0]} & owned.keys()
        if path.startswith(WHOLE) or path == CROISSANT or (path.startswith("flow/") and _has_strings(store, path)):
            files.whole.append(path)
        elif above or path.startswith("flow/"):
            continue  # token shards with their tokenizer, an index, a judge; numbers between rounds
        elif path.endswith(".parquet"):
            files.tables.append(path)
        elif path.removesuffix(".gz").removesuffix(".zst").endswith(TEXTS):
            files.texts.append(path)
        else:
            files.others.append(path)
    return files


def _facts(store: Store, path: str) -> dict[str, object]:
    try:
        facts = json.loads(store.read(path))
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _has_strings(store: Store, path: str) -> bool:
    """May rows between rounds hold a text? What cannot be read as rows may."""
    try:
        return any(holds_strings(column.type) for column in rows_schema(store, path))
    except pa.ArrowException:
        return True


# --- tables -----------------------------------------------------------------------------------------------------------


def open_table(store: Store, path: str) -> tuple[IO[bytes], pq.ParquetFile]:
    file = store.open(path)
    try:
        return file, pq.ParquetFile(file, pre_buffer=False)
    except pa.ArrowException as error:
        file.close()
        raise RunFailed(
            f"{store.at(path)}: cannot be read as Parquet, so it is not known what is in it; repair or remove it"
        ) from error


def batches(store: Store, path: str, columns: Iterable[str] | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Record batches of a table with the number of their first row; of the columns those that are there."""
    file, table = open_table(store, path)
    with file:
        there = table.schema_arrow.names
        wanted = None if columns is None else [name for name in columns if name in there]
        row = 0
        for batch in table.iter_batches(batch_size=ROWS, columns=wanted):
            yield row, batch
            row += len(batch)


def columns_of(store: Store, path: str) -> pa.Schema:
    file, table = open_table(store, path)
    with file:
        return table.schema_arrow


def text_columns(schema: pa.Schema) -> list[str]:
    """Columns with what documents say: texts of any version, and markup."""
    return [name for name in schema.names if name == "html" or name.split("@")[0] == "text"]


def string_columns(schema: pa.Schema) -> list[str]:
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary)
    return [column.name for column in schema if any(is_kind(column.type) for is_kind in kinds)]


def uids_of(batch: pa.RecordBatch) -> Array:
    """The uid of each row; 0 where it is of no document."""
    uids: Array = pc.fill_null(batch.column("uid"), 0).to_numpy(zero_copy_only=False)
    return uids


def has_document(batch: pa.RecordBatch) -> Array:
    """Which rows are of documents: not those of records that are none, nor of documents forgotten before."""
    has: Array = batch.column("uid").is_valid().to_numpy(False)
    if "reason" in batch.schema.names and pa.types.is_string(batch.schema.field("reason").type):
        has = has & ~pc.fill_null(pc.equal(batch.column("reason"), FORGOTTEN), False).to_numpy(False)
    return has


def hexed(uid: int) -> str:
    return f"{uid:016x}"


def rows_in_index(index: Store, uids: Array) -> int:
    """How many rows of a saved index are of these documents."""
    facts, count = read_index(index), 0
    for file in facts.files if facts else ():
        if "uid" in rows_schema(index, file.path).names:
            with index.open(file.path) as opened:
                column = pa.ipc.open_file(opened).read_all().column("uid")
            count += int(np.isin(column.to_numpy(), uids).sum())
    return count


# --- documents --------------------------------------------------------------------------------------------------------


@dataclass
class Document:
    """A document of the run, as far as its tables say."""

    key: str | None = None  # of its part
    source: str | None = None
    stage: str | None = None  # that dropped it; None: it came to the end
    reason: str | None = None


class Edit(TypedDict):
    """Rows or lines to remove from one version of a file."""

    checksum: str
    goes: list[int]
    hidden: NotRequired[list[int]]  # rows that stay, without what names a page


@dataclass
class Found:
    """Documents by uid, and rows of tables: those of the documents, and those of records that name one."""

    documents: dict[int, Document]
    rows: dict[str, list[int]] = field(default_factory=dict)
    hidden: dict[str, list[int]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)  # what those records have that names a page


@dataclass
class Search:
    """A run's tables, looked through for documents."""

    store: Store
    files: Files
    dedup: Collection[str]  # names of stages that drop documents for others
    schemas: dict[str, pa.Schema] = field(default_factory=dict)
    _origins: dict[int, int] | None = None  # of documents that a model wrote, by uid

    def schema(self, path: str) -> pa.Schema:
        if path not in self.schemas:
            self.schemas[path] = columns_of(self.store, path)
        return self.schemas[path]

    def tables(self, *columns: str) -> Iterator[str]:
        """Those that have all of these columns."""
        return (path for path in self.files.tables if set(columns) <= set(self.schema(path).names))

    def strange_tables(self) -> list[str]:
        """Tables without uids that no stage wrote."""
        paths = [path for path in self.files.tables if not path.startswith(("legs/", "stages/"))]
        return [path for path in paths if "uid" not in self.schema(path).names]

    def rows(self, *columns: str) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        """Batches of the tables that have these columns, with the path and the number of the first row."""
        for path in self.tables(*columns):
            for first, batch in batches(self.store, path, columns):
                yield path, first, batch

    def meant(self, wanted: Forgotten) -> Array:
        """The uids of documents that a list means; those that it names, whether they are there or not."""
        found = [wanted.keys["uid"], other_uids(wanted.keys["uid"])]
        by_text = len(wanted.keys["sha256"]) or len(wanted.keys["xxh3"])
        for path in self.tables("uid"):
            schema = self.schema(path)
            texts = text_columns(schema) if by_text else []
            if len(wanted.keys["email"]):
                texts = [column.name for column in schema if holds_strings(column.type) or column.name in texts]
            for _, batch in batches(self.store, path, dict.fromkeys(["uid", "url", "reason", *texts])):
                goes = wanted.matches(batch) & has_document(batch)
                if goes.any():
                    uids = batch.column("uid").filter(pa.array(goes)).to_numpy(zero_copy_only=False)
                    found += [uids, other_uids(uids)]
        return self.with_rephrased(np.unique(np.concatenate(found)))

    def origins(self) -> dict[int, int]:
        """Of each document that a model wrote the one that it was made of."""
        if self._origins is None:
            self._origins = {}
            for _, _, batch in self.rows("uid", MADE_FROM):
                rows = batch.filter(pc.and_(batch["uid"].is_valid(), batch[MADE_FROM].is_valid()))
                pairs = zip(rows["uid"].to_pylist(), rows[MADE_FROM].to_pylist(), strict=True)
                self._origins |= {uid: int(of, 16) for uid, of in pairs if NAMED.fullmatch(of)}
        return self._origins

    def with_rephrased(self, uids: Array) -> Array:
        """With what a model wrote of them; who asks for that means its original, of which it would be made again."""
        known = set(uids.tolist())
        known |= {of for uid, of in self.origins().items() if uid in known}
        known |= {uid for uid, of in self.origins().items() if of in known}
        return np.array(sorted(known), np.uint64)

    def dropped_for(self, uids: Array) -> Array:
        """Documents that were dropped as duplicates of these, and of those, and so on."""
        dropped_for: dict[int, list[int]] = {}
        for _, _, batch in self.rows("uid", "stage", "reason", "detail"):
            by_dedup = pc.is_in(batch.column("stage").cast(pa.string()), pa.array(sorted(self.dedup), pa.string()))
            named = pc.and_(batch.column("uid").is_valid(), batch.column("detail").is_valid())
            rows = batch.filter(pc.and_(by_dedup, named))
            for uid, detail in zip(rows.column("uid").to_pylist(), rows.column("detail").to_pylist(), strict=True):
                for name in NAMED.findall(detail):
                    dropped_for.setdefault(int(name, 16), []).append(uid)
        known = set(uids.tolist())
        waiting, found = list(known), set[int]()
        while waiting:
            for uid in dropped_for.get(waiting.pop(), ()):
                if uid not in known and uid not in found:
                    found.add(uid)
                    waiting.append(uid)
        return np.array(sorted(found), np.uint64)

    def copies_of(self, uids: Array) -> dict[int, tuple[int, float]]:
        """Other documents with the texts of these, or nearly: of what, and how similar."""
        copies = Copies()
        found: dict[int, tuple[int, float]] = {}
        for theirs in (True, False):
            for _, _, batch in self.rows("uid", "text"):
                batch = batch.filter(pc.and_(batch.column("uid").is_valid(), batch.column("text").is_valid()))
                batch = batch.filter(pa.array(np.isin(uids_of(batch), uids) == theirs))
                if theirs:
                    copies.add(uids_of(batch), batch.column("text"))
                    continue
                for uid, like in copies.like(uids_of(batch), batch.column("text")).items():
                    found[uid] = max(found.get(uid, like), like, key=lambda pair: pair[1])
        return found

    def find(self, uids: Array, wanted: Forgotten | None = None) -> Found:
        """What the run has of documents. `wanted`: records that are no documents are found by it too."""
        found = Found({})
        by_url = wanted is not None and any(len(wanted.keys[kind]) for kind in ("url", "host", "email"))
        for path in self.tables("uid"):
            names = [name for name in ("uid", "source", "stage", "reason") if name in self.schema(path).names]
            with_urls = by_url and REJECTS.match(path)
            for first, batch in batches(self.store, path, [*names, *(HIDDEN if with_urls else ())]):
                own = np.flatnonzero(np.isin(uids_of(batch), uids) & has_document(batch))
                if len(own):
                    found.rows.setdefault(path, []).extend((first + own).tolist())
                    for row in batch.select(names).take(pa.array(own)).to_pylist():
                        self._note(found.documents.setdefault(row["uid"], Document()), path, row)
                if wanted is not None and with_urls:
                    named = batch.column("uid").is_null().to_numpy(False) & wanted.matches_records(batch)
                    if named.any():
                        found.hidden.setdefault(path, []).extend((first + np.flatnonzero(named)).tolist())
                        for name in HIDDEN:
                            found.names |= set(batch.column(name).filter(pa.array(named)).to_pylist()) - {None, ""}
        for folder in self.files.sets:
            for block in open_shards(self.store.at(folder)).blocks():
                for uid in np.unique(block.doc_uids[np.isin(block.doc_uids, uids)]).tolist():
                    found.documents.setdefault(uid, Document())
        return found

    def _note(self, document: Document, path: str, row: dict[str, str | None]) -> None:
        key = key_of_part(path)
        document.key = key or document.key
        document.source = row.get("source") or document.source
        if row.get("stage") and row.get("reason"):
            document.stage, document.reason = row["stage"], row["reason"]


def key_of_part(path: str) -> str | None:
    """The key of the part whose file this is."""
    match = OF_A_PART.search(path)
    return match[1] if match else None


# --- copies -----------------------------------------------------------------------------------------------------------


class Copy(TypedDict):
    """A copy in the receipt."""

    uid: str
    of: str  # the uid of the forgotten document
    similarity: float  # 1: the same text
    fate: str  # `kept`, or the stage that dropped it and why
    taken: bool


class Known(NamedTuple):
    uid: int
    grams: frozenset[int]


class Copies:
    """The texts of forgotten documents, to compare others with."""

    def __init__(self) -> None:
        self._same: dict[int, int] = {}  # hash of a text -> uid
        self._texts: list[Known] = []
        self._bands: dict[int, list[int]] = {}  # hash of a band -> places in `_texts`
        self._keys: Array | None = None

    def add(self, uids: Array, texts: pa.Array | pa.ChunkedArray) -> None:
        """Any version of the text of a document may be given."""
        column = text_column(texts)
        bands, _ = band_hashes(column, width=NGRAM, bands=BANDS, rows=BAND_ROWS)
        for row, text in enumerate(_texts_of(column)):
            same = xxhash.xxh3_128_intdigest(text)
            if not text.strip() or self._same.get(same) == int(uids[row]):
                continue
            self._same.setdefault(same, int(uids[row]))
            for band in bands[row].tolist():
                self._bands.setdefault(band, []).append(len(self._texts))
            self._texts.append(Known(int(uids[row]), grams_of(text)))
        self._keys = None

    def like(self, uids: Array, texts: pa.Array | pa.ChunkedArray) -> dict[int, tuple[int, float]]:
        """Of these documents those that are copies: the uid of what each is a copy of, and how similar they are."""
        if not self._texts:
            return {}
        if self._keys is None:
            self._keys = np.sort(np.fromiter(self._bands, np.uint64, len(self._bands)))
        column = text_column(texts)
        bands, counts = band_hashes(column, width=NGRAM, bands=BANDS, rows=BAND_ROWS)
        places = np.minimum(np.searchsorted(self._keys, bands), len(self._keys) - 1)
        nominated = (self._keys[places] == bands).any(axis=1) & (counts > 0)
        found = {}
        for row, text in enumerate(_texts_of(column)):
            if not text.strip():
                continue
            same = self._same.get(xxhash.xxh3_128_intdigest(text))
            if same is not None:
                found[int(uids[row])] = (same, 1.0)
            elif nominated[row]:
                best = self._nearest(bands[row].tolist(), grams_of(text))
                if best is not None:
                    found[int(uids[row])] = best
        return found

    def _nearest(self, bands: Iterable[int], grams: frozenset[int]) -> tuple[int, float] | None:
        near = {place for band in bands for place in self._bands.get(band, ())}
        scored = [(similarity(grams, self._texts[place].grams), self._texts[place].uid) for place in near]
        best = max(scored, key=lambda pair: (pair[0], -pair[1]), default=(0.0, 0))
        return (best[1], round(best[0], 4)) if best[0] >= SIMILAR else None


def similarity(left: frozenset[int], right: frozenset[int]) -> float:
    return len(left & right) / max(1, len(left | right))


def grams_of(text: bytes) -> frozenset[int]:
    words = text.lower().split()
    grams = [b" ".join(words[i : i + NGRAM]) for i in range(max(1, len(words) - NGRAM + 1))]
    return frozenset(map(xxhash.xxh3_64_intdigest, grams))


def _texts_of(column: TextColumn) -> Iterable[bytes]:
    data = column.data
    for start, end in zip(column.offsets[:-1].tolist(), column.offsets[1:].tolist(), strict=True):
        yield data[start:end].tobytes()


def copies_listed(
    copies: dict[int, tuple[int, float]], known: dict[int, Document], may_return: Collection[int], taken: bool
) -> list[Copy]:
    """Copies as the receipt has them; `known`: what became of each."""
    listed: list[Copy] = []
    for uid, (like, share) in sorted(copies.items()):
        document = known.get(uid)
        fate = f"{document.stage}: {document.reason}" if document and document.stage else "kept"
        fate += ", may return" if uid in may_return else ""
        listed.append({"uid": hexed(uid), "of": hexed(like), "similarity": share, "fate": fate, "taken": taken})
    return listed
