"""What commands say of a folder whose run is at work, or was killed: its run.json has no stages yet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gristmill
from gristmill.pipeline.cli.app import app
from gristmill.pipeline.engine.executor import InlineExecutor
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.store.records import Result, Task
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import save, shared_texts

RECIPE = """\
name: r
parts: {files: 1, small_file: 0}
sources: {a: {jsonl: {path: in}}}
stages: [{gopher_quality: {min_words: 3, min_stop_words: 0}}, exact_dedup, write]
"""


class Killed(BaseException):
    """The process is gone: no record of what was done is written."""


def test_plan_and_tune_answer_where_a_run_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_texts(tmp_path / "in", files=3)
    recipe, out = save(tmp_path / "r.yaml", RECIPE), tmp_path / "out"

    class Dying(InlineExecutor):
        def results(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Result]]:
            yield from islice(super().results(tasks), 2)
            raise Killed

    with monkeypatch.context() as patch:
        work_here(patch, Dying)
        patch.setattr("gristmill.pipeline.run.run.Execution.break_off", lambda *_: None)
        with pytest.raises(Killed):
            gristmill.run(recipe, out)
    assert json.loads((out / "run.json").read_text())["status"] == "running"

    foreseen = CliRunner().invoke(app, ["plan", str(recipe), "--out", str(out), "--json"])
    assert foreseen.exit_code == 0, foreseen.exception
    segments = {segment["name"]: segment for segment in json.loads(foreseen.stdout)}
    assert (segments["a"]["up_to_date"], segments["a"]["why"]) == (2, "begun: 2 of 3 parts done")
    tuned = CliRunner().invoke(app, ["tune", str(out), "gopher_quality.min_words=4"])
    assert isinstance(tuned.exception, RecipeError) and "run its recipe to the end first" in str(tuned.exception)
