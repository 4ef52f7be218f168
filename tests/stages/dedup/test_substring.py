"""No run of so many tokens is left twice, the first of each stays, and how documents lie in parts does not matter."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.common.settings import SettingsError
from gristmill.kernels.words.token_rules import tokens_plain
from gristmill.stages.dedup import slices
from gristmill.stages.dedup.substring import SubstringDedup, united
from tests.reference.suffix_plain import mended_plain, repeats_plain
from tests.stages import scattered

SCHEMA = pa.schema([("uid", pa.uint64()), ("text", pa.string())])
DATA = Path(__file__).parents[4] / "shared" / "data"
Fate = tuple[str | None, str | None, int | None]  # the text, the reason to drop it, tokens cut out


def fates(stage: SubstringDedup, texts: dict[int, str | None], seed: int = 0) -> dict[int, Fate]:
    rows = [{"uid": uid, "text": text} for uid, text in texts.items()]
    found = scattered.fates(stage, rows, SCHEMA, seed)
    assert all((fate["reason"] is None) == (fate.get("detail") is None) for fate in found.values())
    return {uid: (fate["text"], fate["reason"], fate.get("repeated_tokens")) for uid, fate in found.items()}


def words(text: str | None) -> list[bytes]:
    return [word for _, _, word in tokens_plain(text or "")]


def fates_plain(stage: SubstringDedup, texts: dict[int, str | None]) -> dict[int, Fate]:
    uids = sorted(texts)
    out: dict[int, Fate] = {}
    for uid, spans in zip(
        uids, repeats_plain([words(texts[uid]) for uid in uids], stage.tokens, stage.keep == "first"), strict=True
    ):
        text, removed = texts[uid], sum(end - begin for begin, end in spans)
        if removed:
            text = mended_plain(text or "", spans)
        goes = bool(removed) and len(words(texts[uid])) - removed < stage.min_left
        out[uid] = (text, "mostly_repeated" if goes else None, removed or None)
    return out


RUNS = st.sampled_from(
    ["a b c d e", "f g h i", "c d e f g", "x", "y z", "a a a a a a a", "A, b. C d\n", "甲乙丙丁", "b a b a b a b a b"]
)
TEXT = st.one_of(st.none(), st.lists(RUNS, max_size=6).map(" ".join), st.text("ab \n.", max_size=30))
TEXTS = st.dictionaries(st.integers(0, 2**64 - 1), TEXT, max_size=10)


@given(TEXTS, st.integers(4, 7), st.sampled_from(["first", "none"]), st.integers(0, 4), st.integers(0, 99))
def test_what_is_cut_is_what_the_plain_twin_cuts(texts, tokens, keep, min_left, seed):
    stage = SubstringDedup(tokens=tokens, keep=keep, min_left=min_left)
    assert fates(stage, texts, seed) == fates_plain(stage, texts)


@given(TEXTS, st.integers(0, 99))
def test_nothing_is_left_twice_and_nothing_is_lost(texts, seed):
    """By tokens: of each window one at most is left whole, and a token that goes stands elsewhere amid the same window,
    and so on to one that stays."""
    n, uids = 4, sorted(texts)
    documents = [words(texts[uid]) for uid in uids]
    cut = [{t for a, b in spans for t in range(a, b)} for spans in repeats_plain(documents, n, True)]
    found = fates(SubstringDedup(tokens=n, min_left=0), texts, seed)
    assert [words(found[uid][0]) for uid in uids] == [
        [word for t, word in enumerate(document) if t not in cut[d]] for d, document in enumerate(documents)
    ]
    where: dict[tuple[bytes, ...], list[tuple[int, int]]] = {}
    for d, document in enumerate(documents):
        for p in range(len(document) - n + 1):
            where.setdefault(tuple(document[p : p + n]), []).append((d, p))
    for places in where.values():
        whole = [(d, p) for d, p in places if not cut[d] & set(range(p, p + n))]
        assert whole in ([], places[:1]), "one window at most is left whole, and it is the first"
    source = {
        (d, p + k): (places[0][0], places[0][1] + k)
        for places in where.values()
        for d, p in places[1:]
        for k in range(n)
    }
    for d, tokens in enumerate(cut):
        for t in tokens:
            at = (d, t)
            while at[1] in cut[at[0]]:
                assert source[at] < at, "what a token was cut for stands before it"
                at = source[at]
            assert documents[at[0]][at[1]] == documents[d][t]


def test_a_repeated_run_stays_where_it_is_first():
    run = " ".join(f"word{k}" for k in range(60))
    texts = {
        3: f"Third. {run}. The end of it is here.",
        1: f"First! {run} and so on",
        2: "Nothing of this stands twice.",
        9: run.upper(),
    }
    found = fates(SubstringDedup(), texts)
    assert found[1] == (texts[1], None, None) and found[2] == (texts[2], None, None)
    assert found[3] == ("Third. The end of it is here.", None, 60)
    assert found[9] == ("", "mostly_repeated", 60)
    found = fates(SubstringDedup(keep="none"), texts)
    assert found[1] == ("First! and so on", "mostly_repeated", 60) and found[3][2] == 60


def test_a_run_that_is_too_short_is_none():
    run = " ".join(f"word{k}" for k in range(49))
    texts = {uid: f"{uid} {run} {uid}" for uid in range(5)}
    assert all(fate == (texts[uid], None, None) for uid, fate in fates(SubstringDedup(), texts).items())
    assert all(cut == 49 for uid, (_, _, cut) in fates(SubstringDedup(tokens=49), texts).items() if uid), (
        "one shorter, and it is"
    )


def test_text_that_repeats_itself_keeps_one_whole_run():
    found = fates(SubstringDedup(), {1: "very " * 1000, 2: "far and away " * 1000, 3: "so " * 50})
    assert [len(words(found[uid][0])) for uid in (1, 2, 3)] == [50, 50, 50]
    assert found[1][2] == 950 and found[3] == ("so " * 50, None, None)


def with_home(rows: pa.Table) -> pa.Table:
    return rows.append_column("home", pa.array(np.zeros(len(rows), np.uint64)))


def test_a_text_of_a_thousand_documents_is_a_row_a_partition():
    """So many documents of one template cost no more between parts than one."""
    run = " ".join(f"word{k}" for k in range(80))
    stage = SubstringDedup()
    docs = pa.table(
        {"uid": pa.array(range(1, 1001), pa.uint64()), "text": [f"{run} {k} {k * 7} {k * 11}" for k in range(1000)]},
        SCHEMA,
    )
    made = stage.compare(stage.shared(with_home(stage.choose(docs))), docs)
    windows = made.filter(pa.array(made["end"].to_numpy() == 0))
    assert windows["uid"].to_pylist().count(1) >= 31 and len(made) - len(windows) == 999
    assert len(windows) < 31 + 4 * 1000


def test_only_what_is_met_twice_is_sent_home():
    stage, key = (
        SubstringDedup(),
        [7, 9, 9, 11, 11, 11, *np.random.default_rng(1).integers(100, 2**64, 4900, np.uint64).tolist()],
    )
    rows = pa.table({"key": pa.array(key, pa.uint64()), "uid": pa.array([1, 1, 1, 1, 2, 2, *range(4900)], pa.uint64())})
    found = stage.shared(with_home(rows)).to_pylist()
    assert [(row["key"], row["uid"]) for row in found] == [(9, 1), (11, 1), (11, 2)]


SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 12)), max_size=12)


@given(SPANS)
def test_spans_are_united(spans):
    covered = {(uid, place) for uid, begin, length in spans for place in range(begin, begin + length)}
    uid, begins, ends = (values.tolist() for values in united(*(np.array(v, np.int64) for v in spans_of(spans))))
    assert {(u, place) for u, a, b in zip(uid, begins, ends, strict=True) for place in range(a, b)} == covered
    assert sum(b - a for a, b in zip(begins, ends, strict=True)) == len(covered), "none overlaps another"
    assert len(uid) == sum((u, place - 1) not in covered for u, place in covered), "none touches another"


def spans_of(spans: list[tuple[int, int, int]]) -> tuple[list[int], list[int], list[int]]:
    return (
        [uid for uid, _, _ in spans],
        [begin for _, begin, _ in spans],
        [begin + length for _, begin, length in spans],
    )


def test_documents_without_text_pass():
    assert fates(SubstringDedup(), {1: None, 2: "", 3: " \n"}) == {
        1: (None, None, None),
        2: ("", None, None),
        3: (" \n", None, None),
    }
    assert fates(SubstringDedup(), {}) == {}


def test_batches_are_cut_anywhere(monkeypatch):
    texts = {uid: " ".join(f"w{uid * k % 91}" for k in range(200)) for uid in range(1, 40)} | {40: None}
    expected = fates(SubstringDedup(tokens=8), texts)
    assert (
        expected == fates_plain(SubstringDedup(tokens=8), texts)
        and sum(bool(cut) for _, _, cut in expected.values()) > 5
    )
    monkeypatch.setattr(slices, "SLICE_BYTES", 1)
    assert fates(SubstringDedup(tokens=8), texts, 5) == expected


def test_settings():
    with pytest.raises(SettingsError):
        SubstringDedup(tokens=3)
    with pytest.raises(SettingsError):
        SubstringDedup(keep="last")


@pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is not here")
def test_planted_passages_are_found_in_real_text():
    texts = [t for t in pq.read_table(DATA / "rule_verdicts.parquet", columns=["text"])["text"].to_pylist() if t][:400]
    chance = random.Random(7)
    docs = dict(enumerate(texts))
    stage = SubstringDedup()
    alone = fates(stage, docs)
    planted = 0
    for uid in range(1000, 1050):
        source = texts[chance.randrange(len(texts))]
        places = [(a, b) for a, b, _ in tokens_plain(source)]
        if len(places) < 80:
            continue
        begin = chance.randrange(len(places) - 60)
        passage = source.encode()[places[begin][0] : places[begin + 59][1]].decode()
        docs[uid] = f"intro{uid} {passage}. outro{uid} " + " ".join(f"rest{uid}x{k}" for k in range(9))
        planted += 1
    found = fates(stage, docs, 3)
    assert planted > 20 and all(found[uid][2] == 60 for uid in docs if uid >= 1000)
    assert {uid: fate for uid, fate in found.items() if uid < 1000} == alone, "what stands first stays as it was"


def test_the_occurrence_that_stays_is_in_a_document_that_stays():
    with pytest.raises(
        SettingsError, match="min_left 60 is above tokens 50: a document with the occurrence that stays could go"
    ):
        SubstringDedup(min_left=60)
    assert SubstringDedup(min_left=60, keep="none").min_left == 60 and SubstringDedup(min_left=50).tokens == 50
