"""The account of a run: counts of each stage, the law that nothing is lost between them, faults of input files, and the
rejects: one file for each stage and part, so that "why did this page go?" always has an answer.

Faults are stretches of files that are damaged, and remarks of readers on a whole file. They are kept by file until a
run's alarms name a few; the log of the run names all. Sums do not depend on the order of parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.pipeline.errors import NotConserved
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.store.partitions import TOP, PartWriter
from gristmill.pipeline.store.records import CountRecord, CountsByStage, FaultRecord, Files, RejectsSettings
from gristmill.pipeline.store.storage import Store
from gristmill.stages.documents import Reading
from gristmill.stages.stage import Origin, Verdict

NAMED = 3  # files in one alarm, and alarms of one kind for a source
LONGEST_PATH, LONGEST_REASON = 80, 160
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

# --- faults of input files --------------------------------------------------------------------------------------------


@dataclass
class FileFault:
    """One file: its damaged records, what the first of them is, whether that takes all of the file, and remarks."""

    damaged: int = 0
    first: tuple[int, str] | None = None  # where in the file, and what
    whole: bool = False
    remarks: set[str] = field(default_factory=set)

    def add(self, other: FileFault) -> None:
        self.damaged += other.damaged
        self.first = min((first for first in (self.first, other.first) if first is not None), default=None)
        self.whole |= other.whole
        self.remarks |= other.remarks

    def in_words(self) -> str:
        what = shortened(self.first[1] if self.first else "", LONGEST_REASON)
        if self.whole:
            return f"the whole file: {what}"
        return what if self.damaged == 1 else f"{self.damaged:,} records, the first: {what}"


@dataclass
class Faults:
    """By path below the source's root."""

    by_file: dict[str, FileFault] = field(default_factory=dict)

    def note(self, origin: Origin, reading: Reading) -> None:
        """What a reader said of a file as it went through it."""
        for damage in reading.damaged:
            whole = damage.start == 0 and damage.end >= origin.size > 0 and len(reading.documents) == 0
            self.of(origin.path).add(FileFault(damage.records, (damage.start, damage.what), whole))
        if reading.remarks:
            self.of(origin.path).add(FileFault(remarks=set(reading.remarks)))

    def of(self, path: str) -> FileFault:
        return self.by_file.setdefault(path, FileFault())

    def add(self, other: Faults) -> None:
        for path, fault in other.by_file.items():
            self.of(path).add(fault)

    def plain(self) -> dict[str, FaultRecord]:
        return {path: (f.damaged, f.first, f.whole, sorted(f.remarks)) for path, f in sorted(self.by_file.items())}

    @classmethod
    def from_plain(cls, data: Mapping[str, FaultRecord]) -> Faults:
        return cls(
            {
                path: FileFault(damaged, None if first is None else (first[0], first[1]), whole, set(remarks))
                for path, (damaged, first, whole, remarks) in data.items()
            }
        )

    def of_damage(self) -> str:
        """The files that damage cost most, each with what is wrong; empty if none is known."""
        damaged = {path: fault for path, fault in self.by_file.items() if fault.damaged}
        most = sorted(damaged, key=lambda path: (not damaged[path].whole, -damaged[path].damaged, path))
        return few(
            [f"{shortened(path, LONGEST_PATH)} ({damaged[path].in_words()})" for path in most[:NAMED]], len(most)
        )

    def of_remarks(self) -> list[str]:
        """Files of which a reader has the same to say, in one line, those of most files first."""
        saying: dict[str, list[str]] = {}
        for path in sorted(self.by_file):
            for remark in self.by_file[path].remarks:
                saying.setdefault(remark, []).append(path)
        kinds = sorted(saying.items(), key=lambda kind: (-len(kind[1]), kind[0]))
        lines = [
            f"{few([shortened(path, LONGEST_PATH) for path in paths[:NAMED]], len(paths))}: "
            f"{shortened(remark, 2 * LONGEST_REASON)}"
            for remark, paths in kinds[:NAMED]
        ]
        others = {path for _, paths in kinds[NAMED:] for path in paths}
        return [*lines, f"{files(len(others))} with the like; logs/run.log has all"] if others else lines


def few(names: Sequence[str], of: int) -> str:
    """Some names, and how many more there are."""
    return ", ".join(names) + (f" and {files(of - len(names), 'more ')}" if of > len(names) else "")


def files(count: int, more: str = "") -> str:
    return f"{count:,} {more}file{'s' if count != 1 else ''}"


def shortened(text: str, longest: int) -> str:
    """Crawled text, harmless and on one line; what is too long loses its middle."""
    text = one_line(text)
    return text if len(text) <= longest else f"{text[: longest // 2]}…{text[-(longest - longest // 2 - 1) :]}"


# --- counts -----------------------------------------------------------------------------------------------------------


