"""What is counted of a text as it stands: characters by kind and by script, entropy, a few strings that pages are
judged by; lines and paragraphs; the size that it compresses to.

A line is what is between newlines, without whitespace at its end; an empty one is no line. A paragraph is a run of
lines with nothing blank between. DataTrove counts blank lines as lines (and as repeats of each other), and a line with
a trailing space as different from the same line without; we do neither. Lines are equal when their 64-bit hashes are;
`gristmill.kernels.words.repetition.repeats` counts them.

The compressed size is what greedy matching as in LZ4 would give, without writing it: our own estimate and not a
library's, so that the figure never changes with a library's version. A match of 4 bytes or more, found through one
table of the last place of each 4 bytes, at most 65,535 bytes back, costs 3 bytes and one for each 255 beyond 19; 15
literals or more in a row cost one byte more for each 255.
"""
# ruff: noqa: SIM110 (loops and comparisons are written out: that is what compiles to fast code)

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cache

import numpy as np

from gristmill.kernels.base.bare import code_point, inlined, kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import (
    DENSE,
    DIGIT,
    LETTER,
    PUNCTUATION,
    SCRIPTS,
    SPACE,
    SYMBOL,
    TERMINAL,
    UPPER,
    properties,
    script,
)
from gristmill.kernels.lines.lines import find_newline, skip_space, skip_space_back
from gristmill.kernels.words.words import HASH_FACTOR, HASH_START, eight_bytes, word_hash

# --- characters -------------------------------------------------------------------------------------------------------

# Columns of `character_counts`, and of `mentions`.
CHARACTERS, NEWLINES, LETTERS, UPPER_CASE, DIGITS, SPACES, MARKS, HASHES, CURLY_BRACKETS, REPLACEMENTS = range(10)
# MARKS: punctuation and symbols; REPLACEMENTS: U+FFFD
CHARACTER_COLUMNS = 10
ELLIPSES, LINKS, JAVASCRIPTS = range(3)
MENTION_COLUMNS = 3
_LOOK = np.isin(np.arange(256), [0x2E, 0xE2, 0x3A, 0x77, 0x6A, 0x4A])  # bytes at which `mentions` looks twice
FIRST_SYLLABLE, LAST_SYLLABLE = 0xAC00, 0xD7A3  # of Hangul
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


@kernel
def syllabic(data, offsets, properties, out):
    """out[i]: whether more than half the letters are syllables of Hangul or of a script without spaces between words.
    The usual limits on the length of a word say nothing about such a text."""
    for d in range(len(offsets) - 1):
        begin, stop = offsets[d], offsets[d + 1]
        high = np.int64(0)
        for i in range(begin, stop):
            high += data[i] >> 7
        out[d] = False
        if 8 * high < stop - begin:  # of such letters each has three bytes; most texts need no second look
            continue
        letters, syllables = 0, 0
        i = begin
        while i < stop:
            point, size = code_point(data, i, stop)
            if properties[point] & LETTER:
                letters += 1
                syllables += properties[point] & DENSE != 0 or FIRST_SYLLABLE <= point <= LAST_SYLLABLE
            i += size
        out[d] = 2 * syllables > letters


def syllabic_plain(text: str) -> bool:
    letters = [ord(c) for c in text if properties()[ord(c)] & LETTER]
    some = sum(bool(properties()[p] & DENSE) or FIRST_SYLLABLE <= p <= LAST_SYLLABLE for p in letters)
    data = text.encode()
    return 8 * sum(byte >= 0x80 for byte in data) >= len(data) and 2 * some > len(letters)


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


# --- lines and paragraphs ---------------------------------------------------------------------------------------------

# Columns of `cut_lines`.
BULLET_LINES, LIST_LINES, ELLIPSIS_LINES, TERMINAL_LINES, SHORT_LINES, LONGEST_LINE = range(6)
LINE_COLUMNS = 6

