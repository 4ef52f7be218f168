"""`losses` of a judge's plan: from losses and scores to a judge that finds the planted kind of text."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner, Result

from gristmill.classifiers.judge import load_judge
from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.judging import judge_plan
from gristmill.pipeline.judging.predictive import lesson_of_losses
from tests.classifiers.labelled import BAD, GOOD, texts_of

MODELS = [f"model-{m}" for m in range(10)]


def write_tables(folder: Path, **more: Any) -> tuple[str, str]:
    """Better models have lower losses on texts of one vocabulary, and higher on the other's."""
    random = np.random.default_rng(0)
    texts = texts_of(GOOD, 150, 1) + texts_of(BAD, 150, 2)
    useful = np.array([1.0] * 150 + [-1.0] * 150)
    skill = random.normal(size=len(MODELS))
    columns: dict[str, Any] = {"text": texts, "url": [f"https://host{i % 40}.example/{i}" for i in range(300)]}
    columns["kind"] = ["a"] * 150 + ["b"] * 150
    for model, of_model in zip(MODELS, skill, strict=True):
        losses = 1 - 0.1 * useful * of_model + 0.02 * random.normal(size=300)
        columns[f"loss:{model}"] = pa.array(losses, mask=np.arange(300) == 7)
    pq.write_table(pa.table(columns | more), folder / "losses.parquet")
    rows = [f"{model},{of_model},{2 * of_model + 0.1}" for model, of_model in zip(MODELS, skill, strict=True)]
    (folder / "scores.csv").write_text("\n".join(["model,quiz,code", *rows, "unmeasured,1,1"]), encoding="utf-8")
    return str(folder / "losses.parquet"), str(folder / "scores.csv")


def plan_in(folder: Path, losses: str, scores: str, **more: Any) -> Path:
    facts = {"out": "judge", "kind": "linear", "losses": {"files": losses, "scores": scores, **more}}
    (folder / "plan.yaml").write_text(yaml.safe_dump(facts))
    return folder / "plan.yaml"


def train(plan: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["judge", "train", str(plan), *words])


@pytest.mark.parametrize(("estimator", "by"), [("correlation", None), ("match", None), ("correlation", "kind")])
def test_a_judge_learns_the_documents_that_predict_scores(estimator: str, by: str | None, tmp_path: Path) -> None:
    plan = plan_in(tmp_path, *write_tables(tmp_path), estimator=estimator, by=by, share=0.3)
    result = train(plan, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)["training"]["selection"]
    assert facts["models"] == MODELS and facts["tasks"] == ["quiz", "code"] and facts["estimator"] == estimator
    assert (facts["documents"], facts["without_losses"], facts["pairs_left_out"]) == (299, 1, 45)
    assert facts["groups"] == (2 if by else 299) and facts["found_by_chosen"] > 0.9
    learnt = pq.read_table(tmp_path / "judge.predictive.parquet")
    assert learnt.num_rows == facts["good"] + facts["bad"] and min(facts["good"], facts["bad"]) > 70
    assert {"text", "url", "label", "predictive"} <= {*learnt.column_names}
    judge = load_judge(tmp_path / "judge")
    assert judge.card.training["selection"] == facts and judge.card.heads[0].name == "predictive"
    assert f"45 pairs of models left out the choice finds the better in {facts['found_by_chosen']:.0%}" in (
        tmp_path / "judge/judge.json"
    ).read_text(encoding="utf-8")
    fresh = pa.array(texts_of(GOOD, 30, 5) + texts_of(BAD, 30, 6), pa.large_string())
    marks = np.asarray(next(iter(judge.score(fresh).values())))
    assert (marks[:30] > 0.5).mean() > 0.9 and (marks[30:] < 0.5).mean() > 0.9


def test_a_selection_that_predicts_nothing_says_so(tmp_path: Path) -> None:
    losses, scores = write_tables(tmp_path)
    rows = [f"{model},{score}" for model, score in zip(MODELS, np.random.default_rng(1).normal(size=10), strict=True)]
    Path(scores).write_text("\n".join(["model,quiz", *rows]), encoding="utf-8")
    result = train(plan_in(tmp_path, losses, scores))
    assert result.exit_code == 0 and "of 299 documents; 1 lack a loss. Of 45 pairs" in result.stdout
    assert "do not trust this selection" in result.stdout


def test_the_order_of_documents_changes_nothing(tmp_path: Path) -> None:
    losses, scores = write_tables(tmp_path)
    table = pq.read_table(losses)
    turned = tmp_path / "turned.parquet"
    pq.write_table(table.take(np.random.default_rng(3).permutation(len(table))), turned)
    found = []
    for path in (losses, str(turned)):
        loaded = judge_plan.load(plan_in(tmp_path, path, scores))
        assert loaded.plan.losses is not None
        found.append(lesson_of_losses(loaded, loaded.plan.losses))
    (first, chosen), (second, again) = found
    assert first.facts == second.facts and chosen.equals(again) and chosen.num_rows > 40


def test_what_is_wrong_is_said_before_any_training(tmp_path: Path) -> None:
    losses, scores = write_tables(tmp_path)
    few = tmp_path / "few.csv"
    few.write_text("model,quiz\nmodel-0,1\nmodel-1,2\n", encoding="utf-8")
    words = tmp_path / "words.csv"
    words.write_text("model,quiz\nmodel-0,high\n", encoding="utf-8")
    for table, by, said in (
        (str(few), "kind", "2 models have both scores and a column"),
        (str(words), "kind", "row 2: expected a number a task"),
        (str(tmp_path / "none.csv"), "kind", "cannot be read"),
        (scores, "domain", "no column 'domain'"),
    ):
        result = train(plan_in(tmp_path, losses, table, by=by))
        assert isinstance(result.exception, RecipeError) and said in str(result.exception)
        assert str(result.exception).startswith(f"{tmp_path}/plan.yaml:")
    assert not (tmp_path / "judge").exists()
