"""Counts over the text of each block of a page: characters by Unicode property, and words that the page's head repeats.

No language is assumed: letters, digits, punctuation and sentence ends are Unicode's (kernels/base/unicode.py). Words
are runs of letters, marks, digits and `_`. A page's title, description and JSON-LD often repeat its main text, so three
consecutive words that a block shares with them are counted (hashed, ASCII letters in lower case).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.kernels.base.bare import point_at
from gristmill.kernels.base.compiled import helper, kernel
from gristmill.kernels.base.unicode import (
    DIGIT,
    LETTER,
    LOWER,
    MARK,
    NUMBER,
    PUNCTUATION,
    SYMBOL,
    TERMINAL,
    UPPER,
)

# Columns of `counts`.
COUNTS = (
    "characters", "words", "letters", "upper", "digits", "punctuation", "terminals", "commas", "symbols", "lines",
    "last", "first",
    "triples", "in_json", "in_meta", "in_title",
)  # fmt: skip
(
    CHARACTERS,
    WORDS,
    LETTERS,
    UPPERS,
    DIGITS,
    PUNCTUATIONS,
    TERMINALS,
    COMMAS,
    SYMBOLS,
    LINES,
    LAST,
    FIRST,
    TRIPLES,
    IN_JSON,
    IN_META,
    IN_TITLE,
) = range(len(COUNTS))
# Values of `last` and `first`.
OTHER, ENDS_SENTENCE, COLON, PUNCTUATED, DIGITAL, SMALL, CAPITAL, CASELESS = range(8)

# Sources of a hint's words: bits of the values in the table of hints.
FROM_TITLE, FROM_META, FROM_JSON = 1, 2, 4
HINT_BYTES = 1 << 18  # of a page's title, meta tags and JSON-LD together; more than that is not read
SEED, TITLE_SEED, PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x9AE16A3B2F90404F), np.uint64(0x9E3779B97F4A7C15)


@helper
def mixed(hash_, value):
    hash_ = (hash_ ^ np.uint64(value)) * PRIME
    return hash_ ^ (hash_ >> np.uint64(29))


@helper
def triple(first, second, third):
    return mixed(mixed(mixed(SEED, first), second), third)


@helper
def title_word(word):
    return mixed(TITLE_SEED, word)


@helper
def remember(keys, values, key, value):
    mask = np.uint64(len(keys) - 1)
    place = key & mask
    while keys[place] != 0 and keys[place] != key:
        place = (place + np.uint64(1)) & mask
    keys[place] = key
    values[place] |= value


@helper
def recall(keys, values, key):
    mask = np.uint64(len(keys) - 1)
    place = key & mask
    while keys[place] != 0:
        if keys[place] == key:
            return values[place]
        place = (place + np.uint64(1)) & mask
    return np.uint8(0)


@helper
def escaped(data, i, end):
    """The character of the JSON escape whose backslash is at i, and its length; a broken escape is a space."""
    if i + 1 >= end:
        return np.int64(32), 1
    if data[i + 1] != 117 or i + 5 >= end:  # \n, \t, \", \/ ...: none belongs to a word
        return np.int64(32), 2
    value = np.int64(0)
    for k in range(i + 2, i + 6):
        c = np.int64(data[k])
        if 48 <= c <= 57:
            value = value * 16 + c - 48
        elif 97 <= c | 32 <= 102:
            value = value * 16 + (c | 32) - 87
        else:
            return np.int64(32), 2
    return value, 6


@kernel
def hints(data, kinds, starts, ends, properties) -> tuple[Any, Any]:
    """A hash table of the words of a page's title, and of the word triples of its meta tags and JSON-LD.

    `kinds` are FROM_TITLE, FROM_META, FROM_JSON for spans of the page's bytes.
    """
    total = 0
    for s in range(len(kinds)):
        total += min(max(ends[s] - starts[s], 0), HINT_BYTES) + 1
    size = 16
    while size < min(total, HINT_BYTES) // 2 + 2:
        size *= 2  # a word and what ends it take two bytes at least, so that a place is always free
    keys, values = np.zeros(size, np.uint64), np.zeros(size, np.uint8)
    remaining = HINT_BYTES
    for s in range(len(kinds)):
        kind = kinds[s]
        i, end = starts[s], min(ends[s], starts[s] + max(remaining, 0))
        remaining -= max(end - i, 0) + 1
        before, last, word, inside = np.uint64(0), np.uint64(0), SEED, False
        while i <= end:
            if i == end:
                c, length = np.int64(32), 1
            elif kind == FROM_JSON and data[i] == 92:
                c, length = escaped(data, i, end)
            else:
                c, length = point_at(data, i, end)
            i += length
            if properties[c] & (LETTER | MARK | NUMBER) or c == 95:
                word = mixed(word, c | 32 if 65 <= c <= 90 else c)
                inside = True
            elif inside:
                if kind == FROM_TITLE:
                    remember(keys, values, title_word(word) | np.uint64(1), np.uint8(kind))
                else:
                    if before != 0:
                        remember(keys, values, triple(before, last, word) | np.uint64(1), np.uint8(kind))
                    before, last = last, word
                word, inside = SEED, False
    return keys, values


@kernel
def measure(text, start, properties, keys, values, counts, hashes) -> None:
    """Fills counts[block, column of COUNTS] and a hash of each block's text."""
    for b in range(len(start) - 1):
        i, end = start[b], start[b + 1]
        characters = words = letters = upper = digits = punctuation = terminals = commas = symbols = triples = (
            in_json
        ) = in_meta = in_title = 0
        lines = 1
        first = last = OTHER
        before, previous, word, inside = np.uint64(0), np.uint64(0), SEED, False
        whole = SEED
        while i <= end:
            if i == end:
                c, length = np.int64(32), 1
            else:
                c, length = point_at(text, i, end)
                characters += 1
                whole = mixed(whole, c)
            i += length
            p = properties[c]
            if p & (LETTER | MARK | NUMBER) or c == 95:
                word = mixed(word, c | 32 if 65 <= c <= 90 else c)
                inside = True
                if p & LETTER:
                    letters += 1
                    if p & UPPER:
                        upper += 1
                        kind = CAPITAL
                    else:
                        kind = SMALL if p & LOWER else CASELESS
                elif p & DIGIT:
                    digits += 1
                    kind = DIGITAL
                elif c == 95:
                    punctuation += 1
                    kind = PUNCTUATED
                else:
                    kind = OTHER
                if characters == 1:
                    first = kind
                last = kind
                continue
            if inside:
                words += 1
                if recall(keys, values, title_word(word) | np.uint64(1)) & FROM_TITLE:
                    in_title += 1
                if before != 0:
                    triples += 1
                    sources = recall(keys, values, triple(before, previous, word) | np.uint64(1))
                    in_json += (sources & FROM_JSON) != 0
                    in_meta += (sources & FROM_META) != 0
                before, previous = previous, word
                word, inside = SEED, False
            if i > end:
                break
            if c == 10:
                lines += 1
            if p & TERMINAL:
                terminals += 1
            if p & PUNCTUATION:
                punctuation += 1
                if c == 44 or c == 59 or c == 0x3001 or c == 0xFF0C or c == 0x60C:
                    commas += 1
                if p & TERMINAL:
                    kind = ENDS_SENTENCE
                elif c == 58 or c == 0xFF1A:
                    kind = COLON
                else:
                    kind = (
                        last if last == ENDS_SENTENCE else PUNCTUATED
                    )  # a quote or bracket that closes after the full stop
            else:
                symbols += (p & SYMBOL) != 0
                kind = OTHER
            if characters == 1:
                first = kind
            last = kind
        row = counts[b]
        row[CHARACTERS], row[WORDS], row[LETTERS], row[UPPERS], row[DIGITS] = characters, words, letters, upper, digits
        row[PUNCTUATIONS], row[TERMINALS], row[COMMAS], row[SYMBOLS], row[LINES] = (
            punctuation,
            terminals,
            commas,
            symbols,
            lines,
        )
        row[LAST], row[FIRST], row[TRIPLES] = last, first, triples
        row[IN_JSON], row[IN_META], row[IN_TITLE] = in_json, in_meta, in_title
        hashes[b] = whole
