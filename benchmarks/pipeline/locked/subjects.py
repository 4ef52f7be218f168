"""Every stage by itself, with each of its settings changed: what the tables of the tests say (`settings_of_*.py`). A stage
that is added to the registry has to be in them, and so is locked here."""

from __future__ import annotations

from typing import Any

from benchmarks.pipeline.locked.lock import Lock
from tests.stages.settings_shown import Change, Lab, Subject
from tests.stages.test_every_setting import SUBJECTS

BY_THE_CLOCK = {"max_pdf_seconds"}


def take(lock: Lock) -> None:
    lab, seen = Lab(lock.folder), set[Any]()
    for subject in SUBJECTS.values():
        for setting, change in subject.changes.items():
            if isinstance(change, Change) and setting not in BY_THE_CLOCK:
                one_setting(lock, lab, subject, setting, change, seen)


def one_setting(lock: Lock, lab: Lab, subject: Subject, setting: str, change: Change, seen: set[Any]) -> None:
    """The outcome with the other value, and once that of the stage as it is."""
    as_it_is, other = subject.both(lab, setting, change)
    key = (subject.stage, as_it_is.model_dump_json(), id(change.given), change.see)
    if key not in seen:
        seen.add(key)
        lock.note(f"{subject.stage}/without {setting}", subject.look(lab, as_it_is, change))
    if not change.refuses:
        lock.note(f"{subject.stage}/{setting}", subject.look(lab, other, change))
