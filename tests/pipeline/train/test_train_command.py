"""`gristmill train`: a plan is checked, trained, measured; killed it goes on; several ranks give what one gives."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.train import plan as plans
from gristmill.pipeline.train.trial import Trial
from tests.pipeline.ablate.ablation_sets import held_out, make_set, tales

pytest.importorskip("torch")

PLAN = """
name: tales
sets:
  plain: sets/plain
  other: sets/other
mix: {plain: 3, other: 1}
model: {hidden: 16, layers: 2, heads: 2, kv_heads: 1, mlp: 32, tied: true}
tokens: 20480
training:
  rows_per_update: 8
  rows_per_step: 4
  optimizer: {name: adamw, rate: 0.01}
  checkpoint_every: 10
  metrics_every: 10
evaluate:
  texts: {prose: {files: prose.parquet}}
  choices: {quiz: {file: quiz.jsonl, score: bits_per_byte}}
  every: 20
"""
COMMAND = [sys.executable, "-m", "gristmill.pipeline.cli.app", "train"]
SLOWER = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "MKL_CBWR": "AUTO"}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    make_set(folder / "sets" / "plain", tales(400, 1))
    make_set(folder / "sets" / "other", tales(200, 2))
    held_out(folder / "prose.parquet", 40, 4)
    question = {"id": "1", "domain": "d", "context": "the cat", "choices": [" sees.", " qqq."], "answer": 0}
    (folder / "quiz.jsonl").write_text("".join(json.dumps({**question, "id": str(i)}) + "\n" for i in range(3)))
    (folder / "plan.yaml").write_text(PLAN)
    return folder / "plan.yaml"


def run(*args: object) -> Result:
    done = CliRunner().invoke(app, ["train", *map(str, args)])
    assert done.exit_code == 0, done.output
    return done


def start(*args: object, session: bool = False) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": session}
    return subprocess.Popen([*COMMAND, *map(str, args)], env=os.environ | SLOWER, text=True, **pipes)


def metrics(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timed = ("seconds", "tokens_per_second", "flops", "memory", "joules", "mfu")
    return [{k: v for k, v in line.items() if not any(word in k for word in timed)} for line in lines]


@pytest.fixture(scope="module")
def alone(plan: Path) -> Path:
    out = plan.parent / "alone"
    said = run(plan, "--out", out, "--json")
    result = json.loads(said.stdout)
    assert result["updates"] == 40 and result["ranks"] == 1 and result["model"] == str(out / "model")
    assert {"prose", "quiz"} == {*result["evaluation"]} and 0 < result["evaluation"]["prose"] < 8
    events = [json.loads(line) for line in said.stderr.splitlines() if line.startswith("{")]
    assert [line["step"] for line in events if "loss" in line] == [10, 20, 30, 40]
    assert [line["step"] for line in events if "evaluation.prose" in line] == [20, 40]
    assert (out / "model" / "model.safetensors").is_file() and (out / "model" / "tokenizer.json").is_file()
    assert not (out / "checkpoints").exists()
    return out


def test_done_is_not_done_again(plan: Path, alone: Path) -> None:
    before = (alone / "metrics.jsonl").stat().st_mtime_ns
    shown = run(plan, "--out", alone).stdout
    assert "last loss" in shown and "prose" in shown
    assert (alone / "metrics.jsonl").stat().st_mtime_ns == before
    other = plan.with_name("longer.yaml")
    other.write_text(PLAN.replace("20480", "40960"))
    with pytest.raises(RecipeError, match="training changed"):
        CliRunner().invoke(app, ["train", str(other), "--out", str(alone)], catch_exceptions=False)


def test_stopped_it_goes_on_to_the_same_end(plan: Path, alone: Path) -> None:
    out = plan.parent / "stopped"
    process = start(plan, "--out", out)
    deadline = time.monotonic() + 120
    while not [*out.glob("checkpoints/*/*")] and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate()
    if process.returncode:  # it was not quicker than we
        assert process.returncode == 130 and said.splitlines()[-1].endswith("Run the same command to resume"), said
    resumed = run(plan, "--out", out)
    assert "100%  update 40 of 40  loss " in resumed.stderr and "update 40 of 40  prose " in resumed.stderr
    assert metrics(out) == metrics(alone)
    theirs, ours = (json.loads((folder / "result.json").read_text()) for folder in (alone, out))
    assert ours["loss"] == theirs["loss"] and ours["evaluation"] == theirs["evaluation"]


def test_ranks_that_are_terminated_leave_a_checkpoint_and_one_line(plan: Path) -> None:
    """SIGTERM to the command's whole process group, as `timeout` sends it."""
    out, longer = plan.parent / "two", plan.with_name("two.yaml")
    longer.write_text(PLAN.replace("20480", "2048000"))
    process = start(longer, "--out", out, "--ranks", 2, session=True)
    deadline = time.monotonic() + 120
    while not [*out.glob("checkpoints/*/*")] and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    stopped = [line for line in said.splitlines() if "Run the same command to resume" in line]
    assert len(stopped) == 1 and re.match(r"SIGTERM after [\d,]+ of 4,000 updates; a checkpoint is in ", stopped[0])
    assert "Traceback" not in said and "leaked" not in said
    assert [*out.glob("checkpoints/*")] and not (out / "result.json").exists()


