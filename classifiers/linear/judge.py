"""The linear judge: hashed TF-IDF of words and pairs of words, and logistic regression fitted by scikit-learn. For
hundreds to 100,000s of texts.

Scoring needs no scikit-learn: weights lie in safetensors, terms are those of kernels/language/hashed_terms.py, and a
text costs one look-up a term.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from gristmill.classifiers.card import Head, HeadKind, JudgeCard, JudgeError
from gristmill.classifiers.judge import Judge, KindSettings, Lesson, Log, Scores, Train, direction_of
from gristmill.classifiers.linear.explain import term_contributions
from gristmill.classifiers.training_sets import LabelledTexts
from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.common.extras import install
from gristmill.kernels.language.hashed_terms import WIDEST, Terms, term_column, weighed

WEIGHTS_FILE = "weights.safetensors"
# Saved judges hold this text, with the name that the module of these rules had at first; it never changes.
TERMS = (
    "kernels.tokens_plain: runs of letters, marks and numbers in lower case; "
    "letters of scripts without spaces one by one; hashed, 64 bits"
)
FEWEST_BITS, MOST_BITS = 8, 26
FEW_TEXTS = 3000
SLICE_BYTES = 4 << 20  # of text, whose terms are held at a time


@dataclass(frozen=True)
class LinearRecipe:
    """`bits`: 2**bits numbers for terms; `widest`: words of a term; `looseness`: scikit-learn's C, the inverse of the
    penalty."""

    bits: int = 20
    widest: int = 2
    looseness: float = 10.0
    most_steps: int = 1000
    seed: int = 0


class Linear(KindSettings):
    """Words and pairs of words: few texts; the fastest."""


@dataclass(frozen=True)
class LinearJudge(Judge):
    """One head. weights_FC has one column for a probability (log-odds of good), else one for each label; F =
    2**bits."""

    card: JudgeCard  # type: ignore[misc]
    idf: Array  # float32_F
    weights: Array  # float32_FC
    bias: Array  # float64_C
    bits: int
    widest: int

    needs: ClassVar[tuple[str, ...]] = (WEIGHTS_FILE,)
    settings: ClassVar[type[KindSettings] | None] = Linear
    heads_learnt: ClassVar[tuple[HeadKind, ...]] = ("probability", "classes", "labels")
    learns: ClassVar[Lesson] = "soft"
    seeded: ClassVar[bool] = False
    to_train: ClassVar[frozenset[str]] = frozenset({"scipy", "sklearn"})

    @classmethod
    def trainer(cls, settings: Linear, head: Head, seed: int, log: Log) -> Train:
        return lambda texts: train_linear(texts, head, LinearRecipe(seed=seed))

    def __post_init__(self) -> None:
        if len(self.card.heads) != 1 or self.card.heads[0].kind == "regression":
            raise JudgeError("a linear judge has one head, of a probability, of classes or of labels")

    @property
    def head(self) -> Head:
        return self.card.heads[0]

    def outputs(self, texts: pa.Array | pa.ChunkedArray) -> Scores:
        column = text_column(texts)
        logits = np.empty((len(column), self.head.width), np.float64)
        for start, end in _slices(column.offsets):
            part = TextColumn(column.data, column.offsets[start : end + 1])
            logits[start:end] = weighed(term_column(part, self.bits, self.widest, self.idf), self.weights, self.bias)
        if self.head.kind == "probability":
            return {self.head.name: _sigmoid(logits[:, 0]).astype(np.float32)}
        chances = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        return {self.head.name: (chances / chances.sum(axis=1, keepdims=True)).astype(np.float32)}

    def explain(self, text: str, head: str, most: int = 20) -> list[tuple[str, float]]:
        """What each term of the text (a word, or two that follow each other) adds to the log-odds of good or of the
        likeliest label, or to the expected class."""
        self.card.head(head)
        contributions = term_contributions(text, self.bits, self.widest, self.idf, self._direction(text))
        return sorted(contributions.items(), key=lambda push: (-abs(push[1]), push[0]))[:most]

    def _direction(self, text: str) -> Array:
        if self.head.kind == "probability":
            return self.weights[:, 0]
        chances = self.outputs(pa.array([text], pa.large_string()))[self.head.name][0].astype(np.float64)
        return np.asarray(self.weights @ direction_of(self.head.kind, chances))

    def sharper(self, factor: float) -> Self:
        weights, bias = (_fixed((array * factor).astype(array.dtype)) for array in (self.weights, self.bias))
        return replace(self, weights=weights, bias=bias)

    def write(self, folder: Path) -> None:
        save_file({"idf": self.idf, "weights": self.weights, "bias": self.bias}, folder / WEIGHTS_FILE)

    @classmethod
    def read(cls, folder: Path, card: JudgeCard, device: str) -> Self:
        bits, widest = (card.preprocessing.get(name) for name in ("bits", "widest"))
        if not (
            type(bits) is int and FEWEST_BITS <= bits <= MOST_BITS and type(widest) is int and 1 <= widest <= WIDEST
        ):
            raise JudgeError(
                f"preprocessing: {bits!r} bits ({FEWEST_BITS} to {MOST_BITS}) and terms of {widest!r} words (1 to "
                f"{WIDEST})"
            )
        if card.preprocessing.get("terms") != TERMS:
            raise JudgeError("preprocessing: its terms are not those that this version knows")
        try:
            tensors = load_file(folder / WEIGHTS_FILE)
        except (SafetensorError, OSError, ValueError) as error:
            raise JudgeError(f"{WEIGHTS_FILE} is no file of safetensors: {error}") from error
        classes = card.heads[0].width
        for name, kind, shape in (
            ("idf", "f4", (1 << bits,)),
            ("weights", "f4", (1 << bits, classes)),
            ("bias", "f8", (classes,)),
        ):
            tensor = tensors.get(name)
            if tensor is None or tensor.dtype != np.dtype(kind) or tensor.shape != shape:
                raise JudgeError(f"{WEIGHTS_FILE}: {name} should be {kind} of {shape}")
            if not np.isfinite(tensor).all():
                raise JudgeError(f"{WEIGHTS_FILE}: {name} has numbers that are not finite")
        return cls(card, _fixed(tensors["idf"]), _fixed(tensors["weights"]), _fixed(tensors["bias"]), bits, widest)


def train_linear(labelled: LabelledTexts, head: Head, recipe: LinearRecipe) -> LinearJudge:
    """A judge of labelled texts; weights of texts are the fit's."""
    try:
        from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
        from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
        from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    except ImportError as error:
        raise JudgeError(f"training a linear judge needs scikit-learn: {install('train')}") from error
    if head.kind == "regression":
        raise JudgeError("a linear judge is fitted to labels: cut the values into classes")
    if not (FEWEST_BITS <= recipe.bits <= MOST_BITS and 1 <= recipe.widest <= WIDEST and recipe.looseness > 0):
        raise JudgeError(
            f"bits lie between {FEWEST_BITS} and {MOST_BITS}, words of a term between 1 and {WIDEST}, and looseness "
            "above 0"
        )
    numbers = labelled.numbers(head)
    column = text_column(labelled.texts)
    idf = _idf(term_column(column, recipe.bits, recipe.widest, np.ones(1 << recipe.bits, np.float32)), recipe.bits)
    terms = term_column(column, recipe.bits, recipe.widest, idf)
    term_numbers, places = np.unique(terms.numbers, return_inverse=True)
    matrix = csr_matrix(
        (terms.values.astype(np.float64), places, terms.first), shape=(len(labelled), max(len(term_numbers), 1))
    )
    # Many labels of few long texts: the weights lie in the span of the texts, whose axes are fewer than terms by far.
    few = head.kind == "labels" and len(labelled) <= FEW_TEXTS and 4 * len(labelled) < len(term_numbers)
    axes = _axes(np.asarray((matrix @ matrix.T).todense())) if few else None
    fit = LogisticRegression(C=recipe.looseness, max_iter=recipe.most_steps, random_state=recipe.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            fit.fit(matrix if axes is None else axes.places, numbers, sample_weight=labelled.weights)
        except ConvergenceWarning as error:
            raise JudgeError(
                f"{recipe.most_steps} steps were too few to fit the weights; allow more, or a lower looseness"
            ) from error
    weights = np.zeros((1 << recipe.bits, head.width), np.float32)
    coefficients, bias = fit.coef_, fit.intercept_
    if axes is not None:
        coefficients = (matrix.T @ (axes.back @ coefficients.T)).T
    if head.multiclass and len(head.labels) == 2:  # scikit-learn keeps one row for two classes
        coefficients, bias = np.concatenate([-coefficients, coefficients]) / 2, np.concatenate([-bias, bias]) / 2
    weights[term_numbers] = coefficients.T[: len(term_numbers)].astype(np.float32)
    card = JudgeCard(
        "linear",
        (head,),
        {"terms": TERMS, "bits": recipe.bits, "widest": recipe.widest},
        training=labelled.as_json() | {"settings": asdict(recipe)},
        versions={"scikit-learn": version("scikit-learn")},
    )
    return LinearJudge(card, _fixed(idf), _fixed(weights), _fixed(bias.astype(np.float64)), recipe.bits, recipe.widest)


class Axes(NamedTuple):
    """Texts by the axes of their span, NR, and what makes sums of texts of sums of axes, NR."""

    places: Array
    back: Array


def _axes(products_NN: Array) -> Axes:
    """Of all products of two texts. A ridge keeps rotations, so that a fit by the axes is the fit by the terms."""
    squares, vectors = np.linalg.eigh(products_NN)
    there = squares > 1e-9 * squares.max(initial=1e-300)
    lengths = np.sqrt(squares[there])
    return Axes(vectors[:, there] * lengths, vectors[:, there] / lengths)


def _idf(terms: Terms, bits: int) -> Array:
    """ln((1 + texts) / (1 + texts with the term)) + 1, as scikit-learn has it."""
    texts_with = np.bincount(terms.numbers, minlength=1 << bits)
    return (np.log(len(terms.first) / (1.0 + texts_with)) + 1).astype(np.float32)


def _slices(offsets: Array) -> list[tuple[int, int]]:
    """Runs of texts of about SLICE_BYTES, at least one text each."""
    if len(offsets) < 2:
        return []
    cuts = np.unique(np.searchsorted(offsets, np.arange(offsets[0], offsets[-1], SLICE_BYTES)))
    return list(pairwise(sorted({0, *cuts.tolist(), len(offsets) - 1})))


def _sigmoid(x: Array) -> Array:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def _fixed(array: Array) -> Array:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array
