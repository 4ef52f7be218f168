"""The documents that took longest, of each stage that works row by row. Times are a clock's: they stand beside results,
never in them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gristmill.pipeline.formatting import as_hex
from gristmill.pipeline.store.records import SlowDocument

MOST = 10  # of a stage


class Slowest:
    """The slowest few of each stage."""

    def __init__(self) -> None:
        self.by_stage: dict[str, list[SlowDocument]] = {}

    def look(self, stage: str, batch: pa.RecordBatch, seconds: NDArray[np.float64]) -> None:
        """Some documents as they came to a stage, and what it spent on each."""
        longest = np.argsort(-seconds, kind="stable")[:MOST]
        self.take(stage, [slow(batch, int(row), float(seconds[row])) for row in longest if seconds[row] > 0])

    def take(self, stage: str, rows: Iterable[SlowDocument]) -> None:
        slowest = heapq.nsmallest(
            MOST, [*self.by_stage.get(stage, []), *rows], key=lambda row: (-row.seconds, row.uid or "")
        )
        if slowest:
            self.by_stage[stage] = slowest

    def add(self, of_part: Mapping[str, Iterable[SlowDocument]]) -> None:
        """The slowest documents of another part."""
        for stage, rows in of_part.items():
            self.take(stage, rows)


def slow(batch: pa.RecordBatch, row: int, seconds: float) -> SlowDocument:
    names = ("uid", "url", "source", "html", "text")
    values = dict.fromkeys(names) | {
        name: batch.column(name)[row].as_py() for name in names if name in batch.schema.names
    }
    content: str | bytes = values["html"] if values["html"] is not None else values["text"] or ""
    return SlowDocument(
        uid=as_hex(values["uid"]),
        url=values["url"],
        source=values["source"],
        bytes=len(content.encode()) if isinstance(content, str) else len(content),
        seconds=round(seconds, 6),
    )
