"""What is done stays known, also where a journal is many objects that several processes write."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from gristmill.pipeline.store.journal import MANY_SEGMENTS, Journal
from gristmill.pipeline.store.store import Store


@pytest.fixture
def far() -> Iterator[Store]:
    store = Store(f"memory://{uuid.uuid4().hex}")
    yield store
    store.remove([*store.files("")])


def noted(journal: Journal, task: str) -> None:
    journal.add(task, {"files": {}, "of": task})
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
    journal.add("task 0", {"files": {}, "of": "again"})
    journal.flush()
    before = Journal(far)
    before.gather()
    assert len(far.files("journal")) == 1
    noted(before, "later")
    after = Journal(far)
    assert after.done == before.done and len(after.done) == MANY_SEGMENTS + 2 and after.done["task 0"]["of"] == "again"
    after.gather()
    assert len(far.files("journal")) == 2  # few are left as they are
