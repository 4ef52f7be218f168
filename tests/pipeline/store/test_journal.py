"""What is done stays known, also where a journal is many objects that several processes write."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.store.counts import Counts, SlowDocument
from gristmill.pipeline.store.journal import (
    JOURNAL,
    KINDS,
    LAYOUT,
    MANY_SEGMENTS,
    Entry,
    FilesRetired,
    FileWritten,
    Journal,
    LayoutIs,
    RunEnded,
    StampsSeen,
    TaskDone,
    entry_in,
    line_of,
)
from gristmill.pipeline.store.partitions import new_part
from gristmill.pipeline.store.records import FileRef, InputSpan, PhaseResult, Result, VerdictsResult
from gristmill.pipeline.store.storage import Store


@pytest.fixture
def far() -> Iterator[Store]:
    store = Store(f"memory://{uuid.uuid4().hex}")
    yield store
    store.remove([*store.files("")])


def noted(journal: Journal, task: str) -> None:
    journal.add(task, Result(log=(task,)))
    journal.flush()


def test_two_that_write_at_once_lose_nothing(far: Store) -> None:
    one, other = Journal(far), Journal(far)
    for turn in range(3):
        noted(one, f"one {turn}")
        noted(other, f"other {turn}")
    assert sorted(Journal(far).done) == sorted(f"{who} {turn}" for who in ("one", "other") for turn in range(3))


def test_many_objects_become_one_and_what_was_said_last_holds(far: Store) -> None:
    journal = Journal(far)
    for task in range(MANY_SEGMENTS + 1):
        noted(journal, f"task {task}")
    journal.add("task 0", Result(log=("again",)))
    journal.flush()
    before = Journal(far)
    before.gather()
    assert len(far.files("journal")) == 1
    noted(before, "later")
    after = Journal(far)
    assert after.done == before.done and len(after.done) == MANY_SEGMENTS + 2 and after.done["task 0"].log == ("again",)
    after.gather()
    assert len(far.files("journal")) == 2  # few are left as they are


def test_each_kind_of_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    part = new_part("a", "s", 0, 0, None, [InputSpan("s", "a.warc", 0, None)])
    facts = FileRef("partitions/a/f.parquet", 0, "", rows=3, cells=(0, 1, 2))
    count = Counts(kept=3, dropped=Counter(short=1))
    count.faults.of("a.warc").remarks.add("odd")
    phase = PhaseResult(part=part, counts={"s": count}, slowest={"s": (SlowDocument("1", None, "s", 3, 0.5),)})
    entries: list[Entry] = [
        LayoutIs(LAYOUT), TaskDone("t", Result(seconds=3.0), {"a": ([1, 2], "b")}), TaskDone("p", phase),
        TaskDone("s", VerdictsResult(parts=(part,), files={"f": facts}, counts={})), FileWritten(facts), StampsSeen({"a": ([1], "c")}), StampsSeen({}), FilesRetired(()),
        FilesRetired(("a",)), RunEnded(("write/a",)),
    ]  # fmt: skip
    assert {type(entry) for entry in entries} == set(KINDS.values())
    for entry in entries:
        assert entry_in(line_of(entry).removesuffix(b"\n")) == entry


@pytest.mark.parametrize(
    "line", [b'{"task":"t","result":{"rows":1}}', b"{}", b"", line_of(TaskDone("t", Result()))[:-3], b"\xff" * 40]
)
def test_a_line_without_its_checksum_holds_nothing(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / JOURNAL).write_bytes(line + b"\n" + line_of(TaskDone("kept", Result(seconds=1.0))))
    journal = Journal(Store(str(tmp_path)))
    assert (journal.damaged_lines, dict(journal.done)) == (1, {"kept": Result(seconds=1.0)})


def with_checksum(facts: dict[str, Any]) -> bytes:
    text = json.dumps(facts, separators=(",", ":")).encode()[1:]
    return b'{"checksum":"%s",%s\n' % (xxhash.xxh3_64_hexdigest(text).encode(), text)


@pytest.mark.parametrize(
    "facts",
    [
        {"task": "t", "result": {"kind": "files"}},
        {"kind": "layout", "version": LAYOUT + 1},
        {"kind": "new", "of": 1},
        {"kind": "task", "task": "t", "result": {"kind": "files"}, "more": 1},
        {"kind": "task", "task": "t"},
    ],
)
def test_a_journal_of_another_version_is_refused_in_one_line(facts: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / JOURNAL).write_bytes(with_checksum(facts))
    with pytest.raises(RecipeError, match=r"tasks.jsonl is of another version of Gristmill; give the run a new folder"):
        Journal(Store(str(tmp_path)))


def test_what_is_done_is_known_as_long_as_all_of_its_files_are_there(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    journal = Journal(store)
    files = {}
    for path in ("partitions/s/a.verdicts.parquet", "shuffle/s/rows.arrow"):
        files[path] = FileRef(path, len(path), store.write(path, path.encode()))
    journal.add("stage", VerdictsResult(parts=(new_part("a", "s", 0, 0, None, []),), files=files, counts={}))
    journal.flush()
    whole = store.stamps("")
    for gone in (set(), {"partitions/s/a.verdicts.parquet"}, {"shuffle/s/rows.arrow"}):
        again = Journal(store, looks_only=True)
        again.check({path: stamp for path, stamp in whole.items() if path not in gone})
        assert ("stage" in again.done) == (not gone) and again.gone == ({"stage": False} if gone else {})
