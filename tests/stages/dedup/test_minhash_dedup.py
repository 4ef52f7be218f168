"""A document goes only if it is like one that stays; nominated pairs are found, unlike pages are left alone, whatever
the order."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.kernels.common.settings import SettingsError
from gristmill.kernels.words.token_rules import jaccard_plain, shingles_plain
from gristmill.stages import MinhashDedup
from gristmill.stages.dedup import minhash
from gristmill.stages.stage import CannotRun
from tests.stages.scattered import Scattered

SCHEMA = pa.schema(
    [
        ("uid", pa.uint64()),
        ("url", pa.string()),
        ("source", pa.dictionary(pa.int32(), pa.string())),
        ("date", pa.string()),
        ("text", pa.string()),
    ]
)


def table(texts: list[str], **columns: list[Any]) -> pa.Table:
    dice = random.Random(5)
    uids = [dice.getrandbits(64) for _ in texts]
    given = {
        "uid": uids,
        "url": [f"https://a.example/{n}" for n in range(len(texts))],
        "source": ["a"] * len(texts),
        "date": [""] * len(texts),
        "text": texts,
    } | columns
    return pa.table(
        given, schema=pa.schema([*SCHEMA, *(pa.field(n, pa.float64()) for n in columns if n not in SCHEMA.names)])
    )


def run(stage: MinhashDedup, docs: pa.Table, seed: int = 0) -> tuple[dict[int, dict[str, Any]], Scattered]:
    flow = Scattered(seed)
    after = stage.run(flow.parts(docs), flow)
    assert after.rows + len(flow.gone) == len(docs)
    return flow.gone, flow


def check_what_goes(stage: MinhashDedup, docs: pa.Table) -> dict[int, dict[str, Any]]:
    """Every document that goes names one that stays and is like it; survivors are the same in any order, buckets and
    parts."""
    gone, flow = run(stage, docs)
    shingles = {
        u: set(shingles_plain(t or "", stage.ngram, stage.seed))
        for u, t in zip(docs["uid"].to_pylist(), docs["text"].to_pylist(), strict=True)
    }
    for uid, row in gone.items():
        similarity, like = row["detail"].split(" like ")
        assert int(like, 16) not in gone and row["reason"] == "near_duplicate"
        found = jaccard_plain(shingles[uid], shingles[int(like, 16)])
        assert found >= stage.threshold and abs(found - float(similarity)) <= 0.001
    clusters: dict[int, list[dict[str, Any]]] = {}
    for row in flow.named.to_pylist() if len(flow.named) else []:
        clusters.setdefault(row["minhash_cluster"], []).append(row)
    for name, rows in clusters.items():
        stay = [r for r in rows if r["reason"] is None]
        assert (
            stay
            and all(r["minhash_cluster_size"] == len(rows) > 1 for r in rows)
            and name == min(r["uid"] for r in rows)
        )
        assert sum(r["minhash_copies"] for r in rows) == len(rows) and all(r["minhash_copies"] > 0 for r in stay)
    for seed in (1, 2):
        assert run(stage, docs, seed)[0].keys() == gone.keys()
    return gone


WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "su", "te") for b in ("ran", "bel", "dor", "fin", "gul", "hop")]


@st.composite
def edited(draw: st.DrawFn) -> list[str]:
    """A few texts and what edits made of them."""
    seed = draw(st.integers(0, 10_000))
    dice = random.Random(seed)
    texts = []
    for _ in range(draw(st.integers(1, 4))):
        words = [dice.choice(WORDS) for _ in range(dice.choice([0, 1, 3, 6, 40, 120]))]
        for _ in range(draw(st.integers(1, 6))):
            texts.append(" ".join(words))
            for _ in range(dice.randint(0, 3)):
                if words:
                    words[dice.randrange(len(words))] = dice.choice(WORDS)
    return texts


@settings(max_examples=40, deadline=None)
@given(edited(), st.sampled_from([0.5, 0.8, 1.0]), st.sampled_from([2, 5]))
def test_who_goes_is_like_one_who_stays(texts: list[str], threshold: float, ngram: int) -> None:
    check_what_goes(MinhashDedup(threshold=threshold, ngram=ngram), table(texts))


@settings(max_examples=30, deadline=None)
@given(edited())
def test_no_two_that_stay_were_found_alike(texts: list[str]) -> None:
    """With one row a band all pairs that share any place of a signature are compared: then no two that stay are alike."""
    docs = table(texts)
    gone = check_what_goes(MinhashDedup(threshold=0.6, bands=128, rows=1), docs)
    kept = [
        set(shingles_plain(t, 5))
        for u, t in zip(docs["uid"].to_pylist(), docs["text"].to_pylist(), strict=True)
        if u not in gone
    ]
    assert all(jaccard_plain(a, b) < 0.6 for a, b in combinations([k for k in kept if k], 2))


def prose(dice: random.Random, words: int) -> list[str]:
    return [f"{dice.choice(WORDS)}{dice.randrange(400)}" for _ in range(words)]


def test_a_thousand_copies_are_one_cluster_with_one_survivor() -> None:
    """More than a bucket compares all to all; the survivor is the longest, which is not the one that buckets take for
    their first."""
    dice = random.Random(1)
    words = prose(dice, 200)
    texts = [" ".join(words)] * 1000 + [" ".join([*words, "and", "more"])]
    docs = table(texts)
    gone = check_what_goes(MinhashDedup(), docs)
    assert len(gone) == 1000 and docs["uid"][1000].as_py() not in gone


def test_what_the_report_is_told() -> None:
    dice = random.Random(9)
    pages = [prose(dice, 100) for _ in range(20)]
    texts = [" ".join(p) for p in pages] + [" ".join(p[:99]) for p in pages[:10]] + [" ".join(pages[0][:98])]
    _, flow = run(MinhashDedup(), table(texts))
    assert flow.metrics["clusters"] == [[2, 9], [3, 1]] and flow.metrics["bands"]["rows"] == 7
    assert len(flow.metrics["examples"]) == 6
    for example in flow.metrics["examples"]:
        assert (
            example["text"] != example["like_text"]
            and jaccard_plain(*(set(shingles_plain(example[t], 5)) for t in ("text", "like_text"))) >= 0.8
        )


def test_a_chain_keeps_both_ends() -> None:
    dice = random.Random(2)
    words = prose(dice, 300)
    texts = [" ".join(words[shift : shift + 200]) for shift in range(0, 100, 10)]
    docs = table(texts)
    gone = check_what_goes(MinhashDedup(threshold=0.8), docs)
    assert 0 < len(gone) < 9


@pytest.mark.parametrize("kind", ["template", "books", "records"])
def test_unlike_pages_are_left_alone(kind: str) -> None:
    """Pages of one template with content of their own, long unrelated books, numbered records."""
    dice = random.Random(3)
    frame = prose(dice, 300)
    if kind == "template":
        texts = [" ".join([*frame[:150], *prose(dice, 120), *frame[150:]]) for _ in range(400)]
    elif kind == "books":
        texts = [" ".join(dice.choice(WORDS) for _ in range(20_000)) for _ in range(12)]
    else:
        texts = [
            f"Record {n} of the register. " + " ".join(f"{field} {dice.randrange(10**9)}" for field in prose(dice, 30))
            for n in range(2000)
        ]
    gone, _ = run(MinhashDedup(threshold=0.75), table(texts))
    assert len(texts) >= 12 and not gone


def test_short_documents_are_alike_only_if_all_their_words_are() -> None:
    texts = [
        "",
        "",
        "  ",
        "!!!",
        "yes",
        "Yes!",
        "no",
        "to be or not",
        "To be, or not?",
        "to be or",
        "a b c d e",
        "a b c d e f",
    ]
    docs = table(texts)
    gone = check_what_goes(MinhashDedup(threshold=0.8), docs)
    left = sorted(t for u, t in zip(docs["uid"].to_pylist(), docs["text"].to_pylist(), strict=True) if u not in gone)
    assert (
        len(gone) == 2
        and len(left) == 10
        and {"", "  ", "!!!", "no", "to be or", "a b c d e", "a b c d e f"} <= set(left)
    )


def test_scripts_without_spaces() -> None:
    text = "敏捷的棕色狐狸跳过了懒狗然后跑进了森林里面寻找食物和水源因为天气很热它感到口渴"
    docs = table(
        [text, text.replace("棕色", "黑色"), "ภาษาไทยไม่มีการเว้นวรรคระหว่างคำ", "今日は天気がいいので散歩に行きました"]
    )
    gone = check_what_goes(MinhashDedup(threshold=0.6), docs)
    assert len(gone) == 1


@pytest.mark.parametrize(
    ("prefer", "stays"),
    [(["longest"], 1), (["earliest"], 2), (["best"], 3), (["source", "longest"], 4), (["earliest", "longest"], 2)],
)
def test_the_survivor_is_the_policys(prefer: list[str], stays: int) -> None:
    words = prose(random.Random(4), 200)
    texts = [" ".join(words)] * 5
    texts[1] += " longer"
    columns: dict[str, list[Any]] = {"date": ["", "2024", "2019", "2023", None], "source": ["a", "a", "a", "a", "b"]}
    if "best" in prefer:
        columns["score"] = [0.1, 0.2, None, 0.9, 0.3]
    docs = table(texts, **columns)
    stage = MinhashDedup(
        prefer=prefer, sources=["b"] if "source" in prefer else [], best="score" if "best" in prefer else None
    )
    gone = check_what_goes(stage, docs)
    assert [i for i, u in enumerate(docs["uid"].to_pylist()) if u not in gone] == [stays]


def test_a_document_of_ten_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared by a sample, whose answer is close, and which bounds what a check holds."""
    monkeypatch.setattr(minhash, "MOST_SHINGLES", 4096)
    dice = random.Random(6)
    words = prose(dice, 60_000)
    changed = [w if dice.random() < 0.98 else "changed" + w for w in words]
    other = prose(dice, 60_000)
    docs = table([" ".join(words), " ".join(changed), " ".join(other)])
    gone, _ = run(MinhashDedup(threshold=0.8), docs)
    a, b = (set(shingles_plain(t, 5)) for t in docs["text"].to_pylist()[:2])
    assert len(gone) == 1
    (row,) = gone.values()
    assert abs(float(row["detail"].split(" like ")[0]) - jaccard_plain(a, b)) < 0.03


