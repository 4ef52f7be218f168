"""Sizes in a recipe are bytes, or a number with a unit; one file is split at whatever size."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.recipe import recipe as recipes
from tests.pipeline.runs import lines, save

RECIPE = """
name: r
parts: {max_bytes: SIZE, small_file: 1 kB, batch_bytes: 1.5 MiB}
sources: {a: {jsonl: {path: in, max_record_bytes: 2MB}}}
stages: [tokenize: {sample_bytes: 1MB}, write]
"""


def test_settings_in_bytes_take_units(tmp_path: Path) -> None:
    loaded = recipes.load(save(tmp_path / "r.yaml", RECIPE.replace("SIZE", "4MB")))
    assert (loaded.head.parts.max_bytes, loaded.head.parts.small_file) == (4_000_000, 1000)
    assert loaded.head.parts.batch_bytes == 3 << 19
    assert loaded.resolved()["sources"]["a"]["jsonl"]["max_record_bytes"] == 2_000_000
    assert loaded.resolved()["stages"][0]["tokenize"]["sample_bytes"] == 1_000_000


@pytest.mark.parametrize(
    ("size", "means"), [("2.01KB", 2010), ("4.35 GB", 4_350_000_000), (".5KiB", 512), ("9007199254740993", 2**53 + 1)]
)
def test_a_size_is_exact(tmp_path: Path, size: str, means: int) -> None:
    loaded = recipes.load(save(tmp_path / "r.yaml", RECIPE.replace("SIZE", f"'{size}'")))
    assert loaded.head.parts.max_bytes == means


@pytest.mark.parametrize("size", ["4XB", "-4MB", "0.5B", "many"])
def test_a_size_that_is_none_is_named_with_its_line(tmp_path: Path, size: str) -> None:
    with pytest.raises(RecipeError, match=rf"r.yaml:3: parts.max_bytes: .*such as 4MB, not '{size}'"):
        recipes.load(save(tmp_path / "r.yaml", RECIPE.replace("SIZE", size)))


def test_a_limit_of_no_bytes_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"r.yaml:3: parts.max_bytes: .*greater than 0"):
        recipes.load(save(tmp_path / "r.yaml", RECIPE.replace("SIZE", "0MB")))


def test_exports_take_units(tmp_path: Path) -> None:
    lines(tmp_path / "in" / "a.jsonl", ["one", "two"])
    done = CliRunner().invoke(
        app, ["export", str(tmp_path), str(tmp_path / "e"), "--to", "mds", "--shard-bytes", "1XB"]
    )
    assert "--shard-bytes: a number of bytes was expected, or a size such as 4MB" in str(done.exception)
