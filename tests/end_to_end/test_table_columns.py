"""What columns come out follows from the stage and never from the data, and how a table's texts are encoded changes
nothing."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill
from gristmill.stages import ExactDedup, QuantileBuckets, TextSignals
from gristmill.stages.stage import Annotate, Global, Map, Reader, Rewrite
from tests.pipeline.engine.here import work_here
from tests.stages.settings_of_globals import BLEND, DEDUP, TOKENS
from tests.stages.settings_of_maps import RULES, TEXT
from tests.stages.settings_of_rights import RIGHTS
from tests.stages.settings_shown import Lab, Subject

SUBJECTS = [
    subject
    for subject in (*TEXT, *RULES, *RIGHTS, *DEDUP, *BLEND, *TOKENS)
    if not issubclass(subject.kind, Reader) and subject.given is not None and subject.stage not in ("Pack", "Extract")
]
ENCODED = {
    "large_string": lambda column: column.cast(pa.large_string()),
    "string_view": lambda column: column.cast(pa.string_view()),
    "dictionary": lambda column: column.dictionary_encode(),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


def given_to(subject: Subject, lab: Lab) -> pa.Table:
    given = subject.given(lab) if inspect.isfunction(subject.given) else subject.given
    return given if isinstance(given, pa.Table) else pa.table(given)


def encoded(table: pa.Table, how: Any) -> pa.Table:
    for place, field in enumerate(table.schema):
        if field.type in (pa.string(), pa.large_string()):
            table = table.set_column(place, field.name, how(table.column(place).cast(pa.string())))
    return table


@pytest.mark.parametrize("subject", SUBJECTS, ids=[subject.stage for subject in SUBJECTS])
def test_a_stage_on_a_table_takes_texts_in_any_encoding_and_adds_the_same_columns(subject: Subject, lab: Lab) -> None:
    stage, table = subject.kind(**lab.filled(subject.base)), given_to(subject, lab)
    assert isinstance(stage, Map | Global)
    plain = stage(encoded(table, lambda column: column))
    for name, how in ENCODED.items():
        other = stage(encoded(table, how))
        assert (other.to_pylist(), other.column_names) == (plain.to_pylist(), plain.column_names), name
    if isinstance(stage, Global | Annotate | Rewrite):
        for some in (
            table.slice(0, 1),
            table.slice(len(table) - 1),
            *([] if subject.stage == "Mix" else [table.slice(0, 0)]),
        ):
            assert stage(some).schema.equals(stage(table).schema)


def test_signals_of_a_name_of_its_own_are_all_that_a_stage_adds() -> None:
    table = pa.table({"text": ["a", "b", "c"], "score": [1.0, 2.0, 3.0]})
    stage = QuantileBuckets(by=["score"], called_after="prose")
    for some in (table, table.slice(0, 0)):
        assert stage(some).schema.names == ["text", "score", "prose_bucket", "prose_tier"]


def test_a_subclass_adds_the_signals_that_it_declares() -> None:
    class WithMore(ExactDedup):
        signal_types: ClassVar = {**ExactDedup.signal_types, "more": pa.int8()}

    assert WithMore.adds == ("exact_cluster_size", "more")
    assert WithMore()(pa.table({"text": ["a", "b"]})).schema.field("more").type == pa.int8()


def test_categories_of_pandas_are_texts() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": pandas.Categorical(["a mill", "a mill", "two mills"])})
    assert TextSignals()(frame)["words"].tolist() == [2, 2, 2]
    assert ExactDedup()(frame)["text"].tolist() == ["a mill", "two mills"]


def recipe(folder: Path, texts: list[str], *stages: str) -> Path:
    (folder / "in").mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"in/{number}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    path = folder / "r.yaml"
    lines = "".join(f"  - {stage}\n" for stage in stages)
    path.write_text(f"name: r\nparts: {{files: 1}}\nsources: {{a: {{jsonl: {{path: in}}}}}}\nstages:\n{lines}")
    return path


DEDUPS = ("exact_dedup", "minhash_dedup", "simhash_dedup", "paragraph_dedup", "substring_dedup")
SIGNALS = {
    "exact_cluster_size": pa.uint32(), "minhash_cluster": pa.uint64(), "minhash_cluster_size": pa.uint32(),
    "minhash_copies": pa.uint32(), "simhash_cluster": pa.uint64(), "simhash_cluster_size": pa.uint32(),
    "simhash_copies": pa.uint32(), "repeated_paragraphs": pa.int64(), "repeated_share": pa.float64(),
    "repeated_tokens": pa.int64(),
}  # fmt: skip


def test_a_run_without_a_duplicate_writes_the_columns_of_one_with_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_here(monkeypatch)
    for name, texts in (("clean", ["one mill", "two rivers"]), ("hits", ["one mill", "two rivers", "one mill"])):
        (tmp_path / name).mkdir()
        gristmill.run(recipe(tmp_path / name, texts, *DEDUPS, "write"), tmp_path / name / "out")
        files = sorted((tmp_path / name / "out/write").glob("*.parquet"))
        assert len(files) == 2
        for file in files:
            schema = pq.read_schema(file)
            assert {field: schema.field(field).type for field in SIGNALS} == SIGNALS


def test_a_rule_may_look_at_what_a_deduplication_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)
    rule = "keep_where: {signal: exact_cluster_size, at_least: 2}"
    texts = ["one mill", "two rivers", "one mill", "three hills", "one mill"]
    run = gristmill.run(recipe(tmp_path, texts, "exact_dedup", rule, "write"), tmp_path / "out")
    assert [(row["text"], row["exact_cluster_size"]) for row in run.kept()] == [("one mill", 3)]
    assert sorted(row["text"] for row in run.dropped("keep_where")) == ["three hills", "two rivers"]
