"""Cells of topic, format and quality: caps by part, small ones joined, caps by domain, examples; nothing is lost or
counted twice."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.stages.blend.cap_domains import CapDomains
from gristmill.stages.blend.cells import caps_of, joined
from gristmill.stages.blend.groups import group_names, parts_of
from gristmill.stages.blend.methods import Unimax
from gristmill.stages.blend.mix import Mix
from gristmill.stages.stage import CannotRun
from tests.stages.scattered import Scattered

BY = ["topic", "quality_bucket"]
SCHEMA = pa.schema(
    [
        ("uid", pa.uint64()), ("source", pa.string()), ("url", pa.string()), ("text", pa.string()),
        ("topic", pa.string()), ("quality_bucket", pa.int32()), ("tokens", pa.int32()),
    ]
)  # fmt: skip


def made(count: int = 3000, seed: int = 0) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    hosts = ["www.big.example"] * 5 + [f"{name}.co.uk" for name in "abcdefgh"] + [None]
    return [
        {
            "uid": dice.getrandbits(64), "source": "web", "text": f"text {n} " * 40,
            "url": f"https://{host}/{n}" if (host := dice.choice(hosts)) else None,
            "topic": dice.choice(["science"] * 20 + ["art/music"] * 10 + ["rare", None]),
            "quality_bucket": dice.choice([0, 0, 1, 2]), "tokens": dice.randint(1, 900),
        }
        for n in range(count)
    ]  # fmt: skip


def ran(rows: list[dict[str, Any]], stage: Any, seed: int = 0) -> tuple[list[dict[str, Any]], Scattered]:
    flow = Scattered(seed)
    stage.run(flow.parts(pa.Table.from_pylist(rows, schema=SCHEMA)), flow)
    by_uid = {row["uid"]: row for row in rows}
    return [by_uid[row["uid"]] | row for row in flow.named.to_pylist()], flow


def name_of(row: dict[str, Any]) -> str:
    topic = "(none)" if row["topic"] is None else row["topic"].replace("/", "\\/")
    return f"{topic}/{row['quality_bucket']}"


def test_unimax_over_cells_draws_each_cell_to_half_a_document_and_nulls_are_a_cell():
    rows = made()
    there: Counter[str] = Counter()
    for row in rows:
        there[name_of(row)] += row["tokens"]
    found, flow = ran(rows, Mix(by=BY, method=Unimax(), max_epochs=2, budget=400_000))
    mix = flow.metrics["mix"]
    assert [source["source"] for source in mix["sources"]] == sorted(there) and len(there) == 12
    assert mix["parts"][mix["sources"].index(next(s for s in mix["sources"] if s["source"] == "(none)/0"))] == [
        "(none)",
        "0",
    ]
    assert ["art/music", "1"] in mix["parts"]
    drawn: Counter[str] = Counter()
    for row in found:
        drawn[name_of(row)] += row["tokens"] * row["copies"]
    longest = max(row["tokens"] for row in rows)
    for source, told in zip(mix["sources"], mix["drawn"], strict=True):
        name = source["source"]
        assert told["drawn"] == drawn[name] and told["there"] == there[name]
        assert abs(drawn[name] - 400_000 * source["weight"]) <= longest / 2
        assert source["epochs"] <= 2 + 1e-9
    even = [s["weight"] for s in mix["sources"] if s["weight"] < s["cap"] - 1e-9]
    assert len(even) >= 4 and max(even) - min(even) < 1e-9  # cells with enough tokens weigh the same


def test_examples_are_documents_of_their_cell_and_the_same_in_any_order_of_parts():
    rows = made(400)
    by_uid = {f"{row['uid']:016x}": row for row in rows}
    told = [ran(rows, Mix(by=BY), seed)[1].metrics["mix"]["examples"] for seed in range(3)]
    assert told[0] == told[1] == told[2]
    assert {*told[0]} == {name_of(row) for row in rows}
    counts = Counter(name_of(row) for row in rows)
    for name, examples in told[0].items():
        assert len(examples) == min(3, counts[name])
        for example in examples:
            row = by_uid[example["uid"]]
            assert name_of(row) == name and example["url"] == row["url"] and example["text"] == row["text"][:160]


def test_caps_by_part():
    names = ["science/0", "science/1", "art/0", "art/1", "(none)/0"]
    caps = {"topic=science": 8.0, "topic=science, quality_bucket=0": 1.0, "quality_bucket=0": 2.0, "others": 4.0}
    assert caps_of(caps, BY, names, False, {}) == {
        "science/0": 1.0, "science/1": 8.0, "art/0": 2.0, "art/1": 4.0, "(none)/0": 2.0,
    }  # fmt: skip
    assert caps_of({**caps, "art/1": 0.0}, BY, names, False, {})["art/1"] == 0.0
    assert caps_of({"topic=(none)": 0.5, "others": 4}, BY, names, False, {})["(none)/0"] == 0.5
    with pytest.raises(ValueError, match="did you mean topic=science"):
        caps_of({"topic=sciences": 8.0, "others": 4.0}, BY, names, False, {})
    with pytest.raises(ValueError, match=r"says nothing of .*others: 4"):
        caps_of({"topic=science": 8.0}, BY, names, False, {})
    assert caps_of({"topic=sciences": 8.0, "others": 4.0}, BY, names, True, {}) == dict.fromkeys(names, 4.0)


def test_a_cap_of_a_group_that_was_joined_says_which_cell_it_is_in():
    names, small = ["science/0", "art/(small)"], {"art/0": "art/(small)", "art/1": "art/(small)"}
    for key in ("art/1", "topic=art, quality_bucket=1"):
        with pytest.raises(ValueError, match=r"speaks of the group 'art/1', .* part of the cell 'art/\(small\)'"):
            caps_of({key: 1.0, "others": 4.0}, BY, names, False, small)
    assert caps_of({"topic=art": 1.0, "others": 4.0}, BY, names, False, small)["art/(small)"] == 1.0


def test_a_mix_keeps_caps_by_part():
    caps = {"topic=science": 0.5, "others": 3.0}
    found, flow = ran(made(), Mix(by=BY, method=Unimax(), max_epochs=caps, budget=900_000))
    mix = flow.metrics["mix"]
    epochs = {source["source"]: source["epochs"] for source in mix["sources"]}
    assert all(times <= (0.5 if name.startswith("science/") else 3) + 1e-9 for name, times in epochs.items())
    assert {copies for row in found if row["topic"] == "science" for copies in [row["copies"]]} == {0, 1}
    assert max(row["copies"] for row in found) == 3
    with pytest.raises(CannotRun, match="no cell is topic=scienc"):
        ran(made(), Mix(by=BY, max_epochs={"topic=scienc": 1.0, "others": 4.0}))


def test_small_cells_are_joined_with_those_that_differ_in_the_last_column():
    tokens = {"science/0": 900.0, "science/1": 40.0, "science/2": 70.0, "art/0": 30.0, "art/1": 20.0, "law/0": 9.0}
    assert joined(tokens, 2, 100) == {
        "science/0": "science/0", "science/1": "science/(small)", "science/2": "science/(small)",
        "art/0": "(small)", "art/1": "(small)", "law/0": "(small)",
    }  # fmt: skip
    assert joined(tokens, 2, 0) == {name: name for name in tokens}
    assert {*joined({"a": 1.0, "b": 500.0, "c": 2.0}, 1, 100).values()} == {"(small)", "b"}


def test_joined_cells_are_mixed_as_one_and_refused_where_that_is_asked():
    rows = made()
    mix = Mix(by=BY, method=Unimax(), max_epochs=4, budget=200_000, least_tokens=60_000)
    found, flow = ran(rows, mix)
    told = flow.metrics["mix"]
    assert told["joined"] and all(cell.endswith("(small)") for cell in told["joined"].values())
    sums: Counter[str] = Counter()
    for row in found:
        sums[told["joined"].get(name_of(row), name_of(row))] += row["tokens"] * row["copies"]
    assert {s["source"]: d["drawn"] for s, d in zip(told["sources"], told["drawn"], strict=True)} == dict(sums)
    assert sum(d["there"] for d in told["drawn"]) == sum(row["tokens"] for row in rows)
    with pytest.raises(CannotRun, match=r"have fewer than 60,000 tokens.*small_cells: join"):
        ran(rows, mix.model_copy(update={"small_cells": "refuse"}))


@given(st.lists(st.lists(st.text("ab/\\", max_size=4), min_size=2, max_size=2), min_size=1, max_size=5))
def test_a_cell_name_says_its_parts(values: list[list[str]]):
    table = pa.table({"x": [a for a, _ in values], "y": [b for _, b in values]})
    assert [parts_of(name, 2) for name in group_names(table, ["x", "y"], "").to_pylist()] == values


@pytest.mark.parametrize("settings", [{"documents": 5}, {"share": 0.02}, {"share": 0.02, "documents": 5}])
def test_no_domain_has_more_of_a_cell_than_its_cap(settings: dict[str, Any]):
    rows = made()
    caps = CapDomains(by=BY, **settings)
    _, flow = ran(rows, caps)
    gone = flow.gone
    assert {(row["reason"]) for row in gone.values()} == {"over_domain_cap"}
    assert all(gone[row["uid"]]["detail"] == name_of(row) for row in rows if row["uid"] in gone)
    assert all(row["url"] for row in rows if row["uid"] in gone)  # those without a domain stay
    total: Counter[str] = Counter()
    left: dict[tuple[str, str], list[int]] = defaultdict(list)
    came: set[tuple[str, str]] = set()
    for row in rows:
        total[name_of(row)] += row["tokens"]
        if row["url"]:
            domain = row["url"].split("/")[2].removeprefix("www.")
            came.add((name_of(row), domain))
            if row["uid"] not in gone:
                left[name_of(row), domain].append(row["tokens"])
    assert came == {*left}  # one document of each domain stays
    for (cell, _), tokens in left.items():
        assert len(tokens) <= settings.get("documents", len(tokens))
        assert len(tokens) == 1 or sum(tokens) <= settings.get("share", 1) * total[cell]
    told = {row["cell"]: row for row in flow.metrics["domain_caps"]}
    assert sum(row["dropped_documents"] for row in told.values()) == len(gone) > 100
    assert sum(row["documents"] for row in told.values()) == len(rows)
    assert {name: row["tokens"] for name, row in told.items()} == dict(total)
    assert {*ran(rows, caps, 7)[1].gone} == {*gone}


def test_a_number_of_documents_needs_no_tokens():
    rows = made()
    caps = CapDomains(by=BY, documents=5)
    assert caps.wants == () and CapDomains(share=0.5).wants == ("tokens",)
    flow = Scattered(3)
    caps.run(flow.parts(pa.Table.from_pylist(rows, schema=SCHEMA).drop_columns(["tokens"])), flow)
    assert {*flow.gone} == {*ran(rows, caps)[1].gone} and len(flow.gone) > 100
    shown = CapDomains.figures({"domain_caps": flow.metrics["domain_caps"]})
    assert shown is not None and "tokens" not in str(shown)
    assert "tokens" in str(CapDomains.figures({"domain_caps": ran(rows, caps)[1].metrics["domain_caps"]}))


def test_domain_caps_say_what_they_need():
    with pytest.raises(ValueError, match="give share or documents"):
        CapDomains()
    with pytest.raises(CannotRun, match="no column 'nothing'"):
        ran(made(20), CapDomains(by=["nothing"], documents=1))
