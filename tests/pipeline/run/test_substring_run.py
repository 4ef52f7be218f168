"""Repeated passages go in a run of the whole engine, the same whatever the files, groups of parts and workers."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.shuffle import shuffle
from tests.pipeline.runs import go, lines, save, tree, written

RECIPE = "name: r\nparts: {files: 1}\nsources:\n  a: {jsonl: {path: in}}\nstages:\n  - substring_dedup: {tokens: 8, min_left: 3}\n  - write\n"
PASSAGES = [" ".join(f"p{number}w{k}" for k in range(12)) for number in range(3)]


@pytest.mark.run
def test_a_run_cuts_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in range(5):
        texts = [f"Before{file}x{row}. {PASSAGES[row % 3]}. After{file}x{row} and so on." for row in range(6)]
        lines(
            tmp_path / "in" / f"f{file}.jsonl", [*texts, PASSAGES[0].upper(), f"nothing {file} here is anywhere else"]
        )
    recipe = save(tmp_path / "r.yaml", RECIPE)
    go(recipe, tmp_path / "out")
    rows = [r for path in (tmp_path / "out" / "write").glob("*.parquet") for r in pq.read_table(path).to_pylist()]
    texts = [row["text"] for row in rows]
    assert sum("nothing" in text for text in texts) == 5
    whole = [row for row in rows if any(passage in row["text"].lower() for passage in PASSAGES)]
    assert len(whole) == 3 and all(row["repeated_tokens"] is None for row in whole), "each passage stands once"
    others = [row for row in rows if row not in whole and "nothing" not in row["text"]]
    assert all(row["repeated_tokens"] == 12 and row["text"].count(".") == 2 for row in others)
    dropped = 40 - len(rows)
    assert dropped in (4, 5), "a document that is nothing but the passage goes, unless it is the first with it"
    rejects = [
        r
        for path in (tmp_path / "out" / "stages" / "substring_dedup" / "rejects").glob("*.parquet")
        for r in pq.read_table(path).to_pylist()
    ]
    assert [r["reason"] for r in rejects] == ["mostly_repeated"] * dropped
    assert {r["detail"] for r in rejects} == {"12 of 12 tokens stand elsewhere too"} and {
        r["text"] for r in rejects
    } == {PASSAGES[0].upper()}
    monkeypatch.setattr(shuffle, "ROWS_A_BUCKET", 5)
    monkeypatch.setattr(shuffle, "PARTS_ALONE", 2)
    go(recipe, tmp_path / "cut finely")
    go(recipe, tmp_path / "two workers", workers=2)
    assert written(tmp_path / "cut finely") == written(tmp_path / "out") == written(tmp_path / "two workers")
    assert tree(tmp_path / "two workers", "write") == tree(tmp_path / "cut finely", "write")
