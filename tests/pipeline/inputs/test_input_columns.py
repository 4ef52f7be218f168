"""Columns that came with the input, through a whole run."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.errors import RecipeError, RunFailed
from tests.pipeline.runs import go, lines, save


def test_columns_of_a_parquet_file_decide_in_a_run(tmp_path: Path) -> None:
    rows = [
        {
            "text": f"document {i} of cafÃ©s",
            "int_score": i % 6,
            "quality": {"edu": i / 10},
            "lang": "de" if i % 2 else "en",
        }
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
    assert all("cafés" in text for text in written["text"].to_pylist())


RECIPE = "name: kept\nsources: {web: {jsonl: {path: in}}}\nstages:\n%s  - write\n"


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        (
            "  - from_meta: {numbers: [words]}\n  - gopher_quality\n",
            r"yaml:4: from_meta: words is what text_signals measures; .*\{input_words: words\}",
        ),
        ("  - from_meta: {texts: {tokens: lang}}\n", "tokens is what tokenize measures"),
        ("  - from_meta: {numbers: {language: lang}}\n", "language is what language measures"),
        ("  - from_meta: {numbers: [a]}\n  - from_meta: {name: again, numbers: {a: b}}\n", "again: a is there already"),
    ],
)
def test_what_an_input_says_does_not_pass_for_what_is_measured(tmp_path: Path, stages: str, says: str) -> None:
    lines(tmp_path / "in" / "a.jsonl", ["a text"])
    with pytest.raises(RecipeError, match=says):
        go(save(tmp_path / "recipe.yaml", RECIPE % stages), tmp_path / "out")


def test_the_language_of_an_input_need_not_be_found_out_again(tmp_path: Path) -> None:
    rows = [{"text": f"document {i}", "lang": "de" if i % 2 else "en", "sure": 0.9} for i in range(10)]
    lines(tmp_path / "in" / "a.jsonl", []).write_text("".join(json.dumps(row) + "\n" for row in rows))
    brought = "  - from_meta: {texts: {language: lang}, numbers: {language_score: sure}}\n  - keep_languages: {languages: [en]}\n"
    summary, made = go(save(tmp_path / "recipe.yaml", RECIPE % brought), tmp_path / "out")
    assert [stage["name"] for stage in summary.record.to_json()["stages"]] == [
        "web",
        "from_meta",
        "keep_languages",
        "write",
    ] and made
    assert sum(len(pq.read_table(path)) for path in (tmp_path / "out" / "write").glob("*.parquet")) == 5


def test_a_field_that_nobody_has_sounds_an_alarm_and_one_that_some_have_does_not(tmp_path: Path) -> None:
    rows = [{"text": f"document {i}", **({"some": 1} if i == 3 else {})} for i in range(10)]
    lines(tmp_path / "in" / "a.jsonl", []).write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary, _ = go(
        save(tmp_path / "recipe.yaml", RECIPE % "  - from_meta: {numbers: {some: some, none: nope.x}}\n"),
        tmp_path / "out",
    )
    assert summary.alarms == ["from_meta found none in none of 10 documents of web; look at where it is read from"]


def test_a_text_is_no_number(tmp_path: Path) -> None:
    lines(tmp_path / "in" / "a.jsonl", []).write_text('{"text": "a", "topic": "law"}\n')
    stages = "  - from_meta: {texts: [topic]}\n  - keep_where: {signal: topic, at_least: 1}\n"
    with pytest.raises(RunFailed, match="'topic' is of type string, and a number is needed"):
        go(save(tmp_path / "recipe.yaml", RECIPE % stages), tmp_path / "out")
