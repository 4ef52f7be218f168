"""Places keep the promises of their schedules, for all documents or for each source, with copies and with signals that
are missing."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages.blend import order as order_module
from gristmill.stages.blend.order import Curriculum, Order
from gristmill.stages.stage import CannotRun
from tests.stages.scattered import Scattered

SCHEMA = pa.schema(
    [("uid", pa.uint64()), ("source", pa.string()), ("text", pa.string()), ("tokens", pa.int32()), ("copies", pa.uint16()),
     ("hard", pa.float64()), ("good", pa.float32()), ("language", pa.string())]
)  # fmt: skip


def made(count: int = 4000, seed: int = 0) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "uid": chance.getrandbits(64), "source": chance.choice(["web", "code"]), "text": "", "tokens": chance.randint(1, 2000), "copies": chance.randint(1, 2),
            "hard": chance.gauss(0, 1), "good": float(chance.randint(0, 5)), "language": chance.choice(["en", "de"]),
        }
        for _ in range(count)
    ]  # fmt: skip


def ordered(rows: list[dict[str, Any]], order: Order, seed: int = 0) -> tuple[list[dict[str, Any]], Scattered]:
    flow = Scattered(seed)
    order.run(flow.parts(pa.Table.from_pylist(rows, schema=SCHEMA)), flow)
    by_uid = {row["uid"]: row for row in rows}
    return [by_uid[row["uid"]] | row for row in flow.named.to_pylist()], flow


def in_order(rows: list[dict[str, Any]]) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Where each copy begins in training, as a share of all tokens, and its document, in order of place."""
    copies = sorted(((place, row["uid"], row) for row in rows for place in row["places"]), key=lambda copy: copy[:2])
    tokens = np.array([row["tokens"] for _, _, row in copies], np.float64)
    return (np.cumsum(tokens) - tokens / 2) / tokens.sum(), [row for _, _, row in copies]


def correlation(rows: list[dict[str, Any]], signal: str, seed: int = 5) -> float:
    """Spearman's, over tokens: of progress with the rank of the signal."""
    progress, documents = in_order(rows)
    values, tokens = np.array([d[signal] for d in documents]), np.array([d["tokens"] for d in documents], np.float64)
    at = np.lexsort((np.random.default_rng(seed).random(len(values)), values))
    rank = np.empty(len(values))
    rank[at] = np.cumsum(tokens[at])
    weights = tokens / tokens.sum()
    x, y = progress - weights @ progress, rank - weights @ rank
    return float(weights @ (x * y) / np.sqrt((weights @ x**2) * (weights @ y**2)))


@pytest.mark.parametrize(
    "schedule",
    [
        "random", "ascending", {"stages": {"stages": 3}}, {"warm_up": {"share": 0.5}}, {"interleaved": {"passes": 2}}, "pacing",
        {"pacing": {"power": 1.0, "start": 0.2}}, {"anneal": {"share": 0.3}}, {"anneal": {"share": 0.3, "best": 0.3}}, {"steps": {"start": 0.3}},
    ],
    ids=str,
)  # fmt: skip
def test_the_order_correlates_with_the_signal_as_its_schedule_promises(schedule):
    rows, flow = ordered(made(), Order(by="hard", schedule=schedule))
    promised = flow.metrics["order"]["curricula"][0]["correlation"]
    assert correlation(rows, "hard") == pytest.approx(promised, abs=0.05)
    if schedule == "ascending":
        assert correlation(rows, "hard") > 0.999


def test_equal_stretches_of_place_hold_equal_tokens():
    for schedule in ("random", "ascending", "pacing", "anneal"):
        rows, _ = ordered(made(), Order(by="hard", schedule=schedule))
        tokens = np.zeros(8)
        for row in rows:
            for place in row["places"]:
                tokens[place >> 61] += row["tokens"]
        assert tokens / tokens.sum() == pytest.approx(np.full(8, 1 / 8), abs=0.02)


def test_the_best_come_last_and_nowhere_else():
    rows, flow = ordered(made(), Order(by="good", schedule={"anneal": {"share": 0.1}}))
    progress, documents = in_order(rows)
    late = [d["good"] for p, d in zip(progress, documents, strict=True) if p > 0.91]
    early = [d["good"] for p, d in zip(progress, documents, strict=True) if p < 0.89]
    assert min(late) == 5 and len(late) > 400
    assert early.count(5.0) > 100  # there are more of them than fit: the others are by chance
    assert "decay it to zero" in flow.metrics["order"]["curricula"][0]["advice"]


