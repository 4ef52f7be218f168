"""A Flow in memory that shuffles all rows and meets them in a random number of buckets: what a global stage makes of it must not change."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

Buckets = list[pa.Table | None]


class Parts:
    """Documents in parts, each with a home."""

    def __init__(self, tables: list[pa.Table]) -> None:
        self.tables = [(home + 1, table) for home, table in enumerate(tables) if len(table)]

    @property
    def rows(self) -> int:
        return sum(len(table) for _, table in self.tables)

    @property
    def text_bytes(self) -> int:
        return sum(table["text"].nbytes for _, table in self.tables)

    def table(self) -> pa.Table:
        return pa.concat_tables([table for _, table in self.tables])


class Kept:
    """Rows of a round, with what they are cut by."""

    def __init__(self, tables: list[pa.Table], by: str, cut: int = 0) -> None:
        self.tables, self.by, self.cut = [table for table in tables if len(table)], by, cut

    @property
    def count(self) -> int:
        return sum(len(table) for table in self.tables)

    def table(self) -> pa.Table | None:
        return pa.concat_tables(self.tables) if self.tables else None


class Scattered:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.partial = False
        self.saved: dict[str, tuple[Kept, dict[str, Any]]] = {}
        self.rounds: list[str] = []
        self.told: dict[str, Any] = {}
        self.handed_on: dict[str, Any] = {}
        self.left: dict[str, str] = {}
        self.published: dict[str, pa.Table] = {}

    def parts(self, table: pa.Table) -> Parts:
        """A table of documents in parts of any size and order."""
        table = self.shuffled(table)
        cuts = sorted(self.random.randint(0, len(table)) for _ in range(self.random.randint(0, 3)))
        return Parts([table.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, len(table)], strict=True)])

    def shuffled(self, table: pa.Table) -> pa.Table:
        order = list(range(len(table)))
        self.random.shuffle(order)
        return table.take(pa.array(order, pa.int64()))

    def buckets(self, *kept: Kept) -> list[Buckets]:
        count = self.random.choice([1, 2, 4])
        return [[self.bucket(k, number, count) for k in kept] for number in range(count)]

    def bucket(self, kept: Kept, number: int, count: int) -> pa.Table | None:
        table = kept.table()
        if table is None:
            return None
        found = table.filter(pa.array(table[kept.by].to_numpy() % np.uint64(count) == number))
        return self.shuffled(found) if len(found) else None

    def map(self, function: Any, docs: Parts, *, columns: Any, by: str, fan: float = 1, beside: Any = None, cut: int = 0) -> Kept:
        self.rounds.append(function.__name__)
        run = called_with(function, beside)
        made = [with_home(run(batch), home) for home, table in docs.tables for batch in self.batches(those_there(table, columns))]
        return Kept(made, by, cut)

    def batches(self, table: pa.Table) -> list[pa.Table]:
        """A part as a reader brings it; the second does not begin at the beginning of its buffers."""
        cut = self.random.randint(0, len(table))
        return [batch for batch in (table.slice(0, cut), table.slice(cut)) if len(batch)]

    def exchange(self, function: Any, rows: Kept, *, by: str = "home", fan: float = 1, beside: Any = None) -> Kept:
        self.rounds.append(function.__name__)
        run = called_with(function, beside)
        return Kept([run(bucket) for (bucket,) in self.buckets(rows) if bucket is not None], by)

    def publish(self, function: Any, rows: Kept, *, beside: Any = None) -> list[dict[str, Any]]:
        """Files are tables in `published`, by their path; only rows that a `cut` number of buckets was asked for can be published."""
        self.rounds.append(function.__name__)
        assert rows.cut, "which rows meet in a file must not hang on the engine"
        run, found, table = called_with(function, beside), [], rows.table()
        number = (
            None
            if table is None
            else table[rows.by].to_numpy() >> np.uint64(65 - rows.cut.bit_length())
            if rows.cut > 1
            else np.zeros(len(table))
        )
        for bucket in range(rows.cut) if table is not None else ():
            mine = table.filter(pa.array(number == bucket))
            for made in run(self.shuffled(mine)) if len(mine) else ():
                path = f"{made.folder}/shard-{bucket:05d}.arrow"
                self.published[path] = made.table
                found.append({"path": path, "bytes": made.table.nbytes, "checksum": "", **made.facts})
        return found

    def leave(self, path: str, text: str) -> None:
        self.left[path] = text

    def meet(self, function: Any, left: Kept, right: Kept, *, by: str = "home") -> Kept:
        self.rounds.append(function.__name__)
        return Kept([function(*pair) for pair in self.buckets(left, right) if pair != [None, None]], by)

    def join(
        self, function: Any, rows: Kept, docs: Parts, *, columns: Any, by: str = "home", fan: float = 1, of: str | None = None
    ) -> Kept:
        self.rounds.append(function.__name__)
        made = []
        for home, mine, table in self.at_home(rows, docs):
            if of is not None:
                named = {uid for value in mine[of].to_pylist() for uid in (value if isinstance(value, list) else [value])}
                table = table.filter(pa.array([uid in named for uid in table["uid"].to_pylist()], pa.bool_()))
                assert len(table) == len(named), "rows name documents that are not in the part"
            made.append(with_home(function(mine, self.shuffled(table.select(columns))), home))
        return Kept(made, by)

    def at_home(self, rows: Kept, docs: Parts) -> list[tuple[int, pa.Table, pa.Table]]:
        assert rows.by == "home"
        every = rows.table()
        found = (
            []
            if every is None
            else [(home, every.filter(pa.array(every["home"].to_numpy() == home)), table) for home, table in docs.tables]
        )
        assert every is None or sum(len(mine) for _, mine, _ in found) == len(every), "rows have a home that no part has"
        return [(home, self.shuffled(mine), table) for home, mine, table in found if len(mine)]

    def both(self, rows: Kept, more: Kept) -> Kept:
        assert not more.tables or rows.by == more.by
        return Kept(rows.tables + more.tables, rows.by)

    def tree(self, function: Any, rows: Kept, *, by: str) -> Kept:
        self.rounds.append(function.__name__)
        tables = [self.shuffled(table) for table in rows.tables]
        self.random.shuffle(tables)
        while len(tables) > 2:
            tables = [function(tables[:2]), *tables[2:]]
            self.random.shuffle(tables)
        return Kept([function(tables)] if tables else [], by)

    def scan(self, function: Any, rows: Kept, *, by: str = "home") -> Kept:
        self.rounds.append(function.__name__)
        table = rows.table()
        if table is None:
            return Kept([], by)
        table = table.sort_by(rows.by)
        cut = self.random.randint(0, len(table))
        return Kept(list(function(iter([t for t in (table.slice(0, cut), table.slice(cut)) if len(t)]))), by)

    def gather(self, rows: Kept) -> pa.Table:
        table = rows.table()
        return pa.table({}) if table is None else table

    def tell(self, name: str, value: Any) -> None:
        self.told[name] = value
        self.hand_on(name, value)

    def hand_on(self, name: str, value: Any) -> None:
        self.handed_on[name] = value

    def heard(self, name: str) -> Any:
        return self.handed_on.get(name)

    def save(self, rows: Kept, address: str, facts: dict[str, Any]) -> None:
        self.saved[address] = (rows, facts)

    def load(self, address: str) -> tuple[Kept, dict[str, Any]]:
        return self.saved[address]

    def drop(self, docs: Parts, losers: Kept) -> Parts:
        """The documents that stay, with the signals of the losers' rows; what went is in `gone`."""
        self.named = self.gather(losers)
        self.at_home(losers, docs)
        uids = self.named["uid"].to_pylist() if len(self.named) else []
        assert len(set(uids)) == len(uids), "a document is named once"
        gone = {row["uid"]: row for row in self.named.to_pylist() if row["reason"] is not None}
        self.gone = gone
        return Parts([table.filter(pa.array([u not in gone for u in table["uid"].to_pylist()], pa.bool_())) for _, table in docs.tables])

    def mark(self, function: Any, docs: Parts, *, columns: Any, beside: Any = None) -> Parts:
        """As the engine does it; what went is in `gone`, what the function returned in `named`."""
        self.rounds.append(function.__name__)
        run, marked, after = called_with(function, beside), [], []
        for _, table in docs.tables:
            made = pa.concat_tables([run(batch) for batch in self.batches(those_there(table, columns))])
            assert made["uid"].to_pylist() == table["uid"].to_pylist()
            marked.append(made)
            for name in made.column_names:
                if name not in ("uid", "reason", "detail"):
                    at = table.schema.get_field_index(name)
                    table = table.append_column(name, made[name]) if at < 0 else table.set_column(at, name, made[name])
            after.append(table.filter(made["reason"].is_null()))
        self.named = pa.concat_tables(marked) if marked else pa.table({})
        self.gone = {row["uid"]: row for row in self.named.to_pylist() if row["reason"] is not None}
        return Parts(after)

    def rewrite(self, function: Any, rows: Kept, docs: Parts, *, columns: Any) -> Parts:
        """As the engine does it; what went is in `gone`, what the function returned in `named`."""
        made, told = {}, {home: (mine, table) for home, mine, table in self.at_home(rows, docs)}
        for home, (mine, table) in told.items():
            made[home] = function(mine, table.select(columns))
            assert made[home]["uid"].equals(table["uid"])
        self.named = pa.concat_tables(list(made.values())) if made else pa.table({})
        self.gone = {row["uid"]: row for row in self.named.to_pylist() if row["reason"] is not None}
        after = []
        for home, table in docs.tables:
            if home in made:
                for name in made[home].column_names:
                    if name not in ("home", "uid", "reason", "detail"):
                        at = table.schema.get_field_index(name)
                        table = table.append_column(name, made[home][name]) if at < 0 else table.set_column(at, name, made[home][name])
                table = table.filter(made[home]["reason"].is_null())
            after.append(table)
        return Parts(after)


def those_there(table: pa.Table, columns: Any) -> pa.Table:
    return table.select([name for name in columns if name in table.column_names])


def called_with(function: Any, beside: Any) -> Any:
    if beside is None:
        return function
    table = beside.table() if isinstance(beside, Kept) else beside
    return lambda rows: function(rows, table)


def with_home(rows: pa.Table, home: int) -> pa.Table:
    return rows if "home" in rows.column_names else rows.append_column("home", pa.array([home] * len(rows), pa.uint64()))


def fates(stage: Any, rows: list[dict[str, Any]], schema: pa.Schema, seed: int = 0) -> dict[int, dict[str, Any]]:
    """By uid: what a stage says of the documents that it names; of a stage that writes texts anew, all documents, those it never touched too."""
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
    """By uid, of all members of clusters of two and more: the reason and detail of those that go, and the size of the cluster."""

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
