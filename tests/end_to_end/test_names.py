"""Files and folders are read and written under whatever name they have."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from tests.pipeline.runs import lines, save, written

pytestmark = pytest.mark.usefixtures("here")


def test_two_colons_in_a_name_are_part_of_it_wherever_a_path_is_taken(tmp_path: Path) -> None:
    lines(tmp_path / "in" / "ü::x.jsonl", ["one file by its name"])
    lines(tmp_path / "a::b" / "1.jsonl", ["a folder by its name"])
    lines(tmp_path / "globbed" / "g::1.jsonl", ["what matches a glob"])
    sources = (
        "{a: {jsonl: {path: 'in/ü::x.jsonl'}}, b: {jsonl: {path: 'a::b'}}, c: {jsonl: {path: 'globbed/g::*.jsonl'}}}"
    )
    recipe = save(
        tmp_path / "r.yaml", f"name: r\nsources: {sources}\nstages: [exact_dedup: {{save_index: 'i::j'}}, write]\n"
    )
    out = tmp_path / "runs" / "o::1"
    commands = (
        ["run", str(recipe), "--out", str(out), "--workers", "1"],
        ["inspect", str(out)],
        ["maintain", "verify", str(out)],
        ["report", str(out)],
        ["export", str(out), str(tmp_path / "e::1"), "--to", "dolma"],
    )
    for command in commands:
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, (command, done.output, done.exception)
    assert sorted(text for _, text in written(out)) == [
        "a folder by its name", "one file by its name", "what matches a glob",
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a::b", "e::1", "globbed", "i::j", "in", "r.yaml", "runs",
    ]  # fmt: skip
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["o::1"]
