"""How a task goes about documents that may kill its process: it leaves a trail of what it is about to do, and leaves
out what killed it before.

The trail is one small file, written anew before each batch of each stage (5 µs). Whoever finds the process dead reads
stage and documents there.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NotRequired, TypedDict

import pyarrow as pa

from gristmill.pipeline.processes.lifetime import no_way_back_for_forks

LONGEST_RECORD = 4096  # bytes; behind them is what a watchdog says of a process that it ended
LONGEST_URL = 300
Place = tuple[int, str]  # number of a batch, name of a stage
Spot = tuple[int, str, int]  # and a row of it


class SearchEnded(Exception):
    """Every row that was to be tried has been, and this process lives."""


class TrailRecord(TypedDict):
    """What a trail says."""

    task: str
    batch: NotRequired[int]
    stage: NotRequired[str]
    rows: NotRequired[int]
    row: NotRequired[int | None]
    uid: NotRequired[str]
    url: NotRequired[str | None]


class Trail:
    """What a process is about to do, in a file that outlives it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.lseek(self.file, LONGEST_RECORD, os.SEEK_SET)
        self.task = ""

    def begins(self, task: str) -> None:
        self.task = task
        self._write({"task": task})

    def about_to(self, place: Place, batch: pa.RecordBatch, row: int | None) -> None:
        record: TrailRecord = {
            "task": self.task,
            "batch": place[0],
            "stage": place[1],
            "rows": len(batch),
            "row": row,
        }
        if len(batch) == 1 and "uid" in batch.schema.names:
            url = batch.column("url")[0].as_py() if "url" in batch.schema.names else None
            record["uid"] = f"{batch.column('uid')[0].as_py():016x}"
            record["url"] = url and url[:LONGEST_URL]
        self._write(record)

    def _write(self, record: TrailRecord) -> None:
        os.pwrite(self.file, json.dumps(record).encode().ljust(LONGEST_RECORD), 0)

    def close(self) -> None:
        os.close(self.file)
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Last:
    """The end of a trail."""

    task: str
    place: Place | None = None  # none: reading, or between tasks
    row: int | None = None
    rows: int = 0
    document: str = ""  # where there is but one
    hung: str = ""  # what the watchdog said

    @classmethod
    def of(cls, path: Path) -> Last | None:
        """None where nothing was begun, or the trail is on another machine."""
        try:
            data = path.read_bytes()
            record = json.loads(data[:LONGEST_RECORD])
        except (OSError, ValueError):
            return None
        hung = data[LONGEST_RECORD:].decode("utf-8", "replace")
        if "stage" not in record:
            return cls(record["task"], hung=hung)
        named = (
            f"document {record['uid']} ({record['url']})"
            if "uid" in record
            else "a document"
            if record["rows"] == 1
            else ""
        )
        return cls(record["task"], (record["batch"], record["stage"]), record["row"], record["rows"], named, hung)

    def in_words(self) -> str:
        """Over what a process died."""
        what = self.document if self.rows == 1 else f"{self.rows:,} documents"
        return "" if self.place is None else f"in {self.place[1]}, over {what}"


@dataclass
class Care:
    """What a task leaves and leaves out. Without any of it, it works as if nothing could go wrong."""

    trail: Trail | None = None
    condemned: Mapping[Spot, str] = field(default_factory=dict)  # what each did
    search: Place | None = None  # do no more than try the rows of this batch in this stage, each alone
    row: int | None = None  # and of them this one alone
    one_by_one: frozenset[Place] = frozenset()  # where no single row is to blame, and all of them together are too much
    watch: bool = False  # give the process up when a stage hangs

    def skips(self, batch: int) -> bool:
        """Is a batch not the one to be searched?"""
        if self.search is not None and batch > self.search[0]:
            raise SearchEnded
        return self.search is not None and batch < self.search[0]

    def pieces(self, place: Place, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int | None, str | None]]:
        """A batch as a stage is shown it: in pieces, each with its row if it is shown alone, and what it did if it is
        left out."""
        if self.search == place or place in self.one_by_one:
            for row in range(len(batch)) if self.search is None or self.row is None else [self.row]:
                yield batch.slice(row, 1), row, self.condemned.get((*place, row))
            if self.search == place:
                raise SearchEnded
            return
        begin = 0
        for row in sorted(row for number, stage, row in self.condemned if (number, stage) == place):
            if row > begin:
                yield batch.slice(begin, row - begin), None, None
            yield batch.slice(row, 1), row, self.condemned[*place, row]
            begin = row + 1
        if begin < len(batch) or not begin:
            yield batch.slice(begin), None, None

    def about_to(self, place: Place, batch: pa.RecordBatch, row: int | None = None) -> None:
        """A stage is to be shown some documents; `row` is where the only one stands in its batch, if they are shown one
        by one."""
        if self.trail is not None:
            self.trail.about_to(place, batch, row)

    @contextlib.contextmanager
    def watching(self, patience: float) -> Iterator[None]:
        """A stage at work. The process ends if that takes longer, even if C code holds the interpreter."""
        if self.watch:
            said_to = self.trail.file if self.trail is not None else sys.__stderr__ or sys.stderr
            faulthandler.dump_traceback_later(patience, exit=True, file=said_to)
        try:
            with no_way_back_for_forks():
                yield
        finally:
            if self.watch:
                faulthandler.cancel_dump_traceback_later()
