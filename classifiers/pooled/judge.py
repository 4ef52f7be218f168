"""The pooled judge: embeddings of hashed words, word pairs and separators, pooled in five ways (a mean by learned
gates, mean, maximum, beginning, end), and one hidden layer. Between fastText and an encoder in quality and cost.

The idea is that of Marin's fast-transformer (marin issue 6739: learned embeddings and pooling by several statistics).
Scoring needs no torch: the sums are those of kernels/language/pooled_terms.py, on Arrow's buffers, with embeddings in
int8 or float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
import pyarrow as pa
from pydantic import Field
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from gristmill.classifiers.card import Head, Json, JudgeCard, JudgeError
from gristmill.classifiers.judge import (
    Device,
    Epochs,
    Judge,
    KindSettings,
    Lesson,
    Log,
    Scores,
    Train,
    module_to_train,
)
from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.common.device import on_device
from gristmill.kernels.common.settings import Bytes
from gristmill.kernels.language.pooled_terms import (
    CODES,
    Embeddings,
    TermRows,
    beginnings,
    feature_count,
    perceptron,
    pooled,
    term_rows,
)
from gristmill.kernels.words.token_rules import tokens_plain

WEIGHTS_FILE = "weights.safetensors"
TERMS = (
    "kernels/words/token_rules.py: words, pairs of words, and separators other than one space; "
    "the highest bits of 64-bit hashes"
)
Precision = Literal["int8", "float32"]
DTYPES = {"int8": np.dtype(np.int8), "float32": np.dtype(np.float32)}
FEWEST_BITS, MOST_BITS = 8, 24
NARROWEST, WIDEST = 4, 1024  # numbers of a row
MOST_HIDDEN = 4096
SLICE_BYTES = 4 << 20  # of text, whose terms are held at a time
MOST_EXPLAINED = 2000  # different words


class Perceptron(NamedTuple):
    """One hidden layer over the features, with the embeddings' scales and the features' means folded in."""

    hidden: Array  # float32_PH
    hidden_bias: Array  # float32_H
    last: Array  # float32_HK
    last_bias: Array  # float64_K


class Pooled(KindSettings):
    """Hashed embeddings: the scores of a costlier judge at a CPU's speed."""

    epochs: Epochs = None
    most_bytes: Annotated[Bytes, Field(ge=0, description="read of each text; 0: all")] = 0
    device: Device = "auto"


@dataclass(frozen=True)
class PooledJudge(Judge):
    """One head. A regression answers in shares of its head's range."""

    card: JudgeCard  # type: ignore[misc]
    embeddings: Embeddings
    perceptron: Perceptron
    bits: int
    most_bytes: int  # of each text; 0: all

    needs: ClassVar[tuple[str, ...]] = (WEIGHTS_FILE,)
    settings: ClassVar[type[KindSettings] | None] = Pooled
    learns: ClassVar[Lesson] = "value"
    to_train: ClassVar[frozenset[str]] = frozenset({"gristmill.classifiers.pooled.training", "torch"})

    @classmethod
    def trainer(cls, settings: Pooled, head: Head, seed: int, log: Log) -> Train:
        training = module_to_train("gristmill.classifiers.pooled.training", "pooled", "torch", "gpu")
        recipe = training.PooledRecipe(seed=seed, most_bytes=settings.most_bytes)
        recipe = recipe if settings.epochs is None else replace(recipe, epochs=settings.epochs)
        device = on_device(settings.device)
        return lambda texts: training.train_pooled(texts, head, recipe, device)  # type: ignore[no-any-return]

    def __post_init__(self) -> None:
        if len(self.card.heads) != 1:
            raise JudgeError("a pooled judge has one head")

    @property
    def head(self) -> Head:
        return self.card.heads[0]

    def outputs(self, texts: pa.Array | pa.ChunkedArray) -> Scores:
        parts = [np.empty((0, self.head.width))]
        for column in _slices(self._read(text_column(texts))):
            parts.append(self._logits(term_rows(column, self.bits)))
        return {self.head.name: _linked(np.concatenate(parts), self.head)}

    def explain(self, text: str, head: str, most: int = 20) -> list[tuple[str, float]]:
        """What the log-odds of good or of the likeliest label, the expected class or the regression's value lose
        without each word: the word itself and the pairs that it is in, wherever it stands. These losses do not sum to
        the score."""
        self.card.head(head)
        column = self._read(text_column(pa.array([text], pa.large_string())))
        shown = bytes(column.data[column.offsets[0] : column.offsets[1]]).decode()
        words = [token.decode("utf-8", "replace") for _, _, token in tokens_plain(shown)]
        names = list(dict.fromkeys(words))[:MOST_EXPLAINED]
        whole = term_rows(column, self.bits).rows
        spans = _terms_of_words(shown)
        kept = [np.ones(len(whole), np.bool_) for _ in range(len(names) + 1)]
        places = {name: i + 1 for i, name in enumerate(names)}
        for word, terms in zip(words, spans, strict=True):
            if word in places:
                kept[places[word]][terms] = False
        first = np.concatenate([[0], np.cumsum([mask.sum() for mask in kept])])
        values = self._direction(self._logits(TermRows(np.concatenate([whole[mask] for mask in kept]), first)))
        losses = [(name, float(values[0] - values[i + 1])) for i, name in enumerate(names)]
        return sorted(losses, key=lambda loss: (-abs(loss[1]), loss[0]))[:most]

    def golden_tolerance(self) -> float:
        return 1e-4  # of float32 sums; another machine's logarithm may differ in its last digit

    def write(self, folder: Path) -> None:
        tensors = {"table": self.embeddings.table, "gates": self.embeddings.gates} | self.perceptron._asdict()
        save_file(tensors, folder / WEIGHTS_FILE)

    @classmethod
    def read(cls, folder: Path, card: JudgeCard, device: str) -> Self:
        facts = card.preprocessing
        _check_preprocessing(facts)
        try:
            tensors = load_file(folder / WEIGHTS_FILE)
        except (SafetensorError, OSError, ValueError) as error:
            raise JudgeError(f"{WEIGHTS_FILE} is no file of safetensors: {error}") from error
        hidden, features, outputs = facts["hidden"], feature_count(facts["width"]), card.heads[0].width
        shapes = {
            "table": (DTYPES[facts["precision"]], (1 << facts["bits"], facts["width"])),
            "gates": (np.dtype(np.float32), (CODES,)),
            "hidden": (np.dtype(np.float32), (features, hidden)),
            "hidden_bias": (np.dtype(np.float32), (hidden,)),
            "last": (np.dtype(np.float32), (hidden, outputs)),
            "last_bias": (np.dtype(np.float64), (outputs,)),
        }
        for name, (kind, shape) in shapes.items():
            tensor = tensors.get(name)
            if tensor is None or tensor.dtype != kind or tensor.shape != shape:
                raise JudgeError(f"{WEIGHTS_FILE}: {name} should be {kind} of {shape}")
            if kind != np.int8 and not np.isfinite(tensor).all():
                raise JudgeError(f"{WEIGHTS_FILE}: {name} has numbers that are not finite")
        if (tensors["gates"] < 0).any() or (tensors["table"].dtype != np.int8 and (tensors["table"][:, 0] < 0).any()):
            raise JudgeError(f"{WEIGHTS_FILE}: a gate is below 0")
        return cls(card, *_weights_of(tensors), facts["bits"], facts["most_bytes"])

    def _read(self, column: TextColumn) -> TextColumn:
        return beginnings(column, self.most_bytes) if self.most_bytes else column

    def _logits(self, terms: TermRows) -> Array:
        return perceptron(pooled(terms, self.embeddings), *self.perceptron)

    def _direction(self, logits: Array) -> Array:
        """Of each row the number that `explain` is about; the first row is the whole text."""
        if self.head.width == 1:  # before the link, which hides what a word does where a score is at its bound
            scale = self.head.high - self.head.low if self.head.kind == "regression" else 1.0
            return np.asarray(logits[:, 0] * scale)
        if self.head.kind == "labels":
            best = logits[0].argmax()
            return np.asarray(logits[:, best] - np.logaddexp.reduce(np.delete(logits, best, axis=1), axis=1))
        return np.asarray(_linked(logits, self.head).astype(np.float64) @ np.arange(logits.shape[1]))