@pytest.mark.parametrize("layout", ["context: 2, zero: 2", "pipeline: 2, pipeline_schedule: zb1p"])
def test_two_ranks_that_share_rows_learn_what_one_learns(plan: Path, alone: Path, layout: str) -> None:
    """`parallel: auto` keeps what is set, and chooses the rest."""
    out, shared = plan.parent / layout[:4], plan.with_name(f"{layout[:4]}.yaml")
    lines = "".join(f"  {line}\n" for line in layout.split(", "))
    if "context" in layout:
        shared.write_text(PLAN.replace("  rows_per_step: 4\n", lines) + "parallel: auto\n")
    else:
        shared.write_text(PLAN.replace("  rows_per_step: 4\n", "  rows_per_step: 4\n" + lines))
    process = start(shared, "--out", out, "--ranks", 2, "--json")
    printed, said = process.communicate()
    assert process.returncode == 0, said
    result = json.loads(printed.splitlines()[-1])
    theirs = json.loads((alone / "result.json").read_text())
    assert result["ranks"] == 2 and (result["tokens"], result["counted"]) == (theirs["tokens"], theirs["counted"])
    assert result["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    assert result["evaluation"]["prose"] == pytest.approx(theirs["evaluation"]["prose"], rel=1e-4)


def test_a_layout_is_planned_for_cards_that_are_elsewhere(plan: Path) -> None:
    far = plan.with_name("far.yaml")
    cards = "parallel: auto\ncards: {count: 4, per_host: 2, memory_gb: 80}\n"
    far.write_text(PLAN.replace("  rows_per_step: 4\n", "") + cards)
    shown = " ".join(run(far, "--dry-run").stdout.split())
    assert "4 cards of 80 GB, 2 hosts of 2" in shown and "layouts considered; 0 are faster" in shown
    assert "recompute none, zero 0" in shown and "ranks 4" in shown

    def refused(text: str, *options: str) -> str:
        far.write_text(text)
        with pytest.raises(RecipeError) as error:
            CliRunner().invoke(app, ["train", str(far), *options], catch_exceptions=False)
        return str(error.value)

    assert "far.yaml:20: cards: count is 4, the run has 1; --dry-run plans for others" in refused(PLAN + cards)
    twice = refused(PLAN + cards, "--dry-run", "--ranks", "2")
    assert "far.yaml: cards: count is 4, --ranks says 2; leave one of them out" in twice
    assert "cards.memory: no such field; did you mean memory_gb?" in refused(
        PLAN + cards.replace("memory_gb", "memory")
    )
    assert "are for `parallel: auto`" in refused(PLAN + cards.partition("\n")[2])
    small = cards.replace("count: 4, per_host: 2", "count: 1").replace("80", "0.00001")
    assert "fit no layout of 1 cards of 0 GB" in refused(PLAN + small)


def test_goes_on_from_a_model_in_the_order_of_one_set(plan: Path, alone: Path) -> None:
    more = plan.with_name("more.yaml")
    text = PLAN.replace("  other: sets/other\nmix: {plain: 3, other: 1}\n", "order: as_written\n")
    text = text[: text.index("model:")] + f"model: {alone / 'model'}\n" + text[text.index("tokens:") :]
    more.write_text(text)
    first = metrics(alone)[0]["loss"]
    run(more, "--out", plan.parent / "more")
    assert metrics(plan.parent / "more")[0]["loss"] < first - 0.5


def test_dry_run_says_what_it_takes(plan: Path) -> None:
    said = run(plan, "--dry-run").stdout
    assert "40 updates of 8 rows of 64: 20,480 tokens" in said
    assert "set plain" in said and "75.0% of the tokens" in said and "memory of a rank" in said
    assert re.search(r"time  +about .* here: training .*, measuring .* \(2 times\), starting ", said), said
    often = plan.with_name("often.yaml")
    often.write_text(PLAN.replace("  every: 20", "  every: 1"))
    shown = run(often, "--dry-run")
    assert re.search(r"measuring .* \(40 times\), starting ", shown.stdout), shown.stdout
    assert "not estimated: a trial needs all 2 ranks" in run(plan, "--dry-run", "--ranks", 2).stdout


def test_dry_run_warns_where_measuring_takes_longer_than_training(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(
        start=1.0, row=0.01, update=0.0, token=1.0, tokens={"held_out": 100}, tokens_on_the_way=0, seconds=0.0
    )
    monkeypatch.setattr("gristmill.pipeline.train.trial.try_job", lambda job: trial)
    shown = run(plan, "--dry-run").stderr
    assert (
        "warning  measuring would take" in shown
        and "measure less often (evaluate.every: 20), or on fewer of held_out" in (" ".join(shown.split()))
    )
    monkeypatch.setattr("gristmill.pipeline.train.trial.try_job", lambda job: replace(trial, token=0.0))
    assert "warning" not in run(plan, "--dry-run").stderr


@pytest.mark.parametrize(
    ("wrong", "right", "says"),
    [
        ("rows_per_step: 4", "rows_per_stepp: 4", "training.rows_per_stepp: no such field; did you mean rows_per_step"),
        ("rate: 0.01", "rat: 0.01", "training.optimizer"),
        ("tokens: 20480\n", "", "either `tokens` or `training.updates`"),
        ("{plain: 3, other: 1}", "{plain: 3, othr: 1}", "did you mean other"),
        ("name: tales", "name: ../tales", "letters, digits"),
        (
            "rows_per_update: 8\n",
            "rows_per_update: 0\n",
            "wrong.yaml:10: training.rows_per_update: Input should be greater than or equal to 1, not 0",
        ),
        (
            "rows_per_update: 8\n",
            "rows_per_updat: 8\n",
            "wrong.yaml:10: training.rows_per_updat: no such field; did you mean rows_per_update?",
        ),
        (
            "tokens: 20480\ntraining:\n",
            "training:\n  update: 5\n",
            "training.update: no such field; did you mean updates?",
        ),
        ("mix:", "order: segments\nmix:", "has no segments"),
        ("sets/other", "sets/nowhere", "sets.other"),
        ("prose.parquet", "nothing.parquet", "nothing.parquet"),
        ("quiz.jsonl", "nothing.jsonl", "no such file"),
        ("{hidden: 16,", "{hiden: 16,", "wrong.yaml:7: model.hiden: no such field; did you mean hidden?"),
        ("{hidden: 16,", "{dim: 16,", "wrong.yaml:7: model.dim: no such field; there are vocabulary, hidden, layers"),
        ("{hidden: 16,", "{dim: 16,", "wrong.yaml:7: model: hidden is missing"),
        ("heads: 2,", "heads: 3,", "wrong.yaml:7: model: 3 heads do not share"),
        ("sets/other", "sets", "wrong.yaml:5: sets.other: "),
        ("sets/other", "sets", "2 sets of shards fit; name one of "),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(plan: Path, wrong: str, right: str, says: str) -> None:
    from gristmill.pipeline.train.run import prepare

    assert PLAN.count(wrong) == 1
    other = plan.with_name("wrong.yaml")
    other.write_text(PLAN.replace(wrong, right))
    with pytest.raises(RecipeError, match=r"wrong\.yaml|evaluate") as error:
        prepare(plans.load(other), on_gpu=False)
    assert says in str(error.value)
