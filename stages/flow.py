"""What a global stage may ask of the engine: rounds over documents and rows, by whoever carries them out
(`pipeline/run/flow.py`).

Types alone, so that a stage that is written as a dataflow knows neither Dask nor files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa


class Dataset(Protocol):
    """Documents after some stage, as a global stage sees them."""

    @property
    def rows(self) -> int: ...

    @property
    def text_bytes(self) -> int: ...


class Rows(Protocol):
    """Rows that a round of a global stage made, cut by bucket; they stay on disk."""

    @property
    def count(self) -> int: ...


@dataclass(frozen=True)
class Published:
    """A table of token rows that becomes a file in a folder of the run, and plain facts about it."""

    folder: str
    table: pa.Table
    facts: dict[str, Any]


Beside: TypeAlias = "pa.Table | Rows | None"
MapFunction = Callable[[pa.Table], pa.Table] | Callable[[pa.Table, pa.Table], pa.Table]
PublishFunction = Callable[[pa.Table], list[Published]] | Callable[[pa.Table, pa.Table], list[Published]]
JoinFunction = Callable[[pa.Table, pa.Table], pa.Table]
MeetFunction = Callable[[pa.Table | None, pa.Table | None], pa.Table]
MergeFunction = Callable[[list[pa.Table]], pa.Table]
ScanFunction = Callable[[Iterator[pa.Table]], Iterator[pa.Table]]


class Flow(Protocol):
    """All that a global stage knows of the engine. Functions are methods of the stage, pure, and never depend on the
    order of rows; what they return is recorded, so that a run that was killed goes on in the round it was in.

    A table that a round makes has a uint64 column of well-mixed values, named by `by`, that says where a row meets its
    like (of few rows that are gathered, any value will do). The engine adds `home`, the part a row came from, to what
    `map` makes; a function that wants rows to find their way home passes it on. Rows may be used in several steps. Of
    the columns that it asks for, a function is given those that the documents have.
    With `beside`, a small table or rows that make one, it is called with that table too, whole (None of rows of which
    there are none).
    """

    @property
    def partial(self) -> bool:
        """Is this a part of the input (`--limit`, `--sample`)?"""
        ...

    def map(
        self,
        function: MapFunction,
        docs: Dataset,
        *,
        columns: Sequence[str],
        by: str,
        fan: float = 1,
        beside: Beside = None,
        cut: int = 0,
        gpu: bool = False,
    ) -> Rows:
        """Rows of each part's documents. `fan`: about how many rows a document makes, by which buckets are counted;
        `cut`: into exactly so many (a power of two), where what comes after hangs on it. `gpu`: on the workers that
        have a GPU, if any does (and `Stage.gpu` is true)."""
        ...

    def exchange(
        self, function: MapFunction, rows: Rows, *, by: str = "home", fan: float = 1, beside: Beside = None
    ) -> Rows:
        """Rows that met in a bucket, through a function. `fan`: about how many rows (of 50 bytes) it makes of one."""
        ...

    def meet(self, function: MeetFunction, left: Rows, right: Rows, *, by: str = "home") -> Rows:
        """As `exchange`, of rows of two kinds that are cut by values of one kind; None where a bucket has none of
        one."""
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
        of: str | None = None,
    ) -> Rows:
        """Rows at home, with the documents of their part; with `of`, a column of uids or of lists of them, only with
        those that it names, so that no others are held in memory. Of many the method gets some at a time, with the rows
        that name them; a list has then only those of its uids. `fan` as in `exchange`."""
        ...

    def both(self, rows: Rows, more: Rows) -> Rows:
        """Rows of one kind from two rounds."""
        ...

    def tree(self, function: MergeFunction, rows: Rows, *, by: str) -> Rows:
        """All rows merged into one table, a few at a time; the function is associative, and is called at least once."""
        ...

    def scan(self, function: ScanFunction, rows: Rows, *, by: str = "home") -> Rows:
        """All rows in one task, in order of the column they are cut by, a bucket at a time."""
        ...

    def release(self, rows: Rows) -> None:
        """No later round asks for these rows: what they take on disk may be had back. Rows of `map` go only where the
        recipe keeps no intermediates, for a later run maps nothing but the parts that changed."""
        ...

    def gather(self, rows: Rows) -> pa.Table:
        """Rows, in the process that runs the stage; for a few. Where there are none, a table without columns."""
        ...

    def report(self, name: str, value: Any) -> None:
        """A fact for the stage's report.json (run.json holds counts alone) and for later stages: plain data, and
        little of it."""
        ...

    def share(self, name: str, value: Any) -> None:
        """Something for later stages alone: plain data."""
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

    def publish(self, function: PublishFunction, rows: Rows, *, beside: Beside = None) -> list[dict[str, Any]]:
        """Token rows for others to read: what a function makes of each bucket's rows becomes files of the run. Their
        facts, in order of buckets, with `path`, `bytes` and `checksum`."""
        ...

    def leave(self, path: str, text: str) -> None:
        """A small file of the run that goes with what was published."""
        ...

    def mark(self, function: MapFunction, docs: Dataset, *, columns: Sequence[str], beside: Beside = None) -> Dataset:
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
