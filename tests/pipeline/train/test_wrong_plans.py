"""Forty wrong plans of `train` and `ablate`: each is answered in one line with file, line and field, by `--dry-run` and
by the run alike, and none reaches a rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import GristmillError
from tests.pipeline.ablate.ablation_sets import held_out, make_set, tales

pytest.importorskip("torch")

TRAIN = """\
name: tales
sets: {plain: plain}
order: shuffled
model: {hidden: 16, layers: 2, heads: 2, kv_heads: 1, mlp: 32}
tokens: 20480
training: {rows_per_update: 8}
evaluate:
  texts: {prose: {files: prose.parquet}}
  choices: {quiz: {file: quiz.jsonl}}
"""
ABLATE = """\
name: tales
sets: {plain: plain, other: other}
control: plain
arms: {other: other}
protocol: from_scratch
shape: {hidden: 16, layers: 2, heads: 2, kv_heads: 1, mlp: 32}
tokens: 20480
training: {rows_per_update: 8, rate: 0.01}
evaluate:
  texts: {prose: {files: prose.parquet}}
  target: prose
"""
STEP = "training: {rows_per_update: 8"
EXPERTS = "mlp: 32, experts: {number: 4, active: 2, width: 16}}"

# What is asked for in `training` over so many ranks, the field, and a part of the answer. All of both commands.
LAYOUTS = [
    (2, "tensor: 2", "tensor", "2 ranks cannot share 1 kv_heads equally; take tensor 1"),
    (2, "tensor: 2, zero: 2", "zero", "zero 2 does not go with tensor 2: take zero 1, or tensor 1"),
    (2, "optimizer: {name: muon, rate: 0.01}, zero: 3", "zero", "which Muon needs whole: take zero 1, or adamw"),
    (4, "pipeline: 4", "pipeline", "4 stages need a block each, and the model has 2; take pipeline 1 or 2"),
    (2, "pipeline: 2, pipeline_schedule: interleaved", "pipeline_schedule", "has 4 stages, the model 2 blocks"),
    (3, "zero: 1", "rows_per_update", "cannot be shared equally by 3 ranks; take 9"),
    (2, "rows_per_step: 3", "rows_per_step", "does not divide the 4 rows that a rank has of an update; take 2 or 4"),
    (2, "experts: 2", "experts", "the model has none: take experts 1"),
    (2, "context: 4", "context", "2 ranks cannot be cut into groups of 4 that share each row; take context 1 or 2"),
    (2, "replicas: 3", "replicas", "2 ranks cannot be cut into 3 replicas; take replicas 1 or 2"),
    (2, "tensor: 2, linears: fp8, precision: bf16", "linears", "do not go with tensor 2: take 'bf16', or tensor 1"),
    (2, "pipeline: 2, zero: 2", "pipeline", "pipeline 2 goes with zero 0 or 1 in its stages, not 2"),
]
WRONG_TRAIN = [
    ((STEP, f"{STEP}, rate: 0.01, optimizer: {{name: adamw}}"), "plan.yaml:6: training.rate: belongs to `optimizer`"),
    ((STEP, f"{STEP}, patience: 2"), "plan.yaml:6: training.patience: follows `evaluate.target`, which is missing"),
    (
        ("evaluate:", "evaluate:\n  target: prse"),
        "plan.yaml:8: evaluate.target: nothing that is evaluated is called prse",
    ),
    (("order: shuffled", "order: segments"), "plan.yaml:3: order: "),
    (("order: shuffled", "order: {warmup: {share: 0.1}}"), "plan.yaml:3: order: no such order; did you mean warm_up?"),
    (("mlp: 32", "mlp: 32, windows: 16"), "plan.yaml:4: model.windows: Input should be a list, not 16"),
    (("order: shuffled", "ranks: 0"), "plan.yaml:3: ranks: Input should be greater than or equal to 1"),
    (
        (STEP, f"{STEP}, schedule: cosine"),
        "plan.yaml:6: training.schedule: `advised`, or settings such as {kind: cosine}",
    ),
]
WRONG_ABLATE = [
    (
        ("arms: {other: other}", "arms: {other: {order: shuffled}}"),
        "plan.yaml:4: arms.other: is the mix of the control",
    ),
    (("arms: {other: other}", "arms: {other: {mix: other, ordr: 1}}"), "plan.yaml:4: arms.other.ordr: no such field"),
    (
        ("arms: {other: other}", "arms: {other: {training: {zero: 2}}}"),
        "plan.yaml:4: arms.other.training.zero: is the same",
    ),
    ((", rate: 0.01", ", rate: 0.01, updates: 5"), "plan.yaml:8: training.updates: `tokens` says how long a run is"),
    ((", rate: 0.01", ", rate: 0.01, patience: 2, average: 2"), "plan.yaml:8: training.patience: "),
    (
        ("mlp: 32", "mlp: 32, windows: [16, -1]"),
        "plan.yaml:6: shape.windows.1: Input should be greater than or equal to 0, not -1",
    ),
    (("tokens: 20480", "tokens: 20480\ncards: {count: 2}"), "plan.yaml:8: cards: are for `parallel: auto`"),
    (("tokens: 20480", "tokens: 20480\nhopeless: 1"), "plan.yaml:8: hopeless: Input should be greater"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    make_set(folder / "plain", tales(40, 1))
    make_set(folder / "other", tales(40, 2))
    held_out(folder / "prose.parquet", 30, 4)
    question = {"id": "1", "domain": "d", "context": "the cat", "choices": [" sees.", " qqq."], "answer": 0}
    (folder / "quiz.jsonl").write_text(json.dumps(question) + "\n")
    return folder


def refusals(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, text: str) -> list[str]:
    """What `--dry-run` and the run say; neither starts a rank."""
    for place in ("train.ranks.run_ranks", "train.run.train_job", "ablate.work.train_job", "train.trial.try_out"):
        monkeypatch.setattr(f"gristmill.pipeline.{place}", lambda *_, **__: pytest.fail("a rank was reached"))
    plan = folder / "plan.yaml"
    plan.write_text(text)
    options = ["--workers", "0"] if command == "ablate" else []
    found = []
    for more in (["--dry-run"], []):
        with pytest.raises(GristmillError) as error:
            CliRunner().invoke(app, [command, str(plan), *options, *more], catch_exceptions=False)
        found.append(str(error.value))
    return found


@pytest.mark.parametrize("command", ["train", "ablate"])
@pytest.mark.parametrize(("ranks", "asked", "field", "message"), LAYOUTS)
def test_a_layout_that_a_run_refuses_is_refused_before_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, ranks: int, asked: str, field: str, message: str
) -> None:
    text = TRAIN if command == "train" else ABLATE
    if "optimizer" in asked:
        text = text.replace(", rate: 0.01", "")
    line = 8 if command == "ablate" else 6
    for said in refusals(folder, monkeypatch, command, text.replace(STEP, f"{STEP}, {asked}") + f"ranks: {ranks}\n"):
        assert f"plan.yaml:{line}: training.{field}: " in said and message in said and "\n" not in said


@pytest.mark.parametrize(
    ("command", "change", "message"),
    [
        *(("train", change, message) for change, message in WRONG_TRAIN),
        *(("ablate", change, message) for change, message in WRONG_ABLATE),
    ],
)
def test_a_wrong_plan_is_answered_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, change: tuple[str, str], message: str
) -> None:
    text = TRAIN if command == "train" else ABLATE
    assert text.count(change[0]) == 1
    for said in refusals(folder, monkeypatch, command, text.replace(*change)):
        assert message in said and "\n" not in said
