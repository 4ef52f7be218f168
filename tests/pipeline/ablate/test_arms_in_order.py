"""Orders of rows in arms: which rows are read and when, and a planted effect of the order that an ablation finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.ablate.plan import load
from gristmill.pipeline.ablate.run import run
from gristmill.pipeline.ablate.show import AblationUi
from gristmill.pipeline.ablate.work import items_of
from gristmill.pipeline.ablate.workers import Crew
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.train.feeding import order_problem, rows_and_order
from gristmill.shards.loader import Loader
from gristmill.shards.reader import open_shards
from tests.pipeline.ablate.ablation_sets import make_set, tales

PLAN = """
name: orders
sets: {web: web}
control: web
arms: {late: {order: as_written}}
protocol: from_scratch
shape: {hidden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 32, tied: true, windows: [16, 0]}
tokens: 19200
seeds: 3
training: {rate: 0.01, rows_per_update: 4, rows_per_step: 4, checkpoints: 1, schedule: {kind: constant}}
evaluate: {texts: {other: {files: other.parquet}}, target: other, points: 0}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set that rises in difficulty, whose last tenth is of another source."""
    folder = tmp_path_factory.mktemp("orders")
    texts = tales(270, 1) + [text[::-1] for text in tales(30, 2)]
    make_set(folder / "web", texts, segments=(0, 150, 270), difficulty=np.arange(300) / 300)
    pq.write_table(pa.table({"text": [text[::-1] for text in tales(40, 3)]}), folder / "other.parquet")
    return folder


def numbers(folder: Path, order: Any, rows: int, seed: int = 0, share: float = 1.0) -> list[int]:
    stage: Any = {"weights": {str(folder / "web"): 1.0}, "orders": {str(folder / "web"): order}}
    sets, by = rows_and_order([stage], share, seed, rows)
    found: list[int] = Loader(sets, 4, by, seed).rows_at(np.arange(rows)).tolist()
    return found


@pytest.mark.parametrize("order", ["as_written", "segments", "buckets", {"ascending": {}}, {"stages": {"stages": 3}}])
def test_an_order_reads_the_rows_that_the_shuffled_one_reads(folder: Path, order: Any) -> None:
    shards = open_shards(folder / "web")
    assert order_problem(shards, order) is None
    for rows in (60, len(shards), len(shards) + 40):
        shuffled, found = numbers(folder, "shuffled", rows), numbers(folder, order, rows)
        last = rows - rows % len(shards) if rows > len(shards) else 0
        assert sorted(found) == sorted(shuffled) and found != shuffled
        assert np.corrcoef(found[last:], np.arange(rows - last))[0, 1] > 0.5
        assert found == numbers(folder, order, rows) and sorted(found[:last]) == sorted(shuffled[:last])
    assert numbers(folder, "as_written", 60) == sorted(numbers(folder, "shuffled", 60))
    if order not in ("as_written", {"ascending": {}}):  # which leave nothing to chance
        assert numbers(folder, order, len(shards), seed=1) != numbers(folder, order, len(shards))
    assert len(numbers(folder, order, 30, share=0.5)) == 30


def test_the_rest_of_a_schedule_is_random(folder: Path) -> None:
    rows = len(open_shards(folder / "web"))
    found = np.array(numbers(folder, {"warm_up": {"share": 0.5}}, rows))
    first, rest = found[: rows // 2], found[rows // 2 :]
    assert np.corrcoef(first, np.arange(len(first)))[0, 1] > 0.95
    assert abs(np.corrcoef(rest, np.arange(len(rest)))[0, 1]) < 0.3


def test_a_planted_effect_of_the_order_is_found(folder: Path) -> None:
    """Two arms of one mix: what is read last is known best."""
    (folder / "plan.yaml").write_text(PLAN)
    with (folder / "said.txt").open("w") as said:
        record = run(load(folder / "plan.yaml"), folder / "out", Crew(0, 1), AblationUi(folder / "out", said))
    assert record["status"] == "done" and record["arms"][0]["mix"] == {"web": 1.0}
    jobs = {(job["arm"], job["seed"]): job for job in record["jobs"]}
    assert all(jobs["control", seed]["tokens"] == jobs["late", seed]["tokens"] for seed in (0, 1, 2))
    verdict = record["arms"][0]["verdict"]
    assert verdict is not None and verdict["word"] == "adopt", verdict
    assert record["arms"][0]["differences"][0]["difference"] < -0.1
    assert not (folder / "out" / "utilities.csv").exists()  # an order is no source


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("{order: as_written}", "{order: as_writen}"), "arms.late.order: no such order; did you mean as_written?"),
        (("{order: as_written}", "{order: {warm_up: {share: 2}}}"), "warm_up.share: Input should be less than"),
        (("{order: as_written}", "{order: shuffled}"), "arms.late: is the mix of the control in the same order"),
        (("{order: as_written}", "{training: {rate: 1}}"), "arms.late.training.rate: is the same in all runs"),
        (
            ("{order: as_written}", "{order: as_written, training: {schedule: advised}}"),
            "arms.late.training.schedule: shards do not say which schedule",
        ),
        (
            ("control: web\n", "control: web\norder: segments\n"),
            None,
        ),
    ],
)
def test_what_is_wrong_with_an_order_is_one_line(folder: Path, change: tuple[str, str], message: str | None) -> None:
    path = folder / "wrong.yaml"
    path.write_text(PLAN.replace(*change))
    if message is None:
        plan = load(path).plan
        assert (plan.order_of("control", "web"), plan.order_of("late", "web")) == ("segments", "as_written")
        return
    with pytest.raises(RecipeError) as error:
        load(path)
    assert message in str(error.value) and "\n" not in str(error.value)


RANKS = """
name: ranks
sets: {web: web, loud: loud}
control: web
arms: {loud: loud}
protocol: from_scratch
shape: {hidden: 16, layers: 2, heads: 2, kv_heads: 2, mlp: 32, tied: true}
tokens: 3072
seeds: 2
training: {rate: 0.01, rows_per_update: 8, rows_per_step: 4, checkpoints: 1}
evaluate: {texts: {other: {files: other.parquet}}, target: other, points: 1}
"""


def test_runs_on_two_ranks_give_the_losses_of_one(folder: Path) -> None:
    make_set(folder / "loud", tales(60, 5))
    losses = []
    for name, asked in (("one", ""), ("two", ", zero: 1, tensor: 1"), ("cut", ", tensor: 2")):
        ranks = "" if name == "one" else "ranks: 2\n"
        (folder / f"{name}.yaml").write_text(RANKS.replace("checkpoints: 1", f"checkpoints: 1{asked}") + ranks)
        with (folder / "said.txt").open("a") as said:
            out = folder / name
            record = run(load(folder / f"{name}.yaml"), out, Crew(0, 2), AblationUi(out, said))
        assert record["status"] == "done", [job["error"] for job in record["jobs"]]
        losses.append([job["loss"] for job in record["jobs"]])
        metrics = out / "jobs" / "loud" / "seed-1" / "metrics.jsonl"
        assert sum("evaluation.target_bits_per_byte" in line for line in metrics.read_text().splitlines()) == 1
    assert losses[1] == pytest.approx(losses[0], rel=1e-4) and losses[2] == pytest.approx(losses[0], rel=1e-4)


def test_a_run_ends_when_its_target_no_longer_improves(folder: Path) -> None:
    text = RANKS.replace("rate: 0.01", "rate: 1.0e-30, patience: 2").replace(
        "target: other, points: 1", "target: other, every: 1"
    )
    (folder / "patience.yaml").write_text(text.replace("sets: {web: web, loud: loud}", "sets: {web: web, loud: web2}"))
    make_set(folder / "web2", tales(60, 6))
    with (folder / "said.txt").open("a") as said:
        out = folder / "patience"
        record = run(load(folder / "patience.yaml"), out, Crew(0, 1), AblationUi(out, said))
    updates = [job["updates"] for job in record["jobs"]]
    assert record["status"] == "done" and updates == [3, 3, 3, 3]  # weights that do not move


def test_a_hopeless_arm_is_given_up(folder: Path) -> None:
    """Work that trains nothing: one arm is far worse, another one as good."""
    text = RANKS.replace("seeds: 2", "seeds: 6\nhopeless: 2").replace(
        "arms: {loud: loud}", "arms: {loud: loud, same: web3}"
    )
    (folder / "hopeless.yaml").write_text(text.replace("loud: loud}\ncontrol", "loud: loud, web3: web3}\ncontrol"))
    for name, seed in (("loud", 5), ("web3", 7)):
        make_set(folder / name, tales(60, seed))
    done: list[tuple[str, int]] = []

    def work(job: Any) -> Any:
        done.append((job["arm"], job["seed"]))
        rate = 2.0 + (1.0 if job["arm"] == "loud" else 0.0) + 0.01 * ((job["seed"] * 7 + len(job["arm"])) % 5)
        items = items_of("other", ["other"] * 40, [str(i) for i in range(40)], [rate * 50] * 40, [50] * 40)
        Path(job["folder"]).mkdir(parents=True, exist_ok=True)
        pq.write_table(items, Path(job["folder"]) / "items.parquet")
        result = {"loss": rate, "updates": 6, "tokens": 3000, "counted": 3000, "seconds": 1.0, "seconds_measuring": 1.0}
        more = {"fingerprint": job["fingerprint"], "versions": {}, "anew": True}
        return {"arm": job["arm"], "seed": job["seed"], "tokens_per_second": 3000.0, "joules": None} | result | more

    with (folder / "said.txt").open("a") as said:
        out = folder / "hopeless"
        record = run(load(folder / "hopeless.yaml"), out, Crew(0, 1), AblationUi(out, said), work=work)
    seeds = {arm: [seed for name, seed in done if name == arm] for arm in ("control", "loud", "same")}
    assert seeds == {"control": [*range(6)], "loud": [0, 1, 2], "same": [*range(6)]}
    assert "loud: its interval leaves no room for a gain" in (out / "log.txt").read_text()
    assert [arm["status"] for arm in record["arms"]] == ["partial", "done"]
    assert record["arms"][0]["verdict"] is not None and record["arms"][0]["verdict"]["word"] == "reject"


def test_an_arm_opens_buckets_and_has_rates_of_its_order(folder: Path) -> None:
    arms = (
        "arms: {opened: {training: {unlocking: {at_most: 1, every: 1}}},"
        " best: {order: {anneal: {share: 0.25}}, training: {schedule: advised}}}"
    )
    text = RANKS.replace("arms: {loud: loud}", arms).replace("sets: {web: web, loud: loud}", "sets: {web: web}")
    (folder / "opened.yaml").write_text(text.replace("seeds: 2", "seeds: [0, 5]"))
    with (folder / "said.txt").open("a") as said:
        out = folder / "opened"
        record = run(load(folder / "opened.yaml"), out, Crew(0, 1), AblationUi(out, said))
    assert record["status"] == "done", [job["error"] for job in record["jobs"]]
    rates, events = {}, {}
    for arm in ("control", "opened", "best"):
        lines = (out / "jobs" / arm / "seed-0" / "metrics.jsonl").read_text().splitlines()
        losses = [line for line in map(json.loads, lines) if "loss" in line]
        rates[arm] = [line["rate"] for line in losses]
        events[arm] = [event for line in losses for event in line.get("events", ())]
    assert rates["control"] == rates["opened"] != rates["best"] and rates["best"][-2] == 0.01
    assert len(events["opened"]) == 3 and not events["control"]  # of four buckets
    assert {tuple(facts["orders"].values()) for facts in stages(out, "control")} == set()
    assert [*stages(out, "best")[0]["orders"].values()] == [{"anneal": {"share": 0.25, "best": 1.0}}]


def stages(out: Path, arm: str) -> list[Any]:
    job = json.loads((out / "jobs" / arm / "seed-0" / "job.json").read_text())
    return [stage for stage in job["stages"] if "orders" in stage]
