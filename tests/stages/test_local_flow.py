"""Global stages on a plain table, as in a notebook."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from gristmill import stages
from gristmill.pipeline.recipe import registry
from gristmill.stages import (
    BloomDedup,
    CapDomains,
    CorpusEmbed,
    ExactDedup,
    MinhashDedup,
    Mix,
    OneView,
    Order,
    Pack,
    ParagraphDedup,
    QuantileBuckets,
    SemanticClusters,
    SemanticDedup,
    SimhashDedup,
    SiteBoilerplate,
    SubstringDedup,
    Threshold,
    Tokenize,
    UrlDedup,
)
from gristmill.stages.extract.choices import TURNED
from gristmill.stages.stage import CannotRun, Global, NoSuchSignal
from tests.stages.scattered import Scattered

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "king",
    "queen",
    "sees",
    "loves",
    "finds",
    "old",
    "red",
    "small",
    "house",
    "tree",
    "river",
    "and",
    "but",
    "then",
    "slowly",
    "home",
    "again",
    "when",
    "while",
    "because",
]
STAGES: dict[str, Global] = {
    "bloom_dedup": BloomDedup(),
    "cap_domains": CapDomains(documents=2),
    "corpus_embed": CorpusEmbed(width=8),
    "exact_dedup": ExactDedup(),
    "minhash_dedup": MinhashDedup(threshold=0.7),
    "mix": Mix(method={"given": {"weights": {"a": 1, "b": 3}}}, budget=600),
    "one_view": OneView(),
    "order": Order(by="score", descending=True, schedule="ascending"),
    "site_boilerplate": SiteBoilerplate(),
    "paragraph_dedup": ParagraphDedup(min_words=3, min_left=1),
    "quantile_buckets": QuantileBuckets(by=["score"]),
    "semantic_clusters": SemanticClusters(clusters=3),
    "semantic_dedup": SemanticDedup(),
    "simhash_dedup": SimhashDedup(),
    "substring_dedup": SubstringDedup(tokens=20),
    "threshold": Threshold(by="score", keep=0.5),
    "tokenize": Tokenize(vocab_size=300),
    "url_dedup": UrlDedup(),
}
LOSES = {
    "bloom_dedup",
    "cap_domains",
    "exact_dedup",
    "minhash_dedup",
    "one_view",
    "semantic_dedup",
    "simhash_dedup",
    "threshold",
    "url_dedup",
}


def documents() -> pa.Table:
    dice = random.Random(5)
    texts = [" ".join(dice.choices(WORDS, k=60)) + "." for _ in range(40)]
    texts += [*texts[:8], *(text.replace("king", "queen", 1) for text in texts[8:14])]  # the same, and nearly
    texts += [f"{texts[20]}\n\n{texts[21]}", ""]
    count = len(texts)
    uids = dice.sample(range(1, 1 << 63), count)
    for place in (20, 22, 24):  # two views of a page
        uids[place + 1] = uids[place] ^ int(TURNED)
    views = [("full", "precise")[i % 2] if 20 <= i < 26 else None for i in range(count)]
    return pa.table(
        {
            "uid": pa.array(uids, pa.uint64()),
            "source": pa.array(["ab"[i % 2] for i in range(count)]).dictionary_encode(),
            "url": [f"https://site.example/{i % 45}" for i in range(count)],
            "date": pa.nulls(count, pa.string()),
            "view": views,
            "text": texts,
            "score": pa.array([dice.random() for _ in range(count)], pa.float32()),
            "tokens": pa.array([30] * count, pa.int32()),
            "embedding": pa.array([[text.split().count(w) for w in WORDS] for text in texts], pa.list_(pa.int8())),
            "cluster": pa.array([0] * count, pa.int32()),
        }
    )


@pytest.mark.parametrize("name", sorted({*STAGES} - {"one_view"}))  # which reads uids bit by bit
@pytest.mark.parametrize("kind", [pa.int64(), pa.int32()])
def test_uids_may_be_whole_numbers_of_any_kind(name: str, kind: pa.DataType) -> None:
    docs = documents()
    small = pa.array(range(len(docs)), pa.uint64())
    numbered = docs.set_column(0, "uid", small)
    same = STAGES[name](numbered)
    assert STAGES[name](docs.set_column(0, "uid", small.cast(kind))).equals(same) and len(same)


def test_uids_of_other_kinds_are_refused_by_name() -> None:
    docs = documents().drop_columns(["uid"])
    texts = docs.append_column("uid", pa.array([f"{n:016x}" for n in range(len(docs))]))
    with pytest.raises(TypeError, match="the column `uid` is string: whole numbers were expected; without it rows are"):
        MinhashDedup()(texts)
    with pytest.raises(TypeError, match="the column `uid` has nulls"):
        MinhashDedup()(docs.append_column("uid", pa.array([None, *range(1, len(docs))], pa.int64())))
    with pytest.raises(ValueError, match="the column `uid` has numbers below 0"):
        MinhashDedup()(docs.append_column("uid", pa.array(range(-1, len(docs) - 1), pa.int64())))


def test_what_a_stage_cannot_do_without_is_named() -> None:
    with pytest.raises(NoSuchSignal, match=r"no signal 'tokens' here; .*Measure it first: Tokenize\(\)\(table\)"):
        Mix(budget=10)([{"text": "a"}] * 4)


def rows_by_uid(table: pa.Table) -> dict[int, dict[str, Any]]:
    rows = {row["uid"]: row for row in table.to_pylist()}
    assert len(rows) == len(table)
    return rows


def test_every_global_stage_is_here() -> None:
    assert {name for name, kind in registry.built_in().items() if issubclass(kind, Global)} == {*STAGES, "pack"}


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_on_a_table_keeps_what_a_run_keeps(name: str) -> None:
    stage, docs = STAGES[name], documents()
    kept = stage(docs)
    flow = Scattered(3)
    after = rows_by_uid(stage.run(flow.parts(docs), flow).table())  # type: ignore[attr-defined]
    mine = rows_by_uid(kept)
    assert mine.keys() == after.keys() and all(mine[uid]["text"] == after[uid]["text"] for uid in mine)
    # a part of which nothing is said has no signals, which counts as null: of a rewrite, in a table of one part, they
    # are 0
    assert all(after[uid].get(name) in (value, None) for uid, row in mine.items() for name, value in row.items())
    assert 0 < len(kept) <= len(docs) and (len(kept) < len(docs) or name not in LOSES)
    assert len(stage(docs.slice(0, 0))) == 0 if name != "mix" else True


def test_signals_lie_beside_the_documents_that_stay() -> None:
    kept = ExactDedup()(documents())
    assert len(kept) == len(documents()) - 8
    assert sorted(size for size in kept["exact_cluster_size"].to_pylist() if size is not None) == [2] * 8


def test_a_table_of_texts_is_enough() -> None:
    kept = ExactDedup()(pa.table({"text": ["a", "b", "a", "a"], "mine": [1, 2, 3, 4]}))
    assert kept.column_names == ["text", "mine", "exact_cluster_size"] and sorted(kept["text"].to_pylist()) == [
        "a",
        "b",
    ]
    views = pa.table({"text": pa.array(["a", "b", "a"], pa.string_view())})
    assert sorted(ExactDedup()(views)["text"].to_pylist()) == ["a", "b"]


def test_uids_that_repeat_are_refused() -> None:
    with pytest.raises(ValueError, match="uid"):
        ExactDedup()(pa.table({"uid": pa.array([1, 1], pa.uint64()), "text": ["a", "b"]}))


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (MinhashDedup(save_index="index"), "minhash_dedup needs a run, in a recipe: it saves an index at index"),
        (MinhashDedup(against=["index"]), "minhash_dedup needs a run, in a recipe: it reads the saved index at index"),
    ],
)
def test_what_leaves_files_behind_says_that_it_needs_a_run(stage: Global, words: str) -> None:
    with pytest.raises(CannotRun, match=words):
        stage(documents())


def test_pack_says_that_it_needs_a_run() -> None:
    with pytest.raises(CannotRun, match="pack"):
        Pack(row_length=64)(Tokenize(vocab_size=300)(documents()))
    assert stages.Pack is Pack
