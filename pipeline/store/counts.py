"""The account of a run: counts of each stage by source, the law that nothing is lost between stages, faults of input
files, and the documents that took longest.

Faults are spans of files that are damaged, and remarks of readers on a whole file. They are kept by file until a run's
alarms name a few; the log of the run names all. Sums do not depend on the order of partitions.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gristmill.pipeline.errors import NotConserved
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.json_types import JSONObject
from gristmill.stages.documents import Reading
from gristmill.stages.stage import Origin

NAMED = 3  # files in one alarm, and alarms of one kind for a source
LONGEST_PATH, LONGEST_REASON = 80, 160

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

    def update(self, other: Faults) -> None:
        for path, fault in other.by_file.items():
            self.of(path).add(fault)

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
class DocumentCounts:
    """Counts in run.json, of a stage or of one source there: what came in and what became of it."""

    docs_in: int = 0
    kept: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)  # by reason
    quarantined: int = 0
    seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    text_bytes: int | None = None  # UTF-8 of the texts that stay; before extraction there are none
    made: int = 0  # documents that the stage made of others, beside them
    absent: Mapping[str, int] = field(default_factory=dict)  # by signal: documents without one, where values are due
    noted: Mapping[str, int] = field(default_factory=dict)  # by name: documents of which a stage or reader noted it
    nuls: int = 0  # texts that a reader took NUL characters out of

    @property
    def lost(self) -> int:
        return sum(self.dropped.values())

    @property
    def gone(self) -> int:
        return self.lost + self.quarantined

    def to_json(self) -> JSONObject:
        """Without what no document had."""
        return {name: held for name, held in vars(self).items() if held or name not in RARE}


COUNTED = tuple(each.name for each in fields(DocumentCounts))
RARE = {"made", "absent", "noted", "nuls"}  # of few stages or sources


@dataclass
class Counts(DocumentCounts):
    """One stage's account of one source, as it grows."""

    dropped: Counter[str] = field(default_factory=Counter)
    text_bytes: int = 0
    absent: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)
    faults: Faults = field(default_factory=Faults)  # of a reader's files: for alarms, and no part of the record

    def add(self, other: Counts) -> None:
        for name, more in vars(other).items():
            held = getattr(self, name)
            if isinstance(held, int | float):
                setattr(self, name, held + more)
            else:
                held.update(more)

    def in_record(self) -> DocumentCounts:
        """What run.json says of it: without faults, which the alarms name."""
        values: dict[str, Any] = {name: getattr(self, name) for name in COUNTED} | {"seconds": round(self.seconds, 4)}
        counted = {name: dict(sorted(held.items())) for name, held in values.items() if isinstance(held, Counter)}
        return DocumentCounts(**values | counted)

    def check(self, what: str) -> None:
        """in + made = kept + dropped + quarantined, or the run stops."""
        out = self.kept + self.gone
        if self.docs_in + self.made != out:
            made = f" and {self.made:,} were made of them" if self.made else ""
            raise NotConserved(
                f"{what}: {self.docs_in:,} documents went in{made}, but {self.kept:,} kept + "
                f"{self.lost:,} dropped + {self.quarantined:,} quarantined = {out:,}"
            )


@dataclass
class RunAccount:
    """Counts by stage, then by source."""

    stages: dict[str, dict[str, Counts]] = field(default_factory=dict)
    peak_memory: dict[str, int] = field(default_factory=dict)

    def of(self, stage: str, source: str) -> Counts:
        return self.stages.setdefault(stage, {}).setdefault(source, Counts())

    def add(self, source: str, counts: Mapping[str, Counts], peak_memory: int = 0) -> None:
        for stage, count in counts.items():
            self.of(stage, source).add(count)
            self.peak_memory[stage] = max(self.peak_memory.get(stage, 0), peak_memory)

    def total(self, stage: str) -> Counts:
        total = Counts()
        for count in self.stages.get(stage, {}).values():
            total.add(count)
        return total


def check_chain(counts: Mapping[str, Counts], arrived: int | None, written: int, what: str) -> None:
    """Hold one part to the law: each stage by itself, and against the stages before and after it and the files on both
    sides. `counts` are in the order of the stages."""
    before = arrived
    for stage, count in counts.items():
        count.check(f"{what}: {stage}")
        if before is not None and count.docs_in != before:
            raise NotConserved(f"{what}: {before:,} documents were handed to {stage}, which saw {count.docs_in:,}")
        before = count.kept
    if before is not None and before != written:
        raise NotConserved(f"{what}: {before:,} documents left the last stage, but {written:,} were written")


# --- slowest documents ------------------------------------------------------------------------------------------------
#
# Times are a clock's: they stand beside results, never in them.

MOST = 10  # of a stage


@dataclass(frozen=True)
class SlowDocument:
    """A document, and how long a stage took over it."""

    uid: str | None
    url: str | None
    source: str | None
    bytes: int  # of its page, or of its text
    seconds: float


@dataclass
class Slowest:
    """The slowest few of each stage."""

    by_stage: dict[str, list[SlowDocument]] = field(default_factory=dict)

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
        uid=None if values["uid"] is None else f"{values['uid']:016x}",
        url=values["url"],
        source=values["source"],
        bytes=len(content.encode()) if isinstance(content, str) else len(content),
        seconds=round(seconds, 6),
    )