def test_settings_that_make_no_sense_say_so() -> None:
    for wrong in (
        {"bands": 10},
        {"bands": 20, "rows": 10},
        {"best": "score"},
        {"threshold": 0.01, "hashes": 2},
        {"prefer": ["longest", "longest"]},
    ):
        with pytest.raises(SettingsError):
            MinhashDedup(**wrong)
    assert MinhashDedup(threshold=0.8).shape == (18, 7) and MinhashDedup(threshold=0.75).shape == (21, 6)
    assert [chance >= 0.97 for s, chance in MinhashDedup().chances if s >= 0.8] == [True] * 4


def test_a_later_run_against_a_saved_index() -> None:
    """What an earlier run kept stays; a new document that is like one of them goes and names it, and the others are
    compared with each other."""
    dice = random.Random(7)
    old = [prose(dice, 200) for _ in range(30)]
    fresh = [prose(dice, 200) for _ in range(20)]
    first = table([" ".join(t) for t in old])
    flow = Scattered(1)
    assert MinhashDedup(save_index="index").run(flow.parts(first), flow).rows == 30
    edits = [" ".join([*t[:100], "edited", *t[100:]]) for t in old[:10]]
    texts = edits + [" ".join(t) for t in fresh] + [" ".join(fresh[0] + ["again"])] + [edits[0] + " too"]
    second = table(texts).set_column(0, "uid", pa.array([n + 1 for n in range(len(texts))], pa.uint64()))
    expected = {"both": {*range(1, 11), 11, 32}, "against": {*range(1, 11), 32}}
    for within in (True, False):
        for seed in range(3):
            flow.random.seed(seed)
            after = MinhashDedup(against=["index"], within=within, prefer=["longest"]).run(flow.parts(second), flow)
            assert set(flow.gone) == expected["both" if within else "against"] and after.rows == len(texts) - len(
                flow.gone
            )
            by_uid = dict(zip(second["uid"].to_pylist(), range(len(texts)), strict=True))
            for uid in range(1, 11):
                like, _, kept_by = flow.gone[uid]["detail"].split(" like ")[1].partition(", kept by ")
                assert (int(like, 16), kept_by) == (first["uid"][by_uid[uid]].as_py(), "index")
            assert not set(flow.named["uid"].to_pylist()) & set(first["uid"].to_pylist()), (
                "saved documents are not of this run"
            )


