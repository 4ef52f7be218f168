"""An ablation from a plan to a verdict: small decoders really trained, arms that fail, kills, and what is not done
twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gristmill.mixing.weights import tables
from gristmill.mixing.weights.supply import Supply
from gristmill.pipeline.ablate import work
from gristmill.pipeline.ablate.jobs import Job
from gristmill.pipeline.ablate.plan import load
from gristmill.pipeline.ablate.run import run
from gristmill.pipeline.ablate.show import AblationUi
from gristmill.pipeline.ablate.work import JobResult, carry_out
from gristmill.pipeline.ablate.workers import Crew
from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.stages.blend.methods import Utilimax, choose
from tests.pipeline.ablate.ablation_sets import make_plan, make_set, tales
from tests.stages.blend.tables_as_csv import save_utilities

HERE = Crew(0, 1)


class Counting:
    """The real work, and which jobs it did."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []

    def __call__(self, job: Job) -> JobResult:
        self.done.append((job["arm"], job["seed"]))
        return carry_out(job)


def go(plan: Path, out: Path, doing: Any = carry_out, only: str | None = None) -> dict[str, Any]:
    with (plan.parent / "said.txt").open("a") as said:
        return run(load(plan), out, HERE, AblationUi(out, said), only, doing)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Two arms and a control, 2 seeds: 7 runs."""
    folder = tmp_path_factory.mktemp("finished")
    questions = [
        {"id": str(i), "domain": "d", "context": "the cat", "choices": [" sees", " xqzj"], "answer": 0}
        for i in range(4)
    ]
    (folder / "quiz.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    plan = make_plan(folder)
    plan.write_text(
        plan.read_text().replace("  target: prose", "  choices: {quiz: {file: quiz.jsonl}}\n  target: prose")
    )
    return plan, go(plan, folder / "out")


def test_every_arm_has_a_verdict_and_every_run_its_figures(finished: tuple[Path, dict[str, Any]]) -> None:
    plan, record = finished
    assert record["status"] == "done" and [arm["name"] for arm in record["arms"]] == ["clean", "noise"]
    assert all(
        arm["verdict"]["word"] in ("adopt", "reject", "inconclusive") and arm["seeds"] == [0, 1]
        for arm in record["arms"]
    )
    assert [(job["arm"], job["seed"]) for job in record["jobs"]] == [
        (arm, seed) for seed in (0, 1) for arm in ("control", "clean", "noise")
    ]
    assert all(
        job["status"] == "done" and job["tokens"] > 5000 and job["updates"] == 20
        for job in [record["base"], *record["jobs"]]
    )
    assert record["cost"]["jobs"] == 7 and record["cost"]["tokens"] == sum(
        job["tokens"] for job in [record["base"], *record["jobs"]]
    )
    assert json.loads((plan.parent / "out" / "ablation.json").read_text()) == record


def test_measures_are_the_sets_their_domains_and_choices(finished: tuple[Path, dict[str, Any]]) -> None:
    _, record = finished
    found = {
        measure["task"]: (measure["role"], measure["better"], measure["items"], measure["clusters"])
        for measure in record["measures"]
    }
    assert found == {
        "prose": ("target", "lower", 60, 30), "prose/long": ("target", "lower", 30, 15), "prose/short": ("target", "lower", 30, 15),
        "general": ("guard", "lower", 60, 30), "quiz": ("reported", "higher", 4, 4),
    }  # fmt: skip
    assert all([d["task"] for d in arm["differences"]] == list(found) for arm in record["arms"])


def test_a_score_is_that_of_its_items(finished: tuple[Path, dict[str, Any]]) -> None:
    plan, record = finished
    by_seed = next(measure for measure in record["measures"] if measure["task"] == "prose")["control"]["by_seed"]
    arm = next(d for d in record["arms"][1]["differences"] if d["task"] == "prose")["by_seed"]
    for seed in ("0", "1"):
        scores = []
        for name in ("control", "noise"):
            items = pq.read_table(plan.parent / "out" / "jobs" / name / f"seed-{seed}" / "items.parquet").to_pandas()
            mine = items[items["set"] == "prose"]
            scores.append(mine["value"].sum() / mine["size"].sum())
        assert scores[0] == pytest.approx(by_seed[seed]) and scores[1] - scores[0] == pytest.approx(arm[seed])


def test_runs_of_one_seed_begin_with_one_base_and_differ_by_their_data(finished: tuple[Path, dict[str, Any]]) -> None:
    plan, record = finished
    losses = {(job["arm"], job["seed"]): job["loss"] for job in record["jobs"]}
    assert len(set(losses.values())) == 6
    assert (
        not list((plan.parent / "out" / "jobs").glob("*/*/model")) and (plan.parent / "out" / "base" / "model").is_dir()
    )
    lines = [json.loads(line) for line in (plan.parent / "out" / record["jobs"][0]["metrics"]).read_text().splitlines()]
    assert sum("evaluation.target_bits_per_byte" in line for line in lines) == 2 and any(
        "loss" in line for line in lines
    )


def test_shares_and_epochs_are_stated(finished: tuple[Path, dict[str, Any]]) -> None:
    _, record = finished
    clean = record["arms"][0]
    assert clean["weights"] == pytest.approx({"default": 0.5, "clean": 0.5})
    assert clean["epochs"]["clean"] == pytest.approx(0.5 * 20 * 8 / record["sets"]["clean"]["rows"], rel=0.01)
    assert any("2 seeds" in warning for warning in record["warnings"])


def test_mix_reads_what_an_ablation_wrote(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """The loop is closed: more of what helped, less of what did not."""
    plan, record = finished
    utilities = tables.utilities((plan.parent / "out" / "utilities.csv").read_text())
    assert utilities.sources == ("clean", "noise") and utilities.tasks == ("prose/long", "prose/short", "quiz")
    long = next(d for d in record["arms"][0]["differences"] if d["task"] == "prose/long")
    assert utilities.values_NT[0, 0] == -long["difference"] and (utilities.errors_NT[:, :2] > 0).all()
    supply = Supply.of({"clean": 1e6, "noise": 1e6}, budget=1e6)
    prose = save_utilities(tmp_path / "prose.csv", utilities.of_tasks(("prose/long", "prose/short")))
    chosen = choose(supply, Utilimax(utilities_file=prose, noise="flag", aversion=0.1))
    assert chosen.weights_N[0] > chosen.weights_N[1]


def test_what_is_done_is_not_done_again(finished: tuple[Path, dict[str, Any]]) -> None:
    plan, record = finished
    counting = Counting()
    again = go(plan, plan.parent / "out", counting)
    assert counting.done == [] and again["arms"] == record["arms"]


def test_a_new_seed_runs_alone_and_a_changed_setting_runs_all(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    plan, _ = finished
    folder = shutil.copytree(plan.parent, tmp_path / "copy")
    changed, counting = folder / "plan.yaml", Counting()
    changed.write_text(plan.read_text().replace("seeds: 2", "seeds: [0, 1, 7]"))
    assert len(go(changed, folder / "out", counting)["arms"][0]["seeds"]) == 3
    assert counting.done == [("control", 7), ("clean", 7), ("noise", 7)]


def test_only_one_arm(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    plan, record = finished
    folder = shutil.copytree(plan.parent, tmp_path / "copy")
    shutil.rmtree(folder / "out" / "jobs" / "noise")
    counting = Counting()
    again = go(folder / "plan.yaml", folder / "out", counting, only="clean")
    assert counting.done == [] and [arm["status"] for arm in again["arms"]] == ["done", "not run"]
    assert again["arms"][0]["differences"] == record["arms"][0]["differences"]


def test_a_corrupt_shard_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    plan, counting = make_plan(tmp_path, tokens=3000), Counting()
    path = tmp_path / "sets" / "noise" / "shard-00000.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(bytes(data))
    with pytest.raises(RunFailed, match=r"sets\.noise: .*shard-00000\.arrow"):
        go(plan, tmp_path / "out", counting)
    assert counting.done == []


def test_a_gpu_out_of_memory_is_said_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    plan, trained = make_plan(tmp_path, tokens=3000), work._trained

    def too_large(job: Job, folder: Path, device: Any) -> JobResult:
        if job["arm"] == "noise":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nand so on")
        return trained(job, folder, device)

    monkeypatch.setattr(work, "_trained", too_large)
    record = go(plan, tmp_path / "out")
    assert record["arms"][0]["status"] == "done" and record["arms"][1]["status"] == "failed"
    assert "out of GPU memory" in record["arms"][1]["error"] and "rows_per_step" in record["arms"][1]["error"]
    assert [job["status"] for job in record["jobs"]] == ["done", "done", "failed"] * 2
    monkeypatch.setattr(work, "_trained", trained)
    assert go(plan, tmp_path / "out")["status"] == "done"


def test_a_killed_ablation_goes_on_to_the_same_figures(tmp_path: Path) -> None:
    """kill -9 in the middle of an arm, then the same command: figures equal those of an ablation that nobody killed,
    bit for bit (a CPU repeats itself)."""
    plan = make_plan(tmp_path, tokens=20_000)
    text = plan.read_text().replace("  tokens: 10000\n", "  tokens: 3000\n").replace("  noise: noise\n", "", 1)
    plan.write_text(text.replace("checkpoints: 4", "checkpoints: 13"))
    command = [sys.executable, "-m", "gristmill.pipeline.cli.app", "ablate", str(plan), "--workers", "0", "--out"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.Popen(
        [*command, str(tmp_path / "killed")], env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    folder = tmp_path / "killed" / "jobs" / "clean" / "seed-0"
    latest = time.monotonic() + 150
    while not list((folder / "checkpoints").glob("step-*")) and killed.poll() is None and time.monotonic() < latest:
        time.sleep(0.02)
    assert killed.poll() is None and list((folder / "checkpoints").glob("step-*")), (
        "it ended before it could be killed, or never came so far"
    )
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (folder / "result.json").exists() and not (tmp_path / "killed" / "ablation.json").exists()
    whole, again = go(plan, tmp_path / "whole"), go(plan, tmp_path / "killed")
    assert again["arms"] == whole["arms"] and again["measures"] == whole["measures"] and again["status"] == "done"
    assert "control, seed 0: is already done" in (tmp_path / "killed" / "log.txt").read_text()


def test_workers_give_the_same_figures(finished: tuple[Path, dict[str, Any]]) -> None:
    plan, record = finished
    spread = run(
        load(plan),
        plan.parent / "spread",
        Crew(2, 1),
        AblationUi(plan.parent / "spread", (plan.parent / "said.txt").open("a")),
    )
    assert spread["status"] == "done" and spread["arms"] == record["arms"]


def test_simulated_epoching_repeats_as_the_large_run_would(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, tokens=3000)
    plan.write_text(plan.read_text() + "stands_for: 12000\n")
    record = go(
        plan,
        tmp_path / "out",
        lambda job: (
            {"failed": "not now", "arm": job["arm"], "seed": job["seed"]} if job["arm"] != "base" else carry_out(job)
        ),
    )
    clean = record["sets"]["clean"]
    assert record["tokens"] == 6 * 8 * 64 and clean["share"] == 3072 / 12_000 and clean["rows"] == 154
    assert record["arms"][0]["epochs"]["clean"] == pytest.approx(0.5 * 6 * 8 / 154, rel=0.02)


@pytest.mark.parametrize("protocol", ["two_stage", "{name: custom, share: 0.2}"])
def test_other_protocols_run(tmp_path: Path, protocol: str) -> None:
    plan = make_plan(tmp_path, protocol=protocol, tokens=3000)
    record = go(plan, tmp_path / "out")
    assert record["status"] == "done"
    expected = {"two_stage": 0.15, "{name: custom, share: 0.2}": 0.2}[protocol]
    assert record["arms"][0]["weights"]["clean"] == pytest.approx(expected)
    assert record["protocol"]["schedule"]["kind"] == ("stable" if protocol == "two_stage" else "linear")
    assert {(job["updates"], job["measured_in"]) for job in record["jobs"]} == {(6, "float32")}
    assert "6 updates of 8 rows of 64: 3,072 tokens (the plan says 3,000)" in (tmp_path / "out" / "log.txt").read_text()


@pytest.mark.parametrize(
    ("precision", "computed"), [("bf16", "torch.bfloat16"), ("fp16", "torch.float32"), ("float32", "torch.float32")]
)
def test_a_model_is_measured_in_the_precision_that_it_was_trained_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, computed: str
) -> None:
    import torch

    from gristmill.trainer.model import llama

    plan, seen, load_model = make_plan(tmp_path, tokens=1024), set(), llama.load_llama
    plan.write_text(
        plan.read_text()
        .replace("checkpoints: 4}", f"checkpoints: 1, precision: {precision}}}")
        .replace("  points: 2\n", "  points: 0\n")
    )

    def loading(folder: Any, device: Any, dtype: Any = torch.float32, *more: Any, **named: Any) -> Any:
        model = load_model(folder, device, dtype, *more, **named)
        hidden = model.hidden
        model.hidden = lambda packed: (
            seen.add((str(dtype), torch.is_autocast_enabled("cpu"), torch.is_grad_enabled())),
            hidden(packed),
        )[1]
        return model

    monkeypatch.setattr(llama, "load_llama", loading)
    record = go(
        plan,
        tmp_path / "out",
        lambda job: carry_out(job) if job["seed"] == 0 else {"failed": "-", "arm": job["arm"], "seed": job["seed"]},
    )
    assert [job["measured_in"] for job in record["jobs"][:3]] == [precision] * 3 and record["base"][
        "measured_in"
    ] is None
    assert {one for one in seen if not one[2]} == {(computed, precision == "fp16", False)}


def test_a_plan_of_less_than_an_update_is_refused(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, tokens=511)
    with pytest.raises(
        RecipeError, match=r"plan.yaml:17: tokens: 511 are less than one update of 8 rows of 64 tokens \(512\)"
    ):
        go(plan, tmp_path / "out")
    plan.write_text(
        plan.read_text().replace("tokens: 511", "tokens: 512").replace("protocol: microanneal", "protocol: two_stage")
    )
    with pytest.raises(RecipeError, match="two_stage needs 2 updates or more"):
        go(plan, tmp_path / "out")
    plan.write_text(
        plan.read_text().replace("protocol: two_stage", "protocol: llama3").replace("  tokens: 10000", "  tokens: 500")
    )
    with pytest.raises(RecipeError, match=r"base\.tokens: 500 are less than one update"):
        go(plan, tmp_path / "out")
    assert not (tmp_path / "out" / "base").exists()


def test_a_set_of_too_little_weight_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, tokens=1024)
    plan.write_text(plan.read_text().replace("  clean: clean\n", "  clean: {clean: 1, noise: 0.0001}\n", 1))
    with pytest.raises(
        RecipeError, match=r"arms\.clean: noise: less than one row in 1,000 would be of it; give it more"
    ):
        go(plan, tmp_path / "out")


def from_scratch(text: str) -> str:
    head, _, rest = text.partition("base:")
    return (
        head
        + "shape: {hidden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 32, tied: true}\nprotocol:"
        + rest.partition("protocol:")[2].replace("training: {rows", "training: {rate: 0.01, rows")
    )


def test_from_scratch_needs_no_base(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, protocol="from_scratch", tokens=3000)
    plan.write_text(from_scratch(plan.read_text()))
    record = go(plan, tmp_path / "out")
    assert record["status"] == "done" and record["base"] is None and record["arms"][1]["weights"] == {"noise": 1.0}


def test_a_base_that_is_there_already(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """The model that another ablation trained, beside the plan; a vocabulary that is too small for the shards is
    refused."""
    plan = make_plan(tmp_path, tokens=3000)
    shutil.copytree(finished[0].parent / "out" / "base" / "model", tmp_path / "model")
    head, _, rest = plan.read_text().partition("base:")
    rest = rest.partition("protocol:")[2].replace("training: {rows", "training: {rate: 0.01, rows")
    plan.write_text(head + "base: {model: model}\nprotocol:" + rest)
    record = go(plan, tmp_path / "out")
    assert (
        record["status"] == "done"
        and record["base"] is None
        and record["model"]["base"] == "model"
        and record["cost"]["jobs"] == 6
    )
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"vocab_size": 200}))
    with pytest.raises(RecipeError, match=r"base.model: .*vocabulary of 257 .*the model knows 200"):
        go(plan, tmp_path / "out")


def test_an_arm_of_another_tokenizer_is_told_so(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, tokens=3000)
    make_set(tmp_path / "sets" / "noise", tales(100, 1), row_length=32)
    with pytest.raises(RecipeError, match=r"sets\.noise: another length of rows than .*sets/default: 32, not 64"):
        go(plan, tmp_path / "out")


def test_a_fault_of_the_control_ends_the_run(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    (tmp_path / "sets" / "default" / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(RunFailed, match="another tokenizer"):
        go(plan, tmp_path / "out")
    path = tmp_path / "sets" / "default" / "shard-00000.arrow"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunFailed, match=r"sets.default: .*shard-00000.arrow"):
        go(plan, tmp_path / "out")


def test_a_base_that_cannot_be_trained_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="the base could not be trained: no luck"):
        go(make_plan(tmp_path), tmp_path / "out", lambda job: {"arm": "base", "seed": 0, "failed": "no luck"})
    assert json.loads((tmp_path / "out" / "ablation.json").read_text())["status"] == "failed"


def test_a_column_that_is_not_there_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    plan.write_text(plan.read_text().replace("cluster: host, domain", "cluster: site, domain"))
    with pytest.raises(RecipeError, match="no column 'site'"):
        go(plan, tmp_path / "out", lambda job: pytest.fail("nothing should be trained"))


def test_the_command_says_what_would_run_and_shows_what_was(finished: tuple[Path, dict[str, Any]]) -> None:
    plan, _ = finished
    dry = CliRunner().invoke(app, ["ablate", str(plan), "--dry-run", "--workers", "0"])
    assert dry.exit_code == 0 and "10,240" in dry.stdout and "FLOP" in dry.stdout and "7 jobs" in dry.stdout
    shown = CliRunner().invoke(app, ["ablate", str(plan.parent / "out")])
    assert shown.exit_code == 0 and "clean" in shown.stdout and "energy not measured" in shown.stdout
    again = CliRunner().invoke(
        app, ["ablate", str(plan), "--out", str(plan.parent / "out"), "--workers", "0", "--json"]
    )
    assert again.exit_code == 0 and json.loads(again.stdout)["status"] == "done"
