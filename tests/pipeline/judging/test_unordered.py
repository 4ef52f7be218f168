"""`judge train` with `unordered: true`: labels without an order, from files to a judge and the figures that it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.classifiers.judge import load_judge
from tests.classifiers.labelled import BAD, GOOD, texts_of
from tests.pipeline.judging.test_judging import ask, fails, train, written

KITCHEN = "oven flour yeast bake salt stir onion simmer dough butter spoon recipe garlic taste".split()  # noqa: SIM905
HOSTILE = "[bold]<b>x"


def rows(counts: dict[str, int]) -> list[dict[str, Any]]:
    words = {"science": GOOD, "shop": BAD, "cooking": KITCHEN}
    return [
        {"text": text, "label": label, "url": f"https://{i % 11}.{seed}.example/{i}"}
        for seed, (label, count) in enumerate(counts.items())
        for i, text in enumerate(texts_of(words.get(label, KITCHEN), count, seed))
    ]


def table(path: Path, **counts: int) -> Path:
    pq.write_table(pa.Table.from_pylist(rows(counts)), path)
    return path


@pytest.mark.parametrize("kind", ["linear", "fasttext"])
def test_labels_become_a_judge_with_figures_by_label(tmp_path: Path, kind: str) -> None:
    at = table(tmp_path / "t.parquet", science=80, shop=60, cooking=30)
    kinds: dict[str, object] = {"linear": "linear", "fasttext": {"fasttext": {"epochs": 30}}}
    labelled = {"files": at, "unordered": True}
    result = train(tmp_path / "judge", kind=kinds[kind], labelled=labelled, balance=True, head="topic", hold_out=0.3)
    assert result.exit_code == 0, result.output
    assert (
        "macro-F1" in result.output and "most taken for" in result.output and "languages of the texts" in result.output
    )
    card = load_judge(tmp_path / "judge").card
    (head,) = card.heads
    assert (head.name, head.kind, head.labels) == ("topic", "labels", ("cooking", "science", "shop"))
    metrics = card.metrics["topic"]
    assert metrics["macro_f1"] > 0.8 and sum(metrics["texts_of"].values()) == metrics["texts"] > 20
    assert card.training["balance"] is True and sum(card.training["languages"].values()) == 170


def test_rare_labels_are_left_out_and_counted(tmp_path: Path) -> None:
    at = table(tmp_path / "t.parquet", science=40, shop=40, cooking=3)
    result = train(tmp_path / "a", "--json", labelled={"files": at, "unordered": True})
    facts = json.loads(result.stdout)
    assert facts["heads"][0]["labels"] == ["science", "shop"]
    assert facts["training"]["left_out"] == {"cooking": 3}
    result = train(tmp_path / "b", "--json", labelled={"files": at, "unordered": True, "fewest": 2}, hold_out=0)
    facts = json.loads(result.stdout)
    assert facts["heads"][0]["labels"] == ["cooking", "science", "shop"] and "left_out" not in facts["training"]


def test_languages_are_those_that_the_table_names(tmp_path: Path) -> None:
    named = [row | {"language": "eng_Latn"} for row in rows({"science": 30, "shop": 30})]
    at = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_pylist(named), at)
    result = train(tmp_path / "a", "--json", labelled={"files": at, "unordered": True}, hold_out=0)
    facts = json.loads(result.stdout)
    assert facts["training"]["languages"] == {"eng_Latn": 60}


def test_hostile_labels_are_shown_as_they_are_written(tmp_path: Path) -> None:
    at = table(tmp_path / "t.parquet", science=30, **{HOSTILE: 30})
    result = train(tmp_path / "a", labelled={"files": at, "unordered": True}, hold_out=0.3)
    assert result.exit_code == 0 and HOSTILE in result.output


@pytest.mark.parametrize(
    ("labelled", "message"),
    [
        ({"unordered": True, "classes": ["a", "b"]}, "have no order"),
        ({"unordered": True, "good": "shop"}, "have no order"),
        ({"fewest": 3}, "labelled.fewest: is for `unordered: true`"),
        ({"unordered": True, "fewest": 50}, "0 labels have 50 texts or more"),
        ({}, "say `unordered: true`"),
    ],
)
def test_what_is_refused(tmp_path: Path, labelled: dict[str, Any], message: str) -> None:
    at = table(tmp_path / "t.parquet", science=20, shop=20)
    plan = written(tmp_path / "p.yaml", {"out": "judge", "kind": "linear", "labelled": {"files": at} | labelled})
    assert message in fails("judge", "train", plan)
    assert not (tmp_path / "judge").exists()


def test_the_command_judge_counts_labels_and_writes_them(tmp_path: Path) -> None:
    at = table(tmp_path / "t.parquet", science=40, shop=30)
    trained = train(tmp_path / "judge", labelled={"files": at, "unordered": True}, hold_out=0, head="topic")
    assert trained.exit_code == 0
    shown = ask("judge", "score", tmp_path / "judge", at, "--out", tmp_path / "scores.parquet").stdout
    assert "Texts by label" in shown and "The surest" in shown and "The least sure" in shown
    scores = pq.read_table(tmp_path / "scores.parquet")
    counts = dict(zip(*np.unique(scores["topic"].to_pylist(), return_counts=True), strict=True))
    assert sum(counts.values()) == 70 and counts["science"] > 30 < 20 + counts["shop"]
    assert min(scores["topic_chance"].to_pylist()) >= 0.5 and scores.column_names[-2:] == ["topic", "topic_chance"]
    one = ask(
        "judge",
        "score",
        tmp_path / "judge",
        given="because theory explains the river and the glass",
    )
    assert one.exit_code == 0 and "science" in one.stdout.splitlines()[2]
    facts = json.loads(ask("judge", "score", tmp_path / "judge", at, "--json").stdout)
    assert facts["heads"]["topic"]["labels"] == counts
