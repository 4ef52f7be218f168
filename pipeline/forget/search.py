"""Search a finished run: its files by what they hold, the documents that a list means, and copies of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from gristmill.classifiers.artifact import DESCRIPTION as JUDGE
from gristmill.kernels.base.types import Array
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.look.find import INDEX as FIND_INDEX
from gristmill.pipeline.store.forgotten import FORGOTTEN, HIDDEN, Forgotten, holds_strings
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.summary.files import FOLDER as SUMMARY
from gristmill.shards.index import FORMAT, NAME
from gristmill.shards.reader import open_shards
from gristmill.stages.edits.made import MADE_FROM
from gristmill.stages.extract.choices import other_uids

ROWS = 8192
OWN = ("journal/", "forgotten/", ".lock")
MADE_AGAIN = (FIND_INDEX, f"{SUMMARY}/")  # search indexes, the public summary
TEXTS = (".json", ".jsonl", ".txt", ".log", ".md", ".html", ".csv", ".tsv", ".yaml", ".yml", ".prom")
REPORT = "report.html"  # is written again
UID = re.compile(r"\b[0-9a-f]{16}\b")
OF_A_PART = re.compile(r"([^/.]+-[0-9a-f]{12})\.[0-9a-f]{8}(?:\.[a-z]+)?\.parquet$")  # the key, of any file of a part


def hexed(uid: int) -> str:
    return f"{uid:016x}"


# --- files ------------------------------------------------------------------------------------------------------------


@dataclass
class Files:
    """Files of a run by what a takedown does with them."""

    documents: dict[str, pa.Schema] = field(default_factory=dict)  # tables with uids
    tables: dict[str, pa.Schema] = field(default_factory=dict)  # without, that no stage wrote
    texts: list[str] = field(default_factory=list)
    made_again: list[str] = field(default_factory=list)  # removed whole
    sets: list[str] = field(default_factory=list)  # folders of token shards
    indexes: list[str] = field(default_factory=list)  # folders of rows for later runs
    judges: list[str] = field(default_factory=list)  # folders
    others: list[str] = field(default_factory=list)


def files_of(store: Store, skipped: Sequence[str]) -> Files:
    """All files of a run but those of the journal and of takedowns; none below the folders `skipped`."""
    files, apart = Files(), (*OWN, *(f"{folder}/" for folder in skipped))
    paths = [path for path in sorted(store.files("")) if not path.startswith(apart) and path != REPORT]
    for path in paths:
        folder, _, name = path.rpartition("/")
        facts = store.read_json_if_whole(path) if name == NAME else {}
        if name == JUDGE:
            files.judges.append(folder)
        elif isinstance(facts, dict) and facts.get("format") == FORMAT:
            files.sets.append(folder)
        elif isinstance(facts, dict) and isinstance(facts.get("files"), list) and {"buckets", "of"} <= facts.keys():
            files.indexes.append(folder)
    owned = {*files.sets, *files.indexes, *files.judges}
    for path in paths:
        folder = path.rpartition("/")[0]
        if path.startswith(MADE_AGAIN):
            files.made_again.append(path)
        elif path.startswith("shuffle/"):  # rows between rounds
            files.made_again += [path] if has_strings(store, path) else []
        elif owned & {folder, folder.rpartition("/")[0]}:
            continue  # token shards with their tokenizer, an index, a judge
        elif path.endswith(".parquet"):
            schema = columns_of(store, path)
            if "uid" in schema.names:
                files.documents[path] = schema
            elif not path.startswith(("partitions/", "stages/")):
                files.tables[path] = schema
        elif path.endswith(TEXTS):
            files.texts.append(path)
        else:
            files.others.append(path)
    return files


def has_strings(store: Store, path: str) -> bool:
    """May rows between rounds hold a text? What cannot be read as rows may."""
    try:
        with store.open(path) as file:
            return any(holds_strings(column.type) for column in pa.ipc.open_file(file).schema)
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
    return [column.name for column in schema if not pa.types.is_nested(column.type) and holds_strings(column.type)]


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


def key_of_part(path: str) -> str | None:
    """The key of the part whose file this is."""
    match = OF_A_PART.search(path)
    return match[1] if match else None


# --- documents --------------------------------------------------------------------------------------------------------


@dataclass
class Document:
    """A document of the run, as far as its tables say."""

    source: str | None = None
    stage: str | None = None  # that dropped it; None: it came to the end
    reason: str | None = None

    @property
    def fate(self) -> str:
        return f"{self.stage}: {self.reason}" if self.stage else "kept"


@dataclass
class Found:
    """Documents by uid; the rows that are theirs, by table; the parts that they were in. Rows of records that are no
    documents are among them where they have a url or address that is asked for: then `names` has it."""

    documents: dict[int, Document] = field(default_factory=dict)
    rows: dict[str, list[int]] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    @property
    def uids(self) -> Array:
        return np.array(sorted(self.documents), np.uint64)


class Search:
    """A run's tables of documents."""

    def __init__(self, store: Store, files: Files, deduplicating: Collection[str]) -> None:
        self.store, self.files = store, files
        self.deduplicating = deduplicating  # names of stages that drop documents for others
        self.origins = self._origins()  # of documents that a model wrote, by uid

    def rows(self, *columns: str) -> Iterator[pa.RecordBatch]:
        """Batches of the tables that have these columns."""
        for path, schema in self.files.documents.items():
            if set(columns) <= set(schema.names):
                for _, batch in batches(self.store, path, columns):
                    yield batch

    def texts(self, uids: Array, theirs: bool) -> Iterator[pa.Array]:
        """All versions of the texts of some documents, or of all others."""
        for path, schema in self.files.documents.items():
            names = [name for name in text_columns(schema) if name != "html"]
            for _, batch in batches(self.store, path, ["uid", *names]) if names else ():
                rows = pa.array(np.isin(uids_of(batch), uids) == theirs)
                yield from (batch.column(name).filter(rows) for name in names)

    def meant(self, wanted: Forgotten) -> Array:
        """The uids of documents that a list means; those that it names, whether they are there or not."""
        found = [wanted.keys["uid"], other_uids(wanted.keys["uid"])]
        by_text = len(wanted.keys["sha256"]) or len(wanted.keys["xxh3"])
        for path, schema in self.files.documents.items():
            names = text_columns(schema) if by_text else []
            if len(wanted.keys["email"]):
                names = [column.name for column in schema if holds_strings(column.type)]
            for _, batch in batches(self.store, path, dict.fromkeys(["uid", "url", "reason", *names])):
                goes = wanted.matches(batch) & has_document(batch)
                if goes.any():
                    uids = uids_of(batch)[goes]
                    found += [uids, other_uids(uids)]
        return np.unique(np.concatenate(found))

    def find(self, uids: Array, wanted: Forgotten | None = None) -> Found:
        """What the run has of documents. `wanted`: records that are no documents are found by it too."""
        found = Found()
        for path, schema in self.files.documents.items():
            names = [name for name in ("uid", "source", "stage", "reason") if name in schema.names]
            of_records = wanted is not None and path.startswith("stages/") and "detail" in schema.names
            for first, batch in batches(self.store, path, [*names, *(HIDDEN if of_records else ())]):
                own = np.isin(uids_of(batch), uids) & has_document(batch)
                for row in batch.select(names).filter(pa.array(own)).to_pylist():
                    document = found.documents.setdefault(row["uid"], Document())
                    document.source = row.get("source") or document.source
                    if row.get("stage") and row.get("reason"):
                        document.stage, document.reason = row["stage"], row["reason"]
                if wanted is not None and of_records:
                    named = batch.column("uid").is_null().to_numpy(False) & wanted.matches_records(batch)
                    for name in HIDDEN:
                        found.names |= set(batch.column(name).filter(pa.array(named)).to_pylist()) - {None, ""}
                    own = own | named
                if own.any():
                    found.rows.setdefault(path, []).extend((first + np.flatnonzero(own)).tolist())
        found.parts |= {key for path in found.rows if (key := key_of_part(path)) is not None}
        for folder in self.files.sets:
            for block in open_shards(self.store.at(folder)).blocks():
                for uid in np.unique(block.doc_uids[np.isin(block.doc_uids, uids)]).tolist():
                    found.documents.setdefault(uid, Document())
        return found

    def urls(self, uids: Array) -> set[str]:
        """Addresses of these documents, and of no other."""
        sides: dict[bool, set[str]] = {True: set(), False: set()}
        for theirs in (True, False) if len(uids) else ():
            for batch in self.rows("uid", "url"):
                rows = pa.array(np.isin(uids_of(batch), uids) == theirs)
                some = {url for url in batch.column("url").filter(rows).to_pylist() if url}
                sides[theirs] |= some if theirs else some & sides[True]
        return sides[True] - sides[False]

    def _origins(self) -> dict[int, int]:
        """Of each document that a model wrote the one that it was made of."""
        origins: dict[int, int] = {}
        for batch in self.rows("uid", MADE_FROM):
            rows = batch.filter(pc.and_(batch["uid"].is_valid(), batch[MADE_FROM].is_valid()))
            pairs = zip(rows["uid"].to_pylist(), rows[MADE_FROM].to_pylist(), strict=True)
            origins |= {uid: int(of, 16) for uid, of in pairs if UID.fullmatch(of)}
        return origins

    def with_rephrased(self, uids: Array) -> Array:
        """With what a model wrote of them; who asks for that means its original, of which it would be made again."""
        known = set(uids.tolist())
        known |= {of for uid, of in self.origins.items() if uid in known}
        known |= {uid for uid, of in self.origins.items() if of in known}
        return np.array(sorted(known), np.uint64)

    def dropped_for(self, uids: Array) -> Array:
        """Documents that were dropped as duplicates of these, and of those, and so on."""
        dropped_for: dict[int, list[int]] = {}
        for batch in self.rows("uid", "stage", "reason", "detail"):
            by_dedup = pc.is_in(batch["stage"].cast(pa.string()), pa.array(sorted(self.deduplicating), pa.string()))
            rows = batch.filter(pc.and_(by_dedup, pc.and_(batch["uid"].is_valid(), batch["detail"].is_valid())))
            for uid, detail in zip(rows["uid"].to_pylist(), rows["detail"].to_pylist(), strict=True):
                for name in UID.findall(detail):
                    dropped_for.setdefault(int(name, 16), []).append(uid)
        known = set(uids.tolist())
        waiting, found = list(known), set[int]()
        while waiting:
            new = set(dropped_for.get(waiting.pop(), ())) - known - found
            found |= new
            waiting += new
        return np.array(sorted(found), np.uint64)

    def copies_of(self, uids: Array) -> Array:
        """Other documents with a text of these."""
        texts: set[bytes] = set()
        found: set[int] = set()
        for theirs in (True, False) if len(uids) else ():
            for batch in self.rows("uid", "text"):
                rows = batch.filter(pa.array((np.isin(uids_of(batch), uids) == theirs) & has_document(batch)))
                hashes = [
                    xxhash.xxh3_128_digest(text or b"") for text in rows["text"].cast(pa.large_binary()).to_pylist()
                ]
                if theirs:
                    texts.update(hashes)
                else:
                    found.update(uid for uid, key in zip(rows["uid"].to_pylist(), hashes, strict=True) if key in texts)
            texts.discard(xxhash.xxh3_128_digest(b""))
        return np.array(sorted(found), np.uint64)