@pytest.mark.parametrize(("saved", "fresh"), [(10, 20), (20, 10)])
def test_a_document_that_the_index_has_as_well_stays_and_what_is_like_it_goes(saved: int, fresh: int) -> None:
    """Whatever the policy and the order of rows: it is there twice then, once as new and once as saved."""
    old = " ".join(prose(random.Random(9), 200))
    docs = table([old, old + " and then some more words than it had"], uid=[saved, fresh])
    flow = Scattered(1)
    MinhashDedup(save_index="index").run(flow.parts(docs.slice(0, 1)), flow)
    found = set()
    for seed in range(12):
        flow.random.seed(seed)
        MinhashDedup(against=["index"], prefer=["longest"]).run(flow.parts(docs), flow)
        assert set(flow.gone) == {fresh}
        found.add(flow.gone[fresh]["detail"])
    assert len(found) == 1 and next(iter(found)).endswith(f" like {saved:016x}, kept by index")


def test_an_index_made_otherwise_is_refused() -> None:
    flow = Scattered(1)
    docs = table([" ".join(prose(random.Random(8), 50))])
    MinhashDedup(save_index="index", seed=1).run(flow.parts(docs), flow)
    with pytest.raises(CannotRun, match="seed 1 and not 0"):
        MinhashDedup(against=["index"]).run(flow.parts(docs), flow)
    assert "sign" not in flow.rounds[2:], "said before any work"
    with pytest.raises(SettingsError, match="nothing to compare with"):
        MinhashDedup(within=False)


def test_survivors_that_an_index_has_as_well_are_told_for_how_many_they_stand() -> None:
    old = " ".join(prose(random.Random(9), 200))
    docs = table([old, old + " and some more", old + " and some other words"], uid=[10, 20, 30])
    flow = Scattered(1)
    MinhashDedup(save_index="index").run(flow.parts(docs.slice(0, 1)), flow)
    MinhashDedup(against=["index"]).run(flow.parts(docs), flow)
    told = {row["uid"]: (row["minhash_copies"], row["minhash_cluster_size"]) for row in flow.named.to_pylist()}
    assert set(flow.gone) == {20, 30} and told == {10: (3, 3), 20: (0, 3), 30: (0, 3)}
