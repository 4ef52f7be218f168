"""What a global stage asks of the engine: rounds over documents and rows (`Flow`), and what it leaves in the run
(`RunContext`).

Types alone, so that a stage that is written as a dataflow knows neither Dask nor files. Two classes implement them:
`pipeline/shuffle/shuffle.py` on workers, `stages/local_flow.py` on a table in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias

import pyarrow as pa


class Dataset(Protocol):
    """Documents after some stage, as a global stage sees them."""

    @property
    def rows(self) -> int: ...

    @property
    def text_bytes(self) -> int: ...


class Rows(Protocol):
    """The rows that a round made, cut into buckets; they stay on disk."""

    @property
    def count(self) -> int: ...

    def __add__(self, more: Self) -> Self:
        """Rows of one kind from two rounds."""
        ...


@dataclass(frozen=True)
class Published:
    """A table of token rows that becomes a file in a folder of the run, and plain facts about it."""

    folder: str
    table: pa.Table
    facts: dict[str, Any]


Broadcast: TypeAlias = "pa.Table | Rows | None"
MapFunction = Callable[[pa.Table], pa.Table] | Callable[[pa.Table, pa.Table], pa.Table]
ReduceFunction = MapFunction | Callable[[pa.Table | None, pa.Table | None], pa.Table]
JoinFunction = Callable[[pa.Table, pa.Table], pa.Table]
CombineFunction = Callable[[list[pa.Table]], pa.Table]
ScanFunction = Callable[[Iterator[pa.Table]], Iterator[pa.Table]]
PublishFunction = Callable[[pa.Table], list[Published]] | Callable[[pa.Table, pa.Table], list[Published]]


class RunContext(Protocol):
    """What a global stage takes from the run around it and leaves there, besides documents and rows."""

    @property
    def partial(self) -> bool:
        """Is this a part of the input (`--limit`, `--sample`)?"""
        ...

    def share(self, name: str, value: Any) -> None:
        """Pass plain data to later stages, without a place in report.json."""
        ...

    def shared(self, name: str) -> Any:
        """The value of this name that the last stage before this one reported or shared; None if none did."""
        ...

    def save(self, rows: Rows, address: str, facts: dict[str, Any], *, docs: Dataset) -> None:
        """Keep rows outside the run, with facts on how they were made, for a later run to `load`; `docs` are the
        documents that they are of."""
        ...

    def load(self, address: str, *, named: bool = False) -> tuple[Rows, dict[str, Any]]:
        """Rows that earlier runs saved at an address or, name by name, in the folder that it names, and the facts they
        share; no facts where nothing was saved yet. `named`: with a column `run`, who saved them."""
        ...

    def leave(self, path: str, text: str) -> None:
        """Write a small file of the run that goes with what was published."""
        ...


class Flow(Protocol):
    """All that a global stage knows of the engine. Functions are methods of the stage, pure, and never depend on the
    order of rows; what they return is recorded, so that a killed run resumes in the round it was in.

    A table that a round makes has a uint64 column of well-mixed values, named by `by`: its top bits are the bucket in
    which equal rows meet (for few rows that are gathered, any value will do). The engine adds `home`, the part that a
    row came from, to what `map` makes; a function that sends rows back to their part passes it on. Rows may be used in
    several rounds. A function gets those of the columns it asks for that the documents have. With `broadcast`, a small
    table or rows that make one, it gets that table too, whole, as its last argument (None for no rows).

    `fan` is the number of rows, of about 50 bytes, that a round makes of one; the number of buckets follows from it.
    """

    @property
    def run(self) -> RunContext: ...

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
        """Make rows of each part's documents. `buckets`: exactly so many (a power of two), where a result depends on
        it. `gpu`: on the workers that have a GPU, if any does (and `Stage.gpu` is true)."""
        ...

    def reduce(
        self, function: ReduceFunction, *rows: Rows, by: str = "home", fan: float = 1, broadcast: Broadcast = None
    ) -> Rows:
        """Make rows of all rows of a bucket. The function gets one table for each of the `rows`, which are cut by
        values of one kind; of several, None where a bucket has none of one."""
        ...

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
        """Join rows (cut by `home`) with the documents of their part. `uids` names a column of uids, or of lists of
        them: only those documents are held in memory, some at a time, with the rows that name them (a list keeps those
        of its uids that are there)."""
        ...

    def combine(self, function: CombineFunction, rows: Rows, *, by: str) -> Rows:
        """Merge all rows into one table, a few tables at a time; the function is associative, and is called at least
        once."""
        ...

    def scan(self, function: ScanFunction, rows: Rows, *, by: str = "home") -> Rows:
        """Pass all rows through one task, in order of the column they are cut by, a bucket at a time."""
        ...

    def gather(self, rows: Rows) -> pa.Table:
        """Rows, in the process that runs the stage; for a few. Where there are none, a table without columns."""
        ...

    def release(self, rows: Rows) -> None:
        """Free the disk space of rows that no later round reads. Rows of `map` go only where the recipe keeps no
        intermediates, for a later run maps nothing but the parts that changed."""
        ...

    def report(self, name: str, value: Any) -> None:
        """Record a fact in the stage's report.json and for later stages: plain data, and little of it (run.json has
        counts alone)."""
        ...

    def publish(self, function: PublishFunction, rows: Rows, *, broadcast: Broadcast = None) -> list[dict[str, Any]]:
        """Write token rows for others to read: what a function makes of each bucket's rows becomes files of the run.
        Their facts, in order of buckets, with `path`, `bytes` and `checksum`."""
        ...

    def mark(
        self, function: MapFunction, docs: Dataset, *, columns: Sequence[str], broadcast: Broadcast = None
    ) -> Dataset:
        """The documents with verdicts and signals, batch by batch: the function returns, row by row of the documents it
        is given, `uid`, `reason` (null keeps), `detail`, and signals."""
        ...

    def drop(self, docs: Dataset, duplicates: Rows) -> Dataset:
        """The documents less the duplicates: rows with `home`, `uid`, `reason`, `detail`; columns beyond these become
        signals, and a row without a reason only brings signals."""
        ...

    def rewrite(self, function: JoinFunction, rows: Rows, docs: Dataset, *, columns: Sequence[str]) -> Dataset:
        """The documents with other texts: the function takes the rows of a part and its documents, and returns, row by
        row of the documents, `uid`, `text`, `reason` (null keeps), `detail`, and signals. Parts without rows stay as
        they are."""
        ...
