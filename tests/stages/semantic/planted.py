"""Texts of a few topics, with vectors whose clusters are known."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa

TOPICS = {
    "weather": "rain wind cloud storm snow sun frost fog thunder drizzle breeze gale humid warm cold forecast",
    "cooking": "onion garlic butter flour oven boil simmer salt pepper bake dough stew spice roast sauce pan",
    "space": "planet orbit star comet moon rocket galaxy crater telescope gravity nebula lander asteroid probe eclipse ring",
    "music": "violin chord melody drum rhythm choir opera piano sonata tempo harmony concert flute singer stage score",
}
COMMON = [
    "the",
    "a",
    "of",
    "and",
    "in",
    "it",
    "was",
    "that",
    "with",
    "on",
    "for",
    "as",
    "by",
    "this",
    "from",
    "they",
    "were",
    "have",
]


def text_of(topic: str, words: int, dice: random.Random) -> str:
    own = TOPICS[topic].split()
    return " ".join(dice.choice(own) if dice.random() < 0.5 else dice.choice(COMMON) for _ in range(words)) + "."


def documents(texts: list[str], seed: int = 1, **columns: object) -> pa.Table:
    dice = random.Random(seed)
    made = {
        "uid": pa.array(dice.sample(range(1, 1 << 62), len(texts)), pa.uint64()),
        "url": pa.array([f"https://a.example/{n}" for n in range(len(texts))]),
        "source": pa.array(["a"] * len(texts)).dictionary_encode(),
        "date": pa.array([""] * len(texts)),
        "text": pa.array(texts, pa.string()),
    }
    return pa.table(made | columns)


def as_lists(vectors: np.ndarray) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])


def blobs(groups: int, each: int, width: int = 16, seed: int = 3, noise: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """int8 vectors around some directions, and the group of each."""
    from gristmill.kernels.vectors.int8 import rounded

    dice = np.random.default_rng(seed)
    middles = dice.normal(size=(groups, width))
    of = np.repeat(np.arange(groups), each)
    return rounded(middles[of] + noise * dice.normal(size=(len(of), width))), of
