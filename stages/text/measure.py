"""Kernels over a column of text in slices that stay in cache: words are cut once for a slice, and all that counts words
shares them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import SCRIPTS, properties, script
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
)
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

Units = Literal["whitespace", "uax29", "datatrove"]
SLICE_BYTES = 1 << 20


@dataclass
class Measures:
    """What was counted, a row a document; groups that nobody asked for have no rows."""

    bytes: Array
    units: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    words: Array = field(default_factory=lambda: np.zeros((0, WORD_COLUMNS), np.int64))
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
