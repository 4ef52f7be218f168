"""What a verdict says besides its interval: orders, the second rate, the multiplier, the winner, what is read, power."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.pipeline.ablate.estimate import foreseen
from gristmill.pipeline.ablate.jobs import data_seed, runs_of
from gristmill.pipeline.ablate.plan import load
from gristmill.pipeline.ablate.rules import ASSUMED, changed_places, power_before, readings_of
from gristmill.pipeline.ablate.run import PreparedAblation
from gristmill.pipeline.ablate.show import reasons, verdicts
from gristmill.pipeline.ablate.workers import Crew
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.report.ablation import build_page
from gristmill.pipeline.report.ablation_record import remarks
from gristmill.pipeline.train.feeding import SetSize
from gristmill.pipeline.train.records import Run
from tests.pipeline.ablate.ablation_example import from_scratch, make_example_plan, write_example
from tests.pipeline.report.test_report import Page

MORE = "orders: 2\nsecond_rate: 0.00001\ncurve: [0.5, 1.5]\n"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Three arms, 3 seeds in 2 orders, two rates and a curve: `noise` is worse at one rate and better at the other."""
    folder = tmp_path_factory.mktemp("judged")
    return folder, write_example(folder, seeds=3, more=MORE, flipped=["noise"])


def test_every_run_has_its_seed_order_and_rate(judged: tuple[Path, dict[str, Any]]) -> None:
    folder, record = judged
    runs = [
        (job["seed"], job["order"], job["second_rate"], job["length"])
        for job in record["jobs"]
        if job["arm"] == "control"
    ]
    assert len(set(runs)) == len(runs) == 3 * 2 * 4
    assert (folder / "out" / "jobs" / "control" / "seed-1-order-1-length-1.5" / "items.parquet").is_file()
    updates = {job["length"]: job["updates"] for job in record["jobs"] if job["status"] == "done"}
    assert updates[0.5] == pytest.approx(0.5 * updates[1.0], abs=1) and updates[1.5] > updates[1.0]
    assert record["status"] == "partial"  # `torn` fails


def test_both_variances_are_told(judged: tuple[Path, dict[str, Any]]) -> None:
    _, record = judged
    target = record["arms"][0]["differences"][0]
    seed, order = target["spread"]["seed"], target["spread"]["order"]
    assert (seed["degrees"], order["degrees"]) == (2, 3) and order["low"] <= order["sd"] <= order["high"]
    assert len(target["by_seed"]) == 3
    assert any("between seeds and" in line and "between data orders" in line for line in remarks(record))  # type: ignore[arg-type]


def test_rates_that_disagree_are_a_word(judged: tuple[Path, dict[str, Any]]) -> None:
    folder, record = judged
    words = {arm["name"]: arm["verdict"]["word"] for arm in record["arms"] if arm["verdict"]}
    assert words == {"clean": "adopt", "noise": "disagree"}
    noise = record["arms"][1]["second_rate"]
    assert not noise["agrees"] and noise["difference"] < 0 and noise["rate"] == 0.00001
    assert any("at the rate 1e-05 it differs by -" in line for line in reasons(record))  # type: ignore[arg-type]
    html = build_page(RunFolder(folder / "out"))
    assert 'class="verdict disagree"' in html and "at the rate 1e-05" in Page(html).text


def test_the_effect_is_told_as_compute(judged: tuple[Path, dict[str, Any]]) -> None:
    """The control's loss is 0.9 + 0.2 / sqrt(t): 0.02 less takes (0.2 / 0.18)^2 of the tokens."""
    folder, record = judged
    clean, noise = (record["arms"][place]["differences"][0]["multiplier"] for place in (0, 1))
    assert clean["low"] <= (0.2 / 0.18) ** 2 <= clean["high"] and clean["curve"] == "lengths"
    assert noise["low"] <= (0.2 / 0.23) ** 2 <= noise["high"] and noise["value"] < 1 < clean["value"]
    assert (clean["least"], clean["most"]) == (0.25, 3.0)
    assert f"{clean['value']:.2f}" in str(verdicts(record).rows[0][3])  # type: ignore[arg-type]
    assert f"{clean['value']:.2f} ({clean['low']:.2f} to {clean['high']:.2f})" in build_page(RunFolder(folder / "out"))


