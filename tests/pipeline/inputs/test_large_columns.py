"""More than Arrow's 32-bit offsets can count in one column: nothing is lost, and what cannot go on says so. The limit
is set low here; the real one is 2 GB."""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gristmill.kernels.base.columns
from gristmill.kernels.base.columns import text_column, widened
from gristmill.pipeline.engine import worker
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.json_types import StageSpec
from gristmill.pipeline.shuffle import shuffle
from gristmill.pipeline.shuffle.spill import keep_table, one_batch, read_rows, write_rows
from gristmill.pipeline.store.partitions import new_part, write_table
from gristmill.pipeline.store.records import InputSpan, RoundTask, StoredRows
from gristmill.pipeline.store.storage import Store
from tests.pipeline.runs import go, lines, save, written


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gristmill.kernels.base.columns, "LARGEST_STRING", 1000)


def rows_of_text(count: int, length: int = 30) -> pa.Table:
    keys = (np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    texts = pa.chunked_array([pa.array([f"{i}".zfill(length)]) for i in range(count)])
    return pa.table(
        {"key": keys, "text": texts, "list": pa.array([[i, i + 1] for i in range(count)], pa.list_(pa.uint64()))}
    )


class Split:
    """A table whose column is too large for `combine_chunks` to make it one array."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def combine_chunks(self) -> pa.Table:
        return self.table

    def __len__(self) -> int:
        return len(self.table)


def test_rows_that_do_not_fit_one_record_batch_are_an_error_and_never_dropped() -> None:
    table = rows_of_text(5)
    assert len(one_batch(table)) == 5 and len(one_batch(table.slice(0, 0))) == 0
    with pytest.raises(RunFailed, match=r"5 rows do not fit one record batch \(1 do\)"):
        one_batch(Split(table))


@pytest.mark.parametrize("buckets", [1, 8])
def test_rows_of_a_column_beyond_the_limit_come_back_whole(buckets: int, tmp_path: Path, low: None) -> None:
    store, table = Store(str(tmp_path)), rows_of_text(200)
    files = [
        write_rows(store, "large.arrow", table, "key", buckets),
        write_rows(store, "small.arrow", rows_of_text(10), "key", buckets),
    ]
    assert [file.rows for file in files] == [200, 10]
    both = StoredRows(tuple(files), by="key")
    whole = [read_rows(store, both, bucket, buckets) for bucket in range(buckets)]
    read = pa.concat_tables([rows for rows in whole if rows is not None])
    assert len(read) == 210 and read.schema.field("text").type == pa.large_string()
    assert read.schema.field("list").type == pa.large_list(pa.uint64())
    expected = sorted(table["text"].to_pylist() + rows_of_text(10)["text"].to_pylist())
    assert sorted(read["text"].to_pylist()) == expected
    kept = keep_table(store, "kept", table)
    again = read_rows(store, StoredRows((kept,)), None, 1)
    assert again is not None and again["text"].to_pylist() == table["text"].to_pylist()
    small = read_rows(store, StoredRows((files[1],)), None, 1)
    assert small is not None and small.schema.field("text").type == pa.string()  # below the limit nothing changes


def test_a_column_beyond_the_limit_is_one_column_for_kernels(low: None) -> None:
    for kind in (pa.string(), pa.binary(), pa.large_string(), pa.string_view()):
        texts = [f"{i}" * 20 for i in range(100)]
        column = pa.chunked_array([pa.array(texts[:60]), pa.array(texts[60:])]).cast(kind)
        data, offsets = text_column(column)
        assert [bytes(data[a:b]).decode() for a, b in itertools.pairwise(offsets)] == texts
    assert len(text_column(pa.chunked_array([], pa.string()))) == 0


def test_only_what_is_too_large_is_widened(low: None) -> None:
    table = widened(pa.table({"a": ["x" * 2000], "b": ["y"], "n": [1], "l": [[1] * 200], "c": pa.array([b"z" * 2000])}))
    assert [str(kind).replace("element", "item") for kind in table.schema.types] == [
        "large_string",
        "string",
        "int64",
        "large_list<item: int64>",
        "large_binary",
    ]
    assert len(table["a"][0].as_py()) == 2000 and table["l"][0].as_py() == [1] * 200


def part_of(store: Store, texts: list[str]) -> dict[str, Any]:
    table = pa.table({"uid": pa.array(range(len(texts)), pa.uint64()), "text": pa.array(texts)})
    facts = write_table(store, "documents.parquet", table)
    origin = [InputSpan("s", "docs/large.jsonl.zst", 0, None)]
    return new_part("k", "s", len(texts), sum(map(len, texts)), facts, origin)


def test_only_documents_that_rows_name_are_held(tmp_path: Path, low: None) -> None:
    store = Store(str(tmp_path))
    part = part_of(store, [f"text {i} " * 10 for i in range(100)])
    for named, of in (
        (pa.array([5, 7, 5], pa.uint64()), "left"),
        (pa.array([[5], [], [7, 5]], pa.list_(pa.uint64())), "rights"),
    ):
        [(rows, documents)] = shuffle.with_their_rows(pa.table({of: named}), store, part, ["uid", "text"], of)
        assert rows[of].to_pylist() == named.to_pylist() and documents["uid"].to_pylist() == [5, 7]
    named = pa.table({"left": pa.array([5], pa.uint64())})
    [(_, every)] = shuffle.with_their_rows(named, store, part, ["uid", "text"], None)
    assert len(every) == 100 and every.schema.field("text").type == pa.large_string()
    with pytest.raises(ValueError, match="1 of 2 documents that rows name are not in part k"):
        list(
            shuffle.with_their_rows(
                pa.table({"left": pa.array([5, 100], pa.uint64())}), store, part, ["uid", "text"], "left"
            )
        )


def test_of_many_named_documents_some_are_held_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "MOST_HELD", 1)
    monkeypatch.setattr("gristmill.pipeline.store.partitions.BATCH_ROWS", 10)
    store = Store(str(tmp_path))
    part = part_of(store, [f"text {i}" for i in range(30)])
    named = pa.array([[25, 3], [4], [], [12, 13, 3]], pa.list_(pa.uint64()))
    rows = pa.table({"rights": named, "n": [0, 1, 2, 3]})
    met = [
        (r.to_pylist(), d["uid"].to_pylist()) for r, d in shuffle.with_their_rows(rows, store, part, ["uid"], "rights")
    ]
    assert met == [
        ([{"rights": [3], "n": 0}, {"rights": [4], "n": 1}, {"rights": [3], "n": 3}], [3, 4]),
        ([{"rights": [12, 13], "n": 3}], [12, 13]),
        ([{"rights": [25], "n": 0}], [25]),
    ]


def test_what_stumbles_over_the_limit_names_stage_part_file_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = part_of(Store(str(tmp_path)), ["a"])

    def fails(task: dict[str, Any]) -> dict[str, Any]:
        raise pa.ArrowInvalid(f"{words} while concatenating arrays")

    monkeypatch.setattr(worker, "run_round", fails)
    task = RoundTask(
        task="t",
        node="my_dedup",
        kind="join",
        key="bucket 3",
        cost=1,
        out=str(tmp_path),
        stage=StageSpec(stage="x", settings={}, code=None),
        method="m",
        round=0,
        parts=(part,),
    )
    words = "offset overflow"
    [result] = worker.run_tasks([task])
    for expected in ("my_dedup, join bucket 3", "docs/large.jsonl.zst", "2 GB", "split large files", "max_bytes"):
        assert expected in result.message
    words = "something else"
    [result] = worker.run_tasks([task])
    assert "ArrowInvalid: something else" in result.message and "2 GB" not in result.message


STAGE = """
import pyarrow as pa
from gristmill.kernels.base import columns
from gristmill.stages.stage import Global

columns.LARGEST_STRING = 400  # in workers, as if texts were huge

class Moves(Global):
    rewrites = True

    def run(self, docs, flow):
        texts = flow.reduce(self.again, flow.map(self.texts, docs, columns=("uid", "text"), by="key"), by="home")
        return flow.rewrite(self.put, texts, docs, columns=("uid", "text"))

    def texts(self, docs):
        return pa.table({"key": docs["uid"], "uid": docs["uid"], "text": docs["text"]})

    def again(self, rows):
        return rows.select(["home", "uid", "text"])

    def put(self, rows, docs):
        text = dict(zip(rows["uid"].to_pylist(), rows["text"].to_pylist()))
        none = pa.nulls(len(docs), pa.string())
        texts = pa.array([text[uid].upper() for uid in docs["uid"].to_pylist()], docs.schema.field("text").type)
        return pa.table({"uid": docs["uid"], "text": texts, "reason": none, "detail": none})
"""


def test_a_stage_that_moves_texts_beyond_the_limit_keeps_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = gristmill.kernels.base.columns
    monkeypatch.setattr(columns, "LARGEST_STRING", columns.LARGEST_STRING)  # the recipe's module changes it here too
    texts = [f"text number {i} of a hundred" for i in range(100)]
    lines(tmp_path / "in" / "a.jsonl", texts[:60])
    lines(tmp_path / "in" / "b.jsonl", texts[60:])
    save(tmp_path / "moves.py", inspect.cleandoc(STAGE))
    recipe = save(
        tmp_path / "r.yaml", "name: r\nsources:\n  a: {jsonl: {path: in}}\nstages:\n  - moves.py:Moves\n  - write\n"
    )
    go(recipe, tmp_path / "out")
    assert sorted(text for _, text in written(tmp_path / "out")) == sorted(text.upper() for text in texts)
    files = list((tmp_path / "out" / "shuffle").rglob("*.arrow"))
    kinds = {pa.ipc.open_file(path).schema.field("text").type for path in files}
    assert pa.large_string() in kinds  # the limit was met
