"""Signals of a text without a model: each is measured once, stored, and read by rules. Definitions: docs/rules.md.

Kernels go over a column of text in slices that stay in cache: words are cut once for a slice, and all that counts words
shares them. Signals are shares and ratios of what was counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from pydantic import Field, field_validator, model_validator

from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import SCRIPTS, properties, script
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.measures import text_counts as c
from gristmill.kernels.measures.text_counts import (
    CHARACTER_COLUMNS,
    LINE_COLUMNS,
    MENTION_COLUMNS,
    character_counts,
    compressed_size,
    compression_scratch,
    cut_lines,
    line_marks,
    mentions,
    script_counts,
    syllabic,
)
from gristmill.kernels.words import words as w
from gristmill.kernels.words.english import english_words
from gristmill.kernels.words.english_rules import english_tables
from gristmill.kernels.words.repetition import repeated_characters, repeats, repetition_scratch, sweep_table
from gristmill.kernels.words.sentences import sentences
from gristmill.kernels.words.words import (
    LONGEST_COUNTED,
    WORD_COLUMNS,
    boundary_marks,
    boundary_words,
    whitespace_words,
    word_counts,
    word_marks,
    word_scratch,
)
from gristmill.stages.stage import Annotate, Signals
from gristmill.stages.text.stop_words import STOP_WORDS, plain_name

Units = Literal["whitespace", "uax29", "datatrove"]
SLICE_BYTES = 1 << 20


# --- counts of a column -----------------------------------------------------------------------------------------------


@dataclass
class Measures:
    """What was counted, a row a document; groups that nobody asked for have no rows."""

    bytes: Array
    units: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    words: Array = field(default_factory=lambda: np.zeros((0, WORD_COLUMNS), np.int64))
    syllabic: Array = field(default_factory=lambda: np.zeros(0, np.bool_))  # a character is a syllable, or more
    ngrams: Array = field(default_factory=lambda: np.zeros((0, 9), np.int64))
    lines: Array = field(default_factory=lambda: np.zeros((0, LINE_COLUMNS), np.int64))
    line_repeats: Array = field(
        default_factory=lambda: np.zeros((0, 3), np.int64)
    )  # how many, how many repeated, their characters
    paragraph_repeats: Array = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    characters: Array = field(default_factory=lambda: np.zeros((0, CHARACTER_COLUMNS), np.int64))
    entropy: Array = field(default_factory=lambda: np.zeros(0))
    mentions: Array = field(default_factory=lambda: np.zeros((0, MENTION_COLUMNS), np.int64))
    scripts: Array = field(default_factory=lambda: np.zeros((0, len(SCRIPTS)), np.int64))
    compressed: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    sentences: Array = field(default_factory=lambda: np.zeros(0, np.int64))


GROUPS = ("units", "words", "ngrams", "lines", "characters", "mentions", "scripts", "compressed", "sentences")


def measure(
    column: TextColumn, groups: set[str], units: Units, lists: Array, stop_words: Array, short: int
) -> Measures:
    """Count what belongs to `groups`; `lists` says for each document which stop words it goes by, `stop_words` is their
    table."""
    count = len(column)
    measured = Measures(bytes=np.diff(column.offsets))
    if "units" in groups:
        measured.units = np.zeros(count, np.int64)
    if "words" in groups:
        measured.words = np.zeros((count, WORD_COLUMNS), np.int64)
        measured.syllabic = np.zeros(count, np.bool_)
    if "ngrams" in groups:
        measured.ngrams = np.zeros((count, 9), np.int64)
    if "lines" in groups:
        measured.lines = np.zeros((count, LINE_COLUMNS), np.int64)
        measured.line_repeats, measured.paragraph_repeats = (
            np.zeros((count, 3), np.int64),
            np.zeros((count, 3), np.int64),
        )
    if "characters" in groups:
        measured.characters, measured.entropy = np.zeros((count, CHARACTER_COLUMNS), np.int64), np.zeros(count)
    if "mentions" in groups:
        measured.mentions = np.zeros((count, MENTION_COLUMNS), np.int64)
    if "scripts" in groups:
        measured.scripts = np.zeros((count, len(SCRIPTS)), np.int64)
    if "compressed" in groups:
        measured.compressed = np.zeros(count, np.int64)
    if "sentences" in groups:
        measured.sentences = np.zeros(count, np.int64)
    scratch = _Scratch(stop_words)
    for start, stop in slices(column.offsets):
        _measure_slice(
            column.data,
            column.offsets[start : stop + 1],
            slice(start, stop),
            groups,
            units,
            lists,
            short,
            scratch,
            measured,
        )
    return measured


def slices(offsets: Array) -> Iterator[tuple[int, int]]:
    """Runs of documents of about a megabyte; a larger document is a run of its own."""
    start = 0
    while start < len(offsets) - 1:
        stop = max(int(np.searchsorted(offsets, offsets[start] + SLICE_BYTES, side="right")) - 1, start + 1)
        yield start, stop
        start = stop


class _Scratch:
    """Memory that kernels work in, made once for a batch and grown where a document asks for more."""

    def __init__(self, stop_words: Array) -> None:
        self.stop_words = stop_words
        self.rows = word_scratch(0)
        self.lines, self.paragraphs = word_scratch(0), word_scratch(0)
        self.table, self.repetition = sweep_table(0), repetition_scratch(0)
        self.seen, self.lengths = np.zeros(len(stop_words), np.int64), np.zeros(LONGEST_COUNTED + 1, np.int64)
        self.histogram, self.last = np.zeros(256, np.int64), compression_scratch()

    def room_for_words(self, size: int) -> None:
        if len(self.rows) < size + 1:
            self.rows = word_scratch(size)

    def room_for_lines(self, size: int) -> None:
        if len(self.lines) < size // 2 + 2:
            self.lines, self.paragraphs = word_scratch(size // 2 + 1), word_scratch(size // 2 + 1)

    def room_for_grams(self, ends: Array) -> None:
        most = int(np.diff(ends).max(initial=0))
        if len(self.repetition[-1]) < most + 1:
            self.repetition = repetition_scratch(most)

    def room_for_repeats(self, ends: Array) -> None:
        most = int(np.diff(ends).max(initial=0))
        if len(self.table) <= 2 * most:
            self.table = sweep_table(most)


def _measure_slice(
    data: Array,
    offsets: Array,
    rows: slice,
    groups: set[str],
    units: Units,
    lists: Array,
    short: int,
    scratch: _Scratch,
    found: Measures,
) -> None:
    size, count = int(offsets[-1] - offsets[0]), len(offsets) - 1
    if groups & {"units", "words", "ngrams"}:
        scratch.room_for_words(size)
        ends = np.zeros(count + 1, np.int64)
        if units == "whitespace":
            whitespace_words(data, offsets, word_marks(), scratch.rows, ends)
        elif units == "uax29":
            boundary_words(data, offsets, boundary_marks(), scratch.rows, ends)
        else:
            english_words(data, offsets, *english_tables(), scratch.rows, ends)
        if "units" in groups:
            found.units[rows] = np.diff(ends)
        if "words" in groups:
            word_counts(
                scratch.rows, ends, lists[rows], scratch.stop_words, scratch.lengths, scratch.seen, found.words[rows]
            )
        if "ngrams" in groups:
            scratch.room_for_grams(ends)
            repeated_characters(scratch.rows, ends, *scratch.repetition, found.ngrams[rows])
    if "lines" in groups:
        scratch.room_for_lines(size)
        line_ends, paragraph_ends = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
        cut_lines(
            data,
            offsets,
            line_marks(),
            short,
            scratch.lines,
            line_ends,
            scratch.paragraphs,
            paragraph_ends,
            found.lines[rows],
        )
        scratch.room_for_repeats(line_ends)
        repeats(scratch.lines, line_ends, scratch.table, found.line_repeats[rows])
        repeats(scratch.paragraphs, paragraph_ends, scratch.table, found.paragraph_repeats[rows])
    if "words" in groups:
        syllabic(data, offsets, properties(), found.syllabic[rows])
    if "characters" in groups:
        character_counts(data, offsets, properties(), scratch.histogram, found.characters[rows], found.entropy[rows])
    if "mentions" in groups:
        mentions(data, offsets, found.mentions[rows])
    if "scripts" in groups:
        script_counts(data, offsets, properties(), script(), found.scripts[rows])
    if "compressed" in groups:
        compressed_size(data, offsets, scratch.last, found.compressed[rows])
    if "sentences" in groups:
        sentences(data, offsets, properties(), found.sentences[rows])


# --- signals made of counts -------------------------------------------------------------------------------------------


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
    "mean_word_length": Signal(
        ("words",), lambda m: np.where(m.syllabic, np.nan, share(m.words[:, w.WORD_CHARACTERS], m.words[:, w.WORDS]))
    ),
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


# --- where a signal shows itself --------------------------------------------------------------------------------------

SHOWN_BY = {
    "curly_brackets": r"[{}]",
    "hash_ratio": "#",
    "ellipsis_ratio": r"\.\.\.|…",
    "ellipsis_line_share": r"(?m)(?:\.\.\.|…)[ \t]*$",
    "bullet_line_share": r"(?m)^[ \t]*[•●‣⁃◦▪-]",
    "replacement_share": "\ufffd",
    "script_words": "(?i)javascript",
}


def place_of(signal: str, text: str) -> tuple[int, int] | None:
    """Where a text first has what a signal counts: a mark, or a line, paragraph or n-gram that stood before."""
    if signal in SHOWN_BY:
        match = re.search(SHOWN_BY[signal], text)
        return None if match is None else match.span()
    if signal.startswith("duplicate_line_"):
        return repeated(text, r"[^\n]+")
    if signal.startswith("duplicate_paragraph_"):
        return repeated(text, r"[^\n]+(?:\n[^\n]+)*")
    ngram = re.fullmatch(r"(top|duplicate)_(\d+)gram_share", signal)
    return None if ngram is None else repeated_ngram(text, int(ngram[2]), most_frequent=ngram[1] == "top")


def repeated(text: str, pattern: str) -> tuple[int, int] | None:
    """The first stretch that stood before."""
    seen = set()
    for match in re.finditer(pattern, text):
        key = match[0].strip()
        if key in seen:
            return match.span()
        seen.update([key] if key else [])
    return None


def repeated_ngram(text: str, n: int, most_frequent: bool) -> tuple[int, int] | None:
    """The second place of the most frequent n-gram of words, or of the first that is repeated."""
    words = list(re.finditer(r"\w+", text))
    names = [word[0].lower() for word in words]
    places: dict[tuple[str, ...], list[int]] = {}
    for start in range(len(words) - n + 1):
        places.setdefault(tuple(names[start : start + n]), []).append(start)
    again = [starts for starts in places.values() if len(starts) > 1]
    if not again:
        return None
    start = max(again, key=len)[1] if most_frequent else min(starts[1] for starts in again)
    return words[start].start(), words[start + n - 1].end()


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

    def place(self, what: str, text: str) -> tuple[int, int] | None:
        return place_of(what, text) if what in SIGNALS else None

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
        return {name: pa.array(SIGNALS[name].value(measured), from_pandas=True) for name in wanted}  # NaN is null

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
