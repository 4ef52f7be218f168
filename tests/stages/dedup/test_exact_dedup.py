"""One of each text is left, the right one, in whatever order and buckets the engine brings the rows."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages.dedup.exact import ExactDedup
from gristmill.stages.dedup.policy import Preference
from gristmill.stages.dedup.survivors import hexadecimal
from gristmill.stages.stage import CannotRun
from tests.stages import scattered
from tests.stages.scattered import Scattered, members_plain

SCHEMA = pa.schema(
    [
        ("uid", pa.uint64()),
        ("source", pa.dictionary(pa.int32(), pa.string())),
        ("date", pa.string()),
        ("text", pa.string()),
    ]
)


def fates(
    stage: ExactDedup, rows: list[dict[str, Any]], seed: int = 0
) -> dict[int, tuple[str | None, str | None, int]]:
    flow = Scattered(seed)
    stage.run(flow.parts(pa.Table.from_pylist(rows, schema=SCHEMA)), flow)  # type: ignore[arg-type]
    assert flow.named.schema.names in ([], ["home", "uid", "reason", "detail", "exact_cluster_size"])
    return {r["uid"]: (r["reason"], r["detail"], r["exact_cluster_size"]) for r in flow.named.to_pylist()}


def fates_plain(stage: ExactDedup, rows: list[dict[str, Any]]) -> dict[int, tuple[str | None, str | None, int]]:
    clusters = defaultdict(list)
    for row in rows:
        text = row["text"]
        if text and text.strip():
            if stage.normalise:
                text = " ".join(unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).split())
            clusters[text].append(row)

    return members_plain(stage, clusters.values(), "exact_duplicate", "same text as")


TEXTS = [
    "",
    " \n",
    "Mill",
    "mill ",
    " MILL",
    "mill  stone",
    "caf\u00e9",
    "cafe\u0301",
    "\u1fb3\u0300",
    "Straße",
    "strasse",
]
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "uid": st.integers(0, 2**64 - 1),
            "source": st.sampled_from(["a", "b", "c"]),
            "date": st.sampled_from([None, "", "2023-01-01", "2024-01-01T00:00:00Z"]),
            "text": st.one_of(st.none(), st.sampled_from(TEXTS), st.text("aA \t\u00e9\u0301", max_size=3)),
        }
    ),
    max_size=30,
    unique_by=lambda row: row["uid"],
)
POLICY = st.lists(st.sampled_from(["source", "longest", "earliest"]), unique=True)


@given(ROWS, POLICY, st.booleans(), st.integers(0, 99))
def test_survivors_are_those_of_the_plain_twin(rows, prefer, normalise, seed):
    stage = ExactDedup(normalise=normalise, prefer=prefer, sources=["b", "a"] if "source" in prefer else [])
    assert fates(stage, rows, seed) == fates_plain(stage, rows)


def row(uid: int, text: str | None, source: str = "a", date: str | None = None) -> dict[str, Any]:
    return {"uid": uid, "text": text, "source": source, "date": date}


def test_one_of_each_text_is_left():
    rows = [row(uid, f"text {uid % 7}") for uid in range(100)]
    found = fates(ExactDedup(), rows)
    assert len(found) == 100 and sum(reason == "exact_duplicate" for reason, _, _ in found.values()) == 93
    assert [found[uid][0] for uid in range(7)] == [None] * 7, "the smallest uid wins a tie"
    assert found[9] == ("exact_duplicate", "same text as 0000000000000002", 14)


def test_documents_without_text_are_no_duplicates():
    assert fates(ExactDedup(), [row(1, ""), row(2, ""), row(3, None), row(4, None), row(5, " \n"), row(6, " \n")]) == {}


def test_an_empty_data_set_passes():
    assert fates(ExactDedup(), []) == {}


SURVIVOR_OF = {"source": 4, "longest": 2, "earliest": 3, "best": 5}


@pytest.mark.parametrize("prefer", [*get_args(Preference), None])
def test_each_policy(prefer):
    rows = [row(1, "mill"), row(2, "mill   ", date="2024"), row(3, "mill", date="2023"), row(4, "mill", "good")]
    rows = [one | {"score": 0.5} for one in rows] + [row(5, "mill") | {"score": 0.9}]
    more = {"source": {"sources": ["good"]}, "best": {"best": "score"}}
    stage = ExactDedup(prefer=[prefer] if prefer else [], **more.get(prefer, {}))
    found = scattered.fates(stage, rows, SCHEMA.append(pa.field("score", pa.float64())))
    assert [uid for uid, fate in found.items() if fate["reason"] is None] == [SURVIVOR_OF.get(prefer, 1)]
    assert len(found) == 5


def test_the_highest_signal_stays_and_what_is_no_number_is_said():
    rows = [row(uid, "mill") for uid in range(4)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA).append_column("score", pa.array([None, 0.5, 2.0, float("nan")]))
    stage = ExactDedup(prefer=["best"], best="score")
    assert stage.wants == ("score",) and ExactDedup().wants == ()
    flow = Scattered(0)
    stage.run(flow.parts(table), flow)
    assert sorted(flow.gone) == [0, 1, 3]
    with pytest.raises(CannotRun, match="'text' is of type string, and a number is needed"):
        ExactDedup(prefer=["best"], best="text").run(Scattered(0).parts(table), Scattered(0))


def test_settings_without_effect_are_refused():
    with pytest.raises(SettingsError, match="no effect"):
        ExactDedup(prefer=["longest"], sources=["a"])
    with pytest.raises(SettingsError, match="once"):
        ExactDedup(prefer=["longest", "longest"])


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_hexadecimal(values):
    assert hexadecimal(np.array(values, dtype=np.uint64)).to_pylist() == [f"{value:016x}" for value in values]


def test_what_an_earlier_run_kept_stays_and_its_copies_go() -> None:
    """Whatever the policy; and a document that is saved itself stays."""

    def docs(texts: list[str | None], first: int) -> pa.Table:
        uids = pa.array(range(first, first + len(texts)), pa.uint64())
        columns = {"uid": uids, "source": pa.array(["a"] * len(texts)), "date": pa.nulls(len(texts), pa.string())}
        return pa.table({**columns, "text": pa.array(texts, pa.string())})

    flow = Scattered(1)
    old = docs(["one", "two", "three", None], first=100)
    assert ExactDedup(save_index="old").run(flow.parts(old), flow).rows == 4
    new = pa.concat_tables([docs(["ONE", "one ", "four", "FOUR", "five", None], first=1), old.slice(1, 1)])
    for seed in range(5):
        flow.random.seed(seed)
        after = ExactDedup(against=["old"]).run(flow.parts(new), flow)
        assert {uid: row["detail"] for uid, row in flow.gone.items()} == {
            1: f"same text as {100:016x}, kept by old",
            2: f"same text as {100:016x}, kept by old",
            4: f"same text as {3:016x}",
        }
        assert after.rows == len(new) - 3
    with pytest.raises(CannotRun, match="was made with other settings"):
        ExactDedup(against=["old"], normalise=False).run(flow.parts(new), flow)
