"""Columns that came with the input, through a whole run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from runs import go, save


def test_columns_of_a_parquet_file_decide_in_a_run(tmp_path: Path) -> None:
    rows = [
        {"text": f"document {i} of these", "int_score": i % 6, "quality": {"edu": i / 10}, "lang": "de" if i % 2 else "en"}
        for i in range(30)
    ]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / "a.parquet")
    recipe = save(
        tmp_path / "recipe.yaml",
        "name: kept\nsources: {web: {parquet: {path: in}}}\nstages:\n"
        "  - from_meta: {numbers: {int_score: int_score, edu: quality.edu}, texts: {topic: lang}}\n"
        "  - repair\n"  # which changes texts, and no signal that comes from beside them
        "  - keep_where: {signal: int_score, at_least: 3}\n  - write\n",
    )
    summary, _ = go(recipe, tmp_path / "out")
    assert not summary.alarms
    written = pa.concat_tables([pq.read_table(path) for path in sorted((tmp_path / "out" / "write").glob("*.parquet"))])
    assert sorted(zip(written["int_score"].to_pylist(), written["edu"].to_pylist(), strict=True)) == sorted(
        (i % 6, i / 10) for i in range(30) if i % 6 >= 3
    )
    assert written["topic"].to_pylist().count("en") == 5
