"""A mix over cells from a crawl to shards: labels of a user's stage, buckets, caps by domain, mix, pack, report; all
numbers recounted by other code."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.pipeline.cells import recipe, recount
from gristmill.pipeline.demo.crawl import write_crawl
from tests.pipeline.runs import go, save

STAGE = """\
from typing import ClassVar

import pyarrow as pa

from gristmill.stages import Annotate


class Labels(Annotate):
    adds: ClassVar[tuple[str, ...]] = ("topic", "format")
    needs: ClassVar[tuple[str, ...]] = ("text", "url")

    def annotate(self, batch):
        topics = [["art", "law", None, "science"][len(text or "") % 4] for text in batch.column("text").to_pylist()]
        formats = ["shop" if len(url or "") % 5 == 0 else "page" for url in batch.column("url").to_pylist()]
        return {"topic": pa.array(topics, pa.string()), "format": pa.array(formats, pa.string())}
"""
CAPS = {"topic=science": 3.0, "quality_tier=low": 1.0, "others": 4.0}
SETTINGS = {"share": 0.3, "budget": 200_000, "caps": CAPS, "least": 6_000}


def test_a_crawl_is_mixed_over_cells_and_every_number_is_in_its_files(tmp_path: Path) -> None:
    write_crawl(tmp_path / "crawl")
    save(tmp_path / "labels.py", STAGE)
    labels = "- extract\n  - labels.py:Labels"
    text = recipe("warc: {path: crawl/*.warc.gz}", labels, vocabulary=400, **SETTINGS)
    save(tmp_path / "recipe.yaml", text)
    summary, _ = go(tmp_path / "recipe.yaml", tmp_path / "out")
    assert summary.record.done
    counted = recount(tmp_path / "out", *(SETTINGS[name] for name in ("share", "budget", "caps", "least")))  # type: ignore[arg-type]
    assert counted["over domain caps"] > 0 and counted["not drawn"] > 0 and counted["most copies"] > 1
    assert counted["cells"] < counted["groups"] and counted["in shards"] > 50, json.dumps(counted)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Documents of each cell" in page
