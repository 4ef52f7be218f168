"""Global stages of a user's own: what they save counts what they say, and an error names what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gristmill.pipeline.errors import RunFailed
from tests.pipeline.runs import go, lines, save

pytestmark = pytest.mark.usefixtures("here")

STAGE = """
import pyarrow as pa
from gristmill.stages.flow import Published
from gristmill.stages.stage import Global


class Halves(Global):
    '''Drops every second document and saves the others; then it looks at all of them again.'''

    columns = ("uid",)

    @property
    def saves(self):
        return ("index/uids",)

    def run(self, docs, flow):
        kept = flow.drop(docs, flow.reduce(self.odd, flow.map(self.uids, docs, columns=self.columns, by="key")))
        rows = flow.map(self.uids, kept, columns=self.columns, by="key")
        flow.map(self.uids, docs, columns=self.columns, by="key")
        flow.run.save(rows, "index/uids", {}, docs=kept)
        return kept

    def odd(self, rows):
        reasons = ["odd" if uid % 2 else None for uid in rows["uid"].to_pylist()]
        columns = {"home": rows["home"], "uid": rows["uid"], "reason": pa.array(reasons, pa.string())}
        return pa.table({**columns, "detail": columns["reason"]})

    def uids(self, docs):
        return pa.table({"uid": docs["uid"], "key": docs["uid"]})


class Mixed(Global):
    '''Publishes a table, and something that is none.'''

    def run(self, docs, flow):
        flow.publish(self.shards, flow.map(self.uids, docs, columns=("uid",), by="key"))
        return docs

    def uids(self, docs):
        return pa.table({"uid": docs["uid"], "key": pa.array([0] * len(docs), pa.uint64())})

    def shards(self, rows):
        return [Published("shards", pa.table({"uid": rows["uid"]}), {}), 3.5]
"""


def recipe(folder: Path, stage: str) -> Path:
    lines(folder / "in" / "a.jsonl", [f"text {number}" for number in range(40)])
    save(folder / "own.py", STAGE)
    return save(
        folder / "r.yaml", f"name: r\nsources: {{a: {{jsonl: {{path: in}}}}}}\nstages: ['own.py:{stage}', write]\n"
    )


def test_a_saved_index_counts_the_documents_that_it_is_of(tmp_path: Path) -> None:
    summary, _ = go(recipe(tmp_path, "Halves"), tmp_path / "out")
    kept = summary.record.to_json()["stages"][1]["kept"]
    assert 0 < kept < 40
    assert json.loads((tmp_path / "index" / "uids" / "index.json").read_text())["run"]["documents"] == kept


def test_what_is_published_and_is_no_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"shards\(\) answered with a float in its list; each has to be a Published"):
        go(recipe(tmp_path, "Mixed"), tmp_path / "out")
