"""A run that fails, is interrupted or is killed says so in its folder, with what there is so far; and nothing it says
steers a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.cli.maintain_clean import clean_up
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.engine.executor import DaskExecutor
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.look.overview import overview
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.processes import single_interrupt, this_process
from gristmill.pipeline.progress.progress import PATH, Quiet
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.dry_run import foresee
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.storage import Store
from tests.pipeline.engine.here import interrupted_after, work_here
from tests.pipeline.runs import go, lines, save

RECIPE = """
name: brittle
sources: {notes: {jsonl: {path: notes.jsonl}}}
stages:
  - gopher_quality: {min_words: MIN, min_stop_words: 0, min_alphabetic_word_share: 0, min_mean_word_length: 0}
  - exact_dedup
  - tokenize: {vocab_size: 300}
  - pack: {row_length: 64}
"""
BREAKS = """
from gristmill.stages.stage import Rule, Verdict

class Break(Rule):
    "Breaks on everything."
    needs = ("words",)

    def verdict(self, signals):
        raise ValueError("\\x1b]0;pwned\\x07 \\x1b[2J")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines(tmp_path / "notes.jsonl", [f"A note of number {n} that has some words in it." for n in range(40)])
    return tmp_path


def recipe(folder: Path, least: int) -> Path:
    return save(folder / "brittle.yaml", RECIPE.replace("MIN", str(least)))


def run_json(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "run.json").read_text()))


