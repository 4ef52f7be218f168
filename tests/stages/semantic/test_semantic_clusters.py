"""Vectors of texts and their clusters: what a recipe gets from `corpus_embed` and `semantic_clusters`, whatever the
parts and the order of rows."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from gristmill.stages import CorpusEmbed, SemanticClusters
from gristmill.stages.stage import CannotRun
from tests.stages.scattered import Scattered
from tests.stages.semantic.planted import TOPICS, as_lists, blobs, documents, text_of


def signals(
    stage: CorpusEmbed | SemanticClusters, docs: pa.Table, seed: int
) -> tuple[dict[int, tuple[object, ...]], Scattered]:
    """By uid, what the stage adds to documents in any parts."""
    flow = Scattered(seed)
    after = stage.run(flow.parts(docs), flow).table()  # type: ignore[attr-defined]
    assert len(after) == len(docs)
    names = [name for name in stage.added if name in after.column_names]
    return {row["uid"]: tuple(row[name] for name in names) for row in after.to_pylist()}, flow


def test_texts_of_a_topic_are_near_and_parts_change_no_bit() -> None:
    dice = random.Random(1)
    topics = [topic for topic in TOPICS for _ in range(15)]
    docs = documents([*(text_of(topic, 40, dice) for topic in topics), "", "zzz unknown"])
    first, flow = signals(CorpusEmbed(width=16, sample=60), docs, 0)
    assert first == signals(CorpusEmbed(width=16, sample=60), docs, 1)[0]
    assert first == signals(CorpusEmbed(width=16, sample=60), docs, 2)[0]
    assert flow.metrics["corpus_embed"]["terms"] > 50
    rows = [first[uid][0] for uid in docs["uid"].to_pylist()]
    assert rows[-2] is None and rows[-1] is None and rows.count(None) == 2
    vectors = np.array(rows[:-2], np.float64)
    assert vectors.shape == (60, 16)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = vectors @ vectors.T
    same = np.array(topics)[:, None] == np.array(topics)
    assert cosine[same].mean() > cosine[~same].mean() + 0.3


def test_clusters_are_the_planted_groups_whatever_the_parts() -> None:
    vectors, of = blobs(6, 20)
    docs = documents(["t"] * len(of), embedding=as_lists(vectors))
    stage = SemanticClusters(clusters=6, rounds=5)
    found, flow = signals(stage, docs, 0)
    assert all(found == signals(stage, docs, seed)[0] for seed in (1, 2, 3))
    groups = Counter(
        (cluster, group)
        for (cluster, _), group in zip((found[u] for u in docs["uid"].to_pylist()), of.tolist(), strict=True)
    )
    assert sorted(groups.values()) == [20] * 6
    assert min(similarity for _, similarity in found.values()) > 0.9
    facts = flow.metrics["semantic_clusters"]
    assert (facts["clusters"], facts["documents"], facts["largest"], facts["cut"]) == (6, 120, 20, 0)


def test_a_document_without_a_vector_has_no_cluster_and_other_numbers_do() -> None:
    vectors, _ = blobs(2, 5)
    rows = [*vectors.tolist()[:9], None]
    floats = pa.array(
        [None if row is None else [float(x) / 127 for x in row] for row in rows], pa.list_(pa.float32(), 16)
    )
    whole = pa.array(rows, pa.list_(pa.int8(), 16))
    found = [
        signals(SemanticClusters(clusters=2), documents(["t"] * 10, embedding=each), 4)[0] for each in (floats, whole)
    ]
    assert found[0] == found[1]
    assert [row[0] is None for row in found[0].values()].count(True) == 1
    with pytest.raises(CannotRun, match="lists of numbers"):
        SemanticClusters()(documents(["t"], embedding=pa.array([1])))


@pytest.mark.filterwarnings("error")
def test_a_vector_of_huge_or_tiny_numbers_is_one_and_nan_is_none() -> None:
    rows = [
        [1.0, 0.5],
        [1e300, 5e299],
        [1e-310, 5e-311],
        [float("nan"), 1.0],
        [float("inf"), 1.0],
        [0.0, 0.0],
        [-1.0, 1.0],
    ]
    docs = documents(["t"] * 7, embedding=pa.array(rows))
    found, _ = signals(SemanticClusters(clusters=2), docs, 0)
    clusters = [found[uid][0] for uid in docs["uid"].to_pylist()]
    assert clusters[0] == clusters[1] == clusters[2] != clusters[6] and clusters[3:6] == [None] * 3


def test_a_cluster_that_is_too_large_is_cut_and_all_documents_have_one() -> None:
    vectors, _ = blobs(5, 40, noise=0.02)
    docs = documents(["t"] * len(vectors), embedding=as_lists(vectors))
    stage = SemanticClusters(clusters=2, largest=50)
    found, flow = signals(stage, docs, 0)
    assert found == signals(stage, docs, 7)[0] and len(found) == 200
    sizes = Counter(cluster for cluster, _ in found.values())
    assert max(sizes.values()) <= 50 and flow.metrics["semantic_clusters"]["cut"] >= 1
    same = documents(["t"] * 60, embedding=as_lists(np.repeat(vectors[:1], 60, axis=0)))
    _, flow = signals(SemanticClusters(clusters=2, largest=50), same, 1)
    assert flow.metrics["semantic_clusters"]["above_largest"] == 1  # of equal vectors none can be cut


def test_a_centre_without_vectors_goes_to_a_far_one() -> None:
    from gristmill.stages.semantic.learning import next_centres, sum_table
    from gristmill.stages.semantic.vectors import as_bytes, from_bytes

    centres = pa.table({"parent": pa.array([-1] * 3, pa.int32()), "cluster": pa.array([0, 1, 2], pa.int32()),
                        "vector": as_bytes(np.array([[127, 0], [0, 127], [-127, 0]], np.int8))})  # fmt: skip
    found = sum_table(np.array([0, 1]), np.array([5, 9]), np.array([[10, 0], [0, 7]]), np.array([0.5, 0.1]),
                      np.array([1, 2], np.uint64), np.array([[90, 127], [-127, 64]], np.int8))  # fmt: skip
    assert from_bytes(next_centres(centres, found)["vector"], np.int8).tolist() == [[127, 0], [0, 127], [-127, 64]]


def test_no_documents_and_none_with_a_vector() -> None:
    empty = documents([], embedding=pa.array([], pa.list_(pa.int8(), 4)))
    assert len(SemanticClusters()(empty)) == 0
    none = documents(["a", "b"], embedding=pa.nulls(2, pa.list_(pa.int8(), 4)))
    assert len(SemanticClusters()(none)) == 2
    assert CorpusEmbed(width=4)(documents(["", ""]))["embedding"].null_count == 2
