"""Every setting of the stages that make vectors of texts and compare them, with a value that changes what they do."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.classifiers.static_models import static_model
from tests.stages.semantic.planted import TOPICS, as_lists, blobs, documents, text_of
from tests.stages.settings_of_globals import LONGEST_FIRST, POLICY, alike, placement
from tests.stages.settings_shown import Lab, Subject, to

TEXTS = {"uid": pa.array([1, 2], pa.uint64()), "text": ["red house " * 20 + "old river", "small tree"]}


@cache
def model(folder: Path, name: str, seed: int) -> str:
    return str(static_model(folder / name, seed))


def encoder(lab: Lab) -> str:
    """What an encoder says of itself, which is all that says where it runs."""
    lab.file("encoder/tokenizer.json", "{}")
    return str(Path(lab.file("encoder/config.json", '{"model_type": "bert"}')).parent)


def of_topics() -> pa.Table:
    dice = random.Random(3)
    return documents([text_of(topic, 30, dice) for topic in TOPICS for _ in range(10)])


def grouped() -> pa.Table:
    vectors, _ = blobs(4, 12, noise=0.6)
    others, _ = blobs(4, 12, seed=9, noise=0.6)
    return documents(["t"] * 48, embedding=as_lists(vectors), other=as_lists(others))


def nearly(texts: list[str]) -> pa.Table:
    near = np.array([[100, 0], [99, 14], [100, 9]], np.int8)
    far = np.array([[100, 0], [0, 100], [-100, 9]], np.int8)
    columns = {name: pa.array(values, pa.int32()) for name, values in (("cluster", [0, 0, 0]), ("other", [0, 1, 2]))}
    return alike(texts, embedding=as_lists(near), far=as_lists(far), **columns)


SEMANTIC = [
    Subject(
        "Embed",
        {
            "model_path": to(lambda lab: model(lab.folder, "another", 2)),
            "tokens": to(8),
            "device": to("cpu", model_path=encoder, see=placement),
        },
        given=TEXTS,
        base={"model_path": lambda lab: model(lab.folder, "one", 1)},
    ),
    Subject("CorpusEmbed", {"width": to(4), "sample": to(20), "seed": to(1, sample=20)}, given=of_topics(), base={"width": 8}),
    Subject(
        "SemanticClusters",
        {
            "embedding": to("other"),
            "clusters": to(3),
            "largest": to(10),
            "rounds": to(0),
            "learn_from": to(1, clusters=2, learn_from=100, given=documents(["t"] * 800, embedding=as_lists(blobs(8, 100, noise=1.0)[0]))),
            "seed": to(1),
            "called_after": to("topic"),
            "device": to("gpu", see=placement),
        },
        given=grouped(),
        base={"clusters": 4},
    ),
    Subject(
        "SemanticDedup",
        POLICY
        | {
            "threshold": to(0.999),
            "shared_words": to(0.99),
            "shared_facts": to(0.0, given=nearly([text + f" in {n}" for n, text in enumerate(LONGEST_FIRST)])),
            "embedding": to("far"),
            "cluster": to("other"),
        },
        given=nearly(LONGEST_FIRST),
    ),
]  # fmt: skip
