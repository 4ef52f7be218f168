"""Quantiles are exact, however many scores are equal, in every group, and whatever parts documents lie in."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages.judge import quantiles
from gristmill.stages.judge.quantile_buckets import QuantileBuckets
from gristmill.stages.judge.quantiles import score_of, sorted_keys
from gristmill.stages.judge.threshold import Threshold
from gristmill.stages.stage import CannotRun
from tests.stages.scattered import Scattered

SCHEMA = pa.schema(
    [("uid", pa.uint64()), ("source", pa.string()), ("text", pa.string()), ("language", pa.string()), ("tokens", pa.int32()), ("copies", pa.uint16()),
     ("good", pa.float32()), ("other", pa.float64())]
)  # fmt: skip


def made(count: int = 4000, seed: int = 0) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "uid": chance.getrandbits(64), "source": "s", "text": "", "language": chance.choice(["en", "en", "de", None]), "tokens": chance.randint(1, 500),
            "copies": chance.randint(1, 2), "good": chance.choice([0.0, 0.0, 0.25, 1.0, chance.random(), -chance.random(), None]), "other": chance.gauss(0, 1e6),
        }
        for _ in range(count)
    ]  # fmt: skip


def marked(stage: Any, rows: list[dict[str, Any]], seed: int = 0) -> tuple[list[dict[str, Any]], Scattered]:
    flow = Scattered(seed)
    stage.run(flow.parts(pa.Table.from_pylist(rows, schema=SCHEMA)), flow)
    by_uid = {row["uid"]: row for row in rows}
    return [by_uid[row["uid"]] | row for row in flow.named.to_pylist()], flow


@pytest.mark.parametrize("few", [200_000, 50, 0])
@pytest.mark.parametrize(
    ("keep", "weigh"), [(0.1, "documents"), (0.5, "tokens"), (0.999, "documents"), (1.0, "tokens")]
)
def test_the_share_is_met_to_half_a_document_and_the_best_stay(keep, weigh, few, monkeypatch):
    monkeypatch.setattr(quantiles, "FEW", few)
    rows = made()
    found, flow = marked(Threshold(by="good", keep=keep, weigh=weigh), rows)
    weight = [row["copies"] * (row["tokens"] if weigh == "tokens" else 1) for row in found]
    kept = sum(w for w, row in zip(weight, found, strict=True) if row["reason"] is None)
    assert abs(kept - keep * sum(weight)) <= max(weight) / 2
    worst_kept = min(-9 if row["good"] is None else row["good"] for row in found if row["reason"] is None)
    assert all((-9 if row["good"] is None else row["good"]) <= worst_kept for row in found if row["reason"])
    assert flow.metrics["thresholds"][0]["kept"] == pytest.approx(kept / sum(weight))
    assert {row["reason"] for row in found} <= {None, "below_threshold"}


def test_each_group_has_a_threshold_of_its_own():
    found, flow = marked(Threshold(by="other", keep=0.2, within=["language"]), made())
    assert [told["group"] for told in flow.metrics["thresholds"]] == ["(none)", "de", "en"]
    for language in ("en", "de", None):
        mine = [row for row in found if row["language"] == language]
        kept = sum(row["copies"] for row in mine if row["reason"] is None) / sum(row["copies"] for row in mine)
        assert kept == pytest.approx(0.2, abs=0.002)


def test_the_lowest_can_be_kept():
    found, _ = marked(Threshold(by="other", keep=0.3, lowest=True), made())
    assert max(row["other"] for row in found if row["reason"] is None) <= min(
        row["other"] for row in found if row["reason"]
    )


def test_documents_without_the_signal_are_the_worst_whichever_end_is_kept():
    rows = [row | {"good": None if i < 500 else row["other"], "copies": 1} for i, row in enumerate(made(1000))]
    for lowest in (False, True):
        for keep, lacking in ((0.3, 0), (0.7, 200)):
            found, flow = marked(Threshold(by="good", keep=keep, lowest=lowest), rows)
            kept = [row["good"] for row in found if row["reason"] is None]
            assert (len(kept), kept.count(None)) == (keep * 1000, lacking)
            at = flow.metrics["thresholds"][0]["threshold"]
            if lacking:
                assert at is None
            else:
                gone = [row["good"] for row in found if row["reason"] and row["good"] is not None]
                assert max(kept) <= at < min(gone) if lowest else max(gone) < at <= min(kept)
            assert flow.metrics["thresholds"][0]["kept"] == pytest.approx(keep)


def test_documents_without_a_signal_are_in_its_bucket_0_however_many_they_are():
    rows = [row | {"good": None if i < 500 else row["other"], "copies": 1} for i, row in enumerate(made(1000))]
    found, _ = marked(QuantileBuckets(by=["good"], buckets=10), rows)
    assert {row["quality_bucket"] for row in found if row["good"] is None} == {0}
    assert {row["quality_bucket"] for row in found if row["good"] is not None} == {5, 6, 7, 8, 9}


def test_who_stays_does_not_hang_on_parts():
    rows = made(1500)
    stage = Threshold(by="good", keep=0.4, within=["language"])
    first = {row["uid"]: row["reason"] for row in marked(stage, rows)[0]}
    assert all({row["uid"]: row["reason"] for row in marked(stage, rows, seed)[0]} == first for seed in range(1, 6))
    other = {row["uid"]: row["reason"] for row in marked(stage.model_copy(update={"seed": 1}), rows)[0]}
    assert other != first  # among equals


def test_five_million_scores_with_heavy_ties():
    """Half of them one value; the share is within 0.1 % of what was asked."""
    chance = np.random.default_rng(0)
    count = 5_000_000
    scores = np.where(chance.random(count) < 0.5, 0.0, np.round(chance.random(count), 2)).astype(np.float32)
    table = pa.table(
        {
            "uid": chance.integers(0, 1 << 63, count, dtype=np.uint64),
            "good": scores,
            "text": pa.nulls(count, pa.string()),
        }
    )
    flow = Scattered(0)
    docs = Parts_of(table)
    kept = {}
    for keep in (0.1, 0.37, 0.8):
        kept[keep] = Threshold(by="good", keep=keep).run(docs, flow).rows / count
    assert all(abs(share - keep) < 0.001 for keep, share in kept.items())


def Parts_of(table: pa.Table) -> Any:
    from tests.stages.scattered import Parts

    return Parts([table.slice(0, 3_000_000), table.slice(3_000_000)])


def test_buckets_hold_equal_weight_and_the_best_is_the_last():
    found, flow = marked(QuantileBuckets(by=["other"], weigh="tokens"), made())
    weight: dict[int, int] = {}
    for row in found:
        weight[row["quality_bucket"]] = weight.get(row["quality_bucket"], 0) + row["tokens"] * row["copies"]
    assert set(weight) == set(range(20))
    assert max(weight.values()) - min(weight.values()) <= 2 * 1000
    ordered = sorted(found, key=lambda row: row["other"])
    assert [row["quality_bucket"] for row in ordered] == sorted(row["quality_bucket"] for row in found)
    tiers = {row["quality_bucket"]: row["quality_tier"] for row in found}
    assert [tiers[b] for b in (0, 7, 8, 11, 12, 17, 18, 19)] == [
        "low",
        "low",
        "medium_low",
        "medium_low",
        "medium",
        "medium",
        "medium_high",
        "high",
    ]
    assert len(flow.metrics["quantile_buckets"][0]["cuts"]) == 19


@pytest.mark.parametrize(
    ("buckets", "tiers"),
    [
        (2, {"low": 1, "high": 2}),
        (5, {"low": 2, "medium_low": 3, "medium": 4, "high": 5}),
        (10, {"low": 4, "medium_low": 6, "medium": 9, "high": 10}),
        (40, {"low": 16, "medium_low": 24, "medium": 36, "medium_high": 38, "high": 40}),
    ],
)
def test_the_best_of_few_buckets_is_high(buckets: int, tiers: dict[str, int]) -> None:
    assert list(QuantileBuckets(by=["other"], buckets=buckets).named_tiers.items()) == list(tiers.items())


def test_an_ensemble_takes_the_highest_bucket_or_the_mean():
    rows = made()
    one, _ = marked(QuantileBuckets(by=["good"], buckets=4, tiers={"low": 2, "high": 4}), rows)
    two, _ = marked(QuantileBuckets(by=["other"], buckets=4, tiers={"low": 2, "high": 4}), rows)
    most, _ = marked(QuantileBuckets(by=["good", "other"], buckets=4, tiers={"low": 2, "high": 4}), rows)
    mean, _ = marked(
        QuantileBuckets(
            by=["good", "other"],
            buckets=4,
            combine="mean",
            weights_of={"good": 3, "other": 1},
            tiers={"low": 2, "high": 4},
        ),
        rows,
    )
    a, b = ({row["uid"]: row["quality_bucket"] for row in found} for found in (one, two))
    assert all(row["quality_bucket"] == max(a[row["uid"]], b[row["uid"]]) for row in most)
    assert all(row["quality_bucket"] == (3 * a[row["uid"]] + b[row["uid"]]) // 4 for row in mean)
    assert all(row["quality_tier"] == ("high" if row["quality_bucket"] > 1 else "low") for row in most)


@settings(max_examples=300)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2))
def test_keys_sort_as_scores_do(pair):
    scores = np.array(pair, np.float32)
    keys = sorted_keys(scores, np.array([7, 7], np.uint64), 0)
    assert (keys[0] < keys[1]) == (scores[0] < scores[1]) and (keys[0] == keys[1]) == (scores[0] == scores[1])
    assert [score_of(int(key)) for key in keys] == scores.tolist()
    assert sorted_keys(np.array([np.nan], np.float32), np.array([7], np.uint64), 0)[0] < keys.min()
    assert len(sorted_keys(scores, np.array([7, 7], np.uint64), 2**64 - 1)) == 2


def test_what_is_missing_or_wrong_is_said():
    with pytest.raises(CannotRun, match="no signal 'edu'"):
        marked(Threshold(by="edu", keep=0.5), made(10))
    with pytest.raises(SettingsError, match="seed"):
        Threshold(by="good", keep=0.5, seed=2**64)
    with pytest.raises(CannotRun, match="no column 'topic'"):
        marked(Threshold(by="good", keep=0.5, within=["topic"]), made(10))
    for settings_, message in [
        ({"by": ["good"], "tiers": {"low": 3}}, "rise from above 0 to 20"),
        ({"by": ["good", "good"]}, "twice"),
        ({"by": ["good"], "weights_of": {"good": 1}}, "combine: mean"),
    ]:
        with pytest.raises(SettingsError, match=message):
            QuantileBuckets(**settings_)
