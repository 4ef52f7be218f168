"""A `Flow` in memory: a global stage on a plain table, in this process, without an engine or a folder.

    from gristmill.stages import MinhashDedup
    kept = MinhashDedup()(table)

All documents are one part and all rows of a round one bucket. What leaves files behind (an index, shards) needs a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.types import Hashes, Integers, Mask
from gristmill.kernels.rows.kept import kept_texts, kept_views, places_in_order
from gristmill.stages.documents import BASE, BATCH_ROWS, PAGE, uids_of
from gristmill.stages.flow import (
    Broadcast,
    CombineFunction,
    Dataset,
    JoinFunction,
    MapFunction,
    PublishFunction,
    ReduceFunction,
    Rows,
    ScanFunction,
)
from gristmill.stages.frames import Back, as_arrow

LAID_OUT = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
FATE = ("home", "uid", "reason", "detail")  # what rows say of a document beside signals


class NeedsRun(Exception):
    """A stage asked for something that only a run in a folder has."""


class LocalDocuments:
    """Documents in parts, each with a home."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self.tables = [(home, table) for home, table in enumerate(tables, 1) if len(table)]

    @property
    def rows(self) -> int:
        return sum(len(table) for _, table in self.tables)

    @property
    def text_bytes(self) -> int:
        return sum(pc.sum(pc.binary_length(table["text"])).as_py() or 0 for _, table in self.tables)

    def table(self) -> pa.Table:
        return pa.concat_tables([table for _, table in self.tables], promote_options="default")


class LocalRows:
    """Rows of a round, with what they are cut by."""

    def __init__(self, tables: Iterable[pa.Table], by: str, buckets: int = 0) -> None:
        self.tables, self.by = [table for table in tables if len(table)], by
        self.buckets = buckets  # exactly so many, where a stage asked for it

    def __add__(self, more: LocalRows) -> LocalRows:
        if more.tables and self.by != more.by:
            raise ValueError(f"rows cut by {self.by} and by {more.by} do not meet")
        return LocalRows(self.tables + more.tables, self.by)

    @property
    def count(self) -> int:
        return sum(len(table) for table in self.tables)

    def table(self) -> pa.Table | None:
        return pa.concat_tables(self.tables) if self.tables else None


