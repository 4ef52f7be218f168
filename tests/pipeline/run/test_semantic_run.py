"""Vectors, clusters and semantic deduplication in a recipe: the same documents stay whatever the files and buckets, a
vector leaves only where it is asked for, and `mix` balances over clusters."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.shuffle import shuffle
from tests.pipeline.runs import go, lines, save
from tests.stages.semantic.planted import TOPICS, text_of

RECIPE = """name: r
parts: {{files: {files}}}
sources:
  a: {{jsonl: {{path: in}}}}
stages:
  - corpus_embed: {{width: 16}}
  - semantic_clusters: {{clusters: 4, rounds: 2, largest: 25}}
  - semantic_dedup: {{threshold: 0.999}}
  - write: {{name: bare}}
  - write: {{name: whole, vectors: true}}
"""


def texts() -> list[str]:
    dice = random.Random(2)
    made = [text_of(topic, 40, dice) for topic in TOPICS for _ in range(8)]
    return made + [" ".join(sorted(text.split(), key=len)) for text in made[::4]]  # in another order


def found(out: Path, folder: str) -> list[dict[str, object]]:
    table = pa.concat_tables(pq.read_table(path) for path in sorted((out / folder).glob("*.parquet")))
    return sorted(table.to_pylist(), key=lambda row: str(row["text"]))


def test_parts_and_buckets_change_nothing_and_a_second_run_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        lines(tmp_path / "in" / f"{n}.jsonl", texts()[n::4])
    kept: list[list[dict[str, object]]] = []
    for files, rows_a_bucket in ((4, 1_000_000), (1, 7)):
        monkeypatch.setattr(shuffle, "ROWS_A_BUCKET", rows_a_bucket)
        recipe, out = save(tmp_path / "r.yaml", RECIPE.format(files=files)), tmp_path / f"out{files}"
        go(recipe, out)
        kept.append(found(out, "whole"))
        assert [row["text"] for row in kept[-1]] == [row["text"] for row in found(out, "bare")]
    _, anew = go(recipe, out)
    assert sum(anew.values()) == 0
    assert kept[0] == kept[1] and len(kept[0]) == 32  # of 40
    assert len({" ".join(sorted(str(row["text"]).split())) for row in kept[0]}) == 32
    assert all(row["embedding"] and row["cluster"] is not None for row in kept[0])
    bare, whole = (pq.read_schema(next((out / name).glob("*.parquet"))) for name in ("bare", "whole"))
    assert "embedding" not in bare.names and bare.field("cluster").type == pa.int32()
    assert whole.field("embedding").type == pa.list_(pa.int8(), 16)


def test_mix_balances_over_clusters(tmp_path: Path) -> None:
    dice = random.Random(5)
    sizes = {topic: 4 + 20 * (n == 0) for n, topic in enumerate(TOPICS)}
    lines(
        tmp_path / "in" / "a.jsonl", [text_of(topic, 40, dice) for topic, count in sizes.items() for _ in range(count)]
    )
    recipe = save(
        tmp_path / "r.yaml",
        """name: r
sources:
  a: {jsonl: {path: in}}
stages:
  - corpus_embed: {width: 8}
  - semantic_clusters: {clusters: 4}
  - tokenize: {vocab_size: 300}
  - mix: {by: [cluster], method: unimax, budget: 800}
  - write
""",
    )
    go(recipe, tmp_path / "out")
    rows = found(tmp_path / "out", "write")
    assert len({row["cluster"] for row in rows}) == 4 and 4 <= len(rows) < 36