def test_the_winner_is_told_on_texts_that_did_not_choose_it(judged: tuple[Path, dict[str, Any]]) -> None:
    _, record = judged
    winner, whole = record["winner"], record["arms"][0]["differences"][0]
    assert (winner["arm"], winner["selected_on"]) == ("clean", "half of prose")
    assert winner["difference"] != winner["selected_difference"] != whole["difference"]
    assert winner["low"] < winner["difference"] < winner["high"]


def test_other_texts_may_select(tmp_path: Path) -> None:
    make_example_plan(tmp_path, 2)
    text = (tmp_path / "plan.yaml").read_text().replace("  guard: general", "  select: general\n  guard: general")
    (tmp_path / "plan.yaml").write_text(text)
    assert load(tmp_path / "plan.yaml").plan.evaluate.select == "general"
    (tmp_path / "plan.yaml").write_text(text.replace("select: general", "select: prose"))
    with pytest.raises(RecipeError, match="is the target"):
        load(tmp_path / "plan.yaml")


def test_power_is_stated_before_the_runs_and_from_those_before(judged: tuple[Path, dict[str, Any]]) -> None:
    folder, record = judged
    assert record["power"]["source"].startswith("assumed") and record["power"]["run_sd"] == 0.006
    assert record["power"]["confidence"] == pytest.approx(1 - 0.05 / 3)
    loaded = load(folder / "plan.yaml")
    again = PreparedAblation(loaded, folder / "again", Crew(0, 1), lambda _: None)
    assert again.power is not None and "2 arms of earlier ablations" in again.power["source"]
    assert 0 < again.power["run_sd"] < 0.006 and again.power["detectable"] is not None
    note = foreseen(again, None).note or ""
    assert "Smallest effect found in 80% of cases" in note and "bits per byte" in note
    larger = power_before(loaded.plan, folder / "again", "bits per byte", 25.0, 10**9, record["tokens"])
    assert larger["run_sd"] == ASSUMED["bits per byte"].run_sd


def test_arms_that_read_less_that_is_new_are_named() -> None:
    sizes = {"big": SetSize(1000, 100_000), "small": SetSize(100, 10_000)}
    readings, warnings = readings_of({"control": {"big": 0.5}, "arm": {"small": 5.0}, "like": {"big": 0.52}}, sizes)
    assert (readings["arm"]["tokens"], readings["arm"]["unique_tokens"]) == (50_000, 10_000)
    assert len(warnings) == 1 and "10,000 different tokens and small 5.0 times" in warnings[0]


def test_arms_that_change_places() -> None:
    assert changed_places({"a": -1.0, "b": 0.0, "c": 1.0}, {"a": 0.5, "b": 0.2, "c": 0.9}) == [["a", "b"]]


def test_runs_of_a_plan(tmp_path: Path) -> None:
    make_example_plan(tmp_path, 2)
    plan = tmp_path / "plan.yaml"
    base = plan.read_text()
    assert len(runs_of(load(plan).plan)) == 2 * 4
    plan.write_text(from_scratch(base) + MORE)
    runs = runs_of(load(plan).plan)
    assert len(runs) == len(set(runs)) == 2 * 2 * (4 * 2 + 2) and runs[0] == Run("control", 0)
    assert {data_seed(seed, 0) for seed in range(5)} == set(range(5))
    assert len({data_seed(seed, order) for seed in range(50) for order in range(9)}) == 450
    for wrong, message in {
        "orders: 2\n": "a seed decides the data order alone",
        "curve: [0.5]\n": "two or more different shares",
        "curve: [0.5, 1]\n": "two or more different shares",
    }.items():
        plan.write_text(base + wrong)
        with pytest.raises(RecipeError, match=message):
            load(plan)
    plan.write_text(from_scratch(base) + "second_rate: 0.01\n")
    with pytest.raises(RecipeError, match="is the rate of all runs already"):
        load(plan)


def test_a_curve_from_measurements_on_the_way(tmp_path: Path) -> None:
    """Without `curve` the control's own runs give a rough one; it is in the record, whole."""
    record = write_example(tmp_path)
    found = record["arms"][0]["differences"][0]["multiplier"]
    assert found["curve"] == "on the way" and found["value"] > 1
    assert (
        json.loads((tmp_path / "out" / "ablation.json").read_text())["arms"][0]["differences"][0]["multiplier"] == found
    )
