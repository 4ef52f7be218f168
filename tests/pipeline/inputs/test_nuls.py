"""NUL characters leave texts in every reader, as they leave pages, and how many texts had some is on record."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import go, save, written

SOURCES = """\
sources:
  lines: {jsonl: {path: a.jsonl}}
  columns: {parquet: {path: a.parquet}}
  batches: {arrow: {path: a.arrow}}
  files: {plain: {path: a.txt}}
  wet: {wet: {path: a.warc.wet}}
"""


def test_nuls_are_taken_out_of_texts_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)
    texts = ["one \0two\0", "three", "four\0"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, "\0 \0"]))
    table = pa.table({"text": texts})
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "a.txt").write_bytes(b"five\0 six")
    body = b"seven\0 eight"
    (tmp_path / "a.warc.wet").write_bytes(
        b"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: http://a.example/\r\nContent-Type: text/plain\r\n"
        b"Content-Length: %d\r\n\r\n%s\r\n\r\n" % (len(body), body)
    )
    summary, _ = go(save(tmp_path / "r.yaml", f"name: r\n{SOURCES}stages: [write]\n"), tmp_path / "out")
    assert sorted(text for _, text in written(tmp_path / "out")) == sorted(
        [*["one two", "three", "four"] * 3, "five six", "seven eight"]
    )
    readers = {stage["name"]: stage for stage in summary.record.to_json()["stages"] if stage["kind"] == "read"}
    assert {name: stage.get("nuls") for name, stage in readers.items()} == {
        "lines": 2,
        "columns": 2,
        "batches": 2,
        "files": 1,
        "wet": 1,
    }
    assert readers["lines"]["dropped"] == {"no_text": 1} and summary.alarms == []
    assert (tmp_path / "out/logs/run.log").read_text().count("texts with NUL characters, which are taken out") == 5
