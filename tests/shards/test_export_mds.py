"""MDS files hold every row with its lengths, in shards below the limit, and StreamingDataset reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.shards.export import rows as export_rows
from gristmill.shards.export.export import Options, export
from tests.shards.made_shards import make_shards, read_mds, rows_of, run_elsewhere

LENGTHS = [[3, 9, 4, 20, 8, 8], [5, 5, 2, 17], [1]]


@pytest.mark.parametrize("vocab_size", [1000, 65_536, 65_537])
def test_rows_come_back_with_their_lengths(tmp_path: Path, vocab_size: int) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8, vocab_size)
    assert export(made.folder, "mds", tmp_path / "out").items == len(rows_of(made))
    samples, sizes = read_mds(tmp_path / "out")
    assert samples == [(tokens + [0] * (8 - len(tokens)), lengths) for tokens, lengths in rows_of(made)]
    assert len(sizes) == 1 and len(samples) > 5


def test_shards_stay_below_the_limit_and_are_as_full_as_they_can_be(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8)
    export(
        made.folder, "mds", tmp_path / "whole", Options(hashes=(), shard_bytes=999)
    )  # the limit stands in each shard: as many digits
    _, (whole,) = read_mds(tmp_path / "whole")
    export(made.folder, "mds", tmp_path / "just", Options(hashes=(), shard_bytes=whole))
    export(made.folder, "mds", tmp_path / "below", Options(hashes=(), shard_bytes=whole - 1))
    assert len(read_mds(tmp_path / "just")[1]) == 1
    samples, sizes = read_mds(tmp_path / "below")
    assert len(sizes) == 2 and max(sizes) < whole
    assert samples == read_mds(tmp_path / "whole")[0]
    export(made.folder, "mds", tmp_path / "tiny", Options(hashes=(), shard_bytes=1))
    assert len(read_mds(tmp_path / "tiny")[1]) == len(samples)


def test_blocks_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8)
    export(made.folder, "mds", tmp_path / "whole")
    monkeypatch.setattr(export_rows, "BLOCK_TOKENS", 9)
    export(made.folder, "mds", tmp_path / "small")
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "small" / path.name).read_bytes() == path.read_bytes()


def test_a_row_of_hundreds_of_documents_comes_back(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "shards", [[1] * 70_000, [1] * 300], 70_000)
    export(made.folder, "mds", tmp_path / "out")
    samples, _ = read_mds(tmp_path / "out")
    assert [len(lengths) for _, lengths in samples] == [70_000, 300]
    assert samples == [(tokens + [0] * (70_000 - len(tokens)), lengths) for tokens, lengths in rows_of(made)]


@pytest.mark.parametrize("vocab_size", [1000, 200_000])
@pytest.mark.parametrize("shard_bytes", [1 << 26, 500])
def test_mosaicml_streaming_reads_the_same(tmp_path: Path, vocab_size: int, shard_bytes: int) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8, vocab_size)
    export(made.folder, "mds", tmp_path / "out", Options(shard_bytes=shard_bytes))
    samples, sizes = read_mds(tmp_path / "out")
    theirs = run_elsewhere("GRISTMILL_MOSAIC_PYTHON", "with_mosaic.py", tmp_path / "out")
    assert [tuple(sample) for sample in theirs] == samples and len(samples) > 5
    assert (len(sizes) > 1) == (shard_bytes == 500)
