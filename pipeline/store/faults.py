"""What is wrong with single files of a source: stretches that are damaged, and what readers remark on a whole file.

Kept by file until a run's alarms name a few; the log of the run names all. Sums do not depend on the order of parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.store.records import FaultRecord
from gristmill.stages.documents import Reading
from gristmill.stages.stage import Origin

NAMED = 3  # files in one alarm, and alarms of one kind for a source
LONGEST_PATH, LONGEST_REASON = 80, 160


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
