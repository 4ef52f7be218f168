"""Texts, a tokenizer and small judges for the tests of neural judges."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from gristmill.classifiers.judge import Head
from gristmill.classifiers.neural.encoder import EncoderShape
from gristmill.classifiers.neural.text_tokens import TextTokenizer

GOOD = [
    "lens",
    "light",
    "glass",
    "angle",
    "theorem",
    "proof",
    "energy",
    "field",
    "water",
    "reason",
    "study",
    "measure",
    "heat",
]
BAD = [
    "click",
    "buy",
    "cart",
    "login",
    "free",
    "price",
    "deal",
    "subscribe",
    "menu",
    "cookie",
    "share",
    "follow",
    "sale",
]
BOTH = ["the", "a", "of", "and", "in", "to", "is", "it", "on", "with", "for", "this", "that", "at", "by", "from", "as"]

QUALITY = Head("quality", "probability", ("bad", "good"), "reads like a textbook")
TOPIC = Head("topic", "classes", ("shop", "science", "mixed"), "what it is about", 0, 2)
VALUE = Head("educational_value", "regression", (), "how much it teaches", 0.0, 5.0)


@lru_cache
def tokenizer_json() -> str:
    """By hand: what the library trains differs from one training to the next."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *GOOD,
        *BAD,
        *BOTH,
        *letters[1:],
        *(f"##{letter}" for letter in letters),
    ]
    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.add_special_tokens(words[:4])
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made.to_str()


def tokenizer(most: int = 64) -> TextTokenizer:
    return TextTokenizer(tokenizer_json(), most)


def small_shape(positions: int = 64) -> EncoderShape:
    return EncoderShape("bert", 300, 32, 2, 2, 64, positions)


def labelled_table(texts: int = 600, seed: int = 0) -> pa.Table:
    """A share of good words decides; labels of each head are missing for a third of the texts."""
    random = np.random.default_rng(seed)
    share = random.choice([0.1, 0.5, 0.9], texts)
    rows = []
    for good in share.tolist():
        words = random.integers(6, 40)
        rows.append(
            " ".join(
                random.choice(GOOD if random.random() < good else BAD) if random.random() < 0.6 else random.choice(BOTH)
                for _ in range(words)
            )
        )
    missing = random.random((3, texts)) < 1 / 3
    quality = [
        None if m or s == 0.5 else ("good" if s > 0.5 else "bad") for s, m in zip(share, missing[0], strict=True)
    ]
    topic = [
        None if m else {0.1: "shop", 0.9: "science"}.get(s, "mixed") for s, m in zip(share, missing[1], strict=True)
    ]
    value = [None if m else 5 * s for s, m in zip(share, missing[2], strict=True)]
    hosts = [f"host{i % 50}" for i in range(texts)]
    return pa.table({"text": rows, "quality": quality, "topic": topic, "educational_value": value, "host": hosts})


def odd_texts() -> list[str | None]:
    return [
        "",
        None,
        " \n\t ",
        "a",
        "\x00",
        "😀" * 50,
        "مرحبا بالعالم",
        "\u0301\u0301",
        "[CLS] [SEP] lens",
        "x" * 5000,
        "lens " * 3000,
        " " * 20_000 + "lens light",
    ]


def as_json(text: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(text)
    return found
