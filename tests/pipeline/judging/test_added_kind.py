"""A kind of judge is a module and a line: a plan trains one, its folder is loaded and scores, in commands, in a recipe
and in Python."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import gristmill
from gristmill.classifiers.judge import KINDS, load_judge
from gristmill.pipeline.judging.judge_plan import JudgePlan
from gristmill.stages.judge.judge import unreached_by
from tests.pipeline.judging.test_judging import as_table, ask, fails, labelled_rows

PLAN = {"kind": {"words": {"most": 9}}, "labelled": {"files": "t.parquet", "good": "good"}, "hold_out": 0.4, "out": "j"}


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(KINDS, "words", "tests.classifiers.word_judge:WordJudge")
    as_table(tmp_path / "t.parquet", labelled_rows())


def written(folder: Path, **changes: object) -> Path:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(PLAN | changes, sort_keys=False))
    return path


def test_an_added_kind_is_trained_saved_loaded_and_scores(tmp_path: Path) -> None:
    trained = ask("train-judge", written(tmp_path), "--json")
    assert trained.exit_code == 0, trained.exception
    assert json.loads(trained.stdout)["metrics"]["quality"]["auc"] > 0.9 and "words" in trained.stderr
    judge = load_judge(tmp_path / "j")
    assert judge.card.kind == "words" and len(getattr(judge, "words")) == 9  # noqa: B009 (its class is of this test)
    scored = ask("judge", tmp_path / "j", tmp_path / "t.parquet", "--out", tmp_path / "s.parquet")
    assert scored.exit_code == 0 and pq.read_table(tmp_path / "s.parquet")["quality"].null_count == 0
    stage = gristmill.stages.Judge(judge_path=str(tmp_path / "j"))
    texts = ["because theory explains light", "buy cart"]
    in_recipe = stage(pa.table({"text": texts}))["quality"].to_pylist()
    assert not stage.gpu and in_recipe == gristmill.open_judge(tmp_path / "j").score(texts)["quality"]


def test_a_plan_of_an_added_kind_is_checked_as_any(tmp_path: Path) -> None:
    assert "plan.yaml:3: kind.words.mst: no such field; did you mean most?" in fails(
        "train-judge", written(tmp_path, kind={"words": {"mst": 3}})
    )
    assert "did you mean words?" in fails("train-judge", written(tmp_path, kind="wrods"))
    assert "a words judge has no chance in it" in fails("train-judge", written(tmp_path, seeds=2)).replace(
        "training ", ""
    )
    as_table(tmp_path / "t.parquet", [row | {"label": i / 9} for i, row in enumerate(labelled_rows())])
    told = fails("train-judge", written(tmp_path, labelled={"files": "t.parquet"}))
    assert "kind: a words judge cannot learn decimal numbers; pooled and neural judges can" in told
    kinds = JudgePlan.model_json_schema()["properties"]["kind"]["anyOf"]
    assert {"words"} in [{*one.get("properties", ())} for one in kinds] and "words" in kinds[0]["enum"]


def test_judges_of_other_kinds_do_not_hang_on_an_added_one() -> None:
    assert "tests.classifiers.word_judge" in unreached_by("linear")
    assert "tests.classifiers.word_judge" not in unreached_by("words")
