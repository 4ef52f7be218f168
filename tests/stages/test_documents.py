"""Values of sources as documents hold them."""

from __future__ import annotations

import json

import pyarrow as pa

from gristmill.stages.documents import as_json, column_of


def test_meta_is_json_whatever_a_source_holds() -> None:
    held = {"text": "é".encode(), "digest": b"\xff\x00", "number": float("nan"), "deep": {"list": [b"a", 1]}}
    assert json.loads(as_json(held)) == {"text": "é", "digest": "/wA=", "number": None, "deep": {"list": ["a", 1]}}


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    assert column_of(["a \ud800", None, "b"], pa.string()).to_pylist() == ["a \ufffd", None, "b"]
