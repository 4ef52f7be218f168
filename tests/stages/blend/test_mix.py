"""Weights become copies: exact to half a document, by hash alone; what cannot be filled is an error that says where and
by how much."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages.blend.methods import Given, MostUtility, Temperature, Unimax, Utilimax
from gristmill.stages.blend.mix import Mix
from gristmill.stages.stage import CannotRun
from tests.stages.scattered import Scattered

SCHEMA = pa.schema(
    [
        ("uid", pa.uint64()),
        ("source", pa.string()),
        ("text", pa.string()),
        ("language", pa.string()),
        ("tokens", pa.int32()),
    ]
)


def made(count: int = 5000, seed: int = 0) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "uid": chance.getrandbits(64), "source": chance.choice(["web"] * 6 + ["code"] * 2 + ["books"]), "text": "",
            "language": chance.choice(["en", "de", None]), "tokens": chance.randint(1, 2000),
        }
        for _ in range(count)
    ]  # fmt: skip


def mixed(rows: list[dict[str, Any]], mix: Mix, seed: int = 0) -> tuple[list[dict[str, Any]], Scattered]:
    flow = Scattered(seed)
    mix.run(flow.parts(pa.Table.from_pylist(rows, schema=SCHEMA)), flow)
    by_uid = {row["uid"]: row for row in rows}
    return [by_uid[row["uid"]] | row for row in flow.named.to_pylist()], flow


def tokens_of(rows: list[dict[str, Any]], copies: bool = True) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        found[row["source"]] += row["tokens"] * (row["copies"] if copies else 1)
    return found


def test_shares_of_the_budget_are_drawn_to_half_a_document():
    rows = made()
    weights = {"web": 0.5, "code": 0.3, "books": 0.2}
    budget = 4_000_000
    found, flow = mixed(rows, Mix(method=Given(weights=weights), budget=budget))
    drawn = tokens_of(found)
    assert all(abs(drawn[name] - weight * budget) <= 1000 for name, weight in weights.items())
    assert abs(sum(drawn.values()) - budget) < budget / 1000
    assert [source["drawn"] for source in flow.metrics["mix"]["drawn"]] == [drawn[name] for name in sorted(weights)]
    assert {row["reason"] for row in found if row["copies"] == 0} == {"not_drawn"}
    assert all((row["reason"] is None) == (row["copies"] > 0) for row in found)


def test_a_source_of_which_nothing_is_drawn_is_a_warning():
    rows = made()
    found, flow = mixed(rows, Mix(method=Given(weights={"web": 1, "code": 1e-9, "books": 0}), budget=1_000_000))
    assert tokens_of(found)["code"] == 0 and tokens_of(found)["web"] > 0
    assert flow.metrics["mix"]["warnings"] == []  # less than half a token of code is wanted: nothing
    _, flow = mixed(
        [{**row, "tokens": 1000} for row in rows],
        Mix(method=Given(weights={"web": 1, "code": 1e-5, "books": 0}), budget=1_000_000),
    )
    assert flow.metrics["mix"]["warnings"] == [
        "no document is drawn of 'code': less is wanted than half of the first document"
    ]


def test_repeats_are_whole_epochs_and_a_fraction():
    rows = made()
    there = tokens_of(rows, copies=False)
    found, _ = mixed(
        rows, Mix(method=Given(weights={"web": 1, "code": 1, "books": 1}), budget=6 * there["books"], max_epochs=4)
    )
    books = Counter(row["copies"] for row in found if row["source"] == "books")
    assert set(books) == {2} and tokens_of(found)["books"] == pytest.approx(2 * there["books"], abs=1000)
    found, _ = mixed(
        rows, Mix(method=Given(weights={"web": 1, "code": 1, "books": 1}), budget=7.5 * there["books"], max_epochs=4)
    )
    books = Counter(row["copies"] for row in found if row["source"] == "books")
    assert set(books) == {2, 3} and books[3] / sum(books.values()) == pytest.approx(0.5, abs=0.05)


def test_all_is_seen_once_unless_somebody_says_otherwise():
    found, flow = mixed(made(), Mix())
    assert {row["copies"] for row in found} == {1}
    assert flow.metrics["mix"]["method"] == "proportional"


def test_a_source_that_runs_short_is_named_with_what_it_lacks():
    with pytest.raises(CannotRun, match=r"'books'.*short|short.*'books'"):
        mixed(made(), Mix(method=Given(weights={"web": 0.1, "code": 0.1, "books": 0.8}), budget=4_000_000))
    with pytest.raises(CannotRun, match="budget"):
        mixed(made(), Mix(method=Unimax(), budget=1e9))
    with pytest.raises(CannotRun, match="'bokks'"):
        mixed(made(), Mix(method=Given(weights={"web": 1, "code": 1, "bokks": 1})))


def test_the_draw_does_not_hang_on_parts_and_grows_with_the_budget():
    rows = made()
    mix = Mix(method=Temperature(temperature=2.0), budget=2_000_000)
    first = {row["uid"]: row["copies"] for row in mixed(rows, mix)[0]}
    assert all({row["uid"]: row["copies"] for row in mixed(rows, mix, seed)[0]} == first for seed in range(1, 5))
    more = {row["uid"]: row["copies"] for row in mixed(rows, mix.model_copy(update={"budget": 3_000_000}))[0]}
    assert all(more[uid] >= copies for uid, copies in first.items()) and more != first
    other = {row["uid"]: row["copies"] for row in mixed(rows, mix.model_copy(update={"seed": 1}))[0]}
    assert other != first


def test_sources_are_whatever_columns_tell_them_apart():
    found, flow = mixed(made(), Mix(by=["source", "language"], method=Unimax(), budget=900_000))
    names = [source["source"] for source in flow.metrics["mix"]["sources"]]
    assert len(names) == 9 and "code/(none)" in names and "web/de" in names
    each: Counter[str] = Counter()
    for row in found:
        each[f"{row['source']}/{row['language'] or '(none)'}"] += row["tokens"] * row["copies"]
    assert all(abs(tokens - 100_000) <= 1000 for tokens in each.values())
    with pytest.raises(CannotRun, match="no column 'topic'"):
        mixed(made(10), Mix(by=["topic"]))


def test_utilities_from_a_file_tilt_the_mix_and_the_frontier_is_told(tmp_path):
    path = tmp_path / "utilities.csv"
    path.write_text(
        "source,science,science_se,code,code_se,noise,noise_se\nbooks,0.8,0.02,0.3,0.02,0.5,0.3\n"
        "code,0.3,0.02,0.9,0.02,0.6,0.3\nweb,0.4,0.02,0.4,0.02,0.55,0.3\n"
    )
    rows = made()
    _, flow = mixed(rows, Mix(method=Utilimax(utilities_file=str(path), aversion=0.1), budget=1_000_000))
    told = flow.metrics["mix"]
    assert [task["task"] for task in told["dropped_tasks"]] == ["noise"] and len(told["frontier"]) >= 5
    weights = {source["source"]: source["weight"] for source in told["sources"]}
    assert weights["code"] > weights["web"] and weights["books"] > weights["web"]
    path.write_text("source,science\nbooks,good\n")
    with pytest.raises(ValidationError, match=r"utilities\.csv.*good"):
        Mix(method=Utilimax(utilities_file=str(path)), budget=1_000_000)


def test_a_proxy_repeats_sources_as_the_run_it_stands_for():
    rows = made(20_000)
    weights = {"web": 0.4, "code": 0.3, "books": 0.3}
    large = Mix(method=Given(weights=weights), budget=16_000_000)
    proxy = large.model_copy(update={"budget": 1_600_000, "stands_for": 16_000_000})
    found_large, _ = mixed(rows, large)
    found, _ = mixed(rows, proxy)
    assert tokens_of(found).total() == pytest.approx(1_600_000, rel=0.002)
    for name in weights:
        epochs = []
        for run in (found_large, found):
            mine = [row for row in run if row["source"] == name and row["reason"] != "not_in_proxy"]
            epochs.append(sum(row["tokens"] * row["copies"] for row in mine) / sum(row["tokens"] for row in mine))
        assert epochs[1] == pytest.approx(epochs[0], rel=0.1)


def test_of_a_part_of_the_input_the_budget_is_lowered_and_said():
    rows = made(500)
    flow = Scattered(0)
    flow.partial = True
    Mix(method=Given(weights={"web": 1, "code": 1, "books": 1}), budget=1e9).run(
        flow.parts(pa.Table.from_pylist(rows, schema=SCHEMA)), flow
    )
    assert any("was lowered" in warning for warning in flow.metrics["mix"]["warnings"])
    epochs = {source["source"]: source["epochs"] for source in flow.metrics["mix"]["sources"]}
    assert 3 < max(epochs.values()) <= 4.001


def test_a_source_of_which_no_document_is_left_is_one_without_tokens(tmp_path):
    """Its name stands in the recipe, which asks for one of every source."""
    rows = made(500)
    for weights in ({"web": 2, "code": 1, "books": 1, "notes": 0}, {"web": 1, "code": 1, "books": 1, "notes": 1}):
        flow = Scattered(0)
        flow.partial = weights["notes"] > 0
        mix = Mix(
            method=Given(weights=weights), max_epochs={"web": 4, "code": 9, "books": 9, "notes": 2}, budget=90_000
        )
        mix.run(flow.parts(pa.Table.from_pylist(rows, schema=SCHEMA)), flow)
        told = flow.metrics["mix"]
        assert [(source["source"], source["tokens"], source["weight"]) for source in told["sources"]][2] == (
            "notes",
            0,
            0,
        )
        assert told["warnings"] == (["of a part of the input: no document of 'notes' is in it"] if flow.partial else [])
        assert sum(source["drawn"] for source in told["drawn"]) == pytest.approx(90_000, abs=3000)
    with pytest.raises(CannotRun, match=r"'notes' runs short by 22,500 tokens.*it has no tokens"):
        mixed(rows, Mix(method=Given(weights=weights), budget=90_000))
    path = tmp_path / "utilities.csv"
    path.write_text("source,science\nbooks,0.8\ncode,0.3\nweb,0.4\nnotes,0.9\n")
    _, flow = mixed(rows, Mix(method=MostUtility(utilities_file=str(path)), budget=90_000))
    assert [source["weight"] for source in flow.metrics["mix"]["sources"]] == [1, 0, 0, 0]


def test_values_with_slashes_are_sources_of_their_own():
    rows = [
        row | {"source": source, "language": language}
        for row, (source, language) in zip(made(400), [("a/b", "c"), ("a", "b/c")] * 200, strict=True)
    ]
    _, flow = mixed(rows, Mix(by=["source", "language"]))
    assert [source["source"] for source in flow.metrics["mix"]["sources"]] == ["a/b\\/c", "a\\/b/c"]


def test_mixing_twice_or_after_the_order_is_refused():
    table = pa.Table.from_pylist(made(10), schema=SCHEMA)
    for column, message in (("copies", "mixed before"), ("bucket", "before `order`")):
        flow = Scattered(0)
        with pytest.raises(CannotRun, match=message):
            Mix().run(flow.parts(table.append_column(column, pa.array([1] * 10, pa.int16()))), flow)


def test_a_proxy_that_loses_a_source_says_which():
    rows = [*made(2000), {"uid": 5, "source": "notes", "text": "", "language": "en", "tokens": 100}]
    mix = Mix(method=Temperature(temperature=5.0), max_epochs=1e9, budget=1000, stands_for=1_000_000)
    with pytest.raises(CannotRun, match="'notes' keep no document"):
        mixed(rows, mix)


def test_wrong_settings_are_explained():
    for settings, message in [
        ({"method": "given"}, r"method\.given\.weights: is missing"),
        ({"method": "utilimax"}, r"method\.utilimax\.utilities_file: is missing"),
        ({"method": {"utilimax": {"utilities_file": "nowhere.csv"}}}, "no file nowhere.csv"),
        ({"weights": {"web": 1.0}}, r"weights: no such setting"),
        ({"method": "unimx"}, "no such method; did you mean unimax"),
        ({"method": {"unimax": {}, "given": {}}}, "one method was expected"),
        ({"method": {"given": 3}}, r"method\.given: settings were expected"),
        ({"stands_for": 10.0}, "give `budget`"),
        ({"by": []}, "at least one column"),
        ({"budget": math.inf}, "finite"),
        ({"max_epochs": -1}, "-1 epochs; a finite number"),
        ({"max_epochs": {"web": math.nan}}, "nan epochs of 'web'"),
        ({"max_epochs": 0}, "nothing to train on"),
        ({"method": {"given": {"weights": {"web": -1.0, "code": 1.0}}}}, "greater than or equal to 0"),
        ({"method": {"given": {"weights": {"web": math.nan}}}}, "finite"),
        ({"method": {"given": {"weights": {"web": 0.0}}}}, r"weights: .*one number at least must be above 0"),
        ({"method": {"given": {"weights": {"web": 1.0}, "kl": 0.1}}}, r"method\.given\.kl: no such setting"),
        ({"method": {"unimax": {"aversion": 0.3}}}, r"method\.unimax\.aversion: no such setting"),
    ]:
        with pytest.raises(SettingsError, match=message):
            Mix(**settings)


def test_numbers_that_do_not_go_with_a_table_are_said_before_any_work(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("weight:web,weight:code,loss:science\n" + "".join(f"{w},{1 - w},{w}\n" for w in (0, 0.25, 0.5, 1)))
    with pytest.raises(SettingsError, match=r"task_weights: no task 'sciense'; there are 'science'"):
        Mix(method={"log_linear": {"ablations_file": str(path), "task_weights": {"sciense": 1.0}}})
    (tmp_path / "excel.csv").write_text("weight:web,loss:science\n1,2\n", encoding="utf-16")
    with pytest.raises(SettingsError, match=r"ablations_file: .*excel\.csv: no text in UTF-8"):
        Mix(method={"log_linear": {"ablations_file": str(tmp_path / "excel.csv")}})
    with pytest.raises(SettingsError, match="best is 7 of 6 candidates"):
        Mix(method={"regmix": {"regressor": "ridge", "ablations_file": str(path), "best": 7, "candidates": 6}})
