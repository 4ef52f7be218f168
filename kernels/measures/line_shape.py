"""Lines and paragraphs as quality rules see them: how many repeat, how they begin and end, how long they are.

A line is what is between newlines, without whitespace at its end; an empty one is no line. A paragraph is a run of
lines with nothing blank between. DataTrove counts blank lines as lines (and as repeats of each other), and a line with
a trailing space as different from the same line without; we do neither. Lines are equal when their 64-bit hashes are;
`gristmill.kernels.words.repetition.repeats` counts them.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from gristmill.kernels.base.bare import code_point, inlined, kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import DIGIT, TERMINAL, properties
from gristmill.kernels.lines.lines import find_newline, skip_space, skip_space_back
from gristmill.kernels.words.words import HASH_FACTOR, HASH_START, eight_bytes, word_hash

# Columns of the result.
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
