"""Many tiny files share parts and batches."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.pipeline.runs import go, save

pytestmark = pytest.mark.usefixtures("here")

FILES = 1200
STAGE = """
import pyarrow as pa
from gristmill.stages.stage import Annotate


class ShownWith(Annotate):
    adds = ("shown_with",)

    def annotate(self, batch):
        return {"shown_with": pa.array([len(batch)] * len(batch), pa.int32())}
"""
RECIPE = """
name: tiny
sources: {tiny: {jsonl: {path: in}}}
stages: ['shown.py:ShownWith', exact_dedup, write]
"""


def test_tiny_files_share_parts_and_batches_and_each_document_is_kept_once(tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(STAGE)
    (tmp_path / "in").mkdir()
    texts = set()
    for number in range(FILES):  # every third text is a copy
        text = f"A tiny document, number {number - number % 3 // 2}, of some few words."
        (tmp_path / "in" / f"{number:05d}.jsonl").write_text(json.dumps({"text": text}) + "\n")
        texts.add(text)
    go(save(tmp_path / "r.yaml", RECIPE), tmp_path / "out")
    rows = [row for path in (tmp_path / "out" / "write").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert len(rows) == FILES * 2 // 3
    assert {row["text"] for row in rows} == texts
    assert min(row["shown_with"] for row in rows) > 30
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(left) < 45  # parts of 64 files would be 19, with 75 files
    assert json.loads((tmp_path / "out" / "run.json").read_text())["stages"][0]["kept"] == FILES
