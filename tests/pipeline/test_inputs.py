"""What a run reads: never what runs have written, unless a path leads there by name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import go, lines, save, written

from pipeline.errors import RecipeError
from pipeline.inputs import REMEMBERED, files_at, find_files, with_contents
from pipeline.recipe import load
from pipeline.store import Store
from pipeline.upkeep import start_recipe

TWO = "name: own\nsources:\n  a: {parquet: {path: .}}\n  b: {jsonl: {path: .}}\nstages: [write]\n"


def parquet(path: Path, text: str = "a") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": [text, f"{text} again"]}), path)
    return path


def run_in(folder: Path) -> Path:
    """What a finished run leaves, as far as readers could take it for input."""
    for path in ("write/x.parquet", "legs/crawl/x.documents.parquet", "stages/crawl/rejects/x.parquet"):
        parquet(folder / path)
    save(folder / "run.json", "{}")
    (folder / REMEMBERED).parent.mkdir()
    save(folder / REMEMBERED, "{}")
    save(folder / "journal" / "tasks.jsonl", "{}\n")
    return folder


def found(folder: Path, path: str) -> list[str]:
    return [str(Path(file.address).relative_to(folder)) for file in files_at(path, folder, (".parquet", ".jsonl"), "sources.a")]


def test_a_second_run_finds_nothing_new_where_it_wrote_beside_its_inputs(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet")
    lines(tmp_path / "b.jsonl", ["one", "two", "three"])
    recipe = save(tmp_path / "recipe.yaml", TWO)
    first, _ = go(recipe, tmp_path / "out" / "own")
    kept = written(tmp_path / "out" / "own")
    again, anew = go(recipe, tmp_path / "out" / "own")
    assert len(kept) == 5 and written(tmp_path / "out" / "own") == kept and not anew and again.record == first.record
    assert {name: its["files"] for name, its in again.record["inputs"].items()} == {"a": 1, "b": 1}


def test_what_lies_in_the_folder_of_a_run_is_taken_only_by_name(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet")
    run_in(tmp_path / "out" / "x")
    parquet(tmp_path / "out" / "mine.parquet")
    mine = ["a.parquet", "out/mine.parquet"]
    assert found(tmp_path, ".") == found(tmp_path, "**/*.parquet") == mine and found(tmp_path, "out") == ["out/mine.parquet"]
    for path in ("out/x/write", "out/x/write/x.parquet", "out/*/write/*.parquet", "**/write/*.parquet", "out/x/wri*/*.parquet"):
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
        return [file.path for file in with_contents(find_files(source, tmp_path), store, "a", remember=False)]

    assert read('"out/*/write/*.parquet"') == ["y/write/y.parquet"]
    with pytest.raises(RecipeError, match=r"sources\.a: .*x\.parquet is of the run in .*/out/x itself; choose another --out"):
        read("out/x/write")


def test_a_recipe_for_a_folder_leaves_out_what_runs_made(tmp_path: Path) -> None:
    run_in(tmp_path / "out" / "x")
    with pytest.raises(RecipeError, match="no file that a reader knows beside what runs have left"):
        start_recipe(tmp_path, tmp_path / "recipe.yaml")
    with pytest.raises(RecipeError, match=r"this is the folder of a run; .* such as .*/out/x/write"):
        start_recipe(tmp_path / "out" / "x", tmp_path / "recipe.yaml")
    lines(tmp_path / "b.jsonl", ["one"])
    assert "is written for 1 .jsonl in" in start_recipe(tmp_path, tmp_path / "recipe.yaml")
    assert [source.name for source in load(tmp_path / "recipe.yaml").sources] == ["crawl"]
