"""Unicode properties of each code point as tables for kernels: general category, word break (UAX 29), script.

The tables are read from the `regex` package, which carries its own version of Unicode, so that results do not change
with Python's. Making them takes half a second once; then they are in the kernel cache, and every process maps the same
file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from gristmill.kernels.base import portable
from gristmill.kernels.base.code_cache import cache_folder, hash_of_code
from gristmill.kernels.base.compiled import helper
from gristmill.kernels.base.types import Array
from gristmill.kernels.common.files import whole_file

POINTS = 0x110000

# Bits of `properties()`.
LETTER, MARK, DIGIT, NUMBER = 1 << 0, 1 << 1, 1 << 2, 1 << 3  # L, M, Nd, N (a digit is a number too)
PUNCTUATION, SYMBOL, SPACE, CONTROL = 1 << 4, 1 << 5, 1 << 6, 1 << 7  # P, S, White_Space, Cc
UPPER, LOWER, FORMAT, EMOJI = 1 << 8, 1 << 9, 1 << 10, 1 << 11  # Uppercase, Lowercase, Cf, Extended_Pictographic
TERMINAL, IDEOGRAPH, DENSE, UNASSIGNED = (
    1 << 12,
    1 << 13,
    1 << 14,
    1 << 15,
)  # Sentence_Terminal; Ideographic; written without spaces; Cn, Co, Cs

_PROPERTIES = {
    LETTER: r"\p{L}", MARK: r"\p{M}", DIGIT: r"\p{Nd}", NUMBER: r"\p{N}", PUNCTUATION: r"\p{P}", SYMBOL: r"\p{S}",
    SPACE: r"\p{White_Space}", CONTROL: r"\p{Cc}", UPPER: r"\p{Uppercase}", LOWER: r"\p{Lowercase}", FORMAT: r"\p{Cf}",
    EMOJI: r"\p{Extended_Pictographic}", TERMINAL: r"\p{Sentence_Terminal}", IDEOGRAPH: r"\p{Ideographic}",
    # UAX 29 leaves these to dictionaries: Thai, Lao, Khmer, Myanmar, Tai scripts (LineBreak SA), and Han, Hiragana,
    # Katakana.
    DENSE: r"[\p{Line_Break=SA}\p{Han}\p{Hiragana}\p{Katakana}]", UNASSIGNED: r"[\p{Cn}\p{Co}\p{Cs}]",
}  # fmt: skip

# Values of `word_break()`; 0 is Other.
WORD_BREAKS = (
    "Other", "CR", "LF", "Newline", "Extend", "ZWJ", "Format", "Katakana", "Hebrew_Letter", "ALetter", "MidLetter",
    "MidNum",
    "MidNumLet", "Single_Quote", "Double_Quote", "Numeric", "ExtendNumLet", "Regional_Indicator", "WSegSpace",
)  # fmt: skip

# Values of `script()`; 0 is any other script, 1 what many scripts share.
SCRIPTS = (
    "Other", "Common", "Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Devanagari", "Bengali", "Tamil", "Telugu",
    "Thai", "Lao",
    "Khmer", "Myanmar", "Han", "Hiragana", "Katakana", "Hangul", "Georgian", "Armenian", "Ethiopic", "Gujarati",
    "Gurmukhi", "Kannada",
    "Malayalam", "Sinhala", "Tibetan", "Mongolian", "Oriya", "Inherited",
)  # fmt: skip


@cache
def properties() -> Array:
    """uint16[0x110000]: the bits above."""

    def make() -> Array:
        table = np.zeros(POINTS, np.uint16)
        for bit, pattern in _PROPERTIES.items():
            mark_all(table, pattern, bit, add=True)
        return table

    return kept_table("properties", make)


@cache
def word_break() -> Array:
    """uint8[0x110000]: index into WORD_BREAKS."""

    def make() -> Array:
        table = np.zeros(POINTS, np.uint8)
        for value, name in enumerate(WORD_BREAKS[1:], 1):
            mark_all(table, rf"\p{{Word_Break={name}}}", value, add=False)
        return table

    return kept_table("word_break", make)


@cache
def script() -> Array:
    """uint8[0x110000]: index into SCRIPTS."""

    def make() -> Array:
        table = np.zeros(POINTS, np.uint8)
        for value, name in enumerate(SCRIPTS[1:], 1):
            mark_all(table, rf"\p{{Script={name}}}", value, add=False)
        return table

    return kept_table("script", make)


@cache
def all_characters() -> str:
    """One character each, surrogates too, so that a position is a code point."""
    return np.arange(POINTS, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


def mark_all(table: Array, pattern: str, value: int, add: bool) -> None:
    import regex

    for match in regex.finditer(f"{pattern}+", all_characters()):
        a, b = match.span()
        if add:
            table[a:b] |= value
        else:
            table[a:b] = value


def kept_table(name: str, make: Callable[[], Array]) -> Array:
    """A table that is made once on a machine; every process maps the same file."""
    import regex

    # named by the code that makes it too: another definition must not find the old table
    path = cache_folder() / f"table-{name}-{hash_of_code(make.__module__)}-{regex.__version__}.npy"
    if not path.exists() and not (portable.serve() and path.exists()):  # which unpacks tables too
        table = make()
        with whole_file(path, durable=False) as file:
            np.save(file, table)
    table = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    table.flags.writeable = False
    return table


@helper
def code_point(data, i, end):
    """The code point at byte i and its length in bytes. A byte that begins no character is U+FFFD, of one byte."""
    first = np.int64(data[i])
    if first < 0x80:
        return first, 1
    if 0xC2 <= first < 0xE0 and i + 1 < end and data[i + 1] & 0xC0 == 0x80:
        return (first & 0x1F) << 6 | np.int64(data[i + 1] & 0x3F), 2
    if 0xE0 <= first < 0xF0 and i + 2 < end and data[i + 1] & 0xC0 == 0x80 and data[i + 2] & 0xC0 == 0x80:
        return (first & 0x0F) << 12 | np.int64(data[i + 1] & 0x3F) << 6 | np.int64(data[i + 2] & 0x3F), 3
    if (
        0xF0 <= first < 0xF5
        and i + 3 < end
        and data[i + 1] & 0xC0 == 0x80
        and data[i + 2] & 0xC0 == 0x80
        and data[i + 3] & 0xC0 == 0x80
    ):
        point = (
            (first & 0x07) << 18
            | np.int64(data[i + 1] & 0x3F) << 12
            | np.int64(data[i + 2] & 0x3F) << 6
            | np.int64(data[i + 3] & 0x3F)
        )
        return (point, 4) if point < 0x110000 else (np.int64(0xFFFD), 1)
    return np.int64(0xFFFD), 1
