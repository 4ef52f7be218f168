"""`gristmill export` of what is damaged or unfinished, and `gristmill run --budget` where nothing could be counted."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import GristmillError, RecipeError
from tests.pipeline.ablate.ablation_sets import make_set, tales


def call(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.mark.parametrize("to", ["trl", "megatron", "datatrove", "hf"])
def test_shards_that_changed_since_are_not_exported(tmp_path: Path, to: str) -> None:
    shards = make_set(tmp_path / "shards", tales(60, 1))
    assert call("export", shards, tmp_path / "whole", "--to", to).exit_code == 0
    file = shards / "shard-00000.arrow"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    done = call("export", shards, tmp_path / "damaged", "--to", to)
    assert isinstance(done.exception, GristmillError), done.output
    assert str(file) in str(done.exception) and "not what was written" in str(done.exception)
    assert not (tmp_path / "damaged").exists()


def test_an_unfinished_run_is_exported_only_by_the_folder_of_its_documents(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "write").mkdir(parents=True)
    pq.write_table(pa.table({"text": ["a", "b"]}), out / "write" / "x.parquet")
    record = {"status": "interrupted", "stages": [{"name": "write", "kind": "sink"}]}
    (out / "run.json").write_text(json.dumps(record))
    refused = call("export", out, tmp_path / "a", "--to", "dolma")
    assert isinstance(refused.exception, RecipeError) and "the run is interrupted" in str(refused.exception)
    assert "2 items" in call("export", out / "write", tmp_path / "b", "--to", "dolma").output
    (out / "run.json").write_text(json.dumps({**record, "status": "done"}))
    assert "2 items" in call("export", out, tmp_path / "c", "--to", "dolma").output


@pytest.mark.parametrize("keep", [3, -20])
def test_a_damaged_file_of_documents_is_named(tmp_path: Path, keep: int) -> None:
    file = tmp_path / "docs" / "x.parquet"
    file.parent.mkdir()
    pq.write_table(pa.table({"text": ["word " * 2000 + str(i) for i in range(50)]}), file)
    data = bytearray(file.read_bytes())
    data[4:200] = bytes(196)  # the pages; the footer is whole
    file.write_bytes(data if keep > 0 else data[:keep])
    done = call("export", file.parent, tmp_path / "to", "--to", "dolma")
    assert isinstance(done.exception, RecipeError) and str(file) in str(done.exception), done.output
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("prices", "budget", "says"),
    [
        ("{kilowatt_hour: 1}", "5", "neither core_hour nor gpu_hour"),
        ("{}", "5", "neither core_hour nor gpu_hour"),
        ("{core_hour: 1}", "0", "--budget 0 pays for no task"),
        ("{core_hour: .inf}", "5", "r.yaml:2: prices.core_hour: Input should be a finite number"),
    ],
)
def test_a_budget_that_could_never_stop_a_run_is_refused(tmp_path: Path, prices: str, budget: str, says: str) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "r.yaml").write_text(
        f"name: r\nprices: {prices}\nsources: {{a: {{jsonl: {{path: in.jsonl}}}}}}\nstages: [write]\n"
    )
    done = call("run", tmp_path / "r.yaml", "--out", tmp_path / "out", "--budget", budget)
    assert isinstance(done.exception, RecipeError) and says in str(done.exception), done.output
    assert not [*(tmp_path / "out").glob("write/*")]
