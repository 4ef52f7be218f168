"""HTML entities that were left in text: `&amp;`, `&nbsp;`, `&#8217;`, `&eacute;`, and double escapes, `&amp;nbsp;`.

Names are those of HTML 5, and only with their semicolon: `this&not that` is no mistake. Numbers decode as in HTML: 0x80
to 0x9F are Windows-1252, and what is no character (zero, surrogates, past 0x10FFFF) is U+FFFD. Text with a `<` shows
code and is left alone.

Each semicolon looks back over what is already written, so a reference that another one completes is decoded in the same
pass, at any depth, in linear time: at most 33 bytes are read again for a semicolon.
"""

from __future__ import annotations

import html.entities
import re
from functools import cache
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import helper, kernel
from gristmill.kernels.base.types import Array

LONGEST = (
    max(len(name) for name in html.entities.html5) - 1
)  # letters of `CounterClockwiseContourIntegral`, without its semicolon
BUCKETS = 1 << 13
# https://html.spec.whatwg.org/multipage/parsing.html#numeric-character-reference-end-state: what 0x80 to 0x9F stand
# for.
WINDOWS = tuple(
    ord(bytes([b]).decode("cp1252")) if b not in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else b for b in range(0x80, 0xA0)
)


class EntityNames(NamedTuple):
    """Entity names as a hash table for kernels. Name i is `names[name_offsets[i]:name_offsets[i + 1]]`; its text is
    found likewise in `texts`."""

    buckets: Array  # int32[BUCKETS]: 1 + the name that is here, 0 for none; the next bucket is tried after it
    names: Array
    name_offsets: Array
    texts: Array
    text_offsets: Array
    windows: Array  # int64[32]


@cache
def names() -> EntityNames:
    entities = sorted(
        (name[:-1].encode(), text.encode()) for name, text in html.entities.html5.items() if name.endswith(";")
    )
    buckets = np.zeros(BUCKETS, np.int32)
    for i, (name, _) in enumerate(entities):
        place = _place(name)
        while buckets[place]:
            place = (place + 1) % BUCKETS
        buckets[place] = i + 1
    spelled, name_offsets = _joined([name for name, _ in entities])
    texts, text_offsets = _joined([text for _, text in entities])
    return EntityNames(buckets, spelled, name_offsets, texts, text_offsets, np.array(WINDOWS, np.int64))


def _place(name: bytes) -> int:
    place = 0
    for byte in name:
        place = (place * 31 + byte) & 0xFFFFFFFF
    return place % BUCKETS


def _joined(parts: list[bytes]) -> tuple[Array, Array]:
    return np.frombuffer(b"".join(parts), np.uint8).copy(), np.cumsum([0, *map(len, parts)]).astype(np.int64)


@helper
def put(out, o, point):
    """Writes one code point as UTF-8; returns its end."""
    if point < 0x80:
        out[o] = point
        return o + 1
    if point < 0x800:
        out[o] = 0xC0 | point >> 6
        out[o + 1] = 0x80 | point & 0x3F
        return o + 2
    if point < 0x10000:
        out[o] = 0xE0 | point >> 12
        out[o + 1] = 0x80 | point >> 6 & 0x3F
        out[o + 2] = 0x80 | point & 0x3F
        return o + 3
    out[o] = 0xF0 | point >> 18
    out[o + 1] = 0x80 | point >> 12 & 0x3F
    out[o + 2] = 0x80 | point >> 6 & 0x3F
    out[o + 3] = 0x80 | point & 0x3F
    return o + 4


@helper
def _number(out, a, b):
    """The value of a reference whose digits, after `#`, are out[a:b], at most 0x110000; -1 if they are no number."""
    base = 10
    if a < b and (out[a] == 0x78 or out[a] == 0x58):  # x
        base, a = 16, a + 1
    if a >= b:
        return -1
    value = 0
    for i in range(a, b):
        c = np.int64(out[i])
        if 48 <= c <= 57:
            digit = c - 48
        elif 97 <= c <= 102:
            digit = c - 87
        elif 65 <= c <= 70:
            digit = c - 55
        else:
            return -1
        if digit >= base:
            return -1
        value = min(value * base + digit, 0x110000)
    return value


