"""What a run reads: never what runs have written, unless a path leads there by name; all else that a path names, behind
links too."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.cli.init import start_recipe
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.engine.executor import InlineExecutor
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.inputs.files import REMEMBERED, find_files, list_at, not_in
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.recipe.recipe import load
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.records import Result, Task
from gristmill.pipeline.store.storage import Store
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import go, lines, save, written

TWO = "name: own\nsources:\n  a: {parquet: {path: .}}\n  b: {jsonl: {path: .}}\nstages: [write]\n"


def parquet(path: Path, text: str = "a") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": [text, f"{text} again"]}), path)
    return path


def run_in(folder: Path) -> Path:
    """What a finished run leaves, as far as readers could take it for input."""
    for path in ("write/x.parquet", "partitions/crawl/x.documents.parquet", "stages/crawl/rejects/x.parquet"):
        parquet(folder / path)
    save(folder / "run.json", "{}")
    (folder / REMEMBERED).parent.mkdir()
    save(folder / REMEMBERED, "{}")
    save(folder / "journal" / "tasks.jsonl", "{}\n")
    return folder


def found(folder: Path, path: str) -> list[str]:
    return [
        str(Path(file.address).relative_to(folder))
        for file in list_at(path, folder, (".parquet", ".jsonl"), "sources.a").files
    ]


def test_a_second_run_finds_nothing_new_where_it_wrote_beside_its_inputs(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet")
    lines(tmp_path / "b.jsonl", ["one", "two", "three"])
    recipe = save(tmp_path / "recipe.yaml", TWO)
    first, _ = go(recipe, tmp_path / "out" / "own")
    kept = written(tmp_path / "out" / "own")
    again, anew = go(recipe, tmp_path / "out" / "own")
    assert len(kept) == 5 and written(tmp_path / "out" / "own") == kept and not anew and again.record == first.record
    assert {name: its["files"] for name, its in again.record.to_json()["inputs"].items()} == {"a": 1, "b": 1}


def test_what_lies_in_the_folder_of_a_run_is_taken_only_by_name(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet")
    run_in(tmp_path / "out" / "x")
    parquet(tmp_path / "out" / "mine.parquet")
    mine = ["a.parquet", "out/mine.parquet"]
    assert found(tmp_path, ".") == found(tmp_path, "**/*.parquet") == mine and found(tmp_path, "out") == [
        "out/mine.parquet"
    ]
    for path in (
        "out/x/write",
        "out/x/write/x.parquet",
        "out/*/write/*.parquet",
        "**/write/*.parquet",
        "out/x/wri*/*.parquet",
    ):
        assert found(tmp_path, path) == ["out/x/write/x.parquet"]


@pytest.mark.parametrize("path", ["out/x", "out/x/", "out", "out/*/*/*.parquet"])
def test_a_path_to_nothing_but_a_run_says_what_to_name(tmp_path: Path, path: str) -> None:
    run_in(tmp_path / "out" / "x")
    with pytest.raises(RecipeError, match=r"^sources\.a: .*runs?\b.*name the folder in it that is meant"):
        found(tmp_path, path)


def test_folders_that_look_like_runs_in_part_are_inputs(tmp_path: Path) -> None:
    save(parquet(tmp_path / "a" / "x.parquet").parent / "run.json", "{}")
    save(lines(tmp_path / "b" / "journal" / "x.jsonl", ["one"]).parent / "inputs.json", "{}")
    assert found(tmp_path, ".") == ["a/x.parquet", "b/journal/x.jsonl"]


def test_a_run_never_reads_what_it_wrote_itself(tmp_path: Path) -> None:
    text = "name: own\nsources:\n  a: {parquet: {path: PATH}}\nstages: [write]\n"
    run_in(tmp_path / "out" / "x")
    parquet(tmp_path / "out" / "y" / "write" / "y.parquet")
    store = Store(str(tmp_path / "out" / "x"))

    def read(path: str) -> list[str]:
        source = load(save(tmp_path / "r.yaml", text.replace("PATH", path))).sources[0]
        return [file.path for file in not_in(store, find_files(source, tmp_path, "sources.a"), "sources.a").files]

    assert read('"out/*/write/*.parquet"') == ["y/write/y.parquet"]
    with pytest.raises(
        RecipeError, match=r"sources\.a: .*x\.parquet is of the run in .*/out/x itself; choose another --out"
    ):
        read("out/x/write")


def test_a_recipe_for_a_folder_leaves_out_what_runs_made(tmp_path: Path) -> None:
    run_in(tmp_path / "out" / "x")
    with pytest.raises(RecipeError, match="only files of runs are there"):
        start_recipe(tmp_path, tmp_path / "recipe.yaml")
    with pytest.raises(RecipeError, match=r"this is the folder of a run; .* such as .*/out/x/write"):
        start_recipe(tmp_path / "out" / "x", tmp_path / "recipe.yaml")
    lines(tmp_path / "b.jsonl", ["one"])
    assert "is written for 1 .jsonl in" in start_recipe(tmp_path, tmp_path / "recipe.yaml")
    [source] = load(tmp_path / "recipe.yaml").sources
    text = (tmp_path / "recipe.yaml").read_text()
    assert source.name == "documents" and 'jsonl: {path: "."}' in text and "# - tokenize" in text and "# - pack" in text
    load(save(tmp_path / "all.yaml", text.replace("# - ", "- ")))
    (tmp_path / "elsewhere").mkdir()
    start_recipe(tmp_path, tmp_path / "elsewhere/r.yaml")
    assert f'path: "{tmp_path}"' in (tmp_path / "elsewhere/r.yaml").read_text()


def test_linked_folders_are_read_once_and_never_around_themselves(tmp_path: Path) -> None:
    parquet(tmp_path / "disk2" / "2025" / "a.parquet")
    parquet(tmp_path / "in" / "2026" / "b.parquet")
    for link, target in (
        ("2025", "../disk2/2025"),
        ("latest", "2026"),
        ("around", ".."),
        ("2026/self", "."),
        ("2026/c.parquet", "b.parquet"),
    ):
        (tmp_path / "in" / link).symlink_to(target)
    once = ["in/2025/a.parquet", "in/2026/b.parquet", "in/2026/c.parquet"]
    assert found(tmp_path, "in") == found(tmp_path, "in/**/*.parquet") == once
    assert found(tmp_path, "in/*/*.parquet") == [
        *once,
        "in/latest/b.parquet",
        "in/latest/c.parquet",
    ]  # as a shell has it
    assert found(tmp_path, "in/2025") == once[:1] and found(tmp_path, "in/*/a.parquet") == once[:1]
    assert "3 .parquet in" in start_recipe(tmp_path / "in", tmp_path / "recipe.yaml")


def test_a_file_that_changes_behind_its_link_is_read_again(tmp_path: Path) -> None:
    there = lines(tmp_path / "elsewhere" / "x.jsonl", ["one"])
    (tmp_path / "in").mkdir()
    link = tmp_path / "in" / "x.jsonl"
    link.symlink_to(there)
    before = list_at("in", tmp_path, (".jsonl",), "sources.a").files
    os.utime(there, (1, 1))
    after = list_at("in", tmp_path, (".jsonl",), "sources.a").files
    link.unlink()
    link.symlink_to(lines(tmp_path / "elsewhere" / "y.jsonl", ["two"]))
    os.utime(tmp_path / "elsewhere" / "y.jsonl", (1, 1))
    os.utime(link, (2, 2), follow_symlinks=False)
    turned = list_at("in", tmp_path, (".jsonl",), "sources.a").files
    assert len({file.stamp for files in (before, after, turned) for file in files}) == 3
    assert {file.size for files in (before, after, turned) for file in files} == {there.stat().st_size}


def test_a_folder_below_that_may_not_be_read_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("open", "shut", "lost+found"):
        parquet(tmp_path / "in" / folder / "a.parquet")
    look = os.scandir

    def scandir(path: str) -> object:
        if Path(path).name in ("shut", "lost+found"):
            raise PermissionError(13, "Permission denied", path)
        return look(path)

    monkeypatch.setattr("os.scandir", scandir)
    for path in ("in", "in/*/*.parquet", "in/**/*.parquet", "in/s*/*.parquet"):
        with pytest.raises(RecipeError, match=r"sources\.a: .* may not be read: .*in/shut"):
            found(tmp_path, path)
    assert found(tmp_path, "in/o*/*.parquet") == found(tmp_path, "in/open") == ["in/open/a.parquet"]


@pytest.mark.parametrize("path", ['""', "[]", '[in, ""]'])
def test_an_empty_path_is_no_path(tmp_path: Path, path: str) -> None:
    lines(tmp_path / "in" / "a.jsonl", ["one"])
    source = load(
        save(tmp_path / "r.yaml", f"name: own\nsources:\n  a: {{jsonl: {{path: {path}}}}}\nstages: [write]\n")
    ).sources[0]
    with pytest.raises(RecipeError, match=r"sources\.a: the path is empty"):
        find_files(source, tmp_path, "sources.a")


def test_files_that_change_while_a_run_goes_on_are_an_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abcde":
        lines(tmp_path / "in" / f"{name}.jsonl", ["one", "two"])
    asked = load(save(tmp_path / "r.yaml", "name: own\nsources:\n  a: {jsonl: {path: in}}\nstages: [write]\n"))

    class Rewriting(InlineExecutor):
        def results(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Result]]:
            yield from super().results(tasks)
            for name in "bcde":
                lines(tmp_path / "in" / f"{name}.jsonl", ["one", "two", "three"])

    work_here(monkeypatch, Rewriting)
    first = run(asked, str(tmp_path / "out"), Where(1), Quiet())
    said = (
        "a: b.jsonl, c.jsonl, d.jsonl and 1 more file changed while the run went on; the same command reads what is new"
    )
    assert first.alarms == [said]
    work_here(monkeypatch)
    second = run(asked, str(tmp_path / "out"), Where(1), Quiet())
    assert second.alarms == [] and len(written(tmp_path / "out")) == 14


def test_names_that_begin_with_a_dot_are_read_only_where_they_are_named(tmp_path: Path) -> None:
    top = tmp_path / ".data"
    for name in ("a.jsonl", ".b.jsonl", "._a.jsonl", ".git/c.jsonl", "d/e.jsonl", "d/.f.jsonl"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("{}")

    def found(address: str) -> list[str]:
        return [file.path for file in list_at(str(top / address), tmp_path, (".jsonl",), "a").files]

    assert found("") == ["a.jsonl", "d/e.jsonl"] == found("**/*.jsonl")
    assert found("*.jsonl") == ["a.jsonl"] and found(".*.jsonl") == ["._a.jsonl", ".b.jsonl"]
    assert found(".b.jsonl") == [".b.jsonl"] and found(".git/*.jsonl") == ["c.jsonl"] == found(".git")
    assert len(list_at(str(top), tmp_path, (".jsonl",), "a").passed_over) == 4
