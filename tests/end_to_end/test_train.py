"""`gristmill train` from a plan to a result: what is refused before it trains, what a changed file means for a finished
run, and losses that are no numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import GristmillError, RecipeError
from tests.pipeline.ablate.ablation_sets import held_out, make_set, tales

pytest.importorskip("torch")

PLAN = """
name: tiny
sets: sets/plain
model: {hidden: 16, layers: 2, heads: 2, kv_heads: 1, mlp: 32}
training:
  updates: 2
  rows_per_update: 4
  optimizer: {name: adamw, rate: 0.01}
evaluate:
  texts: {prose: {files: prose.parquet}}
  choices: {quiz: {file: quiz.jsonl, score: bits_per_byte}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    make_set(folder / "sets" / "plain", tales(60, 1))
    held_out(folder / "prose.parquet", 4, 4)
    question = {"id": "1", "domain": "d", "context": "the cat", "choices": [" sees.", " qqq."], "answer": 0}
    (folder / "quiz.jsonl").write_text(json.dumps(question))
    return folder


def train(folder: Path, text: str, *options: str) -> Result:
    (folder / "plan.yaml").write_text(text)
    return CliRunner().invoke(app, ["train", str(folder / "plan.yaml"), *options])


@pytest.fixture(scope="module")
def base(folder: Path) -> Path:
    """The folder of a finished run."""
    assert train(folder, PLAN, "--out", str(folder / "base")).exit_code == 0
    return folder / "base"


@pytest.fixture(scope="module")
def windowed(folder: Path) -> Path:
    """That of a finished run with windows: a model of other weights."""
    done = train(folder, PLAN.replace("mlp: 32", "mlp: 32, windows: [0, 8]"), "--out", str(folder / "windows"))
    assert done.exit_code == 0, done.output
    return folder / "windows"


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("  rows_per_update: 4", "  rows_per_update: 4\n  rows_per_step: 3", "rows_per_step 3 does not divide the 4"),
        ("mlp: 32", "mlp: 32, vocabulary: 9", "plan.yaml:4: model: "),
        ("mlp: 32", "mlp: 32, context: 8", "make it with context=64"),
        ("mlp: 32", "mlp: 32, windows: 8", "windows: Input should be a list, not 8"),
        ("prose.parquet", "prose.parquet, text: txt", "evaluate.texts.prose: no column 'txt'"),
        ("quiz.jsonl", "plan.yaml", "plan.yaml:11: evaluate.choices.quiz: "),
        ("{name: adamw, rate: 0.01}", "adamx", "plan.yaml:8: training.optimizer"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would(folder: Path, right: str, wrong: str, says: str) -> None:
    assert PLAN.count(right) == 1
    done = train(folder, PLAN.replace(right, wrong), "--dry-run")
    assert isinstance(done.exception, RecipeError) and says in str(done.exception), done.output
    assert done.exception.exit_code == 2 and len(str(done.exception).splitlines()) == 1


def test_windows_are_given_in_a_plan(windowed: Path) -> None:
    assert json.loads((windowed / "run.json").read_text())["model"]["windows"] == [0, 8]


def test_a_finished_run_is_not_shown_for_other_held_out_texts(folder: Path, base: Path) -> None:
    assert "prose" in train(folder, PLAN, "--out", str(base)).output
    held_out(folder / "prose.parquet", 5, 9)
    with_others = train(folder, PLAN, "--out", str(base))
    assert isinstance(with_others.exception, RecipeError) and "evaluate changed" in str(with_others.exception)
    held_out(folder / "prose.parquet", 4, 4)
    assert train(folder, PLAN, "--out", str(base)).exit_code == 0


def test_a_run_from_a_model_is_not_resumed_from_another_model(folder: Path, base: Path, windowed: Path) -> None:
    model = "model: base/model"
    plan = PLAN.replace(PLAN[PLAN.index("model:") : PLAN.index("\ntraining:")], model)
    out = folder / "more"
    assert train(folder, plan, "--out", str(out)).exit_code == 0
    weights = base / "model" / "model.safetensors"
    weights.write_bytes((windowed / "model" / "model.safetensors").read_bytes())
    finished = train(folder, plan, "--out", str(out))
    assert isinstance(finished.exception, RecipeError) and "model changed" in str(finished.exception)
    (out / "result.json").unlink()  # as of a run that was killed
    killed = train(folder, plan, "--out", str(out))
    assert isinstance(killed.exception, GristmillError) and "initial_weights is" in str(killed.exception)


def test_a_loss_that_is_no_number_ends_in_words(folder: Path) -> None:
    rate = "{name: adamw, rate: 1.0e+30, clip: 1.0e+30}\n  metrics_every: 1\n  guard: {in_a_row: 3}"
    plan = PLAN.replace("{name: adamw, rate: 0.01}", rate).replace("updates: 2", "updates: 9")
    done = train(folder, plan, "--out", str(folder / "nan"))
    assert isinstance(done.exception, GristmillError) and "3 updates in a row were refused" in str(done.exception)
    lines = [json.loads(line) for line in (folder / "nan" / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] is None for line in lines][:2] == [False, True]


def test_a_misspelt_shape_of_an_ablation_names_its_line(folder: Path) -> None:
    make_set(folder / "sets" / "arm", tales(60, 2))
    plan = folder / "ablation.yaml"
    plan.write_text(
        "name: tiny\nsets: {plain: sets/plain, other: sets/arm}\ncontrol: {plain: 1}\narms: {other: other}\n"
        "protocol: from_scratch\nshape: {hiden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 32}\ntokens: 512\n"
        "training: {rate: 0.01, rows_per_update: 4}\n"
        "evaluate: {texts: {prose: {files: prose.parquet}}, target: prose}\n"
    )
    done = CliRunner().invoke(app, ["ablate", str(plan), "--dry-run"])
    assert isinstance(done.exception, RecipeError), done.output
    assert "ablation.yaml:6: shape.hiden: no such field; did you mean hidden?" in str(done.exception)