@dataclass
class Count:
    """One stage's account of one source."""

    docs_in: int = 0
    made: int = 0  # documents that the stage made of others, beside them
    kept: int = 0
    quarantined: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    text_bytes: int = 0  # UTF-8 of the texts that stay; before extraction there are none
    absent: Counter[str] = field(
        default_factory=Counter
    )  # by signal: documents without one, of stages that expect values
    noted: Counter[str] = field(
        default_factory=Counter
    )  # by name: documents of which a reader or stage noted something (pipeline/run/alarms.py)
    nuls: int = 0  # texts that a reader took NUL characters out of
    faults: Faults = field(default_factory=Faults)  # of a reader's files: for alarms, and no part of the record

    def add(self, other: Count) -> None:
        self.docs_in += other.docs_in
        self.made += other.made
        self.kept += other.kept
        self.quarantined += other.quarantined
        self.dropped.update(other.dropped)
        self.seconds += other.seconds
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.text_bytes += other.text_bytes
        self.absent.update(other.absent)
        self.noted.update(other.noted)
        self.nuls += other.nuls
        self.faults.add(other.faults)

    def plain(self) -> CountRecord:
        record: CountRecord = {
            "docs_in": self.docs_in,
            "kept": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "quarantined": self.quarantined,
            "seconds": round(self.seconds, 4),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "text_bytes": self.text_bytes,
        }
        if self.made:
            record["made"] = self.made
        if self.absent:
            record["absent"] = dict(sorted(self.absent.items()))
        if self.noted:
            record["noted"] = dict(sorted(self.noted.items()))
        if self.nuls:
            record["nuls"] = self.nuls
        return record

    @classmethod
    def from_plain(cls, data: CountRecord) -> Count:
        return cls(
            docs_in=data.get("docs_in", 0),
            made=data.get("made", 0),
            kept=data.get("kept", 0),
            quarantined=data.get("quarantined", 0),
            dropped=Counter(data.get("dropped", {})),
            seconds=data.get("seconds", 0.0),
            bytes_in=data.get("bytes_in", 0),
            bytes_out=data.get("bytes_out", 0),
            text_bytes=data.get("text_bytes", 0),
            absent=Counter(data.get("absent", {})),
            noted=Counter(data.get("noted", {})),
            nuls=data.get("nuls", 0),
            faults=Faults.from_plain(data.get("faults", {})),
        )

    def check(self, what: str) -> None:
        """in + made = kept + dropped + quarantined, or the run stops."""
        out = self.kept + sum(self.dropped.values()) + self.quarantined
        if self.docs_in + self.made != out:
            made = f" and {self.made:,} were made of them" if self.made else ""
            raise NotConserved(
                f"{what}: {self.docs_in:,} documents went in{made}, but {self.kept:,} kept + "
                f"{sum(self.dropped.values()):,} dropped + {self.quarantined:,} quarantined = {out:,}"
            )


@dataclass
class RunAccount:
    """Counts by stage, then by source."""

    stages: dict[str, dict[str, Count]] = field(default_factory=dict)
    peak_memory: dict[str, int] = field(default_factory=dict)

    def of(self, stage: str, source: str) -> Count:
        return self.stages.setdefault(stage, {}).setdefault(source, Count())

    def add(self, source: str, counts: CountsByStage, peak_memory: int = 0) -> None:
        for stage, plain in counts.items():
            self.of(stage, source).add(Count.from_plain(plain))
            self.peak_memory[stage] = max(self.peak_memory.get(stage, 0), peak_memory)

    def total(self, stage: str) -> Count:
        total = Count()
        for count in self.stages.get(stage, {}).values():
            total.add(count)
        return total


def check_chain(counts: CountsByStage, order: list[str], arrived: int | None, written: int | None, what: str) -> None:
    """Hold one part to the law: each stage by itself, and against the stages before and after it and the files on both
    sides."""
    before = arrived
    for stage in order:
        count = Count.from_plain(counts[stage])
        count.check(f"{what}: {stage}")
        if before is not None and count.docs_in != before:
            raise NotConserved(f"{what}: {before:,} documents were handed to {stage}, which saw {count.docs_in:,}")
        before = count.kept
    if written is not None and before is not None and before != written:
        raise NotConserved(f"{what}: {before:,} documents left the last stage, but {written:,} were written")


# --- rejects ----------------------------------------------------------------------------------------------------------


class RejectsWriter:
    """The rejects of one part, a writer for each stage that has any."""

    def __init__(
        self, store: Store, file_name: str, source: str, settings: RejectsSettings, writers: list[PartWriter]
    ) -> None:
        self.store = store
        self.file_name = file_name
        self.source = source
        self.keep_below = int(settings["keep"] * 2.0**64)
        self.text = bool(settings["text"])
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
