"""Which documents of a run are meant, which were dropped for them, and which are copies of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.types import Array
from gristmill.pipeline.forget.copies import Copies, Copy
from gristmill.pipeline.forget.folder import Files, batches, columns_of, text_columns, uids_of
from gristmill.pipeline.forget.plan import Document
from gristmill.pipeline.store.forgotten import FORGOTTEN, Forgotten, holds_strings
from gristmill.pipeline.store.partitions import OF_A_PART, TEXT_BYTES
from gristmill.pipeline.store.storage import Store
from gristmill.shards.reader import open_shards
from gristmill.stages.edits.made import MADE_FROM
from gristmill.stages.extract.views import other_uids

NAMED = re.compile(r"\b[0-9a-f]{16}\b")  # the uid of a survivor in the detail of a reject
REJECTS = re.compile(r"stages/([^/]+)/rejects/")


def has_document(batch: pa.RecordBatch) -> Array:
    """Which rows are of documents: not those of records that are none, nor of documents forgotten before."""
    has: Array = batch.column("uid").is_valid().to_numpy(False)
    if "reason" in batch.schema.names and pa.types.is_string(batch.schema.field("reason").type):
        has = has & ~pc.fill_null(pc.equal(batch.column("reason"), FORGOTTEN), False).to_numpy(False)
    return has


def hexed(uid: int) -> str:
    return f"{uid:016x}"


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
                goes = (wanted.reasons(batch) == FORGOTTEN) & has_document(batch)
                if goes.any():
                    uids = batch.column("uid").filter(pa.array(goes)).to_numpy(zero_copy_only=False)
                    found += [uids, other_uids(uids)]
        return self.with_rephrased(np.unique(np.concatenate(found)))

    def origins(self) -> dict[int, int]:
        """Of each document that a model wrote the one that it was made of."""
        if self._origins is None:
            self._origins = {}
            for path in self.tables("uid", MADE_FROM):
                for _, batch in batches(self.store, path, ["uid", MADE_FROM]):
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

    def present(self, uids: Array) -> Array:
        """Those that the run has anything of."""
        return np.array([int(uid, 16) for uid in self.documents(uids, ())], np.uint64)

    def dropped_for(self, uids: Array) -> Array:
        """Documents that were dropped as duplicates of these, and of those, and so on."""
        dropped_for: dict[int, list[int]] = {}
        for path in self.tables("uid", "stage", "reason", "detail"):
            for _, batch in batches(self.store, path, ["uid", "stage", "detail"]):
                rows = batch.filter(
                    pc.and_(
                        pc.is_in(batch.column("stage").cast(pa.string()), pa.array(sorted(self.dedup), pa.string())),
                        pc.and_(batch.column("uid").is_valid(), batch.column("detail").is_valid()),
                    )
                )
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
            for path in self.tables("uid", "text"):
                for _, batch in batches(self.store, path, ["uid", "text"]):
                    valid = batch.column("uid").is_valid().to_numpy(False) & batch.column("text").is_valid().to_numpy(
                        False
                    )
                    all_uids = uids_of(batch)
                    rows = pa.array(np.flatnonzero(valid & (np.isin(all_uids, uids) == theirs)))
                    given = all_uids[rows.to_numpy()], batch.column("text").take(rows)
                    if theirs and len(rows):
                        copies.add(*given)
                    elif len(rows):
                        for uid, like in copies.like(*given).items():
                            found[uid] = max(found.get(uid, like), like, key=lambda pair: pair[1])
        return found

    def documents(self, uids: Array, held: Iterable[int]) -> dict[str, Document]:
        """What is known of those that are there."""
        found: dict[int, Document] = {}
        copies = set(held)

        def of(uid: int) -> Document:
            return found.setdefault(
                uid,
                {
                    "copy": uid in copies, "key": None, "source": None, "stage": None, "reason": None, "bytes": 0,
                    "made": False, "rephrased": False,
                },
            )  # fmt: skip

        for path in self.tables("uid"):
            names = self.schema(path).names
            columns = [name for name in ("uid", "source", "stage", "reason", TEXT_BYTES) if name in names]
            key = path.rsplit("/", 1)[1].split(".")[0] if OF_A_PART.search(path) else None
            for _, batch in batches(self.store, path, columns):
                valid = uids_of(batch)
                rows = np.flatnonzero(np.isin(valid, uids) & has_document(batch))
                for row in batch.take(pa.array(rows)).to_pylist() if len(rows) else ():
                    document = of(row["uid"])
                    document["key"] = key or document["key"]
                    document["source"] = row.get("source") or document["source"]
                    document["bytes"] = row.get(TEXT_BYTES) or document["bytes"]
                    if row.get("stage") and row.get("reason"):
                        document["stage"], document["reason"] = row["stage"], row["reason"]
        for folder in self.files.sets:
            for block in open_shards(self.store.at(folder)).blocks():
                for uid in np.unique(block.doc_uids[np.isin(block.doc_uids, uids)]).tolist():
                    of(uid)
        for uid, document in found.items():
            other = int(other_uids(np.array([uid], np.uint64))[0])
            document["made"] = (other in found and other < uid) or uid in self.origins()
            document["rephrased"] = uid in self.origins()
        return {hexed(uid): found[uid] for uid in sorted(found)}


def copies_listed(found: dict[int, tuple[int, float]], known: dict[str, Document], taken: bool) -> list[Copy]:
    """Copies as the receipt has them; `known`: what became of each."""
    listed: list[Copy] = []
    for uid, (like, similarity) in sorted(found.items()):
        document = known.get(hexed(uid))
        stage = document["stage"] if document else None
        fate = f"{stage}: {document['reason']}" if document and stage else "kept"
        listed.append({"uid": hexed(uid), "of": hexed(like), "similarity": similarity, "fate": fate, "taken": taken})
    return listed
