"""What is done: one line of JSON for each finished task, by the task's fingerprint. Append-only; each line begins with
its own checksum, and one that was torn or changed is no line.

The journal also knows the content of files: a checksum for each, and the stamp that the file had with that content. A
run looks at the stamps of all its files; one whose stamp is another is hashed, and one whose content is another counts
as gone, so that whoever made it makes it anew.

On object stores, which cannot append, each flush is an object of its own, named so that no other process writes the
same; a run that finds many makes one of them.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Container, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from gristmill.pipeline.errors import DamagedFile, RunFailed
from gristmill.pipeline.store.checksums import hash_of_content
from gristmill.pipeline.store.packed import Packed
from gristmill.pipeline.store.records import FileFacts, Files, JournalEntry, Result, StampRecord
from gristmill.pipeline.store.sinks import staged, waiting_for_names
from gristmill.pipeline.store.store import Stamp, Store

FOLDER = "journal"
JOURNAL = f"{FOLDER}/tasks.jsonl"  # on local disks
FLUSH_SECONDS, FLUSH_SECONDS_REMOTE = 1.0, 10.0
MANY_SEGMENTS = 32
BETWEEN = ("legs/", "flow/", "stages/", "journal/", "logs/")  # what `clean` may take, and what is no result
READERS = 16
LINE_STARTS, LENGTH_OF_CHECKSUM = b'{"checksum":"', 16


class Journal:
    """Remembers the results of tasks whose files are really there."""

    def __init__(self, store: Store, looks_only: bool = False) -> None:
        self.store = store
        self.looks_only = looks_only  # a look at a run changes nothing in its folder
        self.done: Packed[Result] = Packed()
        # Tasks that were done and whose files went; is one still there, with another content?
        self.gone: dict[str, bool] = {}
        self.damaged: list[str] = []  # files that are gone or are not what was written
        self._made_anew: set[str] = set()
        self.suspects: set[str] = set()  # files that a worker found damaged, whatever their stamps say
        self.retired: set[str] = set()  # files that the run removed itself
        self.schemas: dict[str, str] = {}  # columns of these, as text, by the hash that the files' facts have
        self._of_the_run: dict[str, FileFacts] = {}  # files that the run itself wrote: its record and reports
        self.results: list[str] = []  # that a run which came to its end left
        self.torn, self._known_torn = 0, 0  # lines; and when the run ended
        self._stamps: Packed[StampRecord] = Packed()  # by path: stamp and checksum of a content that was seen
        self._waiting: list[bytes] = []
        self._flushed = time.monotonic()
        self._segments: list[str] = []
        self._load()

    def _load(self) -> None:
        self._segments = sorted(path for path in self.store.files(FOLDER) if path.endswith(".jsonl"))
        if self.store.local:
            for segment in self._segments:
                with self.store.open(segment) as file:
                    for line in file:
                        self._take(_entry(line.removesuffix(b"\n")))
            return
        with ThreadPoolExecutor(READERS) as threads:
            for first in range(0, len(self._segments), READERS):
                for data in threads.map(self.store.read, self._segments[first : first + READERS]):
                    for line in data.removesuffix(b"\n").split(b"\n"):
                        self._take(_entry(line))

    def _take(self, entry: JournalEntry | None) -> None:
        if entry is None:
            self.torn += 1
            return
        if "results" in entry:
            self.results, self._known_torn = list(entry["results"]), entry["torn"]
        if "task" in entry and "result" in entry:
            self.done[entry["task"]] = entry["result"]
            self.retired -= {path for path, _ in files_of(entry["result"])}
        if "file" in entry:
            self._of_the_run[entry["file"]["path"]] = entry["file"]
        self._stamps.update(entry.get("stamps", {}))
        self.retired |= set(entry.get("retired", ()))
        self.schemas |= entry.get("schemas", {})

    def gather(self) -> None:
        """Many objects into one, which is there before they go."""
        if self.store.local or len(self._segments) <= MANY_SEGMENTS:
            return
        before, self._segments = self._segments, []
        lines = [line_of({"task": task, "result": result}) for task, result in self.done.items()]
        lines += [line_of({"file": facts}) for facts in self._of_the_run.values()]
        lines += [line_of({"retired": sorted(self.retired), "schemas": self.schemas})]
        self.torn, self._known_torn = 0, 0  # torn lines are left behind
        lines += [line_of({"results": self.results, "torn": 0})]
        self._add_segment(b"".join(lines), after=before[-1])
        self.store.remove(before)

    def check(self, present: Mapping[str, Stamp]) -> int:
        """Forget results whose files are not there with the content that they were written with; says how many."""
        lying = {path: path for path in present} | waiting_for_names(present)
        present = {path: present[where] for path, where in lying.items()}
        files = self.files
        there = {path: facts for path, facts in files.items() if path in present and present[path][0] == facts["bytes"]}
        self._look_into(
            lying,
            {path: present[path] for path, facts in there.items() if not self._is_known(path, present[path], facts)},
        )
        lost = {
            path for path, facts in files.items() if path not in there or not self._is_known(path, present[path], facts)
        } - (self.retired - present.keys())
        self.damaged = sorted(lost & present.keys())
        self.gone = {}
        for task, result in self.done.items() if lost else ():
            if paths := [path for path, _ in files_of(result) if path in lost]:
                self.gone[task] = not present.keys().isdisjoint(paths)
        for task in self.gone:
            del self.done[task]
        self._of_the_run = {path: facts for path, facts in self._of_the_run.items() if path not in lost}
        return len(self.gone)

    @property
    def files(self) -> Files:
        """Every file that is known to be of the run, with its length and checksum."""
        return {path: facts for result in self.done.values() for path, facts in files_of(result)} | self._of_the_run

    def _is_known(self, path: str, stamp: Stamp, facts: FileFacts) -> bool:
        """Is this the content that was written? Object stores, whose listings tell no more than lengths, keep checksums
        of their own."""
        return not self.store.local or (path not in self.suspects and self._seen(path) == (stamp, facts["checksum"]))

    def _seen(self, path: str) -> StampRecord:
        """The stamp of a file and the checksum of the content that it had with it."""
        stamp, checksum = self._stamps.get(path, ((), ""))
        return tuple(stamp), checksum

    def _look_into(self, lying: Mapping[str, str], files: Mapping[str, Stamp]) -> None:
        """Hash files whose stamps are news; what their content is is remembered."""
        with ThreadPoolExecutor(READERS) as threads:  # xxh3 lets go of the GIL
            hashes = threads.map(lambda path: hash_of_content(self.store.at(lying[path])), files, chunksize=64)
            self._remember(
                {path: (stamp, content) for (path, stamp), content in zip(files.items(), hashes, strict=True)}
            )
        self.suspects -= files.keys()

    def _remember(self, stamps: dict[str, StampRecord]) -> None:
        self._stamps.update(stamps)
        if stamps:
            self._write({"stamps": stamps})

    def tell_the_next_run(self) -> None:
        """Of damaged files, what they hold now: a run, which trusts stamps, then makes them anew."""
        seen = {path: self._stamps[path] for path in self.damaged if path in self._stamps}
        self._waiting.append(line_of({"stamps": seen}))
        self.flush()

    def suspect(self, error: DamagedFile) -> None:
        """A worker found a file damaged, whatever its stamp says: it is hashed when files are looked at next, and made
        anew, once."""
        if error.path in self._made_anew:
            raise RunFailed(
                f"{self.store.at(error.path)}: damaged again after it was made anew; "
                "look at the disk and the memory of this machine"
            ) from error
        self._made_anew.add(error.path)
        self.suspects.add(error.path)

    def holds(self, store: Store, path: str, checksum: str) -> bool:
        """Has a file, which may be of another folder, this content? It is not read again while its stamp stays."""
        stamp, name = store.stamp(path), path if store is self.store else store.at(path)
        if stamp is None:
            return not store.local and store.exists(path)
        if self._seen(name)[0] != stamp:
            self._remember({name: (stamp, hash_of_content(store.at(path)))})
        return self._seen(name)[1] == checksum

    def add(self, task: str, result: Result) -> None:
        self.done[task] = result
        self.retired -= {path for path, _ in files_of(result)}
        self._write(self._with_stamps({"task": task, "result": result}, files_of(result)))

    def retire(self, paths: Iterable[str], schemas: Mapping[str, str]) -> None:
        """Remove files that nobody has to read again. What made them counts as done all the same, until somebody asks
        for one."""
        gone = sorted(set(paths) - self.retired)
        if gone:
            self.retired |= set(gone)
            self.schemas |= schemas
            self._write({"retired": gone, "schemas": schemas})
            self.flush()
        self.store.remove(gone)

    def bring_back(self, paths: Iterable[str]) -> None:
        """Files that were retired are needed: what made them is to be done again."""
        needed = self.retired & set(paths)
        for task in [task for task, result in self.done.items() if any(path in needed for path, _ in files_of(result))]:
            del self.done[task]
        self.retired -= needed

    def keep(self, path: str, content: bytes) -> None:
        """A file that the run itself writes: a record, a manifest, a report. One that is there with this content stays
        as it is."""
        checksum = self.store.write_if_other(path, content)
        facts: FileFacts = {"path": path, "bytes": len(content), "checksum": checksum}
        if self._of_the_run.get(path) != facts:
            self._of_the_run[path] = facts
            self._write(self._with_stamps({"file": facts}, [(path, facts)]))

    def settle(self, own_files: Iterable[str]) -> None:
        """Keeps which of a run's own files are its results, for when it has ended: one that goes later is missed. A run
        that begins has none yet."""
        results = sorted(path for path in own_files if not path.startswith(BETWEEN))
        if (results, self.torn) != (self.results, self._known_torn):
            self.results, self._known_torn = results, self.torn
            self._write({"results": results, "torn": self.torn})

    @property
    def changed_lines(self) -> int:
        """Lines that are torn or were changed since the run came to its end."""
        return max(0, self.torn - self._known_torn) if self.results else 0

    def is_as_written(self, path: str) -> bool:
        """Is a file of the run itself what was written, as far as anything is known of it?"""
        facts = self._of_the_run.get(path)
        if facts is None:
            return path not in self.damaged
        return self.store.exists(path) and xxhash.xxh3_128_hexdigest(self.store.read(path)) == facts["checksum"]

    def replaced(self, entries: Iterable[JournalEntry], changed: Container[str], gone: Container[str]) -> bytes:
        """The journal as a file with these entries of tasks, and with all else that it knows but of the files that were
        `changed`: those are hashed when they are looked at next. Files that are `gone` are not missed."""
        lines = [line_of(entry) for entry in entries]
        lines += [line_of({"file": facts}) for path, facts in self._of_the_run.items() if path not in changed]
        stamps = {path: seen for path, seen in self._stamps.items() if path not in changed}
        retired = sorted(path for path in self.retired if path not in changed)
        lines += [line_of({"stamps": stamps, "retired": retired, "schemas": self.schemas})]
        return b"".join([*lines, line_of({"results": [path for path in self.results if path not in gone], "torn": 0})])

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

    def _with_stamps(self, entry: JournalEntry, files: Iterable[tuple[str, FileFacts]]) -> JournalEntry:
        """An entry with the stamps of files that have just been written. The first stamp of a content holds: what
        changes it later is looked into."""
        new = {path: facts["checksum"] for path, facts in files if self._seen(path)[1] != facts["checksum"]}
        stamps = {path: (stamp, checksum) for path, checksum in new.items() if (stamp := self._stamp(path)) is not None}
        self._stamps.update(stamps)
        return {**entry, "stamps": stamps} if stamps else entry

    def _stamp(self, path: str) -> Stamp | None:
        """Of a file of a sink, where it waits for the others."""
        return self.store.stamp(staged(path)) or self.store.stamp(path)

    def _write(self, entry: JournalEntry) -> None:
        if self.looks_only:
            return
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
            with path.open("ab") as file:
                if file.tell() and not _ends_line(path):
                    file.write(b"\n")
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        else:
            self._add_segment(data, after=self._segments[-1] if self._segments else None)

    def _add_segment(self, data: bytes, after: str | None) -> None:
        number = 0 if after is None else int(after.removeprefix(f"{FOLDER}/tasks-")[:8]) + 1
        self._segments.append(f"{FOLDER}/tasks-{number:08d}-{uuid.uuid4().hex[:8]}.jsonl")
        self.store.write(self._segments[-1], data)


def is_renamed(before: Stamp, now: Stamp) -> bool:
    """The same file of the same length and time of writing; that it was changed in some way is what a new name or link
    does."""
    return bool(before) and (before[0], before[1], before[3]) == (now[0], now[1], now[3])


def line_of(entry: JournalEntry) -> bytes:
    facts = json.dumps(entry, ensure_ascii=True, separators=(",", ":")).encode()[1:]
    return b'%s%s",%s\n' % (LINE_STARTS, xxhash.xxh3_64_hexdigest(facts).encode(), facts)


def _entry(line: bytes) -> JournalEntry | None:
    """What a line says; None, if it was torn by a kill or changed since: the task will be done again. Earlier versions
    wrote no checksum."""
    start = len(LINE_STARTS) + LENGTH_OF_CHECKSUM
    if (
        line.startswith(LINE_STARTS)
        and xxhash.xxh3_64_hexdigest(line[start + 2 :]).encode() != line[len(LINE_STARTS) : start]
    ):
        return None
    try:
        entry: JournalEntry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def files_of(result: Result) -> list[tuple[str, FileFacts]]:
    """Path and facts of every file that a task's result stands for."""
    return [(facts["path"], facts) for facts in result.get("files", {}).values()]
