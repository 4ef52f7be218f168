"""Labelled texts of the tests' own: two ways of writing, three grades, made from a seed."""

from __future__ import annotations

import random

import pyarrow as pa

from gristmill.classifiers.judge import Head
from gristmill.classifiers.training_sets import LabelledTexts, labelled_texts

QUALITY = Head("quality", "probability", ("bad", "good"), "reads like a book")
GRADE = Head("grade", "classes", ("poor", "fair", "fine"), "how much is explained", 0, 2)

GOOD = "because water therefore light theory measured slowly river bends glass reason explains under which although energy".split()  # noqa: SIM905
BAD = "buy cart login sale click price free offer cookies accept menu home share now deal subscribe".split()  # noqa: SIM905
BOTH = "the a of and to in is on für été 水 для it 7".split()  # noqa: SIM905


def texts_of(words: list[str], count: int, seed: int) -> list[str]:
    drawn = random.Random(seed)
    return [
        "".join(
            drawn.choice(words if drawn.random() < 0.6 else BOTH) + drawn.choice([" ", " ", ", ", "\n"])
            for _ in range(drawn.randint(5, 60))
        )
        for _ in range(count)
    ]


def two_kinds(each: int = 120, seed: int = 1) -> LabelledTexts:
    texts = texts_of(GOOD, each, seed) + texts_of(BAD, each, seed + 1)
    groups = [f"site{i % 17}.example" for i in range(2 * each)]
    return labelled_texts(
        pa.table({"text": texts, "label": ["good"] * each + ["bad"] * each, "group": groups}), group="group"
    )


def three_grades(each: int = 80, seed: int = 5) -> LabelledTexts:
    words = {"poor": BAD, "fair": BAD[:8] + GOOD[:8], "fine": GOOD}
    rows = [(text, grade) for i, grade in enumerate(words) for text in texts_of(words[grade], each, seed + i)]
    return labelled_texts(pa.table({"text": [text for text, _ in rows], "label": [grade for _, grade in rows]}))
