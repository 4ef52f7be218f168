"""A machine's clock that is set while a run is at work changes no figure of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import gristmill
from gristmill.pipeline.engine.executor import InlineExecutor
from gristmill.pipeline.store.records import Result, Task
from tests.pipeline.engine.here import work_here
from tests.pipeline.run.killed_runs import differences
from tests.pipeline.runs import save, shared_texts

RECIPE = "name: r\nsources: {a: {jsonl: {path: in}}}\nstages: [exact_dedup, write]\n"


@pytest.mark.parametrize("hours", [-30, 30])
def test_seconds_of_a_run_are_those_that_passed(hours: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, jumps = time.time, [0]

    class Jumping(InlineExecutor):
        def results(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Result]]:
            jumps[0] += 1
            yield from super().results(tasks)

    shared_texts(tmp_path / "in")
    recipe = save(tmp_path / "r.yaml", RECIPE)
    work_here(monkeypatch)
    gristmill.run(recipe, tmp_path / "undisturbed")
    work_here(monkeypatch, Jumping)
    monkeypatch.setattr(time, "time", lambda: real() + jumps[0] * hours * 3600)
    gristmill.run(recipe, tmp_path / "out")
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert jumps[0] > 2 and 0 <= record["seconds"] < 600
    assert record["stages"][-1]["kept"] == 6 * 5 + 3 and differences(tmp_path / "undisturbed", tmp_path / "out") == []
