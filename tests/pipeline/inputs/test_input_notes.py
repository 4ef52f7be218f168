"""Input files that nobody reads, that are read twice, that are gone, that are no files, or that changed without looking
so: each is told."""

from __future__ import annotations

import json
import os
import random
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.cli.init import start_recipe
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.engine.executor import InlineExecutor
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.inputs import files as inputs
from gristmill.pipeline.inputs.files import REMEMBERED, by_ending, endings_in_words, list_at, remembered_in
from gristmill.pipeline.inputs.notes import notes_of
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.dry_run import foresee
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.records import Result, Task
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import lines, save, tree, written

ONE = "name: a\nsources:\n  a:\n    jsonl:\n      path: in\nstages: [write]\n"
TWO = "name: a\nsources:\n  a: {jsonl: {path: in}}\n  b: {jsonl: {path: more}}\nstages: [write]\n"


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)


class Hearing(Quiet):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def started(recipe: Path, out: Path, **options: Any) -> tuple[dict[str, Any], list[str], int]:
    """run.json, what was told on the way, and how many tasks were done."""
    face = Hearing()
    summary = run(recipes.load(recipe), str(out), Where(1), face, **options)
    return summary.record.to_json(), face.notes, summary.worked


def planned(recipe: Path, out: Path, check: bool = False) -> tuple[set[str], list[str]]:
    notes: list[str] = []
    return {seen.why for seen in foresee(recipes.load(recipe), str(out), check, notes.append)}, notes


# --- files that nobody reads -----------------------------------------------------------------------------------------