class LocalFlow:
    """The flow of one global stage, and its own `RunContext`. `named` holds the verdicts and signals of the last round,
    `metrics` what the stage reported."""

    partial = False

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}
        self.shared_values: dict[str, Any] = {}
        self.named = pa.table({})

    @property
    def run(self) -> LocalFlow:
        return self

    # How rows come together, on which no result may depend.

    def in_any_order(self, table: pa.Table) -> pa.Table:
        return table

    def batches(self, table: pa.Table) -> list[pa.Table]:
        return [pa.Table.from_batches([batch]) for batch in table.to_batches(BATCH_ROWS)]

    def buckets(self, *rows: LocalRows) -> list[list[pa.Table | None]]:
        return [[each.table() for each in rows]]

    # The rounds.

    def map(
        self,
        function: MapFunction,
        docs: Dataset,
        *,
        columns: Sequence[str],
        by: str,
        fan: float = 1,
        broadcast: Broadcast = None,
        buckets: int = 0,
        gpu: bool = False,
    ) -> Rows:
        call, parts = called_with(function, broadcast), cast(LocalDocuments, docs).tables
        tables = [
            with_home(call(batch), home) for home, table in parts for batch in self.batches(those_there(table, columns))
        ]
        return LocalRows(tables, by, buckets)

    def reduce(
        self, function: ReduceFunction, *rows: Rows, by: str = "home", fan: float = 1, broadcast: Broadcast = None
    ) -> Rows:
        call, buckets = called_with(function, broadcast), self.buckets(*(cast(LocalRows, each) for each in rows))
        return LocalRows([call(*tables) for tables in buckets if any(table is not None for table in tables)], by)

    def join(
        self,
        function: JoinFunction,
        rows: Rows,
        docs: Dataset,
        *,
        columns: Sequence[str],
        by: str = "home",
        fan: float = 1,
        uids: str | None = None,
    ) -> Rows:
        tables = []
        for home, rows_here, table in self.at_home(rows, docs):
            chosen = table if uids is None else named_by(rows_here, uids, table)
            tables.append(with_home(function(rows_here, self.in_any_order(those_there(chosen, columns))), home))
        return LocalRows(tables, by)

    def combine(self, function: CombineFunction, rows: Rows, *, by: str) -> Rows:
        tables = cast(LocalRows, rows).tables
        return LocalRows([function(tables)] if tables else [], by)

    def scan(self, function: ScanFunction, rows: Rows, *, by: str = "home") -> Rows:
        table = cast(LocalRows, rows).table()
        return LocalRows(function(iter([table.sort_by(cast(LocalRows, rows).by)])) if table is not None else [], by)

    def release(self, rows: Rows) -> None:
        """Rows in memory go with their last name."""

    def gather(self, rows: Rows) -> pa.Table:
        table = cast(LocalRows, rows).table()
        return pa.table({}) if table is None else table

    def report(self, name: str, value: Any) -> None:
        self.metrics[name] = value
        self.share(name, value)

    def share(self, name: str, value: Any) -> None:
        self.shared_values[name] = value

    def shared(self, name: str) -> Any:
        return self.shared_values.get(name)

    # What a table has no place for.

    def save(self, rows: Rows, address: str, facts: dict[str, Any], *, docs: Dataset) -> None:
        raise NeedsRun(f"it saves an index at {address}")

    def load(self, address: str, *, named: bool = False) -> tuple[Rows, dict[str, Any]]:
        raise NeedsRun(f"it reads the saved index at {address}")

    def publish(self, function: PublishFunction, rows: Rows, *, broadcast: Broadcast = None) -> list[dict[str, Any]]:
        raise NeedsRun("it writes files for others")

    def leave(self, path: str, text: str) -> None:
        raise NeedsRun(f"it writes {path}")

    # How a flow ends.

    def drop(self, docs: Dataset, duplicates: Rows) -> Dataset:
        self.named = self.gather(duplicates)
        rows_by_home = {home: rows for home, rows, _ in self.at_home(duplicates, docs)}
        return LocalDocuments(
            [with_fates(table, rows_by_home.get(home)) for home, table in cast(LocalDocuments, docs).tables]
        )

    def mark(
        self, function: MapFunction, docs: Dataset, *, columns: Sequence[str], broadcast: Broadcast = None
    ) -> Dataset:
        call, marked, after = called_with(function, broadcast), [], []
        for _, table in cast(LocalDocuments, docs).tables:
            rows = pa.concat_tables([call(batch) for batch in self.batches(those_there(table, columns))])
            after.append(row_by_row(table, rows))
            marked.append(rows)
        self.named = pa.concat_tables(marked) if marked else pa.table({})
        return LocalDocuments(after)

    def rewrite(self, function: JoinFunction, rows: Rows, docs: Dataset, *, columns: Sequence[str]) -> Dataset:
        rewritten = {
            home: function(rows_here, those_there(table, columns))
            for home, rows_here, table in self.at_home(rows, docs)
        }
        self.named = pa.concat_tables(list(rewritten.values())) if rewritten else pa.table({})
        tables = cast(LocalDocuments, docs).tables
        return LocalDocuments(
            [row_by_row(table, rewritten[home]) if home in rewritten else table for home, table in tables]
        )

    def at_home(self, rows: Rows, docs: Dataset) -> list[tuple[int, pa.Table, pa.Table]]:
        """Rows with the documents of the part that is their home."""
        by, every = cast(LocalRows, rows).by, cast(LocalRows, rows).table()
        if by != "home":
            raise ValueError(f"these rows are cut by {by}; give `by='home'` in the round before")
        if every is None:
            return []
        parts = [(home, rows_at(every, home), table) for home, table in cast(LocalDocuments, docs).tables]
        if sum(len(rows_here) for _, rows_here, _ in parts) != len(every):
            raise ValueError("rows have a home that no part has")
        return [(home, self.in_any_order(rows_here), table) for home, rows_here, table in parts if len(rows_here)]


def documents_in(data: Any, with_uids: bool = False, views: bool = False) -> tuple[pa.Table, Back]:
    """`as_arrow`, its columns as stages calculate with them; TypeError where the column `text` holds anything but
    strings. `with_uids`: rows have one each, of their number where the table has none. `views`: string views stay what
    they are."""
    table, back = as_arrow(data, numbered=True, views=views)
    table = plainly_encoded(table, views)
    column = table["text"] if "text" in table.column_names else pa.chunked_array([], pa.null())
    if column.null_count < len(column) and column.type not in (pa.string(), pa.large_string(), pa.string_view()):
        raise TypeError(f"the column `text` is {column.type}: strings were expected")
    if not with_uids:
        return table, back
    if "uid" in table.column_names:
        return with_whole_uids(table), back
    return table.append_column("uid", numbered(table)), lambda kept: back(kept.drop_columns(["uid"]))


def plainly_encoded(table: pa.Table, views: bool) -> pa.Table:
    """Categories (dictionaries) as their values, views as large strings, which pyarrow can filter (unless `views` may
    stay), and columns of every document that hold only nulls in their own type."""
    for place, field in enumerate(table.schema):
        is_dictionary = pa.types.is_dictionary(field.type)
        kind = field.type.value_type if is_dictionary else field.type
        kind = kind if views and not is_dictionary else LAID_OUT.get(kind, kind)
        if pa.types.is_null(kind) and field.name in (*BASE.names, *PAGE.names):
            kind = (BASE if field.name in BASE.names else PAGE).field(field.name).type
        if kind != field.type:
            table = table.set_column(place, field.name, table.column(place).cast(kind))
    return table


def numbered(table: pa.Table) -> pa.Array:
    """Uids by the number of the row."""
    return pa.array(uids_of("table", "", np.arange(len(table), dtype=np.int64)))


