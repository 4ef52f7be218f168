"""TRL's and torchtune's columns: the same tokens, lengths that add up to the row, labels that no document gives away to
the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from gristmill.shards.export import rows as export_rows
from gristmill.shards.export.export import Options, export
from tests.shards.made_shards import make_shards, rows_of, run_elsewhere

LENGTHS = [[3, 9, 4, 20, 8, 8], [5, 5, 2, 17], [1]]


def expected(rows: list[tuple[list[int], list[int]]], row_length: int, names: str) -> list[dict[str, list[int]]]:
    """The plain way."""
    out = []
    for tokens, lengths in rows:
        padding = row_length - len(tokens)
        labels, positions = [], []
        at = 0
        for length in lengths:
            labels += [-100, *tokens[at + 1 : at + length]]
            positions += range(length)
            at += length
        positions += range(lengths[-1], lengths[-1] + padding)
        padded = tokens + [0] * padding
        labels += [-100] * padding
        every = lengths + [padding] * (padding > 0)
        if names == "trl":
            out.append({"input_ids": padded, "labels": labels, "seq_lengths": every})
        else:
            out.append({"tokens": padded, "labels": labels, "input_pos": positions, "seq_lens": every})
    return out


def read(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".parquet":
            rows += pq.read_table(path).to_pylist()
        else:
            with pa.memory_map(str(path)) as file:
                rows += pa.ipc.open_file(file).read_all().to_pylist()
    return rows


@pytest.mark.parametrize("files", ["parquet", "arrow"])
@pytest.mark.parametrize("names", ["trl", "torchtune"])
@pytest.mark.parametrize("vocab_size", [1000, 200_000])
def test_columns_are_those_of_the_trainer(tmp_path: Path, names: str, files: str, vocab_size: int) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8, vocab_size)
    export(made.folder, names, tmp_path / "out", Options(files=files))
    found = read(tmp_path / "out")
    assert found == expected(rows_of(made), 8, names) and len(found) > 5
    assert [p.name for p in sorted((tmp_path / "out").iterdir())] == [f"shard-0000{i}.{files}" for i in range(3)]


@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=8), min_size=1, max_size=3),
    st.integers(1, 12),
    st.integers(1, 40),
)
def test_columns_of_any_lengths(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]], row_length: int, block: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    made = make_shards(folder / "shards", lengths, row_length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_rows, "BLOCK_TOKENS", block)
        for names in ("trl", "torchtune"):
            export(made.folder, names, folder / names)
            assert read(folder / names) == expected(rows_of(made), row_length, names)


def test_trls_collator_finds_the_documents(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8)
    export(made.folder, "trl", tmp_path / "out")
    batch = run_elsewhere("GRISTMILL_DATASETS_PYTHON", "with_trl.py", f"{tmp_path}/out/*.parquet")
    rows = expected(rows_of(made), 8, "trl")
    assert batch["input_ids"] == [[token for row in rows for token in row["input_ids"]]]
    assert batch["labels"] == [[label for row in rows for label in row["labels"]]]
    assert batch["position_ids"] == [[i for row in rows for length in row["seq_lengths"] for i in range(length)]]
    ends = [0]
    for row in rows:
        for length in row["seq_lengths"]:
            ends.append(ends[-1] + length)
    assert batch["cu_seq_lens_q"] == ends
