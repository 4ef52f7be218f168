"""Ablations on odd sets, texts and settings: what is wrong is said before anything is trained, and what is only odd
ends in a record."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.mixing.weights import tables
from gristmill.pipeline.ablate import work
from gristmill.pipeline.ablate.plan import load
from gristmill.pipeline.ablate.run import run
from gristmill.pipeline.ablate.show import AblationUi, verdicts
from gristmill.pipeline.ablate.work import carry_out, items_of
from gristmill.pipeline.ablate.workers import Crew
from gristmill.pipeline.door.scripts import needs_packages
from gristmill.pipeline.errors import GristmillError, RecipeError
from tests.pipeline.ablate.ablation_example import simulated
from tests.pipeline.ablate.ablation_sets import make_plan, make_set, tales


def go(plan: Path, doing: Any = None) -> dict[str, Any]:
    with (plan.parent / "said.txt").open("w") as said:
        return run(
            load(plan),
            plan.parent / "out",
            Crew(0, 1),
            AblationUi(plan.parent / "out", said),
            None,
            doing or simulated(),
        )


def texts(path: Path, hosts: list[str], kinds: list[str]) -> None:
    pq.write_table(pa.table({"text": tales(len(hosts), 3), "host": hosts, "kind": kinds}), path)


@pytest.mark.parametrize("missing", ["torch", "scipy"])
def test_a_package_that_is_missing_is_said_before_any_work(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(RecipeError, match=rf"needs {missing}: pip install '\.\[gpu\]'"):
        needs_packages("ablate")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("average: 30", "average 30: 20 updates leave fewer checkpoints"),
        ("linears: fp8", "linears 'fp8' go with precision 'bf16'"),
        ("rows_per_update: 9", "rows_per_step 8 does not divide the 9 rows"),
    ],
)
def test_settings_that_the_trainer_refuses_are_said_before_the_base_is_trained(
    tmp_path: Path, asked: str, message: str
) -> None:
    plan = make_plan(tmp_path)
    old = "rows_per_update: 8, rows_per_step: 8, checkpoints: 4}"
    new = old.replace("rows_per_update: 8", asked) if asked.startswith("rows") else f"{asked}, {old}"
    plan.write_text(plan.read_text().replace(old, new))
    with pytest.raises(RecipeError, match=message):
        go(plan)
    assert not (tmp_path / "out" / "base").exists()


@pytest.mark.parametrize("count", [0, 2])
def test_texts_that_hold_nothing_are_called_empty(tmp_path: Path, count: int) -> None:
    plan = make_plan(tmp_path)
    pq.write_table(
        pa.table({"text": [""] * count, "host": ["h"] * count, "kind": ["k"] * count}), tmp_path / "prose.parquet"
    )
    with pytest.raises(
        RecipeError,
        match=r"evaluate\.texts\.prose: .*prose\.parquet: is empty" if not count else "prose: 0 documents with text",
    ):
        go(plan)


def test_a_question_that_cannot_be_asked_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    questions = [
        {"id": str(i), "domain": "d", "context": "the cat", "choices": [" sees", " x" * 60], "answer": 0}
        for i in range(4)
    ]
    (tmp_path / "quiz.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    plan.write_text(
        plan.read_text().replace("  target: prose", "  choices: {quiz: {file: quiz.jsonl}}\n  target: prose")
    )
    with pytest.raises(
        RecipeError,
        match=r"evaluate\.choices\.quiz: question '0': choice ' x .*\.\.\.' has 120 tokens, more than the 64",
    ):
        go(plan)
    assert not (tmp_path / "out" / "base").exists()


def test_documents_without_a_host_are_no_host_together(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    hosts, kinds = [None] * 30 + ["", *[f"host{i}" for i in range(29)]], [None] * 20 + ["usual"] * 40
    pq.write_table(pa.table({"text": tales(60, 3), "host": hosts, "kind": kinds}), tmp_path / "prose.parquet")
    record = go(plan)
    assert [(m["task"], m["clusters"]) for m in record["measures"]][:3] == [
        ("prose", 60),
        ("prose/(none)", 20),
        ("prose/usual", 40),
    ]
    assert not any("prose" in warning for warning in record["warnings"])


def test_a_target_of_one_cluster_is_refused(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    texts(tmp_path / "prose.parquet", ["a"] * 30, ["k"] * 30)
    with pytest.raises(RecipeError, match=r"evaluate\.texts\.prose: all its documents are of one cluster \(host\)"):
        go(plan)


def test_a_guard_of_one_cluster_holds_nothing_and_is_shown(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    texts(tmp_path / "general.parquet", ["a"] * 30, ["k"] * 30)
    record = go(plan)
    assert record["arms"][0]["guard"]["high"] is None and not record["arms"][0]["guard"]["holds"]
    assert "unbounded" in str(verdicts(record).rows[0][5])


def test_a_domain_of_one_cluster_is_no_task_for_mix(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    texts(tmp_path / "prose.parquet", [f"host{i}" for i in range(30)], ["lonely"] + ["usual"] * 29)
    assert [measure["domain"] for measure in go(plan)["measures"]] == [None, "lonely", "usual", None]
    written = (tmp_path / "out" / "utilities.csv").read_text()
    assert next(csv.reader(io.StringIO(written))) == ["source", "loss:prose/usual", "loss:prose/usual_se"]
    assert tables.utilities(written).tasks == ("prose/usual",)


def test_clusters_that_a_few_outweigh_are_warned_of(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    long, short = [" ".join(tales(500, i)) for i in range(2)], tales(40, 7)
    hosts = [f"host{i}" for i in range(42)]
    pq.write_table(pa.table({"text": long + short, "host": hosts, "kind": ["k"] * 42}), tmp_path / "prose.parquet")
    assert any("42 clusters, by their sizes as good as 2." in warning for warning in go(plan)["warnings"])


def test_what_was_verified_is_looked_at_again_if_its_list_was_cut_off(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "verified.json").write_text('{"a')
    assert go(plan)["status"] == "done"
    assert len(json.loads((tmp_path / "out" / "verified.json").read_text())) == 3


@pytest.mark.parametrize("name", ["clean", "default"])
def test_an_index_that_was_cut_off_is_said_before_anything_is_trained(tmp_path: Path, name: str) -> None:
    plan = make_plan(tmp_path)
    (tmp_path / "sets" / name / "index.json").write_text('{"a')
    with pytest.raises(RecipeError, match=rf"sets\.{name}: .*index.json: not JSON"):
        go(plan, lambda job: pytest.fail("nothing should be trained"))


def test_an_arm_from_which_nothing_can_be_learned_fails(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, tokens=2000)
    plan.write_text(plan.read_text().replace("protocol: microanneal", "protocol: {name: custom, share: 1.0}"))
    make_set(tmp_path / "sets" / "clean", [""] * 600)  # documents of one token, that which ends them
    record = go(plan, carry_out)
    assert [arm["status"] for arm in record["arms"]] == ["failed", "done"] and "nothing was learned" in record["arms"][
        0
    ]["error"]


def test_sets_with_the_same_rows_under_other_names_are_one(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    shutil.copytree(tmp_path / "sets" / "default", tmp_path / "sets" / "again")
    plan.write_text(plan.read_text().replace("sets/clean", "sets/again"))
    with pytest.raises(
        RecipeError, match=r"arms\.clean: its sets hold the rows of those of control, in the same shares"
    ):
        go(plan)


def test_tables_for_mix_of_another_plan_do_not_stay(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    go(plan)
    assert (tmp_path / "out" / "utilities.csv").is_file() and not (tmp_path / "out" / "ablations.csv").exists()
    plan.write_text(plan.read_text().replace("clean: clean", "clean: {clean: 0.5, noise: 0.5}"))
    go(plan)
    assert (tmp_path / "out" / "ablations.csv").is_file() and not (tmp_path / "out" / "utilities.csv").exists()


def test_scores_that_are_no_numbers_fail_their_job() -> None:
    with pytest.raises(GristmillError, match="prose: the model gives scores that are not finite"):
        items_of("prose", ["d", "d"], ["a", "b"], [1.0, float("nan")], [1, 1])
    with pytest.raises(GristmillError, match="prose: the tokenizer leaves nothing"):
        items_of("prose", ["d"], ["a"], [0.0], [0])


def test_a_job_that_is_killed_before_its_result_is_written_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, write = make_plan(tmp_path, tokens=2000), work.write_facts
    trained = work._trained
    begun: list[str] = []

    def killed(path: Path, facts: Any) -> None:
        if path.name == work.RESULT and path.parent.parent.name == "clean":
            raise KeyboardInterrupt
        write(path, facts)

    monkeypatch.setattr(work, "write_facts", killed)
    with pytest.raises(KeyboardInterrupt):
        go(plan, carry_out)
    monkeypatch.setattr(work, "write_facts", write)
    monkeypatch.setattr(
        work, "_trained", lambda job, *rest: (begun.append(f"{job['arm']} {job['seed']}"), trained(job, *rest))[1]
    )
    assert go(plan, carry_out)["status"] == "done"
    assert begun == ["noise 0", "control 1", "clean 1", "noise 1"]
    assert not list((tmp_path / "out" / "jobs").rglob("model"))


def test_only_a_stop_of_the_trainer_interrupts_an_ablation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(RuntimeError):
        """Of another library."""

    def raises(*_: Any) -> None:
        raise Stopped("the tokenizer server went away")

    monkeypatch.setattr(work, "_trained", raises)
    with pytest.raises(GristmillError, match="could not be trained: the tokenizer server went away"):
        go(make_plan(tmp_path, tokens=2000), carry_out)
