"""Journal of a run: finished tasks and global stages by fingerprint, and the content of files. Append-only, one JSON
line an entry; each line begins with its own checksum, and a line that does not match it is damaged and holds nothing.

The journal also knows the content of files: a checksum for each, and the stamp that the file had with that content. A
run compares the stamps of all its files; one whose stamp changed is hashed, and one whose content changed counts as
gone, so that its task runs again.

On object stores, which cannot append, each flush is an object of its own, named so that no other process writes the
same; a run that finds many makes one of them.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import UserDict
from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar, cast, get_args

import xxhash

from gristmill.pipeline.errors import DamagedFile, RecipeError, RunFailed
from gristmill.pipeline.store.partitions import staged, waiting_for_names
from gristmill.pipeline.store.records import FileRef, Files, Result
from gristmill.pipeline.store.serialize import dumps, read_as
from gristmill.pipeline.store.storage import Stamp, Store, hash_of_content

FOLDER = "journal"
JOURNAL = f"{FOLDER}/tasks.jsonl"  # on local disks
LAYOUT = 5  # of the folder of a run; another one is refused
FLUSH_SECONDS, FLUSH_SECONDS_REMOTE = 1.0, 10.0
MANY_SEGMENTS = 32
BETWEEN = (
    "partitions/",
    "shuffle/",
    "stages/",
    "journal/",
    "logs/",
)  # what `maintain clean` may take, and what is no result
READERS = 16
LINE_STARTS, LENGTH_OF_CHECKSUM = b'{"checksum":"', 16

# --- entries ----------------------------------------------------------------------------------------------------------

StampRecord: TypeAlias = tuple[Stamp, str]  # the stamp of a file, and the checksum of the content that it had with it


@dataclass(frozen=True)
class LayoutIs:
    """The layout of the folder, first of all entries."""

    kind: ClassVar[str] = "layout"
    version: int


@dataclass(frozen=True)
class TaskDone:
    """A task, or a global stage as a whole, and its result, with the stamps of the files that it wrote."""

    kind: ClassVar[str] = "task"
    task: str
    result: Result
    stamps: Mapping[str, StampRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class FileWritten:
    """A file that the run itself wrote: a record, a manifest, a report."""

    kind: ClassVar[str] = "file"
    file: FileRef
    stamps: Mapping[str, StampRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class StampsSeen:
    """Contents of files by path and stamp."""

    kind: ClassVar[str] = "stamps"
    stamps: Mapping[str, StampRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class FilesRetired:
    """Files that the run removed itself because nobody has to read them again."""

    kind: ClassVar[str] = "retired"
    paths: Sequence[str]


@dataclass(frozen=True)
class RunEnded:
    """The results that a run left; none while a run is at work."""

    kind: ClassVar[str] = "ended"
    results: Sequence[str]


Entry: TypeAlias = LayoutIs | TaskDone | FileWritten | StampsSeen | FilesRetired | RunEnded
KINDS: Mapping[str, type[Entry]] = {each.kind: each for each in get_args(Entry)}


class OtherLayout(ValueError):
    """An entry that this version does not write."""


def line_of(entry: Entry) -> bytes:
    facts = dumps(entry)[1:]
    return b'%s%s",%s\n' % (LINE_STARTS, xxhash.xxh3_64_hexdigest(facts).encode(), facts)


def entry_in(line: bytes) -> Entry | None:
    """The entry of a line; None if the line was cut off by a kill or changed since."""
    start = len(LINE_STARTS) + LENGTH_OF_CHECKSUM
    checksum, facts = line[len(LINE_STARTS) : start], line[start + 2 :]
    if (
        not line.startswith(LINE_STARTS)
        or line[start : start + 2] != b'",'
        or xxhash.xxh3_64_hexdigest(facts).encode() != checksum
    ):
        return None
    data = json.loads(b"{" + facts)
    try:
        return read_as(KINDS[data["kind"]], data)
    except (AttributeError, KeyError, TypeError) as error:
        raise OtherLayout from error


# --- the journal ------------------------------------------------------------------------------------------------------

Value = TypeVar("Value")


class Packed(UserDict[str, Value]):
    """A dictionary that holds its values as JSON, for records that are many and seldom read: that of a file takes 700
    bytes as Python's objects and 150 as text, that of a task 7.5 kB and 1.4. Each access makes a copy."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind  # of values

    def __getitem__(self, key: str) -> Value:
        return cast(Value, read_as(self.kind, json.loads(cast(bytes, self.data[key]))))

    def __setitem__(self, key: str, value: Value) -> None:
        self.data[key] = cast(Value, dumps(value))


