"""What a run says where there is no room for what it makes beside its documents."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gristmill.pipeline.engine.executor import InlineExecutor
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.store.records import Result, Task
from tests.pipeline.crawls import inside, jsonl, outside, recipe, texts
from tests.pipeline.engine.here import work_here

STAGE = """
import errno, os
from gristmill.stages.stage import Rule, Verdict

class Compiles(Rule):
    def prepare(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as a write that fails: it names no file

    def verdict(self, signals):
        return Verdict.keep(len(signals))
"""


def test_no_room_for_compiled_code_is_told_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text(STAGE)
    jsonl(tmp_path / "docs.jsonl", texts(2))
    file = recipe(tmp_path, stages="['full.py:Compiles', write]")
    said = outside("run", file, "--out", tmp_path / "out", "--workers", 1)
    message = " ".join(said.err.split())
    assert said.code == 1 and message.startswith("compiles (full.py:Compiles): /")
    assert "gristmill: the disk is full; make room" in message and "(GRISTMILL_CACHE names another folder" in message


def test_a_report_that_found_no_room_is_not_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(address: str) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Failing(InlineExecutor):
        def results(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Result]]:
            yield from super().results(tasks)
            raise RunFailed("no more")

    jsonl(tmp_path / "docs.jsonl", texts(2))
    monkeypatch.setattr("gristmill.pipeline.report.build.build_report", full)
    work_here(monkeypatch, Failing)
    said = inside(monkeypatch, capsys, "run", recipe(tmp_path), "--out", tmp_path / "out", "--workers", 1)
    assert said.code == 1 and said.err.strip().splitlines()[-1] == "no more" and "failed in" in said.err
    assert f"no report of what there is: {tmp_path / 'out'}: the disk is full" in said.err
    assert "report so far" not in said.err and not (tmp_path / "out/report.html").exists()
