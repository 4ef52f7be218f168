"""Documents that say the same in other words: one stays, and templates with other facts are none."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from gristmill.stages import SemanticDedup
from gristmill.stages.stage import CannotRun
from tests.stages.scattered import Scattered, fates
from tests.stages.semantic.planted import as_lists, documents

PAGE = (
    "The town council of Bonn opened a new bridge over the Rhine on Friday. It cost 12 million euros and took 3 years "
    "to build. Many people came to see it and walked across in the rain."
)
SAID_ANEW = (
    "On Friday the council of the town Bonn inaugurated a bridge over the Rhine that is new. To build it took 3 years "
    "and 12 million euros. A lot of people came and walked across in spite of the rain."
)
TEMPLATE = PAGE.replace("Bonn", "Mainz").replace("12", "9")
LOWER = PAGE.replace("in the rain", "in the sun")
OTHER = "Bake the onions with butter in the oven, then simmer the sauce with garlic and pepper until it is thick."


def near_vectors(texts: list[str], seed: int = 0) -> pa.Table:
    """All near each other, so that the second look alone decides."""
    dice = np.random.default_rng(seed)
    vectors = (100 + dice.integers(-9, 9, (len(texts), 16))).astype(np.int8)
    return documents(texts, embedding=as_lists(vectors), cluster=pa.array([0] * len(texts), pa.int32()))


def gone(stage: SemanticDedup, docs: pa.Table, seed: int = 0) -> set[str]:
    flow = Scattered(seed)
    after = stage.run(flow.parts(docs), flow).table()  # type: ignore[attr-defined]
    left = set(after["text"].to_pylist())
    assert len(after) + len(flow.gone) == len(docs)
    return {text for text in docs["text"].to_pylist() if text not in left}


def test_a_paraphrase_goes_and_a_template_with_other_facts_stays() -> None:
    docs = near_vectors([PAGE, SAID_ANEW, TEMPLATE, OTHER])
    assert gone(SemanticDedup(), docs) == {min(PAGE, SAID_ANEW, key=len)}
    assert gone(SemanticDedup(shared_facts=0), docs) >= {TEMPLATE}  # as it would be without a second look at facts
    assert len(gone(SemanticDedup(shared_facts=0, shared_words=0), docs)) == 3


def test_clusters_that_are_no_whole_numbers_are_refused_by_name() -> None:
    docs = near_vectors([PAGE, OTHER])
    at = docs.schema.get_field_index("cluster")
    for names in (["a", "b"], [0.5, 0.5]):
        with pytest.raises(CannotRun, match=r"'cluster' is .*; the number of a cluster was expected"):
            gone(SemanticDedup(), docs.set_column(at, "cluster", pa.array(names)))


def test_what_a_second_look_cannot_see_is_what_the_docs_say() -> None:
    assert len(gone(SemanticDedup(), near_vectors([PAGE, LOWER]))) == 1  # a fact in lower case


def test_the_one_that_stays_is_named_and_parts_change_nothing() -> None:
    docs = near_vectors([PAGE, SAID_ANEW, PAGE + " ", OTHER, TEMPLATE, TEMPLATE + "  "])
    rows = docs.to_pylist()
    found = [fates(SemanticDedup(), rows, docs.schema, seed) for seed in range(5)]
    first, *others = [
        {uid: {name: value for name, value in row.items() if name != "home"} for uid, row in each.items()}
        for each in found
    ]
    assert all(first == other for other in others)
    reasons = [row["reason"] for row in first.values()]
    assert reasons.count("near_duplicate") == 3 and reasons.count(None) == 2
    assert all(" like " in row["detail"] for row in first.values() if row["reason"])


def test_only_documents_of_one_cluster_are_compared() -> None:
    docs = near_vectors([PAGE, PAGE])
    apart = docs.set_column(docs.column_names.index("cluster"), "cluster", pa.array([0, 1], pa.int32()))
    unknown = docs.set_column(docs.column_names.index("cluster"), "cluster", pa.array([0, None], pa.int32()))
    assert [len(SemanticDedup()(each)) for each in (docs, apart, unknown)] == [1, 2, 2]


def test_the_threshold_is_a_cosine() -> None:
    vectors = np.array([[100, 0], [80, 60]], np.int8)  # 0.8
    docs = documents([PAGE, PAGE], embedding=as_lists(vectors), cluster=pa.array([5, 5], pa.int32()))
    assert [len(SemanticDedup(threshold=at)(docs)) for at in (0.79, 0.81)] == [1, 2]


@pytest.mark.parametrize("seed", range(3))
def test_every_document_that_goes_is_like_one_that_stays(seed: int) -> None:
    dice = random.Random(seed)
    base = [
        " ".join(
            dice.choices(
                ["stone", "river", "green", "walks", "under", "light", "house", "every", "other", "night"], k=25
            )
        )
        for _ in range(4)
    ]
    texts = [text + " " + " ".join(dice.choices(["again", "soon", "here"], k=3)) for text in base for _ in range(6)]
    rows = np.random.default_rng(seed).normal(size=(4, 16)).repeat(6, axis=0)
    vectors = np.rint(40 * rows / np.abs(rows).max() + np.random.default_rng(seed + 9).normal(size=rows.shape) * 4)
    docs = documents(texts, embedding=as_lists(vectors.astype(np.int8)), cluster=pa.array([0] * 24, pa.int32()))
    flow = Scattered(seed)
    SemanticDedup(threshold=0.95).run(flow.parts(docs), flow)
    vector = dict(zip(docs["uid"].to_pylist(), vectors, strict=True))
    assert len(flow.gone) >= 4
    for uid, row in flow.gone.items():
        cosine, survivor = row["detail"].split(" like ")
        a, b = vector[uid], vector[int(survivor, 16)]
        assert float(cosine) == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=2e-3)
        assert float(cosine) >= 0.95 and int(survivor, 16) not in flow.gone
