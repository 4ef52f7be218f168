"""Signals of a text without a model: each is measured once, stored, and read by rules. Definitions: docs/rules.md."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from pydantic import Field, field_validator, model_validator

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import SCRIPTS
from gristmill.kernels.measures import text_counts as c
from gristmill.kernels.words import words as w
from gristmill.stages.paths import RecipePath
from gristmill.stages.stage import Annotate, Signals
from gristmill.stages.text.measure import Measures, Units, measure
from gristmill.stages.text.stop_words import STOP_WORDS, plain_name


class Signal(NamedTuple):
    groups: tuple[str, ...]  # counts that it is made of
    value: Callable[[Measures], Array]


def share(part: Array, whole: Array) -> Array:
    """Part of a whole; of nothing, none."""
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)


def ratio(count: Array, units: Array) -> Array:
    """How many for each unit; where there are no units, for one."""
    return np.asarray(count / np.maximum(units, 1))


def _ngrams() -> dict[str, Signal]:
    needs = ("ngrams", "characters")

    def of(column: int) -> Callable[[Measures], Array]:
        return lambda m: np.minimum(
            share(m.ngrams[:, column], m.characters[:, c.CHARACTERS]), 1
        )  # occurrences of one gram may overlap: "a a a"

    names = [f"top_{n}gram_share" for n in (2, 3, 4)] + [f"duplicate_{n}gram_share" for n in range(5, 11)]
    return {name: Signal(needs, of(column)) for column, name in enumerate(names)}


def _scripts() -> dict[str, Signal]:
    def of(*names: str) -> Signal:
        places = [SCRIPTS.index(name) for name in names]
        return Signal(("scripts",), lambda m: share(m.scripts[:, places].sum(axis=1), m.scripts.sum(axis=1)))

    return {
        "main_script": Signal(("scripts",), lambda m: np.array(SCRIPTS)[m.scripts.argmax(axis=1)]),
        "main_script_share": Signal(("scripts",), lambda m: share(m.scripts.max(axis=1), m.scripts.sum(axis=1))),
        "latin_share": of("Latin"),
        "cyrillic_share": of("Cyrillic"),
        "greek_share": of("Greek"),
        "arabic_share": of("Arabic"),
        "hebrew_share": of("Hebrew"),
        "devanagari_share": of("Devanagari"),
        "han_share": of("Han"),
        "kana_share": of("Hiragana", "Katakana"),
        "hangul_share": of("Hangul"),
        "thai_share": of("Thai"),
    }


SIGNALS: dict[str, Signal] = {
    "bytes": Signal((), lambda m: m.bytes),
    "characters": Signal(("characters",), lambda m: m.characters[:, c.CHARACTERS]),
    "newlines": Signal(("characters",), lambda m: m.characters[:, c.NEWLINES]),
    "units": Signal(("units",), lambda m: m.units),
    "words": Signal(("words",), lambda m: m.words[:, w.WORDS]),
    "mean_word_length": Signal(("words",), lambda m: share(m.words[:, w.WORD_CHARACTERS], m.words[:, w.WORDS])),
    "median_word_length": Signal(("words",), lambda m: m.words[:, w.MEDIAN_TWICE] / 2),
    "alphabetic_word_share": Signal(("words",), lambda m: share(m.words[:, w.WITH_LETTERS], m.words[:, w.UNITS])),
    "stop_words": Signal(("words",), lambda m: m.words[:, w.STOP_WORDS]),
    "stop_word_share": Signal(("words",), lambda m: share(m.words[:, w.STOP_WORD_OCCURRENCES], m.words[:, w.WORDS])),
    "hash_ratio": Signal(("units", "characters"), lambda m: ratio(m.characters[:, c.HASHES], m.units)),
    "ellipsis_ratio": Signal(("units", "mentions"), lambda m: ratio(m.mentions[:, c.ELLIPSES], m.units)),
    "newlines_per_word": Signal(("units", "characters"), lambda m: ratio(m.characters[:, c.NEWLINES], m.units)),
    "lines": Signal(("lines",), lambda m: m.line_repeats[:, 0]),
    "paragraphs": Signal(("lines",), lambda m: m.paragraph_repeats[:, 0]),
    "sentences": Signal(("sentences",), lambda m: m.sentences),
    "bullet_line_share": Signal(("lines",), lambda m: share(m.lines[:, c.BULLET_LINES], m.line_repeats[:, 0])),
    "list_line_share": Signal(("lines",), lambda m: share(m.lines[:, c.LIST_LINES], m.line_repeats[:, 0])),
    "ellipsis_line_share": Signal(("lines",), lambda m: share(m.lines[:, c.ELLIPSIS_LINES], m.line_repeats[:, 0])),
    "terminal_line_share": Signal(("lines",), lambda m: share(m.lines[:, c.TERMINAL_LINES], m.line_repeats[:, 0])),
    "short_line_share": Signal(("lines",), lambda m: share(m.lines[:, c.SHORT_LINES], m.line_repeats[:, 0])),
    "longest_line": Signal(("lines",), lambda m: m.lines[:, c.LONGEST_LINE]),
    "duplicate_line_share": Signal(("lines",), lambda m: share(m.line_repeats[:, 1], m.line_repeats[:, 0])),
    "duplicate_line_character_share": Signal(
        ("lines", "characters"), lambda m: share(m.line_repeats[:, 2], m.characters[:, c.CHARACTERS])
    ),
    "duplicate_line_share_of_line_characters": Signal(
        ("lines", "characters"),
        lambda m: share(m.line_repeats[:, 2], m.characters[:, c.CHARACTERS] - m.characters[:, c.NEWLINES]),
    ),
    "duplicate_paragraph_share": Signal(
        ("lines",), lambda m: share(m.paragraph_repeats[:, 1], m.paragraph_repeats[:, 0])
    ),
    "duplicate_paragraph_character_share": Signal(
        ("lines", "characters"), lambda m: share(m.paragraph_repeats[:, 2], m.characters[:, c.CHARACTERS])
    ),
    **_ngrams(),
    "letter_share": Signal(("characters",), lambda m: share(m.characters[:, c.LETTERS], m.characters[:, c.CHARACTERS])),
    "upper_share": Signal(("characters",), lambda m: share(m.characters[:, c.UPPER_CASE], m.characters[:, c.LETTERS])),
    "digit_share": Signal(("characters",), lambda m: share(m.characters[:, c.DIGITS], m.characters[:, c.CHARACTERS])),
    "space_share": Signal(("characters",), lambda m: share(m.characters[:, c.SPACES], m.characters[:, c.CHARACTERS])),
    "mark_share": Signal(("characters",), lambda m: share(m.characters[:, c.MARKS], m.characters[:, c.CHARACTERS])),
    "replacement_share": Signal(
        ("characters",), lambda m: share(m.characters[:, c.REPLACEMENTS], m.characters[:, c.CHARACTERS])
    ),
    "curly_brackets": Signal(("characters",), lambda m: m.characters[:, c.CURLY_BRACKETS]),
    "entropy": Signal(("characters",), lambda m: m.entropy),
    "link_words": Signal(("mentions",), lambda m: m.mentions[:, c.LINKS]),
    "script_words": Signal(("mentions",), lambda m: m.mentions[:, c.JAVASCRIPTS]),
    "compression_ratio": Signal(("compressed",), lambda m: share(m.bytes, m.compressed)),
    **_scripts(),
}


class TextSignals(Annotate):
    """Measure text: words, lines, characters, repetition, scripts. The chapter Rules on text defines each signal."""

    units: Annotated[
        Units,
        Field(
            description=(
                "what a word is: between whitespace; by Unicode's word boundaries; as DataTrove's English "
                "tokenizer cuts, with marks as words"
            )
        ),
    ] = "uax29"
    only: Annotated[tuple[str, ...], Field(description="measure only these signals; empty is all")] = ()
    language: Annotated[str, Field(description="whose stop words count where a document has no `language`")] = "en"
    stop_words_file: Annotated[
        RecipePath | None,
        Field(description="YAML or JSON of stop words by language; goes before the lists that come with us"),
    ] = None
    short_line: Annotated[int, Field(description="a line of at most so many characters is short", ge=0)] = 30

    needs: ClassVar[tuple[str, ...]] = ("text",)
    adds: ClassVar[tuple[str, ...]] = tuple(SIGNALS)

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
    def _knows_stop_words(self) -> TextSignals:
        try:
            lists_by_language = stop_words_of(self.stop_words_file)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ValueError(f"stop_words_file: {self.stop_words_file} cannot be read ({error})") from error
        if number_of(self.language, list(lists_by_language)) == len(lists_by_language):
            raise ValueError(
                f"language: no stop words for {self.language!r}, so that every text would have none; there "
                f"are {', '.join(lists_by_language)}"
            )
        return self

    def prepare(self) -> None:
        """Compile."""
        self.annotate(pa.record_batch({"text": pa.array(["A word. Another word."])}))

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        wanted = self.only or self.adds
        groups = {group for name in wanted for group in SIGNALS[name].groups}
        column = text_column(Signals(batch).column("text"))
        lists, stop_words = (
            self._stop_words(batch) if "words" in groups else (np.zeros(len(batch), np.int64), np.zeros(64, np.uint64))
        )
        measured = measure(column, groups, self.units, lists, stop_words, self.short_line)
        return {name: pa.array(SIGNALS[name].value(measured)) for name in wanted}

    def _stop_words(self, batch: pa.RecordBatch) -> tuple[Array, Array]:
        """Which list each document goes by, and all lists in one table. A language without a list has no stop words."""
        lists_by_language = stop_words_of(self.stop_words_file)
        names = list(lists_by_language)
        lists = np.full(len(batch), number_of(self.language, names), np.int64)
        place = batch.schema.get_field_index("language")
        if place >= 0:
            coded = pc.dictionary_encode(batch.column(place).cast(pa.string()))
            numbers = np.array(
                [number_of(language, names) for language in coded.dictionary.to_pylist()]
                + [lists[0] if len(lists) else 0],
                np.int64,
            )
            lists = numbers[pc.fill_null(coded.indices, len(numbers) - 1).to_numpy(zero_copy_only=False)]
        return lists, table_of(self.stop_words_file)


def number_of(language: str, names: list[str]) -> int:
    """The list of a language, by its own name first; one past the last where there is none."""
    name = language if language in names else plain_name(language)
    return names.index(name) if name in names else len(names)


def stop_words_of(path: str | None) -> dict[str, list[str]]:
    """Stop words by language; those of a file go before ours."""
    if path is None:
        return {language: list(words) for language, words in STOP_WORDS.items()}
    stamp = Path(path).stat()
    return {
        language: list(words) for language, words in _read_stop_words(path, stamp.st_mtime_ns, stamp.st_size).items()
    }


@lru_cache(4)
def _read_stop_words(path: str, _changed: int, _size: int) -> dict[str, tuple[str, ...]]:
    table = yaml.safe_load(Path(path).read_text("utf-8"))
    if isinstance(table, dict) and not all(isinstance(language, str) for language in table):
        raise ValueError(f"{path}: languages are named by text (quote `no`, which YAML reads as false)")
    if not isinstance(table, dict) or not all(
        isinstance(words, list) and all(isinstance(word, str) for word in words) for words in table.values()
    ):
        raise ValueError(f"{path}: stop words are a list of words for each language, as in `de: [der, die, und]`")
    return {**STOP_WORDS, **{language: tuple(words) for language, words in table.items()}}


def table_of(path: str | None) -> Array:
    return _table_of(tuple((language, tuple(words)) for language, words in stop_words_of(path).items()))


@lru_cache(4)
def _table_of(lists: tuple[tuple[str, tuple[str, ...]], ...]) -> Array:
    return w.stop_table([list(words) for _, words in lists])


__all__ = ["SIGNALS", "TextSignals"]