def gristmill(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gristmill.pipeline.cli.app", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_a_failed_run_says_why_and_shows_what_there_is(folder: Path) -> None:
    said = gristmill("run", str(recipe(folder, 1000)), "--out", str(folder / "out"), "--workers", "1")
    assert said.returncode == 1
    assert "alarm  gopher_quality dropped 100% of notes" in said.stderr and said.stderr.rstrip().endswith(
        "no document is left to pack"
    )
    record = run_json(folder / "out")
    assert record["status"] == "failed" and "no document is left to pack" in record["error"]
    assert (
        CliRunner().invoke(app, ["maintain", "verify", str(folder / "out")]).exit_code == 0
    )  # the record is as it was written
    counts = {its["name"]: (its["docs_in"], its["kept"]) for its in record["stages"]}
    assert counts["notes"] == (40, 40) and counts["gopher_quality"] == (40, 0) and "pack" not in counts
    page = (folder / "out/report.html").read_text()
    assert "no document is left to pack" in page and "too_few_words" in page
    seen = CliRunner().invoke(app, ["inspect", str(folder / "out")]).output
    assert "failed" in seen and "no document is left to pack" in seen and "too_few_words" in seen
    assert gristmill("inspect", str(folder / "out"), "gopher_quality").returncode == 0


def test_a_run_that_fails_over_one_that_was_done_is_not_done(folder: Path) -> None:
    go(recipe(folder, 2), folder / "out")
    assert run_json(folder / "out")["status"] == "done"
    with pytest.raises(RunFailed, match="no document is left"):
        go(recipe(folder, 1000), folder / "out")
    record = run_json(folder / "out")
    assert record["status"] == "failed" and record["recipe"]["stages"][0]["gopher_quality"]["min_words"] == 1000
    assert "no document is left" in (folder / "out/report.html").read_text()
    summary, anew = go(recipe(folder, 2), folder / "out")
    assert (
        run_json(folder / "out")["status"] == "done"
        and run_json(folder / "out")["error"] is None
        and summary.worked == sum(anew.values())
    )


def test_a_wrong_recipe_changes_nothing_of_a_run_that_was_done(folder: Path) -> None:
    go(recipe(folder, 2), folder / "out")
    before = (folder / "out/run.json").read_bytes()
    lines(folder / "notes.jsonl", [])
    (folder / "notes.jsonl").unlink()
    with pytest.raises(RecipeError):
        go(recipe(folder, 2), folder / "out")
    assert (folder / "out/run.json").read_bytes() == before


def test_an_interrupted_run_is_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gristmill.pipeline.run.run.Execution.work_global", stop)
    with pytest.raises(KeyboardInterrupt):
        go(recipe(folder, 2), folder / "out")
    record = run_json(folder / "out")
    assert (record["status"], record["error"]) == ("interrupted", None)
    assert {its["name"] for its in record["stages"]} == {"notes", "text_signals", "gopher_quality"}


def test_a_killed_run_is_told_from_what_it_had_noted(folder: Path) -> None:
    """kill -9 leaves run.json as it was when work began, and the file of its progress."""
    out = folder / "out"
    (out / "logs").mkdir(parents=True)
    save(out / "run.json", json.dumps({"name": "brittle", "status": "running", "recipe": {"name": "brittle"}}))
    count = {
        "docs_in": 10,
        "kept": 8,
        "dropped": {"too_few_words": 2},
        "quarantined": 0,
        "seconds": 1.0,
        "bytes_in": 5,
        "bytes_out": 4,
    }
    live = {
        "state": "running",
        "message": None,
        "process": this_process() | {"pid": 2**22 + 1},
        "started": 5.0,
        "updated": 9.0,
    }
    live |= {
        "name": "brittle",
        "nodes": [{"name": "notes", "kind": "map", "source": "notes", "stages": ["gopher_quality"]}],
    }
    save(
        out / PATH,
        json.dumps(
            live
            | {"stages": {"notes": {"notes": {**count, "kept": 10, "dropped": {}}}, "gopher_quality": {"notes": count}}}
        ),
    )
    seen = overview(RunFolder(out))
    assert (seen.run.status, seen.totals.records, seen.totals.kept, seen.run.seconds) == ("interrupted", 10, 8, 4.0)
    assert "too_few_words" in CliRunner().invoke(app, ["inspect", str(out)]).output
    save(out / "run.json", json.dumps({"name": "brittle", "status": "done", "stages": [], "seconds": 1.0}))
    assert RunFolder(out).record.done  # what a run says of its end stands over what it noted on the way


def test_what_breaks_a_run_does_not_steer_the_terminal(folder: Path) -> None:
    rows = [{"text": f"Note number {n} of some words.", "url": "http://a/\x1b]0;pwned\x07\x1b[2J"} for n in range(40)]
    save(folder / "notes.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    save(folder / "mine.py", BREAKS)
    text = "name: esc\nsources: {notes: {jsonl: {path: notes.jsonl}}}\nstages:\n  - mine.py:Break\n  - write\n"
    said = gristmill("run", str(save(folder / "esc.yaml", text)), "--out", str(folder / "out"), "--workers", "1")
    assert said.returncode == 1 and "pwned" in said.stderr
    assert not {"\x1b", "\x07"} & set(said.stderr + said.stdout)


def test_every_door_to_the_terminal_takes_controls_out() -> None:
    """rich's own `escape` leaves them in: nobody but `screen` may use it."""
    users = [path.name for path in Path("pipeline").rglob("*.py") if "from rich.markup" in path.read_text()]
    assert users == ["screen.py"]


@pytest.mark.parametrize(
    ("tasks", "counts", "said"),
    [
        (2, {"notes": (20, 20), "text_signals": (20, 20), "gopher_quality": (20, 20)}, "begun: 2 of 4 parts done"),
        (3, {"notes": (30, 30), "text_signals": (30, 30), "gopher_quality": (30, 30)}, "begun: 3 of 4 parts done"),
        (0, {}, "never run"),
    ],
)
def test_what_was_done_of_a_segment_that_was_interrupted_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: int, counts: dict[str, tuple[int, int]], said: str
) -> None:
    for file in range(4):
        lines(
            tmp_path / f"in/{file}.jsonl",
            [f"A note of number {n} of file {file} that has some words in it." for n in range(10)],
        )
    text = (
        RECIPE.replace("MIN", "2")
        .replace("notes.jsonl", "in")
        .replace("name: brittle", "name: brittle\nparts: {files: 1}")
    )
    asked, out = recipes.load(save(tmp_path / "brittle.yaml", text)), tmp_path / "out"
    work_here(monkeypatch, interrupted_after(tasks))
    with pytest.raises(KeyboardInterrupt):
        run(asked, str(out), Where(1), Quiet())
    record = run_json(out)
    assert record["status"] == "interrupted"
    assert {its["name"]: (its["docs_in"], its["kept"]) for its in record["stages"]} == counts
    assert [seen.why for seen in foresee(asked, str(out)) if seen.name == "notes"] == [said]
    work_here(monkeypatch)
    ended = run(asked, str(out), Where(1), Quiet())
    assert ended.record.done and ended.record.to_json()["stages"][0]["kept"] == 40


def test_a_second_ctrl_c_does_not_break_off_what_the_first_began(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def page(*_: object) -> str:
        signal.raise_signal(signal.SIGINT)
        return "a page"

    work_here(monkeypatch, interrupted_after(1))
    monkeypatch.setattr("gristmill.pipeline.report.build.build_report", page)
    with pytest.raises(KeyboardInterrupt):
        go(recipe(folder, 2), folder / "out")
    assert run_json(folder / "out")["status"] == "interrupted" and (folder / "out/report.html").read_text() == "a page"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_asked_to_end_does_so_as_after_ctrl_c(
    folder: Path, monkeypatch: pytest.MonkeyPatch, asked: signal.Signals
) -> None:
    """As clusters and containers ask, and a terminal that closes."""
    work_here(monkeypatch, interrupted_after(1, asked))
    before = signal.signal(asked, signal.SIG_DFL)  # the tests themselves may run under nohup
    try:
        with pytest.raises(KeyboardInterrupt):
            go(recipe(folder, 2), folder / "out")
        assert signal.getsignal(asked) is signal.SIG_DFL
    finally:
        signal.signal(asked, before)
    assert run_json(folder / "out")["status"] == "interrupted" and (folder / "out/report.html").exists()


def test_a_run_that_is_not_to_hear_a_terminal_close_does_not() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    try:
        with single_interrupt():
            assert (
                signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
                and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            )
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_global_stage_that_was_begun_is_said_to_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def why(least: int) -> dict[str, str]:
        return {seen.name: seen.why for seen in foresee(recipes.load(recipe(folder, least)), str(out))}

    out = folder / "out"
    work_here(monkeypatch, interrupted_after(3))  # the segment, its rules, and the first round
    with pytest.raises(KeyboardInterrupt):
        go(recipe(folder, 2), out)
    assert why(2)["exact_dedup"] == "never finished"
    work_here(monkeypatch)
    go(recipe(folder, 2), out)
    assert set(why(2).values()) == {"up to date"}
    for path in (out / "partitions/tokenize").glob("*.parquet"):
        path.unlink()
    assert why(2)["tokenize"] == "its files are gone (cleaned?)"
    go(recipe(folder, 2), out)
    clean_up(str(out), shuffle=True, partitions=False, rejects=False, unused=False, dry_run=False)
    said = why(2)
    assert said["notes"] == "up to date" and said["exact_dedup"] == "its files are gone (cleaned?)"
    assert said["tokenize"].startswith("known after exact_dedup")
    _, anew = go(recipe(folder, 2), out)
    assert {node for node, _ in anew} == {"exact_dedup", "tokenize", "pack"} and set(why(2).values()) == {"up to date"}


def test_files_that_an_earlier_version_left_behind_are_not_why_a_part_is_done_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_here(monkeypatch)
    lines(folder / "notes.jsonl", [f"A note of {n} words {'and ' * n}." for n in range(40)])
    go(recipe(folder, 20), folder / "out")
    go(recipe(folder, 3), folder / "out")  # what the first recipe's rules said is gone now, and nobody asks for it
    assert Journal(Store(str(folder / "out"))).check(Store(str(folder / "out")).stamps(""))
    lines(folder / "notes.jsonl", [f"Another note of number {n} with some words in it." for n in range(40)])
    seen = {its.name: its.why for its in foresee(recipes.load(recipe(folder, 3)), str(folder / "out"))}
    assert seen["notes"] == "input changed"
    lines(folder / "notes.jsonl", [f"A note of {n} words {'and ' * n}." for n in range(40)])
    for path in (folder / "out/partitions/notes").glob("*.parquet"):
        path.unlink()
    seen = {its.name: its.why for its in foresee(recipes.load(recipe(folder, 3)), str(folder / "out"))}
    assert seen["notes"] == "its files are gone (cleaned?)"


def test_a_wrong_argument_changes_nothing_of_a_run_that_was_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)
    go(recipe(folder, 2), folder / "out")
    before = (folder / "out/run.json").read_bytes()
    monkeypatch.undo()
    asked = recipes.load(recipe(folder, 3))
    for where in (Where(1, "4"), Where(1, "4XB"), Where(cluster=str(folder / "absent.yaml"))):
        with pytest.raises(RecipeError):
            run(asked, str(folder / "out"), where, Quiet())
    assert (folder / "out/run.json").read_bytes() == before


def test_ctrl_c_is_left_to_whoever_handles_it_already() -> None:
    def mine(*_: object) -> None: ...

    before = signal.signal(signal.SIGINT, mine)
    try:
        with single_interrupt():
            assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)


def test_workers_that_die_name_a_limit_that_was_given(tmp_path: Path) -> None:
    def limit(memory: str) -> str:
        return DaskExecutor(Store(str(tmp_path)), Where(1, memory), Quiet(), tmp_path / "r.yaml").limit

    assert "100MB" in limit("100MB") and "--memory" in limit("100MB") and limit("auto") == ""
