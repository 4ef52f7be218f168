"""What is written has the same columns whatever is known."""

from __future__ import annotations

import pyarrow as pa

from gristmill.stages.documents import Collector
from gristmill.stages.stage import with_columns
from gristmill.stages.write import Write

ALWAYS = ["text", "id", "url", "date", "language", "language_score", "token_count", "uid", "source", "meta"]


def documents() -> pa.RecordBatch:
    collector = Collector("web", "a.warc")
    collector.add(0, text="one", id="i", url="u", date="2024", meta={"file_path": "s3://x"})
    collector.add(1, text="two")
    return collector.take().documents


def test_columns_are_there_whatever_is_known():
    bare = Write().table(documents())
    known = {
        "language": pa.array(["en", None]),
        "language_score": pa.array([0.5, None], pa.float32()),
        "token_count": pa.array([1, 2], pa.uint32()),
    }
    full = Write().table(with_columns(documents(), known))
    assert bare.schema == full.schema and bare.schema.names == ALWAYS and len(bare) == len(full) == 2
    assert (
        bare["language"].null_count == 2
        and full["token_count"].to_pylist() == [1, 2]
        and full["language_score"].to_pylist() == [0.5, None]
    )
    assert bare["text"].to_pylist() == ["one", "two"] and bare["source"].to_pylist() == ["web", "web"]
    assert bare["uid"].equals(documents()["uid"])


def test_a_dump_has_a_name_and_file_paths():
    written = Write(dump="CC-MAIN").table(documents())
    assert written.schema.names == [*ALWAYS, "dump", "file_path"]
    assert written["dump"].to_pylist() == ["CC-MAIN"] * 2 and written["file_path"].to_pylist() == ["s3://x", None]


def test_tokens_are_the_token_count():
    assert Write().table(with_columns(documents(), {"tokens": pa.array([7, None], pa.int32())}))[
        "token_count"
    ].to_pylist() == [7, None]


def test_a_file_path_of_any_kind_is_a_text():
    collector = Collector("rows", "a.jsonl")
    collector.add(0, text="one", meta={"file_path": 7})
    collector.add(1, text="two", meta={"file_path": {"a": "é"}})
    assert Write(dump="x").table(collector.take().documents)["file_path"].to_pylist() == ["7", '{"a": "é"}']


def test_signals_follow_in_order_of_name_unless_refused():
    batch = with_columns(documents(), {"words": pa.array([1, 1]), "lines": pa.array([1, 1])})
    assert Write().table(batch).schema.names == [*ALWAYS, "lines", "words"]
    assert Write(signals=False).table(batch).schema.names == ALWAYS


def test_documents_pass_on_unchanged():
    done = Write().apply(documents())
    assert done.batch.equals(documents()) and done.verdict.kept.all() and len(done.verdict) == 2


def test_an_empty_batch_has_the_schema_too():
    assert Write(dump="x").table(documents().slice(0, 0)).schema == Write(dump="x").table(documents()).schema