def test_each_source_has_a_curriculum_of_its_own_and_they_join():
    order = Order(schedule="random", sources={"code": Curriculum(by="hard", schedule="ascending")})
    rows, _ = ordered(made(), order)
    assert abs(correlation([r for r in rows if r["source"] == "web"], "hard")) < 0.06
    assert correlation([r for r in rows if r["source"] == "code"], "hard") > 0.999
    progress, documents = in_order(rows)
    code = np.array([d["source"] == "code" for d in documents])
    assert np.mean(progress[code]) == pytest.approx(0.5, abs=0.02)  # all along, never one after the other
    assert all(row["bucket"] == -1 and row["difficulty"] is None for row in rows if row["source"] == "web")
    assert {row["bucket"] for row in rows if row["source"] == "code"} == set(range(16))


def test_documents_are_ranked_within_what_is_asked():
    rows = made()
    for row in rows:
        row["hard"] += 100 * (row["language"] == "de")
    found, _ = ordered(rows, Order(by="hard", schedule="ascending", within=["language"]))
    for language in ("en", "de"):
        assert correlation([r for r in found if r["language"] == language], "hard") > 0.999
    assert np.mean([r["language"] == "de" for r in in_order(found)[1][:2000]]) == pytest.approx(0.5, abs=0.05)


def test_descending_turns_it_round_and_missing_signals_are_by_chance():
    rows = made()
    for row in rows[::3]:
        row["hard"] = None
    found, flow = ordered(rows, Order(by="hard", schedule="ascending", descending=True))
    known = [r for r in found if r["hard"] is not None]
    assert correlation(known, "hard") < -0.95
    unknown = [place / 2**64 for r in found if r["hard"] is None for place in r["places"]]
    assert np.mean(unknown) == pytest.approx(0.5, abs=0.03) and len(unknown) > 1500
    assert flow.metrics["order"]["sampled_without_signal"] == len(rows[::3])
    assert all((r["bucket"] == -1) == (r["hard"] is None) for r in found)


def test_places_do_not_hang_on_parts_or_on_what_the_sample_leaves_out(monkeypatch):
    rows = made(1500)
    order = Order(by="hard", schedule="pacing", within=["source"])
    first = {r["uid"]: r["places"] for r in ordered(rows, order)[0]}
    assert all({r["uid"]: r["places"] for r in ordered(rows, order, seed)[0]} == first for seed in range(1, 5))
    monkeypatch.setattr(order_module, "SAMPLE", 400)
    small = {r["uid"]: r["places"] for r in ordered(rows, order)[0]}
    assert small != first
    assert all({r["uid"]: r["places"] for r in ordered(rows, order, seed)[0]} == small for seed in range(1, 5))
    assert correlation(ordered(rows, Order(by="hard", schedule="ascending"))[0], "hard") > 0.995


def test_copies_have_places_of_their_own():
    rows, _ = ordered(made(), Order())
    twice = [row["places"] for row in rows if row["copies"] == 2]
    assert len(twice) > 1000 and all(len(set(places)) == 2 for places in twice)


def test_wrong_settings_are_explained():
    with pytest.raises(SettingsError, match="goes by a signal"):
        Order(schedule="ascending")
    for settings, message in [
        ({"by": "hard", "schedule": {"warm_up": {"stages": 8}}}, r"schedule\.warm_up\.stages: no such setting"),
        ({"by": "hard", "share": 0.3}, "share: no such setting"),
        (
            {"sources": {"web": {"by": "hard", "schedule": {"stages": {"passes": 4}}}}},
            r"sources\.web\.schedule\.stages\.passes: no such setting",
        ),
        ({"by": "hard", "schedule": "interleave"}, "no such schedule; did you mean interleaved"),
        ({"descending": True}, "descending turns round what `by` names"),
    ]:
        with pytest.raises(SettingsError, match=message):
            Order(**settings)
    with pytest.raises(SettingsError, match="run out"):
        Order(by="hard", schedule={"pacing": {"power": 0.2, "start": 0.0, "until": 1.0}})
    with pytest.raises(CannotRun, match="no column 'topic'"):
        ordered(made(10), Order(by="hard", schedule="ascending", within=["topic"]))


def test_a_part_of_the_input_may_lack_a_source_that_has_a_curriculum():
    order = Order(sources={"notes": Curriculum(by="hard", schedule="ascending")})
    with pytest.raises(CannotRun, match="'notes' has a curriculum, and no document is of it"):
        ordered(made(50), order)
    flow = Scattered(0)
    flow.partial = True
    order.run(flow.parts(pa.Table.from_pylist(made(50), schema=SCHEMA)), flow)
    assert len(flow.named) == 50