BULLETS = "•-"  # Gopher's
LIST_MARKS = "•-*+·‣▪●◦■∙–—"  # what a line of a list may begin with besides a number
_IS_BULLET, _IS_LIST_MARK = 1 << 16, 1 << 17
_ELLIPSIS = ord("…")
_MIX = np.uint64(29)
_HIGH_BITS = np.uint64(0x8080808080808080)


@cache
def line_marks() -> Array:
    """uint32[0x110000]: `properties()`, and which characters begin lines of lists."""
    table = properties().astype(np.uint32)
    for character in LIST_MARKS:
        table[ord(character)] |= _IS_LIST_MARK | (_IS_BULLET if character in BULLETS else 0)
    table.flags.writeable = False
    return table


@kernel
def cut_lines(data, offsets, marks, short, lines, line_ends, paragraphs, paragraph_ends, out):
    """Lines and paragraphs as rows (hash, characters), and out[i]: the columns above. Lines of at most `short`
    characters are short."""
    line, paragraph = 0, 0
    line_ends[0] = paragraph_ends[0] = 0
    for d in range(len(offsets) - 1):
        for column in range(LINE_COLUMNS):
            out[d, column] = 0
        i, stop = offsets[d], offsets[d + 1]
        together, size_together = HASH_START, np.uint64(0)  # of the paragraph we are in
        while i < stop:
            start = i
            i = find_newline(data, i, stop)
            end = skip_space_back(data, start, i, marks)
            if end > start:
                kept_hash, kept = word_hash(data, start, end), characters_in(data, start, end)
                first = skip_space(data, start, end, marks)
                lines[line, 0], lines[line, 1] = kept_hash, np.uint64(kept)
                line += 1
                look_at_line(data, first, end, marks, out, d)
                out[d, SHORT_LINES] += kept <= short
                out[d, LONGEST_LINE] = max(out[d, LONGEST_LINE], kept)
                together = (together ^ kept_hash ^ (kept_hash >> _MIX)) * HASH_FACTOR
                size_together += np.uint64(kept) + np.uint64(size_together > 0)
            if size_together > 0 and (end == start or i + 1 >= stop):
                paragraphs[paragraph, 0], paragraphs[paragraph, 1] = together, size_together
                paragraph += 1
                together, size_together = HASH_START, np.uint64(0)
            i += 1
        line_ends[d + 1] = line
        paragraph_ends[d + 1] = paragraph


@inlined
def characters_in(data, start, end):
    length = end - start
    i = start
    while i + 8 <= end:
        if eight_bytes(data, i) & _HIGH_BITS:
            for j in range(i, i + 8):
                length -= data[j] & 0xC0 == 0x80
        i += 8
    while i < end:
        length -= data[i] & 0xC0 == 0x80
        i += 1
    return length


@inlined
def look_at_line(data, first, end, marks, out, d):
    """How a line begins and ends: `first` is its first character that is not whitespace, `end` is behind its last."""
    point, _ = code_point(data, first, end)
    mark = marks[point]
    out[d, BULLET_LINES] += (mark & _IS_BULLET) != 0
    if mark & _IS_LIST_MARK:
        out[d, LIST_LINES] += 1
    elif mark & DIGIT:
        i = first
        while i < end and data[i] < 0x80 and marks[data[i]] & DIGIT:
            i += 1
        out[d, LIST_LINES] += i > first and i < end and (data[i] == 0x2E or data[i] == 0x29)  # "1." or "1)"
    last = end - 1
    while last > first and data[last] & 0xC0 == 0x80:
        last -= 1
    point, _ = code_point(data, last, end)
    out[d, TERMINAL_LINES] += (marks[point] & TERMINAL) != 0
    out[d, ELLIPSIS_LINES] += point == _ELLIPSIS or (
        end - first >= 3 and data[end - 1] == 0x2E and data[end - 2] == 0x2E and data[end - 3] == 0x2E
    )


def lines_plain(text: str) -> list[str]:
    return [line for line in map(str.rstrip, _spaced(text).split("\n")) if line]


def paragraphs_plain(text: str) -> list[str]:
    blocks: list[list[str]] = [[]]
    for line in map(str.rstrip, _spaced(text).split("\n")):
        if line:
            blocks[-1].append(line)
        else:
            blocks.append([])
    return ["\n".join(block) for block in blocks if block]