class Journal:
    """Remembers the results of tasks whose files are really there."""

    def __init__(self, store: Store, looks_only: bool = False) -> None:
        self.store = store
        self.looks_only = looks_only  # changes nothing in the run's folder
        self.done: Packed[Result] = Packed(Result)
        # Tasks that were done and whose files went; is one still there, with another content?
        self.gone: dict[str, bool] = {}
        self.damaged: list[str] = []  # files that are gone or are not what was written
        self._made_again: set[str] = set()
        self.suspects: set[str] = set()  # files that a worker found damaged, whatever their stamps say
        self.retired: set[str] = set()  # files that the run removed itself
        self._of_the_run: dict[str, FileRef] = {}  # files that the run itself wrote: its record and reports
        self.results: list[str] = []  # of a run that came to its end
        self.damaged_lines = 0
        self._stamps: Packed[StampRecord] = Packed(StampRecord)  # by path
        self._waiting: list[bytes] = []
        self._flushed = time.monotonic()
        self._segments: list[str] = []
        self._load()

    # --- lines --------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        self._segments = sorted(path for path in self.store.files(FOLDER) if path.endswith(".jsonl"))
        if self.store.local:
            for segment in self._segments:
                with self.store.open(segment) as file:
                    for line in file:
                        self._take(line.removesuffix(b"\n"), segment)
            return
        with ThreadPoolExecutor(READERS) as threads:
            for first in range(0, len(self._segments), READERS):
                some = self._segments[first : first + READERS]
                for segment, data in zip(some, threads.map(self.store.read, some), strict=True):
                    for line in data.removesuffix(b"\n").split(b"\n"):
                        self._take(line, segment)

    def _take(self, line: bytes, segment: str) -> None:
        try:
            entry = entry_in(line)
            if isinstance(entry, LayoutIs) and entry.version != LAYOUT:
                raise OtherLayout
        except OtherLayout as error:
            raise RecipeError(
                f"{self.store.at(segment)} is of another version of Gristmill; give the run a new folder (--out)"
            ) from error
        match entry:
            case None:
                self.damaged_lines += 1
            case TaskDone(task, result):
                self._done(task, result)
                self._stamps.update(entry.stamps)
            case FileWritten(file):
                self._of_the_run[file.path] = file
                self._stamps.update(entry.stamps)
            case StampsSeen(stamps):
                self._stamps.update(stamps)
            case FilesRetired(paths):
                self.retired |= set(paths)
            case RunEnded(results):
                self.results = list(results)

    def gather(self) -> None:
        """Make one file of many objects, and of a file with damaged lines one without."""
        if self.damaged_lines or len(self._segments) > MANY_SEGMENTS:
            self._rewrite()

    def _rewrite(self) -> None:
        """Write all that is known as one file, which is there before others go. Damaged lines are left behind."""
        self.damaged_lines = 0
        entries: list[Entry] = [LayoutIs(LAYOUT)]
        entries += [TaskDone(task, result) for task, result in self.done.items()]
        entries += [FileWritten(facts) for facts in self._of_the_run.values()]
        entries += [StampsSeen(dict(self._stamps)), FilesRetired(sorted(self.retired))]
        data = b"".join(map(line_of, [*entries, RunEnded(self.results)]))
        if self.store.local:
            self.store.write(JOURNAL, data)
            return
        before, self._segments = self._segments, []
        self._add_segment(data, after=before[-1])
        self.store.remove(before)

    def drop(self, work: Container[str], changed: Mapping[str, FileRef | None]) -> None:
        """Take out tasks and global stages, which then have to be done again, and note the new facts of files that were
        `changed`; None for one that is gone. Their other files stay known until they are made again. The journal is
        written in one step: nothing of the entries stays on disk."""
        for task in [task for task in self.done if task in work]:
            self._of_the_run |= {file.path: file for file in self.done.pop(task).files.values()}
        for path in [path for path in self._stamps if path in changed]:
            del self._stamps[path]
        self._of_the_run = {path: facts for path, facts in self._of_the_run.items() if path not in changed}
        self._of_the_run |= {path: facts for path, facts in changed.items() if facts is not None}
        self.results = [path for path in self.results if path not in changed or changed[path] is not None]
        self._rewrite()

    def work_with(self, paths: Container[str]) -> dict[str, list[str]]:
        """Tasks and global stages that wrote some of these files, and which."""
        of_tasks = ((task, [file.path for file in result.files.values()]) for task, result in self.done.items())
        written = {task: [path for path in of_task if path in paths] for task, of_task in of_tasks}
        return {task: some for task, some in written.items() if some}

    def _write(self, entry: Entry) -> None:
        if self.looks_only:
            return
        if not self._segments and not self._waiting:
            self._waiting.append(line_of(LayoutIs(LAYOUT)))
        self._waiting.append(line_of(entry))
        if time.monotonic() - self._flushed > (FLUSH_SECONDS if self.store.local else FLUSH_SECONDS_REMOTE):
            self.flush()

    def flush(self) -> None:
        self._flushed = time.monotonic()
        if not self._waiting:
            return
        data, self._waiting = b"".join(self._waiting), []
        if self.store.local:
            path = Path(self.store.at(JOURNAL))
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+b") as file:
                file.seek(max(0, file.tell() - 1))
                ends_line = file.read(1) in (b"", b"\n")  # not where a kill cut the last one off
                file.write(data if ends_line else b"\n" + data)
                file.flush()
                os.fsync(file.fileno())
            self._segments = self._segments or [JOURNAL]
        else:
            self._add_segment(data, after=self._segments[-1] if self._segments else None)

    def _add_segment(self, data: bytes, after: str | None) -> None:
        number = 0 if after is None else int(after.removeprefix(f"{FOLDER}/tasks-")[:8]) + 1
        self._segments.append(f"{FOLDER}/tasks-{number:08d}-{uuid.uuid4().hex[:8]}.jsonl")
        self.store.write(self._segments[-1], data)

    # --- work ---------------------------------------------------------------------------------------------------------

    def add(self, task: str, result: Result) -> None:
        self._done(task, result)
        self._write(TaskDone(task, result, self._stamps_of(result.files.values())))

    def _done(self, task: str, result: Result) -> None:
        self.done[task] = result
        for file in result.files.values():
            self.retired.discard(file.path)
            self._of_the_run.pop(file.path, None)  # of a file that `drop` noted: the task writes it now

    # --- files --------------------------------------------------------------------------------------------------------

    @property
    def made(self) -> Files:
        """Every file that tasks are known to have written, with its length and checksum."""
        return {file.path: file for result in self.done.values() for file in result.files.values()}

    @property
    def files(self) -> Files:
        """The same, and files of the run itself."""
        return self.made | self._of_the_run

    def check(self, present: Mapping[str, Stamp]) -> int:
        """Forget results whose files are not there with the content that they were written with; returns how many."""
        lying = {path: path for path in present} | waiting_for_names(present)
        present = {path: present[where] for path, where in lying.items()}
        files = self.files
        there = {path: facts for path, facts in files.items() if path in present and present[path][0] == facts.bytes}
        self._look_into(
            lying,
            {path: present[path] for path, facts in there.items() if not self._is_known(path, present[path], facts)},
        )
        lost = {
            path for path, facts in files.items() if path not in there or not self._is_known(path, present[path], facts)
        } - (self.retired - present.keys())
        self.damaged = sorted(lost & present.keys())
        incomplete = self.work_with(lost) if lost else {}
        self.gone = {task: not present.keys().isdisjoint(paths) for task, paths in incomplete.items()}
        for task in incomplete:
            del self.done[task]
        self._of_the_run = {path: facts for path, facts in self._of_the_run.items() if path not in lost}
        return len(incomplete)

    def _is_known(self, path: str, stamp: Stamp, facts: FileRef) -> bool:
        """Is this the content that was written? Object stores, whose listings tell no more than lengths, keep checksums
        of their own."""
        return not self.store.local or (path not in self.suspects and self._seen(path) == (stamp, facts.checksum))

    def _seen(self, path: str) -> StampRecord:
        stamp, checksum = self._stamps.get(path, ((), ""))
        return tuple(stamp), checksum

    def _look_into(self, lying: Mapping[str, str], files: Mapping[str, Stamp]) -> None:
        """Hash files whose stamps are new, and remember their contents."""
        with ThreadPoolExecutor(READERS) as threads:  # xxh3 releases the GIL
            hashes = threads.map(lambda path: hash_of_content(self.store.at(lying[path])), files, chunksize=64)
            self._remember(
                {path: (stamp, content) for (path, stamp), content in zip(files.items(), hashes, strict=True)}
            )
        self.suspects -= files.keys()

    def _remember(self, stamps: dict[str, StampRecord]) -> None:
        self._stamps.update(stamps)
        if stamps:
            self._write(StampsSeen(stamps))

    def tell_the_next_run(self) -> None:
        """Note what damaged files hold now: a run, which trusts stamps, then makes them again."""
        seen = {path: self._stamps[path] for path in self.damaged if path in self._stamps}
        self._waiting.append(line_of(StampsSeen(seen)))
        self.flush()

    def suspect(self, error: DamagedFile) -> None:
        """A worker found a file damaged, whatever its stamp says: it is hashed when files are looked at next, and made
        again, once."""
        if error.path in self._made_again:
            raise RunFailed(
                f"{self.store.at(error.path)}: damaged again after it was made anew; "
                "look at the disk and the memory of this machine"
            ) from error
        self._made_again.add(error.path)
        self.suspects.add(error.path)

    def holds(self, store: Store, path: str, checksum: str) -> bool:
        """Has a file, which may be of another folder, this content? It is not read again while its stamp stays."""
        stamp, name = store.stamp(path), path if store is self.store else store.at(path)
        if stamp is None:
            return not store.local and store.exists(path)
        if self._seen(name)[0] != stamp:
            self._remember({name: (stamp, hash_of_content(store.at(path)))})
        return self._seen(name)[1] == checksum

    def retire(self, paths: Iterable[str]) -> None:
        """Remove files that nobody has to read again. Their tasks count as done all the same, until a reader asks for
        one."""
        gone = sorted(set(paths) - self.retired)
        if gone:
            self.retired |= set(gone)
            self._write(FilesRetired(gone))
            self.flush()
        self.store.remove(gone)

    def bring_back(self, paths: Iterable[str]) -> None:
        """Retired files are needed: the work that wrote them is to be done again."""
        needed = self.retired & set(paths)
        for task in self.work_with(needed):
            del self.done[task]
        self.retired -= needed

    def keep(self, path: str, content: bytes) -> None:
        """A file that the run itself writes: a record, a manifest, a report. One that is there with this content stays
        as it is."""
        checksum = self.store.write_if_other(path, content)
        facts = FileRef(path, len(content), checksum)
        if self._of_the_run.get(path) != facts:
            self._of_the_run[path] = facts
            self._write(FileWritten(facts, self._stamps_of([facts])))

    def settle(self, own_files: Iterable[str]) -> None:
        """Keep which of a run's own files are its results, for when it has ended: one that goes later is missed. A run
        that begins has none yet."""
        results = sorted(path for path in own_files if not path.startswith(BETWEEN))
        if results != self.results:
            self.results = results
            self._write(RunEnded(results))

    def is_as_written(self, path: str) -> bool:
        """Is a file of the run itself what was written, as far as anything is known of it?"""
        facts = self._of_the_run.get(path)
        if facts is None:
            return path not in self.damaged
        return self.store.exists(path) and xxhash.xxh3_128_hexdigest(self.store.read(path)) == facts.checksum

    def named(self, paths: Iterable[str]) -> None:
        """Files of a sink have got their names, which changes their stamps and, where they are the same files, nothing
        else."""
        stamps = {path: (stamp, self._seen(path)) for path in paths if (stamp := self.store.stamp(path)) is not None}
        self._remember(
            {
                path: (stamp, checksum if is_renamed(before, stamp) else hash_of_content(self.store.at(path)))
                for path, (stamp, (before, checksum)) in stamps.items()
                if stamp != before
            }
        )

    def _stamps_of(self, files: Iterable[FileRef]) -> dict[str, StampRecord]:
        """Stamps of files that have just been written, where the content is new. The first stamp of a content holds:
        a later change is looked into."""
        new = {file.path: file.checksum for file in files if self._seen(file.path)[1] != file.checksum}
        stamps = {path: (stamp, checksum) for path, checksum in new.items() if (stamp := self._stamp(path)) is not None}
        self._stamps.update(stamps)
        return stamps

    def _stamp(self, path: str) -> Stamp | None:
        """Of a file of a sink, where it waits for the others."""
        return self.store.stamp(staged(path)) or self.store.stamp(path)


def is_renamed(before: Stamp, now: Stamp) -> bool:
    """The same file of the same length and time of writing; a new name or link changes only the time of change."""
    return bool(before) and (before[0], before[1], before[3]) == (now[0], now[1], now[3])
