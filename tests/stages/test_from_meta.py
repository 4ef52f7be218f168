"""Columns and fields of an input as signals."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages import FromMeta


def brought(stage: FromMeta, *metas: Any) -> dict[str, list[Any]]:
    batch = pa.record_batch(
        {"meta": pa.array([None if meta is None else json.dumps(meta) for meta in metas], pa.string())}
    )
    table = stage(batch)
    assert table.num_rows == len(metas)
    return {name: table[name].to_pylist() for name in stage.added}


def test_numbers_are_read_as_they_are_written() -> None:
    stage = FromMeta(numbers=["score"])
    given = [1, 0.5, "0.25", " 3e2 ", True, False, "high", None, {}, [1], "nan", "1_000", "٣", 10**400, ""]
    found = brought(stage, *({"score": value} for value in given), {}, None)["score"]
    assert found == [1, 0.5, 0.25, 300, 1, 0] + [None] * 11
    assert stage(pa.record_batch({"meta": pa.array(["{}"])}))["score"].type == pa.float64()


def test_paths_lead_into_objects_and_names_with_dots_come_first() -> None:
    stage = FromMeta(numbers={"edu": "quality.edu.score"}, texts={"topic": "labels.topic"})
    found = brought(
        stage,
        {"quality": {"edu": {"score": 4}}, "labels": {"topic": "law"}},
        {"quality.edu.score": 3, "quality": {"edu": {"score": 4}}},
        {"quality": 5, "labels": {"topic": 7}},
        {"labels": {"topic": ["a"]}},
        {"quality": {"edu.score": 2}, "labels": {"topic": math.nan}},
    )
    assert found == {"edu": [4, 3, None, None, 2], "topic": ["law", None, "7", None, None]}


def test_json_that_no_reader_writes_has_no_signals() -> None:
    stage = FromMeta(numbers=["a"], texts={"b": "b"})
    metas = ['{"a": ' + "1" * 5000 + "}", "[" * 100_000, "[1]", "null", "", '{"a": 1, "b": "\\ud800"}']
    found = stage(pa.record_batch({"meta": pa.array(metas, pa.string())}))
    assert found["a"].to_pylist() == [None] * 5 + [1] and found["b"].to_pylist() == [None] * 5 + ["\ufffd"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "numbers, texts or both"),
        ({"numbers": ["text"]}, "column of every document"),
        ({"numbers": ["a"], "texts": ["a"]}, "of one name"),
        ({"numbers": ["quality.edu"]}, "pattern"),
        ({"numbers": {"Edu": "edu"}}, "pattern"),
        ({"numbers": [{"edu": "quality.edu"}]}, "a list is of names"),
        ({"numbers": ["edu", "edu"]}, "each once"),
    ],
)
def test_what_cannot_be_a_signal_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        FromMeta(**given)