def with_whole_uids(table: pa.Table) -> pa.Table:
    """Its column `uid` as uint64, in which stages calculate."""
    uids = table["uid"]
    if not pa.types.is_integer(uids.type) or uids.null_count:
        what = "has nulls" if uids.null_count else f"is {uids.type}"
        raise TypeError(f"the column `uid` {what}: whole numbers were expected; without it rows are numbered")
    try:
        whole = uids.cast(pa.uint64())
    except pa.ArrowInvalid:
        raise ValueError("the column `uid` has numbers below 0") from None
    return table.set_column(table.column_names.index("uid"), "uid", whole)


def as_documents(table: pa.Table) -> tuple[pa.Table, list[str]]:
    """A table with the columns that every document has, and the names of those that were added: null, and uids by the
    number of the row."""
    lacking = [field for field in BASE if field.name not in table.column_names]
    for field in lacking:
        column = numbered(table) if field.name == "uid" else pa.nulls(len(table), field.type)
        table = table.append_column(field.name, column)
    if "uid" in (field.name for field in lacking):
        return table, [field.name for field in lacking]
    table = with_whole_uids(table)
    if pc.count_distinct(table["uid"]).as_py() != len(table):
        raise ValueError("the column `uid` names some documents more than once")
    return table, [field.name for field in lacking]


def with_fates(table: pa.Table, rows: pa.Table | None) -> pa.Table:
    """The documents that stay, with what rows, one a document at most, say of some."""
    if rows is None:
        return table
    places = places_of(table["uid"].to_numpy(), rows)
    for name in rows.column_names:
        if name not in FATE:
            which = np.full(len(table), -1, np.int64)
            which[places] = np.arange(len(rows))
            table = with_column(table, name, rows[name].combine_chunks().take(pa.array(which, mask=which < 0)))
    kept = np.ones(len(table), bool)
    kept[places] = pc.is_null(rows["reason"]).to_numpy()
    return filtered(table, kept)


def places_of(uids: Hashes, rows: pa.Table) -> Integers:
    """Where the documents are that rows name, one a document at most."""
    named = rows["uid"].to_numpy()
    places = places_in_order(uids, named)
    if places is not None:
        return places
    found = pc.index_in(pa.array(named), value_set=pa.array(uids))
    if found.null_count or pc.count_distinct(found).as_py() != len(rows):
        raise ValueError("rows name a document twice, or one that is not there")
    in_any_order: Integers = found.to_numpy().astype(np.int64)
    return in_any_order


def row_by_row(table: pa.Table, rows: pa.Table) -> pa.Table:
    """The documents that stay, with the signals (or texts) that rows beside them bring."""
    if not rows["uid"].equals(table["uid"]):
        raise ValueError("rows are not row by row of the documents")
    for name in rows.column_names:
        table = table if name in FATE else with_column(table, name, rows[name])
    return filtered(table, pc.is_null(rows["reason"]).to_numpy())


def with_column(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    index = table.column_names.index(name) if name in table.column_names else -1
    return table.append_column(name, values) if index < 0 else table.set_column(index, name, values)


def filtered(table: pa.Table, kept: Mask) -> pa.Table:
    """`Table.filter`; texts are copied as fast as memory goes, and what views show is not copied."""
    mask = pa.array(kept)
    columns = [
        filtered_texts(column, kept) if is_text(column.type) else column.filter(mask) for column in table.columns
    ]
    return pa.table(columns, schema=table.schema)


def is_text(kind: pa.DataType) -> bool:
    return kind in LAID_OUT or pa.types.is_string(kind) or pa.types.is_large_string(kind)


def filtered_texts(column: pa.ChunkedArray, kept: Mask) -> pa.ChunkedArray:
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(int(kept.sum()), column.type)])
    choose = kept_views if column.type in LAID_OUT else kept_texts
    ends = np.cumsum([0, *map(len, column.chunks)]).tolist()
    chunks = [choose(chunk, kept[end : end + len(chunk)]) for chunk, end in zip(column.chunks, ends[:-1], strict=True)]
    return pa.chunked_array(chunks, column.type)


def named_by(rows: pa.Table, uids: str, docs: pa.Table) -> pa.Table:
    """The documents that a column of uids, or of lists of them, names."""
    column = rows[uids]
    named = np.unique((pc.list_flatten(column) if pa.types.is_nested(column.type) else column).to_numpy())
    chosen = docs.filter(pa.array(np.isin(docs["uid"].to_numpy(), named)))
    if len(chosen) != len(named):
        raise ValueError("rows name documents that are not in the part which is their home")
    return chosen


def those_there(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    return table.select([name for name in columns if name in table.column_names])


def called_with(function: Callable[..., Any], broadcast: Broadcast) -> Callable[..., Any]:
    if broadcast is None:
        return function
    table = broadcast if isinstance(broadcast, pa.Table) else cast(LocalRows, broadcast).table()
    return lambda *tables: function(*tables, table)


def rows_at(rows: pa.Table, home: int) -> pa.Table:
    here = rows["home"].to_numpy() == home
    return rows if here.all() else rows.filter(pa.array(here))


def with_home(rows: pa.Table, home: int) -> pa.Table:
    return (
        rows
        if "home" in rows.column_names
        else rows.append_column("home", pa.array(np.full(len(rows), home, np.uint64)))
    )
