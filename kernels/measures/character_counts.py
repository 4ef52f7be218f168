"""The characters of a text: counts by kind and by script, entropy, and a few strings that pages are judged by."""
# ruff: noqa: SIM110 (loops and comparisons are written out: that is what compiles to fast code)

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np

from gristmill.kernels.base.bare import code_point, inlined, kernel
from gristmill.kernels.base.unicode import (
    DIGIT,
    LETTER,
    PUNCTUATION,
    SCRIPTS,
    SPACE,
    SYMBOL,
    UPPER,
    properties,
    script,
)

# Columns of `character_counts`, and of `mentions`.
CHARACTERS, NEWLINES, LETTERS, UPPER_CASE, DIGITS, SPACES, MARKS, HASHES, CURLY_BRACKETS, REPLACEMENTS = range(10)
# MARKS: punctuation and symbols; REPLACEMENTS: U+FFFD
CHARACTER_COLUMNS = 10
ELLIPSES, LINKS, JAVASCRIPTS = range(3)
MENTION_COLUMNS = 3
_LOOK = np.isin(np.arange(256), [0x2E, 0xE2, 0x3A, 0x77, 0x6A, 0x4A])  # bytes at which `mentions` looks twice
_SCRIPT_WORD = np.frombuffer(b"javascript", np.uint8)


@kernel
def character_counts(data, offsets, properties, histogram, out, entropy):
    """out[i]: the columns above; entropy[i]: bits a byte (Shannon). `histogram` is scratch, int64[256]."""
    for d in range(len(offsets) - 1):
        histogram[:] = 0
        letters, upper, digits, spaces, marks, points, replacements = 0, 0, 0, 0, 0, 0, 0
        i, stop = offsets[d], offsets[d + 1]
        size = stop - i
        while i < stop:
            byte = data[i]
            histogram[byte] += 1
            if byte < 0x80:
                i += 1
                continue
            point, length = code_point(data, i, stop)
            for j in range(i + 1, i + length):
                histogram[data[j]] += 1
            points += 1
            replacements += point == 0xFFFD
            kinds = properties[point]
            letters += (kinds & LETTER) != 0
            upper += (kinds & (LETTER | UPPER)) == (LETTER | UPPER)
            digits += (kinds & DIGIT) != 0
            spaces += (kinds & SPACE) != 0
            marks += (kinds & (PUNCTUATION | SYMBOL)) != 0
            i += length
        bits = 0.0
        for byte in range(256):
            count = histogram[byte]
            if count == 0:
                continue
            bits -= count * math.log2(count / size)
            if byte < 0x80:
                kinds = properties[byte]
                points += count
                letters += count if kinds & LETTER else 0
                upper += count if kinds & UPPER else 0
                digits += count if kinds & DIGIT else 0
                spaces += count if kinds & SPACE else 0
                marks += count if kinds & (PUNCTUATION | SYMBOL) else 0
        entropy[d] = max(bits / size, 0.0) if size else 0.0
        row = out[d]
        row[CHARACTERS], row[NEWLINES], row[LETTERS], row[UPPER_CASE] = points, histogram[0x0A], letters, upper
        row[DIGITS], row[SPACES], row[MARKS] = digits, spaces, marks
        row[HASHES], row[CURLY_BRACKETS], row[REPLACEMENTS] = (
            histogram[0x23],
            histogram[0x7B] + histogram[0x7D],
            replacements,
        )


@kernel
def mentions(data, offsets, out):
    """out[i]: how often "..." or "…" occurs in document i, how often a link ("://", or "www." with no "://" before it),
    how often "javascript" in any case."""
    for d in range(len(offsets) - 1):
        ellipses, links, scripts = 0, 0, 0
        i, stop = offsets[d], offsets[d + 1]
        while i < stop:
            byte = data[i]
            if not _LOOK[byte]:
                i += 1
                continue
            if byte == 0x2E:
                if i + 2 < stop and data[i + 1] == 0x2E and data[i + 2] == 0x2E:
                    ellipses += 1
                    i += 2
            elif byte == 0xE2:
                ellipses += i + 2 < stop and data[i + 1] == 0x80 and data[i + 2] == 0xA6
            elif byte == 0x3A:
                links += i + 2 < stop and data[i + 1] == 0x2F and data[i + 2] == 0x2F
            elif byte == 0x77:
                if i + 3 < stop and data[i + 1] == 0x77 and data[i + 2] == 0x77 and data[i + 3] == 0x2E:
                    links += not (
                        i - 2 > offsets[d] and data[i - 1] == 0x2F and data[i - 2] == 0x2F and data[i - 3] == 0x3A
                    )
            elif byte == 0x6A or byte == 0x4A:
                scripts += is_script_word(data, i, stop)
            i += 1
        out[d, ELLIPSES], out[d, LINKS], out[d, JAVASCRIPTS] = ellipses, links, scripts


@inlined
def is_script_word(data, i, stop):
    if i + len(_SCRIPT_WORD) > stop:
        return False
    for j in range(len(_SCRIPT_WORD)):
        if data[i + j] | 0x20 != _SCRIPT_WORD[j]:
            return False
    return True


@kernel
def script_counts(data, offsets, properties, scripts, out):
    """out[i, s]: how many letters of document i are of script SCRIPTS[s]."""
    for d in range(len(offsets) - 1):
        out[d, :] = 0
        latin = 0
        i, stop = offsets[d], offsets[d + 1]
        while i < stop:
            byte = data[i]
            if byte < 0x80:
                latin += (properties[byte] & LETTER) != 0
                i += 1
            else:
                point, length = code_point(data, i, stop)
                if properties[point] & LETTER:
                    out[d, scripts[point]] += 1
                i += length
        out[d, _LATIN] += latin


_LATIN = SCRIPTS.index("Latin")


def character_counts_plain(text: str) -> tuple[list[int], float]:
    bits = [int(properties()[ord(c)]) for c in text]
    coded = text.encode()
    entropy = (
        sum(count * math.log2(len(coded) / count) for count in Counter(coded).values()) / len(coded) if coded else 0.0
    )
    counts = [
        len(text),
        text.count("\n"),
        sum(bool(b & LETTER) for b in bits),
        sum(bool(b & LETTER and b & UPPER) for b in bits),
        sum(bool(b & DIGIT) for b in bits),
        sum(bool(b & SPACE) for b in bits),
        sum(bool(b & (PUNCTUATION | SYMBOL)) for b in bits),
        text.count("#"),
        text.count("{") + text.count("}"),
        text.count("\ufffd"),
    ]
    return counts, entropy


def mentions_plain(text: str) -> list[int]:
    return [
        text.count("...") + text.count("…"),
        len(re.findall(r"://|(?<!://)www\.", text)),
        len(re.findall("(?ai:javascript)", text)),
    ]


def script_counts_plain(text: str) -> list[int]:
    counts = Counter(int(script()[ord(c)]) for c in text if properties()[ord(c)] & LETTER)
    return [counts[place] for place in range(len(SCRIPTS))]
