"""The rejects: one file for each stage and partition, so that "why did this page go?" always has an answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.pipeline.store.partitions import TOP, PartWriter
from gristmill.pipeline.store.records import Files, RejectsSettings
from gristmill.pipeline.store.storage import Store
from gristmill.stages.documents import Reading
from gristmill.stages.stage import Verdict

SCHEMA = pa.schema(
    [
        ("uid", pa.uint64()),
        ("url", pa.string()),
        ("id", pa.string()),
        ("source", pa.string()),
        ("stage", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("text", pa.string()),
    ]
)
QUARANTINED = "quarantined"
DAMAGED = "damaged"


class RejectsWriter:
    """The rejects of one part, a writer for each stage that has any."""

    def __init__(
        self, store: Store, file_name: str, source: str, settings: RejectsSettings, writers: list[PartWriter]
    ) -> None:
        self.store = store
        self.file_name = file_name
        self.source = source
        self.keep_below = int(settings.keep * 2.0**64)
        self.text = bool(settings.text)
        self._writers: dict[str, PartWriter] = {}
        self._all = writers

    def _writer(self, stage: str) -> PartWriter:
        if stage not in self._writers:
            self._writers[stage] = PartWriter(self.store, f"stages/{stage}/rejects/{self.file_name}.parquet")
            self._all.append(self._writers[stage])
        return self._writers[stage]

    def dropped(self, stage: str, batch: pa.RecordBatch, verdict: Verdict) -> None:
        rows = np.flatnonzero(~verdict.kept)
        reasons = [verdict.reason(int(r)) for r in rows]
        details = [_detail(verdict, int(r)) for r in rows]
        self._put(stage, batch.take(pa.array(rows)), reasons, details)

    def quarantined(self, stage: str, row: pa.RecordBatch, error: str) -> None:
        self._put(stage, row, [QUARANTINED] * len(row), [error] * len(row))

    def unread(self, stage: str, reading: Reading) -> None:
        """Records that a reader skipped by name, and stretches that were damaged."""
        rows = [(None, s.url, s.reason, s.detail) for s in reading.skips] + [
            (None, None, DAMAGED, str(d)) for d in reading.damaged
        ]
        if rows and self.keep_below:
            nothing = pa.nulls(len(rows), pa.string())
            columns = [pa.array([r[0] for r in rows], pa.uint64()), _texts([r[1] for r in rows]), nothing]
            columns += [pa.array([self.source] * len(rows)), pa.array([stage] * len(rows))]
            columns += [_texts([r[2] for r in rows]), _texts([r[3] for r in rows]), nothing]
            self._writer(stage).write(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))

    def left_out(self, stage: str, uids: pa.Array, reason: str) -> None:
        """Documents of which the uid alone may be on record."""
        nothing = pa.nulls(len(uids), pa.string())
        batch = pa.RecordBatch.from_arrays([uids, nothing, nothing], names=["uid", "url", "text"])
        self._put(stage, batch, [reason] * len(batch), [None] * len(batch))

    def _put(self, stage: str, batch: pa.RecordBatch, reasons: list[str | None], details: list[str | None]) -> None:
        self.named(stage, batch, pa.array(reasons, pa.string()), _texts(details))

    def named(
        self,
        stage: str,
        batch: pa.RecordBatch,
        reasons: pa.Array | pa.ChunkedArray,
        details: pa.Array | pa.ChunkedArray,
    ) -> None:
        """Rows that go, each with its reason."""
        rows = pa.table(
            {
                "uid": batch.column("uid"),
                "url": batch.column("url"),
                "id": batch.column("id") if "id" in batch.schema.names else pa.nulls(len(batch), pa.string()),
                "text": batch.column("text"),
                "reason": reasons,
                "detail": details,
            }
        )
        if self.keep_below < TOP:  # uids are hashes already: a share of them is a fair sample, the same on every run
            rows = rows.filter(pc.less(rows.column("uid"), pa.scalar(self.keep_below, pa.uint64())))
        if not self.text:
            rows = rows.set_column(rows.column_names.index("text"), "text", pa.nulls(len(rows), pa.string()))
        rows = rows.append_column("source", pa.repeat(self.source, len(rows))).append_column(
            "stage", pa.repeat(stage, len(rows))
        )
        for rejected in rows.select(SCHEMA.names).cast(SCHEMA).combine_chunks().to_batches():
            self._writer(stage).write(rejected)

    def close(self) -> Files:
        return {
            f"rejects/{stage}": facts
            for stage, writer in self._writers.items()
            if (facts := writer.close()) is not None
        }


def error_detail(error: BaseException) -> str:
    """An error as the detail of the document that caused it."""
    return f"{type(error).__name__}: {error}"[:2000]


def _detail(verdict: Verdict, row: int) -> str | None:
    """The detail that the stage gave; other reasons that held, where it gave none."""
    if row in verdict.details:
        return verdict.details[row]
    others = verdict.every_reason(row)[1:]
    return f"also {', '.join(others)}" if others else None


def _texts(values: Sequence[str | None]) -> pa.Array:
    return pa.array([v if v is None else v.encode("utf-8", "replace").decode() for v in values], pa.string())