@helper
def _named(out, a, b, buckets, names, name_offsets):
    """Which name out[a:b] is, or -1."""
    place = np.uint32(0)
    for i in range(a, b):
        place = np.uint32(place * np.uint32(31) + np.uint32(out[i]))
    where = np.int64(place) % len(buckets)
    while buckets[where]:
        name = np.int64(buckets[where]) - 1
        if name_offsets[name + 1] - name_offsets[name] == b - a:
            same = True
            for i in range(b - a):
                if out[a + i] != names[name_offsets[name] + i]:
                    same = False
                    break
            if same:
                return name
        where = (where + 1) % len(buckets)
    return np.int64(-1)


@helper
def _resolve(out, start, o, buckets, names, name_offsets, texts, text_offsets, windows):
    """out[:o] only lacks a semicolon: if it ends in a reference, replaces that by its text. Returns the new end, or
    -1."""
    a = o - 1
    while a >= start and o - 1 - a <= LONGEST and out[a] != 0x26:
        c = out[a]
        if not (48 <= c <= 57 or 65 <= c <= 90 or 97 <= c <= 122 or c == 35):
            return -1
        a -= 1
    if a < start or out[a] != 0x26 or a + 1 >= o:
        return -1
    if out[a + 1] == 35:
        value = _number(out, a + 2, o)
        if value < 0:
            return -1
        if 0x80 <= value < 0xA0:
            value = windows[value - 0x80]
        if value == 0 or 0xD800 <= value < 0xE000 or value > 0x10FFFF:
            value = 0xFFFD
        return put(out, a, value)
    name = _named(out, a + 1, o, buckets, names, name_offsets)
    if name < 0:
        return -1
    for i in range(text_offsets[name], text_offsets[name + 1]):
        out[a] = texts[i]
        a += 1
    return a


@kernel
def decode_entities(
    data, offsets, wanted, buckets, names, name_offsets, texts, text_offsets, windows, out, ends, counts
):
    """Decodes the references of documents with `wanted`, and copies the others. `out` needs a quarter more room than
    the text."""
    o = 0
    ends[0] = 0
    for row in range(len(offsets) - 1):
        start, end, begun = offsets[row], offsets[row + 1], o
        counts[row] = 0
        code = not wanted[row]
        if not code:
            for i in range(start, end):
                if data[i] == 0x3C:
                    code = True
                    break
        if code:
            for i in range(start, end):
                out[o] = data[i]
                o += 1
        else:
            for i in range(start, end):
                out[o] = data[i]
                o += 1
                while out[o - 1] == 0x3B:  # `&semi;` is a semicolon in its turn
                    resolved = _resolve(out, begun, o - 1, buckets, names, name_offsets, texts, text_offsets, windows)
                    if resolved < 0:
                        break
                    counts[row] += 1
                    o = resolved
        ends[row + 1] = o


def decode_entities_plain(text: str) -> tuple[str, int]:
    """The same, one text at a time; with the number of references decoded."""
    if "<" in text:
        return text, 0
    written: list[str] = []
    count = 0
    for character in text:
        while character == ";" and (decoded := _decoded_plain(written)) is not None:
            count += 1
            *first, character = decoded
            written += first
        written.append(character)
    return "".join(written), count


def _decoded_plain(written: list[str]) -> str | None:
    """The text of the reference at the end of `written`, which is removed there."""
    tail = "".join(written[-LONGEST - 1 :])
    name = tail[tail.rfind("&") + 1 :] if "&" in tail else ""
    if not (name.isascii() and name.replace("#", "").isalnum()):
        return None
    if name.startswith("#"):
        value = _number_plain(name[1:])
        decoded = None if value is None else chr(value)
    else:
        decoded = html.entities.html5.get(f"{name};")
    if decoded is not None:
        del written[len(written) - len(name) - 1 :]
    return decoded


def _number_plain(digits: str) -> int | None:
    if re.fullmatch("[0-9]+", digits):
        value = int(digits)
    elif re.fullmatch("[xX][0-9a-fA-F]+", digits):
        value = int(digits[1:], 16)
    else:
        return None
    if 0x80 <= value < 0xA0:
        return WINDOWS[value - 0x80]
    return 0xFFFD if value == 0 or 0xD800 <= value < 0xE000 or value > 0x10FFFF else value
