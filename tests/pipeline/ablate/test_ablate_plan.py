"""Plans of ablations: what is wrong is said with file, line, field and a likely spelling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gristmill.pipeline.ablate.checks import CHECKPOINTS
from gristmill.pipeline.ablate.plan import load, one_arm
from gristmill.pipeline.ablate.protocols import Protocol
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.store.storage import digest
from gristmill.pipeline.train.plan import TrainingPlan, facts_of
from gristmill.trainer.run.settings import Training as TrainerSettings
from tests.pipeline.ablate.ablation_example import EFFECTS, FAILS, write_example

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "ablations" / "candidates.yaml"
GOOD = """\
name: x
sets: {d: a, n: b}
control: d
arms:
  n: n
base: {mix: d, shape: 10m, tokens: 1000}
tokens: 100
training: {rate: 0.001}
evaluate:
  texts:
    prose:
      files: a.parquet
  target: prose
"""


def said(tmp_path: Path, *changes: tuple[str, str]) -> str:
    text = GOOD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as error:
        load(path)
    return str(error.value).removeprefix(f"{path}:")


def test_a_good_plan_is_read_with_every_default(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(GOOD)
    plan = load(tmp_path / "plan.yaml").plan
    arms = {name: arm.mix for name, arm in plan.arms.items()}
    assert (plan.control.mix, arms, plan.seeds, plan.protocol.new, plan.evaluate.guard_budget) == (
        {"d": 1.0},
        {"n": {"n": 1.0}},
        (0, 1, 2, 3, 4),
        0.3,
        0.005,
    )


def test_the_recipe_to_copy_is_a_good_plan() -> None:
    plan = load(RECIPE).plan
    assert set(plan.arms) == {"forums", "textbooks", "both"} and plan.evaluate.guard == "web" and len(plan.seeds) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("control: d\n", ""), "1: control is missing: without one nothing can be said"),
        (("  n: n", "  n: m"), "5: arms.n.m: no set is called m"),
        (("  n: n", "  control: n"), "5: arms.control: this name is taken"),
        (("  n: n", "  n: {n: -1}"), "5: arms.n.mix.n: Input should be greater than 0, not -1"),
        (
            ("files: a.parquet", "files: a.parquet\n      clustr: host"),
            "13: evaluate.texts.prose.clustr: no such field; did you mean cluster?",
        ),
        (
            ("target: prose", "target: prse"),
            "13: evaluate.target: nothing that is evaluated is called prse; did you mean prose?",
        ),
        (
            ("control: d\n", "control:\n"),
            "3: control: the name of a set, or a mix {set: weight}, was expected, not None",
        ),
        (("control: d\n", "control: {}\n"), "3: control: the name of a set, or a mix"),
        (("arms:\n  n: n\n", "arms: {}\n"), "4: arms: at least one arm was expected"),
        (
            ("  n: n\n", "  n: n\n  again: {n: 2}\n"),
            "6: arms.again: is the mix of arms.n in the same order, so that their runs",
        ),
        (("  n: n\n", "  n: {d: 3}\n"), "5: arms.n: is the mix of the control in the same order, so that"),
        (("  n: n\n", "  n: n\n  n: d\n"), "6: n stands here a second time"),
        (
            ("tokens: 100\n", "tokens: 5B\n"),
            "7: tokens: a whole number was expected, such as 500_000_000 or 5e8, not '5B'",
        ),
        (("tokens: 100\n", "tokens: 1.5\n"), "7: tokens: "),
        (("tokens: 100\n", "tokens: 15e-1\n"), "7: tokens: "),
        (
            ("tokens: 100\n", "tokens: 100\nseeds: 0\n"),
            "8: seeds: how many (2 to 1,000), or a list of seeds, was expected, not 0",
        ),
        (("tokens: 100\n", "tokens: 100\nseeds: five\n"), "8: seeds: how many"),
        (("target: prose", "target: prose\n  guard: prose"), "14: evaluate.guard: the target cannot guard itself"),
        (("shape: 10m", "shape: 11m"), "6: base.shape: no shape is named '11m'"),
        (("base: {mix: d, shape: 10m, tokens: 1000}\n", ""), "1: base: llama3 goes on with a nearly trained model"),
        (("{mix: d, shape: 10m, tokens: 1000}", "{mix: d, model: x}"), "6: base: either a model that is there"),
        (("{mix: d, shape: 10m, tokens: 1000}", "{model: x, tokens: 3}"), "6: base.tokens: says how a base is trained"),
        (
            ("training: {rate: 0.001}", "training: {rate: 0.001, rte: 1}"),
            "8: training.rte: no such field; did you mean rate?",
        ),
        (("training: {rate: 0.001}\n", ""), "1: training.rate: is missing"),
        (("tokens: 100\n", "tokens: 100\nseeds: 1\n"), "8: seeds: one seed says nothing about another"),
        (("tokens: 100\n", "tokens: 100\nseeds: [1, 1]\n"), "8: seeds: a seed stands twice"),
        (
            ("tokens: 100\n", "tokens: 100\nprotocol: from_scratch\n"),
            "6: base: the protocol from_scratch begins with no base",
        ),
        (("tokens: 100\n", "tokens: 100\nprotocol: custom\n"), "8: protocol: custom needs a share of new data"),
        (
            ("tokens: 100\n", "tokens: 100\nprotocol: {name: llama3, steady: 0.5}\n"),
            "8: protocol: steady is for two_stage",
        ),
        (("tokens: 100\n", "tokens: 100\nstands_for: 50\n"), "8: stands_for: a run of 50 tokens is smaller"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert message in said(tmp_path, change)


def test_counts_may_be_written_short(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(
        GOOD.replace("tokens: 1000", "tokens: 1.5e3").replace("tokens: 100\n", "tokens: 5e2\nstands_for: 2e12\n")
    )
    plan = load(tmp_path / "plan.yaml").plan
    assert plan.base is not None and (plan.base.tokens, plan.tokens, plan.stands_for) == (1500, 500, 2_000_000_000_000)


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"nowhere\.yaml: no such plan"):
        load(tmp_path / "nowhere.yaml")


def test_an_arm_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(GOOD.replace("  n: n", "  news: n"))
    loaded = load(tmp_path / "plan.yaml")
    assert list(one_arm(loaded, "news").plan.arms) == ["news"]
    with pytest.raises(RecipeError, match="did you mean news"):
        one_arm(loaded, "new")


@pytest.mark.parametrize(
    ("name", "share", "kind"),
    [
        ("llama3", 0.3, "linear"),
        ("microanneal", 0.5, "linear"),
        ("two_stage", 0.3, "stable"),
        ("from_scratch", 1.0, "linear"),
    ],
)
def test_protocols_end_at_zero(name: Any, share: float, kind: str) -> None:
    protocol = Protocol(name=name)
    training = TrainerSettings.from_facts(
        facts_of(TrainingPlan(), 100, False, rate=0.01, schedule=protocol.schedule(None, 100))
    )
    assert protocol.new == share and training.schedule.kind == kind and training.updates == 100
    assert training.schedule.share(99, 100) <= 0.021 and training.schedule.share(50, 100) > (
        0.97 if name == "two_stage" else 0.4
    )


def test_updates_are_whole() -> None:
    training = TrainingPlan(rows_per_update=10)
    assert training.updates(1000, 10) == 10 and training.updates(1, 10) == 1 and training.updates(1049, 10) == 10
    assert training.updates(1050, 10) == 10 and training.updates(1051, 10) == 11


@pytest.mark.parametrize("updates", [2, 3, 5, 7, 100])
@pytest.mark.parametrize("steady", [0.1, 0.5, 0.99])
def test_two_stages_have_an_update_each_and_the_rate_falls_as_the_new_data_come(updates: int, steady: float) -> None:
    protocol = Protocol(name="two_stage", steady=steady)
    before = protocol.updates_before(updates)
    assert 1 <= before < updates and abs(before - steady * updates) <= 1
    facts = facts_of(
        TrainingPlan(rows_per_update=1), updates, False, rate=0.01, schedule=protocol.schedule(None, updates)
    )
    schedule = TrainerSettings.from_facts(facts).schedule
    shares = [schedule.share(update, updates) for update in range(updates)]
    assert shares[: before + 1] == [1.0] * (before + 1) and all(share < 1 for share in shares[before + 1 :])


def test_the_example_is_what_the_documentation_says(tmp_path: Path) -> None:
    """Every field of docs/ablations.md, in an ablation that never ran."""
    record = write_example(tmp_path)
    words = {arm["name"]: arm["verdict"] and arm["verdict"]["word"] for arm in record["arms"]}
    assert record["status"] == "partial" and words == {"clean": "adopt", "noise": "reject", FAILS: None}
    docs = (RECIPE.parents[2] / "docs" / "ablations.md").read_text()
    for part in (
        record,
        record["arms"][0],
        record["arms"][0]["differences"][0],
        record["arms"][0]["guard"],
        record["measures"][0],
        record["jobs"][0],
        record["cost"],
    ):
        assert [name for name in part if name not in docs] == []
    for arm in record["arms"][:2]:
        assert abs(arm["differences"][0]["difference"] - EFFECTS[arm["name"]]) < 0.01 and len(
            arm["differences"]
        ) == len(record["measures"])
    assert record["cost"]["joules"] > 0 and write_example(tmp_path / "no meter", joules=False)["cost"]["joules"] is None
    assert sum((tmp_path / "out" / job["metrics"]).is_file() for job in record["jobs"]) == 15
    assert yaml.safe_load((tmp_path / "plan.yaml").read_text())["protocol"] == "llama3"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("  target: prose\n", "  target: prose\n  point_documents: 1\n"), "greater than or equal to 2"),
        (("control: d\n", "control: {d: .inf}\n"), "finite number"),
        (("rate: 0.001", "rate: .inf"), "finite number"),
    ],
)
def test_numbers_that_lead_nowhere_are_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert message in said(tmp_path, change)


def test_under_muon_all_that_is_no_matrix_follows_the_plan_too() -> None:
    schedule = Protocol(name="llama3").schedule(None, 100)
    facts = facts_of(TrainingPlan(optimizer="muon", weight_decay=0.02), 100, False, rate=3e-5, schedule=schedule)
    made = TrainerSettings.from_facts(facts).optimizer
    assert (made.rate, made.weight_decay, made.adamw.rate, made.adamw.weight_decay) == (3e-5, 0.02, 3e-5, 0.02)


def test_equal_settings_have_the_identity_that_they_always_had() -> None:
    """It is in the fingerprints of jobs: another form of a number, or a field more, would train all arms anew."""
    plans = [
        TrainingPlan(rate=0.001),
        TrainingPlan(
            rate=1, rows_per_update=32, rows_per_step=8, optimizer="muon", weight_decay=0, clip=2, warmup=0,
            precision="bf16", linears="fp8", recompute="full", compile=True, deterministic=True, average=3,
            checkpoints=5,
        ),
        TrainingPlan(rate=3e-4, average=2, warmup=0.1),
    ]  # fmt: skip
    identities = []
    for plan in plans:
        for device in ("cpu", "cuda"):
            for name in ("llama3", "two_stage", "from_scratch"):
                updates = plan.updates(10_000_000, 512)
                schedule = Protocol(name=name).schedule(plan.warmup, updates)
                facts = facts_of(
                    plan, updates, device == "cuda", rate=0.0, schedule=schedule, checkpoints=CHECKPOINTS, seed=3
                )
                identities.append(TrainerSettings.from_facts(facts).identity())
    assert len(identities) == 18 and digest(identities) == "1548af9239e17cdbee59e79ebc2ab4d7"
