"""Invisible characters, line ends and spaces: what is removed, what becomes a newline or a space, and what stays.

Controls, zero-width characters and whitespace are handled in one pass over the text; `survey` first finds the documents
that need any repair (a gigabyte a second and more on plain ASCII, see docs/repair.md). The classes are those of the
`regex` package, as in kernels/base/unicode.py.

Joiners stay where they carry meaning: after a letter of a script that joins (Arabic, Indic and their relatives) and in
emoji; variation selectors after an emoji or a Han character; tag characters only as the flag of a region (England is a
black flag and six of them). Everything else without width is removed, since it can hide text from a reader (bidi
controls, tags, runs of selectors).
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from gristmill.kernels.base.bare import code_point, helper, kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import POINTS, kept_table, mark_all
from gristmill.kernels.repair.entities import LONGEST
from gristmill.kernels.repair.mojibake import byte_of

# Bits of `kinds()`.
CONTROL, BREAK, SPACE, HIDDEN, JOINER, SELECTOR, TAG = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 6
JOINING, PICTURE, EMOJI, HAN = 1 << 7, 1 << 8, 1 << 9, 1 << 10  # what may stand beside a joiner or before a selector
LEAD, TRAIL, LOST = 1 << 11, 1 << 12, 1 << 13  # may begin or go on a character read as Windows-1252; U+FFFD

_KINDS = {
    CONTROL: r"[\x00-\x08\x0E-\x1F\x7F-\x84\x86-\x9F]",
    BREAK: r"[\r\x0B\x0C\x85\u2028\u2029]",
    SPACE: r"[\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]",
    # Soft hyphen, Arabic letter mark, zero-width space, bidi marks, embeddings, overrides and isolates, word joiner and
    # invisible operators, byte order mark, interlinear annotation and object replacement.
    HIDDEN: r"[\u00AD\u061C\u200B\u200E\u200F\u202A-\u202E\u2060-\u206F\uFEFF\uFFF9-\uFFFC]",
    JOINER: r"[\u200C\u200D]",
    SELECTOR: r"[\uFE00-\uFE0F\U000E0100-\U000E01EF]",
    TAG: r"[\U000E0000-\U000E00FF]",
    JOINING: r"[[\p{L}\p{M}]&&[\p{Arabic}\p{Syriac}\p{Nko}\p{Mongolian}\p{Mandaic}\p{Adlam}\p{Hanifi_Rohingya}"
    r"\p{Devanagari}\p{Bengali}"
    r"\p{Gurmukhi}\p{Gujarati}\p{Oriya}\p{Tamil}\p{Telugu}\p{Kannada}\p{Malayalam}\p{Sinhala}\p{Khmer}\p{Myanmar}"
    r"\p{Balinese}\p{Javanese}"
    r"\p{Tibetan}\u064B-\u0655\u0670\u0951-\u0954]]",  # vowel marks of Arabic and Vedic ones belong to many scripts
    PICTURE: r"[\p{Extended_Pictographic}\p{Emoji_Modifier}]",
    EMOJI: r"[\p{Emoji}--[0-9#*]]",
    HAN: r"\p{Han}",
    LOST: r"\uFFFD",
}

# What `survey` says a document may need, and what a stage may ask for.
ENTITIES, MOJIBAKE, CONTROLS, ZERO_WIDTH, WHITESPACE, FOREIGN = 1, 2, 4, 8, 16, 32
BLOCK = 64


@cache
def kinds() -> Array:
    """uint16[0x110000]: the bits above."""

    def make() -> Array:
        table = np.zeros(POINTS, np.uint16)
        for bit, pattern in _KINDS.items():
            mark_all(table, f"(?V1){pattern}", bit, add=True)
        for point in np.flatnonzero(byte_of()):
            table[point] |= TRAIL if byte_of()[point] < 0xC0 else LEAD
        return table

    return kept_table("repair", make)


@helper
def _is_reference(data, i, end):
    """Whether what follows an ampersand looks like an entity: letters, digits and a semicolon."""
    for j in range(i, min(i + LONGEST + 1, end)):
        c = data[j]
        if c == 59:
            return j > i
        if not (48 <= c <= 57 or 65 <= c <= 90 or 97 <= c <= 122 or c == 35):
            return False
    return False


@kernel
def survey(data, offsets, kinds, needs, lost):
    """What each document may need (a bit too many costs time, one too few would be wrong), and its number of U+FFFD."""
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        needed, replaced = 0, 0
        blank, indent, newlines, lead = (
            True,
            False,
            2,
            False,
        )  # a text begins as if after an empty line: a blank or a newline is too many
        i, look = start, start + 2
        while i < end:
            # A block of plain ASCII with nothing to repair is passed in one look, so that the compiler can use wide
            # registers.
            if i >= look and i + BLOCK + 2 <= end:
                look = i + BLOCK
                block, odd = (
                    data[i : i + BLOCK + 2],
                    False,
                )  # numba vectorises only an index that it knows to be positive
                for j in range(BLOCK):
                    c, n, m = block[j], block[j + 1], block[j + 2]
                    odd |= (c >= 127) | ((c < 32) & (c != 10)) | ((c == 38) & (n != 32))
                    odd |= (c == 32) & ((n == 32) | (n == 10) | (n == 9))
                    odd |= (c == 10) & (n == 10) & (m == 10)
                before, first = data[i - 1], data[i]
                joint = (before == 32 or before == 9 or before == 10) and (first == 32 or first == 10)
                if not odd and not joint:
                    i += BLOCK
                    last = data[i - 1]
                    blank, newlines = last == 32, 0
                    indent = last == 32 and data[i - 2] == 10
                    if last == 10:
                        newlines = 2 if data[i - 2] == 10 else 1
                    indent = indent or last == 10
                    lead = False
                    continue
            byte = np.int64(data[i])
            if byte < 128:
                i += 1
                lead = False
                if byte == 32 or byte == 9:
                    if blank and not indent:
                        needed |= WHITESPACE
                    blank = True
                    newlines = 0
                elif byte == 10:
                    if blank or newlines >= 2:
                        needed |= WHITESPACE
                    newlines += 1
                    blank, indent = False, True
                else:
                    blank, indent, newlines = False, False, 0
                    if byte == 38:
                        needed |= ENTITIES if _is_reference(data, i, end) else 0
                    elif byte < 32 or byte == 127:
                        needed |= CONTROLS
                continue
            point, length = code_point(data, i, end)
            i += length
            kind = kinds[point]
            needed |= FOREIGN
            if kind:
                if kind & (CONTROL | BREAK):
                    needed |= CONTROLS | MOJIBAKE
                if kind & (HIDDEN | JOINER | SELECTOR | TAG):
                    needed |= ZERO_WIDTH
                if kind & SPACE:
                    needed |= WHITESPACE
                if lead and kind & (TRAIL | LOST):
                    needed |= MOJIBAKE
                if kind & LOST:
                    replaced += 1
            lead = kind & LEAD != 0
            blank, indent, newlines = False, False, 0
        if end > start and (blank or newlines > 0):
            needed |= WHITESPACE
        needs[row] = needed
        lost[row] = replaced


@helper
def _flag_tags(data, i, end):
    """The bytes of the tags of a region's flag at i: one to six small letters or digits, and the tag that ends them; or
    0."""
    count = 0
    while i + 4 <= end and data[i] == 0xF3 and data[i + 1] == 0xA0 and count <= 6:
        point, _ = code_point(data, i, end)
        if point == 0xE007F:
            return 4 * (count + 1) if count else 0
        if not (0xE0030 <= point <= 0xE0039 or 0xE0061 <= point <= 0xE007A):
            return 0
        count += 1
        i += 4
    return 0


@helper
def _has_meaning(point, kind, before, before_kind, after, after_kind):
    """Whether a joiner or selector has a meaning between what is kept before it and what follows it."""
    if point == 0x200C:
        return before_kind & JOINING != 0 and after_kind & JOINING != 0
    if point == 0x200D:
        if before_kind & JOINING:
            return True
        return (before_kind & PICTURE != 0 or before == 0xFE0F) and after_kind & PICTURE != 0
    if before_kind & HAN:
        return True
    if point != 0xFE0E and point != 0xFE0F:
        return False
    if before_kind & EMOJI:
        return True
    return after == 0x20E3 and (
        before == 0x23 or before == 0x2A or 0x30 <= before <= 0x39
    )  # a keycap: 1, selector, box


@helper
def _settled(out, begun, run, o, line_start, tab):
    """Drops surplus blanks out[run:o] before a character: all at the start of the text or of a line, all but one
    elsewhere."""
    if run == begun:
        return run
    if line_start:
        return o
    out[run] = 9 if tab else 32
    return run + 1


@kernel
def clean_characters(data, offsets, wanted, steps, kinds, out, ends, controls, hidden):
    """Cleans documents with `wanted` by the steps (CONTROLS, ZERO_WIDTH, WHITESPACE), and copies the others. `out` is
    as long as the text."""
    o = 0
    ends[0] = 0
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        controls[row] = 0
        hidden[row] = 0
        if not wanted[row]:
            for i in range(start, end):
                out[o] = data[i]
                o += 1
            ends[row + 1] = o
            continue
        begun = o
        spaces = steps & WHITESPACE != 0
        run = o  # where the blanks at the end of `out` begin
        tab, line_start, newlines = False, True, 0
        before, before_kind = np.int64(0), np.int64(0)
        i = start
        while i < end:
            if 32 < data[i] < 127:  # most of most texts
                if o > run:
                    o = _settled(out, begun, run, o, line_start, tab)
                out[o] = data[i]
                before, before_kind = np.int64(data[i]), np.int64(0)
                line_start, newlines, tab = False, 0, False
                i += 1
                o += 1
                run = o
                continue
            point, length = code_point(data, i, end)
            kind = np.int64(kinds[point])
            here = i
            i += length
            if steps & CONTROLS:
                if kind & BREAK:
                    if point == 13 and i < end and data[i] == 10:
                        i += 1
                    point, kind, length = 10, 0, 0
                elif kind & CONTROL:
                    controls[row] += 1
                    continue
            if steps & ZERO_WIDTH and kind & (HIDDEN | JOINER | SELECTOR | TAG):
                stays = False
                if kind & TAG:
                    length = _flag_tags(data, here, end) if before == 0x1F3F4 else 0
                    stays = length > 0
                    i = here + length if stays else i
                elif kind & (JOINER | SELECTOR):
                    after, after_kind = np.int64(0), np.int64(0)
                    if i < end:
                        after, _ = code_point(data, i, end)
                        after_kind = np.int64(kinds[after])
                    stays = _has_meaning(point, kind, before, before_kind, after, after_kind)
                if not stays:
                    hidden[row] += 1
                    continue
            before, before_kind = point, kind
            if spaces:
                if kind & SPACE:
                    point, length = 32, 0
                if point == 10:
                    o = run
                    newlines += 1
                    if o > begun and newlines <= 2:
                        out[o] = 10
                        o += 1
                    run, line_start, tab = o, True, False
                    continue
                if point == 32 or point == 9:
                    out[o] = point
                    o += 1
                    tab |= point == 9
                    continue
                if o > run:
                    o = _settled(out, begun, run, o, line_start, tab)
                line_start, newlines, tab = False, 0, False
            if length:
                for j in range(here, here + length):
                    out[o] = data[j]
                    o += 1
            else:
                out[o] = point
                o += 1
            run = o
        if spaces:
            o = run
            while o > begun and out[o - 1] == 10:
                o -= 1
        ends[row + 1] = o


def clean_characters_plain(text: str, steps: int) -> tuple[str, int, int]:
    """The same, one text at a time; with the numbers of controls and of zero-width characters removed."""
    kept: list[str] = []
    removed = unseen = i = 0
    while i < len(text):
        character, kind, unit = text[i], int(kinds()[ord(text[i])]), text[i]
        i += 1
        if steps & CONTROLS and kind & BREAK:
            i += text[i - 1 : i + 1] == "\r\n"
            unit = "\n"
        elif steps & CONTROLS and kind & CONTROL:
            removed += 1
            continue
        elif steps & ZERO_WIDTH and kind & (HIDDEN | JOINER | SELECTOR | TAG):
            before, after = kept[-1][-1] if kept else "\0", text[i] if i < len(text) else "\0"
            flag = re.match("[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f", text[i - 1 :][:7])
            if kind & TAG and before == "\U0001f3f4" and flag:
                unit = flag.group()
                i += len(unit) - 1
            elif not kind & (JOINER | SELECTOR) or not _has_meaning.py_func(
                ord(character), kind, ord(before), int(kinds()[ord(before)]), ord(after), int(kinds()[ord(after)])
            ):
                unseen += 1
                continue
        kept.append(unit)
    cleaned = "".join(kept)
    return (_spaced_plain(cleaned) if steps & WHITESPACE else cleaned), removed, unseen


def _spaced_plain(text: str) -> str:
    text = "".join(" " if kinds()[ord(c)] & SPACE else c for c in text)
    lines = [
        re.sub(r"(?<=[^ \t])[ \t]+", lambda run: "\t" if "\t" in run.group() else " ", line).rstrip(" \t")
        for line in text.split("\n")
    ]
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)).lstrip(" \t\n").rstrip("\n")
