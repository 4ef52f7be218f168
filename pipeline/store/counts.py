"""The account of a run: what went into each stage, what came out, and the law that nothing is lost between."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gristmill.pipeline.errors import NotConserved
from gristmill.pipeline.store.faults import Faults
from gristmill.pipeline.store.records import CountRecord, CountsByStage


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