def _spaced(text: str) -> str:
    """Python also strips U+001C to U+001F, which are not White_Space in Unicode."""
    return text.translate({point: point + 0xF0000 for point in range(0x1C, 0x20)})


def line_shape_plain(text: str, short: int) -> list[int]:
    lines = lines_plain(text)
    marks = line_marks()
    terminal = [bool(marks[ord(line[-1])] & TERMINAL) for line in lines]
    bare = [line.lstrip() for line in lines]
    numbered = [
        line.lstrip("0123456789")[:1] in (".", ")")
        and line[:1] in set("0123456789")
        and line.lstrip("0123456789") != ""
        for line in bare
    ]
    return [
        sum(line[0] in BULLETS for line in bare),
        sum(line[0] in LIST_MARKS or with_number for line, with_number in zip(bare, numbered, strict=True)),
        sum(line.endswith(("...", "…")) for line in lines),
        sum(terminal),
        sum(len(line) <= short for line in lines),
        max(map(len, lines), default=0),
    ]


def repeats_plain(parts: list[str]) -> list[int]:
    seen: set[str] = set()
    again = characters = 0
    for part in parts:
        if part in seen:
            again += 1
            characters += len(part)
        seen.add(part)
    return [len(parts), again, characters]


# --- compression ------------------------------------------------------------------------------------------------------

_SLOTS = 1 << 13
_MULTIPLIER = np.uint32(2654435761)
_FAR = 65535


def compression_scratch() -> np.ndarray:
    return np.empty(_SLOTS, np.int64)


@kernel
def compressed_size(data, offsets, last, out):
    """out[i]: bytes of document i compressed."""
    for d in range(len(offsets) - 1):
        start, stop = offsets[d], offsets[d + 1]
        for slot in range(len(last)):
            last[slot] = -1
        size, literals, i = 0, 0, start
        while i + 4 <= stop:
            word = (
                np.uint32(data[i])
                | np.uint32(data[i + 1]) << np.uint32(8)
                | np.uint32(data[i + 2]) << np.uint32(16)
                | np.uint32(data[i + 3]) << np.uint32(24)
            )
            slot = np.uint32(word * _MULTIPLIER) >> np.uint32(19)
            back = last[slot]
            last[slot] = i
            if (
                back < 0
                or i - back > _FAR
                or data[back] != data[i]
                or data[back + 1] != data[i + 1]
                or data[back + 2] != data[i + 2]
                or data[back + 3] != data[i + 3]
            ):
                literals += 1
                i += 1
                continue
            length = 4
            while i + length < stop and data[back + length] == data[i + length]:
                length += 1
            size += cost(literals, length)
            literals = 0
            i += length
        out[d] = size + cost(literals + stop - i, 0) - 2 if stop > start else 0


@inlined
def cost(literals, length):
    """Bytes of a token, its literals, a distance, and what does not fit the token."""
    more = 1 + (literals - 15) // 255 if literals >= 15 else 0
    return 3 + literals + more + (1 + (length - 19) // 255 if length >= 19 else 0)


def compressed_size_plain(data: bytes) -> int:
    places: dict[int, int] = {}
    size = literals = i = 0
    while i + 4 <= len(data):
        slot = (int.from_bytes(data[i : i + 4], "little") * 2654435761 % 2**32) >> 19
        back = places.get(slot, -1)
        places[slot] = i
        if back < 0 or i - back > _FAR or data[back : back + 4] != data[i : i + 4]:
            literals += 1
            i += 1
            continue
        length = 4
        while i + length < len(data) and data[back + length] == data[i + length]:
            length += 1
        size += (
            3
            + literals
            + (1 + (literals - 15) // 255 if literals >= 15 else 0)
            + (1 + (length - 19) // 255 if length >= 19 else 0)
        )
        literals = 0
        i += length
    literals += len(data) - i
    return size + 1 + literals + (1 + (literals - 15) // 255 if literals >= 15 else 0) if data else 0
