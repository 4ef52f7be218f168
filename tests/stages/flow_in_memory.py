"""A `Flow` in memory that does what an engine may: other parts and batches, rows shuffled, in a few buckets; and gives back every fate."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

SPREAD = np.uint64(0x9E3779B97F4A7C15)


class Documents:
    """Parts in memory, each of a few batches that do not begin at the beginning of their buffers."""

    def __init__(self, table: pa.Table, seed: int) -> None:
        chance = random.Random(seed)
        self.rows, self.text_bytes = len(table), 100 * len(table)
        order = list(range(len(table)))
        chance.shuffle(order)
        table = table.take(pa.array(order, pa.int64()))
        cuts = sorted(chance.randint(0, len(table)) for _ in range(chance.randint(0, 3)))
        self.parts = [self.batched(table.slice(a, b - a), chance) for a, b in zip([0, *cuts], [*cuts, len(table)], strict=True)]

    def batched(self, part: pa.Table, chance: random.Random) -> pa.Table:
        cut = chance.randint(0, len(part))
        return pa.concat_tables([part.slice(0, cut), part.slice(cut)])


class FlowInMemory:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def cut(self, tables: list[pa.Table], by: str, buckets: int) -> tuple[list[pa.Table], str]:
        tables = [table for table in tables if len(table)]
        if not tables:
            return [], by
        table = pa.concat_tables(tables)
        order = list(range(len(table)))
        self.chance.shuffle(order)
        table = table.take(pa.array(order, pa.int64()))
        bits = buckets.bit_length() - 1
        values = table[by].to_numpy()
        where = values >> np.uint64(64 - bits) if bits else np.zeros(len(values), np.uint64)
        return [made for bucket in range(buckets) if len(made := table.filter(pa.array(where == bucket)))], by

    @property
    def buckets(self) -> int:
        return self.chance.choice([1, 2, 4, 8])

    def home(self, number: int) -> np.uint64:
        with np.errstate(over="ignore"):
            return np.uint64(number + 1) * SPREAD

    def with_home(self, table: pa.Table, number: int) -> pa.Table:
        return table.append_column("home", pa.array(np.full(len(table), self.home(number), np.uint64)))

    def map(self, function: Any, docs: Documents, *, columns: Any, by: str, fan: int = 1) -> Any:
        assert fan >= 1
        made = [
            self.with_home(function(pa.Table.from_batches([batch])), number)
            for number, part in enumerate(docs.parts)
            for batch in part.select(columns).to_batches()
        ]
        return self.cut(made, by, self.buckets)

    def exchange(self, function: Any, rows: Any, *, by: str = "home", fan: float = 1) -> Any:
        return self.cut([function(bucket) for bucket in rows[0]], by, self.buckets)

    def scan(self, function: Any, rows: Any, *, by: str = "home") -> Any:
        def in_order() -> Iterator[pa.Table]:
            for bucket in rows[0]:
                yield bucket.take(pa.array(np.argsort(bucket[rows[1]].to_numpy(), kind="stable")))

        return self.cut(list(function(in_order())), by, self.buckets)

    def at_home(self, rows: Any, number: int) -> pa.Table | None:
        assert rows[1] == "home"
        mine = [table.filter(pa.array(table["home"].to_numpy() == self.home(number))) for table in rows[0]]
        mine = [table for table in mine if len(table)]
        return pa.concat_tables(mine) if mine else None

    def join(self, function: Any, rows: Any, docs: Documents, *, columns: Any, by: str = "home", fan: float = 1) -> Any:
        made = [
            self.with_home(function(mine, part.select(columns)), number)
            for number, part in enumerate(docs.parts)
            if (mine := self.at_home(rows, number)) is not None
        ]
        return self.cut(made, by, self.buckets)

    def gather(self, rows: Any) -> pa.Table:
        return pa.concat_tables(rows[0]) if rows[0] else pa.table({})

    def tell(self, name: str, value: Any) -> None:
        pass

    def drop(self, docs: Documents, losers: Any) -> dict[int, dict[str, Any]]:
        made = [row for table in losers[0] for row in table.to_pylist()]
        found = {row.pop("uid"): row for row in made}
        assert len(found) == len(made), "a document is named once"
        return found

    def rewrite(self, function: Any, rows: Any, docs: Documents, *, columns: Any) -> dict[int, dict[str, Any]]:
        """Every document, those of parts that nothing was told of too."""
        found: dict[int, dict[str, Any]] = {}
        for number, part in enumerate(docs.parts):
            mine = self.at_home(rows, number)
            if mine is None:
                found |= {row["uid"]: {"text": row["text"], "reason": None} for row in part.to_pylist()}
                continue
            made = function(mine, part.select(columns))
            assert made["uid"].to_pylist() == part["uid"].to_pylist() and made.schema.field("text").type == part.schema.field("text").type
            found |= {row.pop("uid"): row for row in made.to_pylist()}
        return found


def fates(stage: Any, rows: list[dict[str, Any]], schema: pa.Schema, seed: int = 0) -> dict[int, dict[str, Any]]:
    docs = Documents(pa.Table.from_pylist(rows, schema=schema), seed)
    found: dict[int, dict[str, Any]] = stage.run(docs, FlowInMemory(seed))
    return found
