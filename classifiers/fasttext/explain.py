"""Which words of a text made fastText say what it said: plain Python over the rows of the model, for one text at a
time.

A text is the mean of its rows, and what the output matrix makes of a mean is the sum of what it makes of the rows: so
each word's part is exact, and the parts sum to the log-odds. An n-gram of words is shared equally by its words.
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from gristmill.classifiers.card import HeadKind, NotExplained
from gristmill.classifiers.fasttext.model import FastText
from gristmill.classifiers.judge import direction_of
from gristmill.kernels.base.types import Floats
from gristmill.kernels.language.labels import SOFTMAX
from gristmill.kernels.language.language import Model

SPACE = re.compile(rb"[ \t\n\v\f\r\0]+")
END_OF_TEXT = (
    "(end of text)"  # fastText's own last word of every text; shown with the others, so that the parts sum to the whole
)


def word_contributions(model: FastText, text: bytes, order: list[int], kind: HeadKind) -> dict[str, float]:
    """Each different word's part. `order` has the model's numbers of the labels: of a probability it is the log-odds of
    the second, else what `direction_of` says, as it changes around this text."""
    facts = model.model
    if facts.loss != SOFTMAX or facts.codes_each or facts.pruned:
        raise NotExplained("only a model with softmax loss that was not quantised can say which words made a score")
    rows = _rows_of(facts, [word for word in SPACE.split(text) if word])
    if not rows:
        return {}
    count = len(rows)
    vectors = np.stack([_row(facts, row) for _, row in rows])
    outputs_LD = np.frombuffer(facts.output, np.float32).reshape(facts.labels, facts.dim)[order].astype(np.float64)
    direction = _direction(outputs_LD, vectors.mean(axis=0), kind)
    contributions: defaultdict[str, float] = defaultdict(float)
    for (words, _), part in zip(rows, vectors @ direction / count, strict=True):
        for word in words:
            contributions[word.decode("utf-8", "replace") if word != b"</s>" else END_OF_TEXT] += float(part) / len(
                words
            )
    return dict(contributions)


def _direction(outputs_LD: Floats, mean_D: Floats, kind: HeadKind) -> Floats:
    if len(outputs_LD) == 2 and kind != "labels":
        return np.asarray(outputs_LD[1] - outputs_LD[0])
    logits = outputs_LD @ mean_D
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    return np.asarray(direction_of(kind, chances) @ outputs_LD)


def _rows_of(model: Model, words: list[bytes]) -> list[tuple[tuple[bytes, ...], int]]:
    """Each row that a text reads, with the words that it stands for."""
    rows: list[tuple[tuple[bytes, ...], int]] = []
    hashes: list[tuple[bytes, int]] = []
    for word in [*words, b"</s>"]:
        hash_ = _hash(word)
        number = model.end_row if word == b"</s>" else _number(model, word, hash_)
        if 0 <= number < model.words:
            rows.append(((word,), number))
        if model.longest_ngram > 0 and word != b"</s>":
            rows += [((word,), model.words + bucket) for bucket in _subwords(model, word)]
        hashes.append((word, hash_ - (1 << 32) if hash_ >> 31 else hash_))
    for i in range(len(hashes)):
        mixed = hashes[i][1] % (1 << 64)
        for j in range(i + 1, min(i + model.word_ngrams, len(hashes))):
            mixed = (mixed * 116049371 + hashes[j][1]) % (1 << 64)
            rows.append((tuple(word for word, _ in hashes[i : j + 1]), model.words + mixed % model.buckets))
    return rows


def _hash(word: bytes) -> int:
    hash_ = 2166136261
    for byte in word:
        hash_ = ((hash_ ^ (byte | 0xFFFFFF00 if byte >= 128 else byte)) * 16777619) & 0xFFFFFFFF
    return hash_


def _number(model: Model, word: bytes, hash_: int) -> int:
    slot = hash_ % len(model.slots)
    while (number := int(model.slots[slot])) >= 0:
        place = int(model.places[number])
        if model.file[place : place + len(word) + 1].tobytes() == word + b"\0":
            return number
        slot = (slot + 1) % len(model.slots)
    return -1


def _subwords(model: Model, word: bytes) -> list[int]:
    marked = b"<" + word + b">"
    begins = [i for i, byte in enumerate(marked) if byte & 0xC0 != 0x80] + [len(marked)]
    buckets = []
    for first in range(len(begins) - 1):
        for size in range(max(model.shortest_ngram, 1), model.longest_ngram + 1):
            if first + size >= len(begins):
                break
            if not (size == 1 and (first == 0 or begins[first + 1] == len(marked))):
                buckets.append(_hash(marked[begins[first] : begins[first + size]]) % model.buckets)
    return buckets


def _row(model: Model, row: int) -> Floats:
    return np.frombuffer(model.input, np.float32, model.dim, model.input_at + row * model.dim * 4).astype(np.float64)
