"""A Flow in memory that shuffles all rows and meets them in a random number of buckets: what a global stage makes of it
must not change."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.stages.local_flow import LocalDocuments as Parts, LocalFlow, LocalRows, called_with


class Scattered(LocalFlow):
    """With the dice of a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.partial = False
        self.saved: dict[str, tuple[Any, dict[str, Any]]] = {}
        self.rounds: list[str] = []
        self.left: dict[str, str] = {}
        self.published: dict[str, pa.Table] = {}

    @property
    def gone(self) -> dict[int, dict[str, Any]]:
        """By uid: what the last step said of those that went."""
        return {row["uid"]: row for row in self.named.to_pylist() if row["reason"] is not None}

    def parts(self, table: pa.Table) -> Parts:
        """A table of documents in parts of any size and order."""
        table = self.in_any_order(table)
        cuts = sorted(self.random.randint(0, len(table)) for _ in range(self.random.randint(0, 3)))
        return Parts([table.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, len(table)], strict=True)])

    def in_any_order(self, table: pa.Table) -> pa.Table:
        order = list(range(len(table)))
        self.random.shuffle(order)
        return table.take(pa.array(order, pa.int64()))

    def batches(self, table: pa.Table) -> list[pa.Table]:
        """A part as a reader brings it; the second does not begin at the beginning of its buffers."""
        cut = self.random.randint(0, len(table))
        return [batch for batch in (table.slice(0, cut), table.slice(cut)) if len(batch)]

    def buckets(self, *rows: LocalRows) -> list[list[pa.Table | None]]:
        count = self.random.choice([1, 2, 4])
        return [[self.bucket(each, number, count) for each in rows] for number in range(count)]

    def bucket(self, rows: LocalRows, number: int, count: int) -> pa.Table | None:
        table = rows.table()
        if table is None:
            return None
        found = table.filter(pa.array(table[rows.by].to_numpy() % np.uint64(count) == number))
        return self.in_any_order(found) if len(found) else None

    def map(self, function: Any, docs: Any, **how: Any) -> Any:
        self.rounds.append(function.__name__)
        return super().map(function, docs, **how)

    def reduce(self, function: Any, *rows: Any, **how: Any) -> Any:
        self.rounds.append(function.__name__)
        return super().reduce(function, *rows, **how)

    def join(self, function: Any, rows: Any, docs: Any, **how: Any) -> Any:
        self.rounds.append(function.__name__)
        return super().join(function, rows, docs, **how)

    def mark(self, function: Any, docs: Any, **how: Any) -> Any:
        self.rounds.append(function.__name__)
        return super().mark(function, docs, **how)

    def combine(self, function: Any, rows: Any, *, by: str) -> Any:
        self.rounds.append(function.__name__)
        tables = [self.in_any_order(table) for table in rows.tables]
        self.random.shuffle(tables)
        while len(tables) > 2:
            tables = [function(tables[:2]), *tables[2:]]
            self.random.shuffle(tables)
        return LocalRows([function(tables)] if tables else [], by)

    def scan(self, function: Any, rows: Any, *, by: str = "home") -> Any:
        self.rounds.append(function.__name__)
        table = rows.table()
        if table is None:
            return LocalRows([], by)
        table = table.sort_by(rows.by)
        cut = self.random.randint(0, len(table))
        return LocalRows(list(function(iter([t for t in (table.slice(0, cut), table.slice(cut)) if len(t)]))), by)

    def publish(self, function: Any, rows: Any, *, broadcast: Any = None) -> list[dict[str, Any]]:
        """Files are tables in `published`, by their path; only rows with a number of `buckets` that the stage asked for can be
        published."""
        self.rounds.append(function.__name__)
        assert rows.buckets, "which rows meet in a file must not hang on the engine"
        call, found, table = called_with(function, broadcast), [], rows.table()
        number = (
            None
            if table is None
            else table[rows.by].to_numpy() >> np.uint64(65 - rows.buckets.bit_length())
            if rows.buckets > 1
            else np.zeros(len(table))
        )
        for bucket in range(rows.buckets) if table is not None else ():
            mine = table.filter(pa.array(number == bucket))
            for made in call(self.in_any_order(mine)) if len(mine) else ():
                path = f"{made.folder}/shard-{bucket:05d}.arrow"
                self.published[path] = made.table
                found.append({"path": path, "bytes": made.table.nbytes, "checksum": "", **made.facts})
        return found

    def leave(self, path: str, text: str) -> None:
        self.left[path] = text

    def save(self, rows: Any, address: str, facts: dict[str, Any], *, docs: Any) -> None:
        self.saved[address] = (rows, facts)

    def load(self, address: str, *, named: bool = False) -> tuple[Any, dict[str, Any]]:
        rows, facts = self.saved[address]
        if not named:
            return rows, facts
        run = address.split("/")[0]
        tables = [table.append_column("run", pa.array([run] * len(table), pa.string())) for table in rows.tables]
        return LocalRows(tables, rows.by), facts


def fates(stage: Any, rows: list[dict[str, Any]], schema: pa.Schema, seed: int = 0) -> dict[int, dict[str, Any]]:
    """By uid: what a stage says of the documents that it names; of a stage that writes texts anew, all documents, those
    it never touched too."""
    flow = Scattered(seed)
    docs = pa.Table.from_pylist(rows, schema=schema)
    stage.run(flow.parts(docs), flow)
    found = {row["uid"]: {"text": row["text"], "reason": None} for row in docs.to_pylist()} if stage.rewrites else {}
    for row in flow.named.to_pylist() if len(flow.named) else []:
        found[row.pop("uid")] = row
    return found


def members_plain(
    stage: Any, clusters: Iterable[list[dict[str, Any]]], reason: str, same: str
) -> dict[int, tuple[str | None, str | None, int]]:
    """By uid, of all members of clusters of two and more: the reason and detail of those that go, and the size of the
    cluster."""

    def standing(row: dict[str, Any]) -> list[Any]:
        rank = stage.sources.index(row["source"]) if row["source"] in stage.sources else len(stage.sources)
        parts = {"source": rank, "longest": -len(row["text"]), "earliest": (not row["date"], row["date"] or "")}
        return [*(parts[name] for name in stage.prefer), row["uid"]]

    out: dict[int, tuple[str | None, str | None, int]] = {}
    for members in clusters:
        best = min(members, key=standing)["uid"]
        for row in members if len(members) > 1 else []:
            lost = row["uid"] != best
            out[row["uid"]] = (reason if lost else None, f"{same} {best:016x}" if lost else None, len(members))
    return out