def pooled_judge(card: JudgeCard, tensors: dict[str, Array]) -> PooledJudge:
    """Of weights that were trained, under the names that the file has."""
    return PooledJudge(card, *_weights_of(tensors), card.preprocessing["bits"], card.preprocessing["most_bytes"])


def preprocessing_of(bits: int, width: int, hidden: int, precision: Precision, most_bytes: int) -> Json:
    facts = {
        "terms": TERMS,
        "bits": bits,
        "width": width,
        "hidden": hidden,
        "precision": precision,
        "most_bytes": most_bytes,
    }
    _check_preprocessing(facts)
    return facts


def _check_preprocessing(facts: Json) -> None:
    if facts.get("terms") != TERMS:
        raise JudgeError("preprocessing: its terms are not those that this version knows")
    if facts.get("precision") not in get_args(Precision):
        raise JudgeError(f"preprocessing: precision {facts.get('precision')!r} is none of {', '.join(DTYPES)}")
    for name, least, most in (
        ("bits", FEWEST_BITS, MOST_BITS),
        ("width", NARROWEST, WIDEST),
        ("hidden", 1, MOST_HIDDEN),
        ("most_bytes", 0, 1 << 40),
    ):
        value = facts.get(name)
        if type(value) is not int or not least <= value <= most:
            raise JudgeError(f"preprocessing: {name} {value!r} is no whole number from {least:,} to {most:,}")


def _weights_of(tensors: dict[str, Array]) -> tuple[Embeddings, Perceptron]:
    return (
        Embeddings(*(_fixed(tensors[name]) for name in Embeddings._fields)),
        Perceptron(*(_fixed(tensors[name]) for name in Perceptron._fields)),
    )


def _linked(logits: Array, head: Head) -> Array:
    """float32_N, or float32_NC of several classes or labels."""
    if head.kind == "probability":
        x = logits[:, 0]
        small = np.exp(-np.abs(x))
        return np.asarray(np.where(x >= 0, 1, small) / (1 + small), np.float32)
    if head.kind == "regression":
        return np.asarray((head.low + (head.high - head.low) * logits[:, 0]).clip(head.low, head.high), np.float32)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(chances / chances.sum(axis=1, keepdims=True), np.float32)


def _slices(column: TextColumn) -> Iterator[TextColumn]:
    """Runs of texts of about SLICE_BYTES, at least one text each."""
    offsets, start = column.offsets, 0
    while start < len(column):
        end = int(np.searchsorted(offsets, offsets[start] + SLICE_BYTES, "right")) - 1
        end = min(max(end, start + 1), len(column))
        yield TextColumn(column.data, offsets[start : end + 1])
        start = end


def _terms_of_words(text: str) -> list[list[int]]:
    """The places of the terms of each word: itself and its pairs, as `term_rows` puts them."""
    content, places = text.encode(), []
    place = ended = 0
    for k, (start, end, _) in enumerate(tokens_plain(text)):
        place += content[ended:start] not in (b"", b" ")
        if k:
            places[-1].append(place + 1)
        places.append([place] if k == 0 else [place, place + 1])
        place += 1 if k == 0 else 2
        ended = end
    return places


def _fixed(array: Array) -> Array:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array
