"""The documents that took longest, of each stage that works row by row. Times are a clock's: they stand beside results,
never in them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.pipeline.formatting import as_hex

MOST = 10  # of a stage
Slow = dict[str, Any]  # uid, url, source, bytes (of its page, or text), seconds


class Slowest:
    """The slowest few of each stage."""

    def __init__(self) -> None:
        self.by_stage: dict[str, list[Slow]] = {}

    def look(self, stage: str, batch: pa.RecordBatch, seconds: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        """Some documents as they came to a stage, and what it spent on each."""
        longest = np.argsort(-seconds, kind="stable")[:MOST]
        self.take(stage, [slow(batch, int(row), float(seconds[row])) for row in longest if seconds[row] > 0])

    def take(self, stage: str, rows: Iterable[Slow]) -> None:
        found = heapq.nsmallest(
            MOST, [*self.by_stage.get(stage, []), *rows], key=lambda its: (-its["seconds"], its["uid"])
        )
        if found:
            self.by_stage[stage] = found

    def add(self, found: Mapping[str, Iterable[Slow]]) -> None:
        """What was found in another part."""
        for stage, rows in found.items():
            self.take(stage, rows)


def slow(batch: pa.RecordBatch, row: int, seconds: float) -> Slow:
    def value(name: str) -> Any:
        index = batch.schema.get_field_index(name)
        return batch.column(index)[row].as_py() if index >= 0 else None

    work = next((its for its in (value("html"), value("text")) if its is not None), "")
    size = len(work.encode()) if isinstance(work, str) else len(work)
    return {
        "uid": as_hex(value("uid")),
        "url": value("url"),
        "source": value("source"),
        "bytes": size,
        "seconds": round(seconds, 6),
    }