def test_what_no_reader_takes_is_counted_by_ending_in_init_plan_run_and_report(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d", "e", "sub/f"):
        lines(tmp_path / "in" / f"{name}.jsonl", [name])
    for name in ("x.warc.gz.bad", "y.BAD", "z.2024.gz", "w.log.gz", "sub/README"):
        save(tmp_path / "in" / name, "12345")
    told = "5 files passed over: 2 .bad, 1 .gz, 1 .log.gz, 1 without an ending"
    assert "Passed over: 2 .bad, 1 .gz, 1 .log.gz, 1 without an ending, which no reader knows." in start_recipe(
        tmp_path / "in", tmp_path / "r.yaml"
    )
    recipe, out = save(tmp_path / "a.yaml", ONE), tmp_path / "out"
    assert planned(recipe, out)[1] == [f"a: {told}"]
    record, _, _ = started(recipe, out)
    its = record["inputs"]["a"]
    assert its["files"] == 6 and its["passed_over"] == {
        "files": 5, "bytes": 25, "endings": {".bad": 2, ".gz": 1, ".log.gz": 1, "without an ending": 1}
    }  # fmt: skip
    assert notes_of(record["inputs"]) == [f"a: {told}"] and record["alarms"] == []
    assert f"a: {told}" in (out / "report.html").read_text()
    assert json.loads((out / "run.json").read_text())["inputs"] == record["inputs"]
    shown = CliRunner().invoke(app, ["run", str(recipe), "--out", str(out)]).output
    assert f"a: {told}" in " ".join(shown.split()) and len(written(out)) == 6


def test_more_passed_over_than_read_is_an_alarm_before_and_after_the_work(tmp_path: Path) -> None:
    lines(tmp_path / "in" / "a.jsonl", ["one"])
    for name in "xyz":
        save(tmp_path / "in" / f"{name}.tar", "no lines")
    record, notes, _ = started(save(tmp_path / "a.yaml", ONE), tmp_path / "out")
    alarm = "a: 3 files passed over: 3 .tar; that is more than is read (1 file)"
    assert len(record["alarms"]) == 1 and record["alarms"][0].startswith(alarm) and notes == record["alarms"]
    glob = save(tmp_path / "b.yaml", ONE.replace("path: in", "path: in/*.jsonl"))
    assert started(glob, tmp_path / "b")[0]["alarms"] == []


def test_what_another_source_reads_is_not_passed_over(tmp_path: Path) -> None:
    lines(tmp_path / "in" / "a.jsonl", ["one"])
    for name in "xyz":
        save(tmp_path / "in" / f"{name}.txt", "a text")
    both = "name: a\nsources:\n  a: {jsonl: {path: in}}\n  b: {plain: {path: in}}\nstages: [write]\n"
    record, notes, _ = started(
        save(tmp_path / "in" / "a.yaml", both.replace("path: in", "path: .")), tmp_path / "in" / "out"
    )
    assert (record["alarms"], notes) == ([], []) and [set(its) for its in record["inputs"].values()] == [
        {"files", "bytes"}
    ] * 2
    assert len(written(tmp_path / "in" / "out")) == 4


def test_many_endings_are_a_few(tmp_path: Path) -> None:
    paths = [f"d/{n}.e{n % 40}" for n in range(400)] + ["a.\x1b[31m", f"b.{'x' * 300}"] * 30
    counted = by_ending(paths)
    assert len(counted) == 6 and sum(counted.values()) == 460 and counted["with other endings"] == 360
    said = endings_in_words(counted)
    assert len(said) < 120 and said.isprintable() and said.endswith(" and 360 with other endings")


def test_a_folder_that_no_reader_can_use_says_what_it_has_and_what_readers_know(tmp_path: Path) -> None:
    save(tmp_path / "x.bad", "x")
    with pytest.raises(RecipeError, match=r"no file that ends in .*\.jsonl.*\.arc\.gz.*; it has 1 \.bad"):
        start_recipe(tmp_path, tmp_path / "r.yaml")
    with pytest.raises(RecipeError, match=r"the folder has no file that ends in \.jsonl; it has 1 \.bad"):
        list_at(str(tmp_path), tmp_path, (".jsonl",), "sources.a")


# --- what is no file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["in", "in/*", "in/b.jsonl", "linked"])
def test_a_pipe_among_the_inputs_is_refused_and_never_opened(tmp_path: Path, path: str) -> None:
    lines(tmp_path / "in" / "a.jsonl", ["one"])
    os.mkfifo(tmp_path / "in" / "b.jsonl")
    (tmp_path / "linked").symlink_to("in/b.jsonl")
    recipe = save(tmp_path / "a.yaml", ONE.replace("path: in", f"path: {path}"))
    for look in (lambda: started(recipe, tmp_path / "out"), lambda: planned(recipe, tmp_path / "out")):
        with pytest.raises(
            RecipeError, match=r"a\.yaml:5: sources\.a: .* is a named pipe; only regular files are read"
        ):
            look()
    if path == "in":
        with pytest.raises(RecipeError, match=r"b\.jsonl is a named pipe; only regular files are read"):
            start_recipe(tmp_path / "in", tmp_path / "r.yaml")
        assert not (tmp_path / "r.yaml").exists()


@pytest.mark.parametrize("path", ["in", "in/*"])
def test_a_link_that_leads_nowhere_is_told_before_anything_runs(tmp_path: Path, path: str) -> None:
    lines(tmp_path / "in" / "a.jsonl", ["one"])
    (tmp_path / "in" / "b.jsonl").symlink_to("../moved/b.jsonl")
    (tmp_path / "in" / "notes.md").symlink_to("nowhere")  # no input
    recipe = save(tmp_path / "a.yaml", ONE.replace("path: in", f"path: {path}"))
    for look in (lambda: started(recipe, tmp_path / "out"), lambda: planned(recipe, tmp_path / "out")):
        with pytest.raises(
            RecipeError, match=r"a\.yaml:5: sources\.a: .*b\.jsonl is a link to \.\./moved/b\.jsonl, which"
        ):
            look()
    (tmp_path / "in" / "b.jsonl").unlink()
    if path == "in":
        started(recipe, tmp_path / "out")


def test_sockets_and_devices_are_refused_by_name_and_passed_over_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines(tmp_path / "in" / "a.jsonl", ["one"])
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.bind("in/x.sock")
        with pytest.raises(RecipeError, match=r"sources\.a: .*x\.sock is a socket; only"):
            list_at("in/x.sock", tmp_path, (".jsonl",), "sources.a")
        with pytest.raises(RecipeError, match=r"sources\.a: /dev/null is a device; only"):
            list_at("/dev/null", tmp_path, (".jsonl",), "sources.a")
        found = list_at("in", tmp_path, (".jsonl",), "sources.a")
    assert [file.path for file in found.files] == ["a.jsonl"] and by_ending(found.passed_over) == {".sock": 1}


# --- files that are read twice, and files that are gone --------------------------------------------------------------


def test_two_sources_that_read_the_same_file_are_an_alarm(tmp_path: Path) -> None:
    for name in "abcde":
        lines(tmp_path / "in" / f"{name}.jsonl", [name])
    lines(tmp_path / "more" / "own.jsonl", ["a"])  # equal contents in two files are nobody's mistake
    (tmp_path / "more" / "linked").symlink_to("../in")
    os.link(tmp_path / "in" / "a.jsonl", tmp_path / "more" / "hard.jsonl")
    record, notes, _ = started(save(tmp_path / "a.yaml", TWO), tmp_path / "out")
    said = "a and b both read hard.jsonl, linked/a.jsonl, linked/b.jsonl and 3 more files: each document comes twice"
    assert record["alarms"] == notes == [said] and len(written(tmp_path / "out")) == 12
    assert planned(save(tmp_path / "a.yaml", TWO), tmp_path / "out") == ({"up to date"}, [said])


def test_an_input_that_is_gone_since_the_last_run_is_told_once(tmp_path: Path) -> None:
    for name in "abcdef":
        lines(tmp_path / "in" / f"{name}.jsonl", [name])
    recipe, out = save(tmp_path / "a.yaml", ONE), tmp_path / "out"
    assert started(recipe, out)[1] == [] and len(written(out)) == 6
    for name in "bcde":
        (tmp_path / "in" / f"{name}.jsonl").unlink()
    said = ["a: 4 files of the last run are gone: b.jsonl, c.jsonl, d.jsonl and 1 more file"]
    assert planned(recipe, out)[1] == said
    record, notes, _ = started(recipe, out)
    assert notes == notes_of(record["inputs"]) == said and record["inputs"]["a"]["gone"]["files"] == 4
    assert record["alarms"] == [] and sorted(text for _, text in written(out)) == ["a", "f"]
    record, notes, _ = started(recipe, out)
    assert notes == [] and "gone" not in record["inputs"]["a"]


def test_a_flipped_bit_in_a_manifest_is_no_error_and_tells_of_no_file(tmp_path: Path) -> None:
    """One that leaves it JSON: a key that nobody knows, a path that never was."""
    for name in "ab":
        lines(tmp_path / "in" / f"{name}.jsonl", [name])
    recipe, out = save(tmp_path / "a.yaml", ONE), tmp_path / "out"
    started(recipe, out)
    manifest = next((out / "partitions").glob("*/manifest.json"))
    whole = manifest.read_text()
    for key, other in (('"inputs"', '"inputr"'), ("a.jsonl", "c.jsonl")):
        assert whole.count(key) >= 1
        manifest.write_text(whole.replace(key, other))
        assert planned(recipe, out)[1] == []
        record, notes, _ = started(recipe, out)
        assert "gone" not in record["inputs"]["a"] and not any("gone" in note for note in notes)
        assert sorted(text for _, text in written(out)) == ["a", "b"] and manifest.read_text() == whole


# --- contents that changed, and what is remembered of them -----------------------------------------------------------


def rewritten(path: Path, text: str, in_place: bool) -> None:
    """Another content of the same length under the same modification time."""
    before = path.stat()
    where = path if in_place else path.with_name("new")
    where.write_text(json.dumps({"text": text}) + "\n")
    os.utime(where, ns=(before.st_atime_ns, before.st_mtime_ns))
    where.replace(path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@pytest.mark.parametrize("in_place", [True, False])
def test_another_content_of_the_same_size_and_time_is_read(tmp_path: Path, in_place: bool) -> None:
    recipe, out = save(tmp_path / "a.yaml", ONE), tmp_path / "out"
    file = lines(tmp_path / "in" / "a.jsonl", ["one"])
    started(recipe, out)
    rewritten(file, "two", in_place)
    assert planned(recipe, out)[0] == {"input changed"}
    assert started(recipe, out)[2] == 1 and [text for _, text in written(out)] == ["two"]


def test_a_file_that_was_only_touched_is_not_worked_on(tmp_path: Path) -> None:
    recipe, out = save(tmp_path / "a.yaml", ONE), tmp_path / "out"
    file = lines(tmp_path / "in" / "a.jsonl", ["one"])
    started(recipe, out)
    before = tree(out)
    file.chmod(0o600)
    os.link(file, tmp_path / "beside")
    assert started(recipe, out)[2] == 0 and planned(recipe, out)[0] == {"up to date"} and tree(out) == before and before


def test_check_inputs_hashes_all_whatever_the_stamps_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, out = save(tmp_path / "a.yaml", ONE), tmp_path / "out"
    file = lines(tmp_path / "in" / "a.jsonl", ["one"])
    monkeypatch.setattr(
        "gristmill.pipeline.inputs.files.stamp_of", lambda facts: "7 7 7"
    )  # a file system that tells nothing
    started(recipe, out)
    rewritten(file, "two", in_place=True)
    assert planned(recipe, out)[0] == {"up to date"} and started(recipe, out)[2] == 0
    assert planned(recipe, out, check=True)[0] == {"input changed"}
    assert started(recipe, out, check_inputs=True)[2] == 1 and [text for _, text in written(out)] == ["two"]
    for command in ("plan", "run"):
        shown = CliRunner().invoke(app, [command, str(recipe), "--out", str(out), "--check-inputs"])
        assert shown.exit_code == 0, shown.output


def test_a_file_that_changed_under_its_old_time_while_the_run_went_on_is_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = (lines(tmp_path / "in" / f"{name}.jsonl", ["one"]) for name in "ab")

    class Rewriting(InlineExecutor):
        def results(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Result]]:
            yield from super().results(tasks)
            rewritten(one, "new", in_place=True)

    work_here(monkeypatch, Rewriting)
    record, _, _ = started(save(tmp_path / "a.yaml", ONE), tmp_path / "out")
    assert record["alarms"] == ["a: a.jsonl changed while the run went on; the same command reads what is new"]


def test_hashes_that_are_torn_or_changed_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, out = save(tmp_path / "a.yaml", ONE), tmp_path / "out"
    for name in "abc":
        lines(tmp_path / "in" / f"{name}.jsonl", [name])
    started(recipe, out)
    whole, before = (out / REMEMBERED).read_bytes(), tree(out)
    assert len(remembered_in(whole)) == 3
    chance = random.Random(20)
    damaged = [whole[:cut] for cut in (0, 1, len(whole) // 2, len(whole) - 1)] + [
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
    ]
    for _ in range(400):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        damaged.append(bytes(flipped))
    assert all(remembered_in(data) in ({}, remembered_in(whole)) for data in damaged)
    hashed: list[str] = []
    known = inputs._content_hash
    monkeypatch.setattr(inputs, "_content_hash", lambda file, who: hashed.append(file.path) or known(file, who))
    for data in (damaged[2], damaged[6], damaged[-1], whole.replace(b"a.jsonl", b"b.jsonl")):
        (out / REMEMBERED).write_bytes(data)
        assert started(recipe, out)[2] == 0 and tree(out) == before
        assert (out / REMEMBERED).read_bytes() == whole and len(hashed) == 3
        hashed.clear()


# --- paths that lead nowhere -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        ("absent", RecipeError, "absent: no such file or folder"),
        ("in/*.none", RecipeError, r"in/\*\.none: nothing matches"),
        ('""', RecipeError, "the path is empty"),
        ("empty", RecipeError, "empty: the folder is empty"),
        (
            "nosuch://x/y",
            RecipeError,
            "Protocol not known: nosuch; inputs lie on this machine, or behind s3://, gs://, hf://",
        ),
    ],
)
def test_a_path_that_leads_nowhere_is_named_with_file_and_line(
    tmp_path: Path, path: str, error: type[Exception], says: str
) -> None:
    lines(tmp_path / "in" / "a.jsonl", ["one"])
    (tmp_path / "empty").mkdir()
    recipe = save(tmp_path / "a.yaml", ONE.replace("path: in", f"path: {path}"))
    with pytest.raises(error, match=rf"^{re.escape(str(recipe))}:5: sources\.a: .*{says}"):
        started(recipe, tmp_path / "out")


def test_a_host_that_cannot_be_found_is_told_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", nobody)
    recipe = save(tmp_path / "a.yaml", ONE.replace("path: in", "path: ftp://nowhere.invalid/x"))
    with pytest.raises(
        RunFailed, match=r"a\.yaml:5: sources\.a: ftp://nowhere\.invalid/x: the host cannot be found .*s3://"
    ):
        started(recipe, tmp_path / "out")


def test_names_of_input_files_cannot_steer_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    save(tmp_path / "in" / "a\x1b[31m\x9b1m.jsonl", '{"text": "one"}\nno json\n')
    save(tmp_path / "in" / "b\x1b[31m.bad", "")
    record, _, _ = started(save(tmp_path / "a.yaml", ONE), tmp_path / "out")
    log = (tmp_path / "out" / "logs" / "run.log").read_text()
    lines_shown = [*log.splitlines(), *record["alarms"], *notes_of(record["inputs"])]
    assert len(lines_shown) == 3 and all(line.isprintable() for line in lines_shown) and "no JSON" in log
