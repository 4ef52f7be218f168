"""How hard a text is to read, for curricula: varied words, long sentences, syllables, words that are not common.
Definitions: docs/curriculum.md."""

from __future__ import annotations

import zlib
from difflib import get_close_matches
from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import properties
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.measures.diversity import DIVERSITY, DIVERSITY_COLUMNS, MTLD, RARE, Scratch, words_of
from gristmill.kernels.measures.syllables import latin_letters, memory, syllables
from gristmill.kernels.words.sentences import sentences
from gristmill.stages.stage import Annotate, Signals
from gristmill.stages.text.common_words import common_words_of
from gristmill.stages.text.signals import ratio, share, slices
from gristmill.stages.text.stop_words import plain_name

SIGNALS = (
    "mtld", "lexical_diversity", "sentence_length", "flesch_reading_ease", "flesch_kincaid_grade", "rare_word_share",
    "zlib_share", "complexity",
)  # fmt: skip
ENGLISH_ONLY = (
    "flesch_reading_ease",
    "flesch_kincaid_grade",
)  # null for other languages, and where there is no word to judge by
ZLIB_WINDOW, ZLIB_LEVEL = 8192, 6


class Difficulty(Annotate):
    """Measure how hard a text is to read. The chapter Curriculum defines each signal and its direction."""

    only: Annotated[tuple[str, ...], Field(description="measure only these signals; empty is all that can be")] = ()
    language: Annotated[
        str, Field(description="the language of documents that have no `language`; Flesch's scores are for English")
    ] = "en"
    common_words: Annotated[
        RecipePath | None,
        Field(
            description=(
                "a list of words, the most frequent first, or what `python -m "
                "gristmill.stages.text.common_words` made; for `rare_word_share`"
            )
        ),
    ] = None
    common: Annotated[int, Field(description="how many words of that file are common", gt=0)] = 10_000

    needs: ClassVar[tuple[str, ...]] = ("text", "language")  # of these, language may be missing
    adds: ClassVar[tuple[str, ...]] = SIGNALS

    @field_validator("only")
    @classmethod
    def _are_signals(cls, only: tuple[str, ...]) -> tuple[str, ...]:
        for name in only:
            if name not in SIGNALS:
                near = get_close_matches(name, SIGNALS, 1)
                raise ValueError(
                    f"no signal {name!r}"
                    + (f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(SIGNALS)}")
                )
        return only

    @model_validator(mode="after")
    def _knows_common_words(self) -> Difficulty:
        if self.common_words is not None:
            common_words_of(self.common_words, self.common)
        elif "rare_word_share" in self.only:
            raise ValueError("rare_word_share needs common_words, a file of words")
        return self

    @property
    def added(self) -> tuple[str, ...]:
        return self.only or tuple(
            name for name in SIGNALS if name != "rare_word_share" or self.common_words is not None
        )

    def prepare(self) -> None:
        """Compile."""
        self.annotate(pa.record_batch({"text": pa.array(["A word. Another word."])}))

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        wanted = self.added
        column = text_column(Signals(batch).column("text"))
        columns = {"zlib_share": pa.array(zlib_shares(column))} if "zlib_share" in wanted else {}
        if set(wanted) - set(columns):
            columns |= self._of_words(column, self._english(batch))
        return {name: columns[name] for name in wanted}

    def _of_words(self, column: TextColumn, english: Array) -> dict[str, pa.Array]:
        words, stops, spoken, varied = counted(column, common_words_of(self.common_words, self.common))
        sentence_length, readable = ratio(words, stops), english & (spoken[:, 0] > 0)
        syllables_a_word = share(spoken[:, 1], spoken[:, 0])
        ease = 206.835 - 1.015 * sentence_length - 84.6 * syllables_a_word
        grade = 0.39 * sentence_length + 11.8 * syllables_a_word - 15.59
        long, hard = np.minimum(sentence_length / 20, 1), np.clip((100 - ease) / 100, 0, 1)
        surface = 0.3 * varied[:, DIVERSITY] + 0.3 * long
        return {
            "mtld": pa.array(varied[:, MTLD]),
            "lexical_diversity": pa.array(varied[:, DIVERSITY]),
            "sentence_length": pa.array(sentence_length),
            "flesch_reading_ease": pa.array(ease, mask=~readable),
            "flesch_kincaid_grade": pa.array(grade, mask=~readable),
            "rare_word_share": pa.array(varied[:, RARE]),
            "complexity": pa.array(np.where(readable, surface + 0.4 * hard, surface / 0.6)),
        }

    def _english(self, batch: pa.RecordBatch) -> Array:
        place = batch.schema.get_field_index("language")
        if place < 0:
            return np.full(len(batch), plain_name(self.language) == "en")
        coded = pc.dictionary_encode(batch.column(place).cast(pa.string()))
        is_english = np.array([plain_name(name) == "en" for name in [*coded.dictionary.to_pylist(), self.language]])
        english: Array = is_english[pc.fill_null(coded.indices, len(is_english) - 1).to_numpy(zero_copy_only=False)]
        return english


def counted(column: TextColumn, common: Array) -> tuple[Array, Array, Array, Array]:
    """Of each document: words, sentences, words with letters and their syllables, and the columns of
    `gristmill.kernels.measures.diversity`."""
    words, stops, spoken = (
        np.zeros(len(column), np.int64),
        np.zeros(len(column), np.int64),
        np.zeros((len(column), 2), np.int64),
    )
    varied, scratch, letters, met = np.zeros((len(column), DIVERSITY_COLUMNS)), Scratch(), latin_letters(), memory()
    for start, stop in slices(column.offsets):
        part, rows = TextColumn(column.data, column.offsets[start : stop + 1]), slice(start, stop)
        word_spans = words_of(part)
        words[rows] = np.diff(word_spans.first)
        sentences(*part, properties(), stops[rows])
        syllables(part.data, *word_spans, letters, met, spoken[rows])
        varied[rows] = scratch.diversity_of(part, word_spans, common)
    return words, stops, spoken, varied


def zlib_shares(column: TextColumn) -> Array:
    """What is left of the first 8,192 bytes of each text after zlib, as a share of them; of nothing, nothing."""
    data = column.data.data
    ends = np.minimum(column.offsets[1:], column.offsets[:-1] + ZLIB_WINDOW)
    sizes = [
        len(zlib.compress(data[start:end], ZLIB_LEVEL)) if end > start else 0
        for start, end in zip(column.offsets[:-1].tolist(), ends.tolist(), strict=True)
    ]
    return share(np.array(sizes, np.int64), ends - column.offsets[:-1])
