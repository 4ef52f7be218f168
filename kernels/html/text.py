"""Text of a page as it is shown, written block by block: character references decoded, white space collapsed, invisible
characters left out.

References follow the HTML standard: the longest name that fits, 106 of them also without a semicolon, numbers 128 to
159 as Windows-1252. All white space of Unicode is a space. Controls, soft hyphens, zero-width spaces and direction
marks are left out (joiners stay: Persian, Hindi and emoji need them). U+0080 to U+009F stay, and a U+00A0 that follows
one of them or `Ã`: they are bytes of a misread encoding, which could not be repaired without them. A line end in the
source between two letters of Han or kana is dropped, as in browsers. Powers stay separate from their base:
`10<sup>6</sup>` is 10^6, `$9<sup>99</sup>` $9.99. No reference is shorter than 5/6 of its UTF-8 (`&nGt;` is the worst),
which bounds the output.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.wide import bits_of, how_many, lowest
from gristmill.kernels.html.compiled import copy_32, first_of_32, inner, rare
from gristmill.kernels.html.tables import ATTRIBUTE, BEGINS, REFERENCE, ROOT, SPACE, TAG

# The state of a page is an int64 array; these of its places belong to the text that is being written.
W, BEGIN, GAP, BLANK, SHOWN, CHARACTERS, LINKED, LINK_FROM, PRE = range(9)
# W: bytes written; BEGIN: where the block began; GAP: white space that waits for a character after it; BLANK: no
# character yet in the block; SHOWN: one that `text_at` has not heard of; LINKED, LINK_FROM: characters in links that
# were closed, and where the open one began; PRE: open elements that keep white space.
GAP_SPACE, GAP_LINE = 1, 2
BLANK_POINT, LINE_POINT, DOLLAR, AMPERSAND, LESS, SLASH, CARET, POINT = map(np.int64, (32, 10, 36, 38, 60, 47, 94, 46))
NONE, ZERO = np.int64(-1), np.int64(0)
TAG_OPENS, TAG_CLOSES = np.uint8(60), np.uint8(62)


@inner
def find_byte(data, i, end, byte):
    """The first place of a byte from i on, or `end`."""
    position, last = np.uint64(i), np.uint64(end)
    while position + np.uint64(32) <= last:
        step = first_of_32(data, position, byte)
        position += step
        if step < np.uint64(32):
            return np.int64(position)
    while position < last and data[position] != byte:
        position += np.uint64(1)
    return np.int64(position)


@inner
def alphanumeric(byte):
    return 48 <= byte <= 57 or 97 <= byte | 32 <= 122


@rare
def reference(data, i, end, row, references):
    """The character reference at i: two code points (the second 0 for none) and where it ends. The first is -1 where
    the `&` is just an `&`."""
    if i + 1 < end and data[i + 1] == 35:
        return numeric_reference(data, i, end, references)
    node, j, name_node, after = ROOT, i + 1, -1, i + 1
    while j < end:
        edges = np.int64(references[node + 1])
        edge = node + 2
        while edge < node + 2 + edges and references[edge] != data[j]:
            edge += 1
        if edge == node + 2 + edges:
            break
        node = np.int64(references[edge + edges])
        j += 1
        name = np.int64(references[node])
        if name >= 0:
            if j < end and data[j] == 59:
                name_node, after = name, j + 1
                break
            if references[name + 2]:
                name_node, after = name, j
    if name_node < 0 or (
        row == ATTRIBUTE and data[after - 1] != 59 and after < end and (data[after] == 61 or alphanumeric(data[after]))
    ):
        return NONE, ZERO, i + 1
    return np.int64(references[name_node]), np.int64(references[name_node + 1]), after


@rare
def numeric_reference(data, i, end, references):
    j = i + 2
    sixteen = j < end and data[j] | 32 == 120
    if sixteen:
        j += 1
    first, point = j, 0
    while j < end:
        byte = np.int64(data[j])
        if 48 <= byte <= 57:
            digit = byte - 48
        elif sixteen and 97 <= byte | 32 <= 102:
            digit = (byte | 32) - 87
        else:
            break
        point = min(point * (16 if sixteen else 10) + digit, 0x110000)
        j += 1
    if j == first:
        return NONE, ZERO, i + 1
    if j < end and data[j] == 59:
        j += 1
    if 0x80 <= point < 0xA0:
        point = np.int64(references[point - 0x80])
    elif point == 0 or point >= 0x110000 or 0xD800 <= point < 0xE000:
        point = 0xFFFD
    return np.int64(point), ZERO, j


@inner
def is_space(point):
    return (
        9 <= point <= 13 or point == 32 or point == 0xA0 or 0x2000 <= point <= 0x200A or 0x2028 <= point <= 0x2029
        or point == 0x202F or point == 0x205F or point == 0x3000
    )  # fmt: skip


@inner
def is_dropped(point):
    """`DROPPED` of the tables; call it after `is_space`."""
    return (
        point < 32 or point == 0x7F or point == 0xAD or point == 0x200B or 0x200E <= point <= 0x200F
        or 0x202A <= point <= 0x202E
        or 0x2060 <= point <= 0x2064 or 0x2066 <= point <= 0x2069 or point == 0xFEFF
    )  # fmt: skip


@inner
def put_space(state, out, point):
    if not state[PRE]:
        if not state[BLANK] and not state[GAP]:
            state[GAP] = GAP_SPACE
    elif (point == 10 or point == 13) and state[
        BLANK
    ]:  # blank lines before the first of text are none of it, its indentation is
        state[W] = state[BEGIN]
        state[CHARACTERS] = state[LINKED] = state[LINK_FROM] = 0
    else:
        out[state[W]] = point if point == 9 or point == 10 else 10 if point == 13 else 32
        state[W] += 1
        state[CHARACTERS] += 1


@inner
def misread_before(state, out):
    """Whether the last character is `Ã`, or one of U+0080 to U+009F: UTF-8 that was read as Latin-1, so that a U+00A0
    behind it is a byte too."""
    w = state[W]
    if state[GAP] or w < state[BEGIN] + 2:
        return False
    return (out[w - 2] == 0xC3 and out[w - 1] == 0x83) or (out[w - 2] == 0xC2 and out[w - 1] < 0xA0)


@inner
def put_point(state, out, point):
    """Writes a code point as it is shown."""
    if is_space(point) and not (point == 0xA0 and misread_before(state, out)):
        put_space(state, out, point)
        return
    if is_dropped(point):
        return
    w = state[W]
    if state[GAP]:
        out[w] = 32 if state[GAP] == GAP_SPACE else 10
        w += 1
        state[CHARACTERS] += 1
        state[GAP] = 0
    if point < 0x80:
        out[w] = point
        w += 1
    elif point < 0x800:
        out[w] = 0xC0 | point >> 6
        out[w + 1] = 0x80 | point & 0x3F
        w += 2
    elif point < 0x10000:
        out[w] = 0xE0 | point >> 12
        out[w + 1] = 0x80 | point >> 6 & 0x3F
        out[w + 2] = 0x80 | point & 0x3F
        w += 3
    else:
        out[w] = 0xF0 | point >> 18
        out[w + 1] = 0x80 | point >> 12 & 0x3F
        out[w + 2] = 0x80 | point >> 6 & 0x3F
        out[w + 3] = 0x80 | point & 0x3F
        w += 4
    state[W] = w
    state[CHARACTERS] += 1
    state[BLANK], state[SHOWN] = 0, 1


@inner
def is_wide(data, i):
    """Whether a character of three bytes at i is U+3000 to U+9FFF or a full-width form (`WIDE` of the reference)."""
    return 0xE3 <= data[i] <= 0xE9 or (data[i] == 0xEF and 0xBC <= data[i + 1] <= 0xBD)


@inner
def is_wrap(data, first, after):
    """Whether white space between two wide characters is only a line end of the source."""
    if not (is_wide(data, first - 3) and is_wide(data, after)):
        return False
    while first < after and data[first] != 10 and data[first] != 13:
        first += 1
    return first < after


@inner
def is_price(state, out):
    """Whether the last number written follows $, £ or €: two raised digits are its cents."""
    i, begin = state[W] - 1, state[BEGIN]
    while i > begin and state[W] - i < 16 and (48 <= out[i] <= 57 or out[i] == 44):
        i -= 1
    return (
        out[i] == 36
        or (i > begin and out[i - 1] == 0xC2 and out[i] == 0xA3)
        or (i > begin + 1 and out[i - 2] == 0xE2 and out[i - 1] == 0x82 and out[i] == 0xAC)
    )


@rare
def put_power(data, i, n, state, out):
    """At the text of a <sup>: writes `^` if it is a number behind a number, a space before the numerator of a fraction,
    a point before cents."""
    if state[GAP] or state[BLANK] or not 48 <= out[state[W] - 1] <= 57:
        return
    j = i
    if j < n and data[j] == 45:
        j += 1
    elif j + 2 < n and data[j] == 0xE2 and data[j + 1] == 0x88 and data[j + 2] == 0x92:
        j += 3
    digits = j
    while j < n and 48 <= data[j] <= 57:
        j += 1
    if j == digits:
        return
    over = j + 6  # past </sup>
    if (
        over < n
        and data[j] == 60
        and data[j + 1] == 47
        and (data[over] == 47 or data[over] == 38 or data[over] == 0xE2)
    ):  # / &frasl; U+2044
        put_point(state, out, BLANK_POINT)
    else:
        put_point(state, out, POINT if j == i + 2 and digits == i and is_price(state, out) else CARET)


# Bytes of text that are copied as they are, of any row of kinds; spaces; bytes that begin a character.
plain_bits = bits_of(
    32, (0x21, 0x25), (0x27, 0x3B), (0x3D, 0x7E), (0x80, 0xC1), (0xC3, 0xE1), (0xE4, 0xEE), (0xF0, 0xFF)
)
space_bits = bits_of(32, (0x20, 0x20))
begin_bits = bits_of(32, (0x00, 0x7F), (0xC0, 0xFF))
SLACK = 64  # bytes of `out` behind all that is written, since 32 are copied at once
ALL_32, ONE = np.uint64(0xFFFFFFFF), np.uint64(1)


@inner
def copy_words(data, i, end, out, w):
    """Copies words with one space between them, 32 bytes at a time, and returns how many bytes that are, and how many
    characters."""
    begin, characters, follows = i, np.int64(0), np.uint64(0)
    while i + 33 <= end:
        plain, spaces = plain_bits(data, i), space_bits(data, i)
        fits = plain | spaces & (plain << ONE | follows) & plain >> ONE
        step = lowest(~fits)  # 32 or more bits are none of `fits`
        if step == 0:
            break
        copy_32(out, np.uint64(w), data, np.uint64(i))
        characters += how_many(begin_bits(data, i) & ALL_32 >> np.uint64(32 - step))
        w += step
        i += step
        if step < 31:
            break
        follows = ONE
    return i - begin, characters


@inner
def write_text(data, i, end, row, state, out, flat, references):
    """Writes the text from i on, up to a tag or to `end`, and returns where that is."""
    begin = i
    while i < end:
        kind = flat[row + data[i]]
        if kind <= BEGINS:
            w, characters = state[W], state[CHARACTERS]
            if state[GAP]:
                out[w] = 32 if state[GAP] == GAP_SPACE else 10
                w += 1
                characters += 1
                state[GAP] = 0
            copied, begun = copy_words(data, i, end, out, w)
            i, w, characters = i + copied, w + copied, characters + begun
            kind = flat[row + data[i]] if i < end else TAG
            while i < end:
                while kind <= BEGINS:
                    out[w] = data[i]
                    w += 1
                    characters += kind
                    i += 1
                    if i == end:
                        break
                    kind = flat[row + data[i]]
                # One space between words is the rule, and needs no detour.
                if i + 1 < end and data[i] == 32 and flat[row + data[i + 1]] == BEGINS:
                    out[w] = 32
                    w += 1
                    characters += 1
                    i += 1
                    kind = BEGINS
                else:
                    break
            state[W], state[CHARACTERS], state[BLANK], state[SHOWN] = w, characters, 0, 1
        elif kind == SPACE:
            if state[PRE]:
                if data[i] == 13 and i + 1 < end and data[i + 1] == 10:
                    i += 1
                put_space(state, out, np.int64(data[i]))
                i += 1
            else:
                first = i
                i += 1
                while i < end and flat[row + data[i]] == SPACE:
                    i += 1
                if i == end or data[i] < 0xE3 or first - begin < 3 or not is_wrap(data, first, i):
                    put_space(state, out, BLANK_POINT)
        elif kind == TAG:
            break
        elif kind == REFERENCE:
            point, second, after = reference(data, i, end, row, references)
            put_point(state, out, point if point >= 0 else AMPERSAND)
            if second:
                put_point(state, out, second)
            i = after
        else:
            i = look(data, i, end, state, out)
    return i


@rare
def look(data, i, end, state, out):
    """At a control, or a byte that may begin a space or something invisible: writes one code point, returns where the
    next begins."""
    first = np.int64(data[i])
    if first < 0x80:
        return i + 1
    if first == 0xC2:
        if i + 1 < end and data[i + 1] & 0xC0 == 0x80:
            put_point(state, out, np.int64(data[i + 1]))
            return i + 2
    elif i + 2 < end and data[i + 1] & 0xC0 == 0x80 and data[i + 2] & 0xC0 == 0x80:
        put_point(state, out, (first & 0x0F) << 12 | np.int64(data[i + 1] & 0x3F) << 6 | np.int64(data[i + 2] & 0x3F))
        return i + 3
    return i + 1  # no UTF-8


@rare
def write_formula(data, i, end, row, twice, state, out, flat, references):
    """LaTeX between `$` or, as a line of its own, `$$`; nothing where it is empty."""
    while i < end and flat[row + data[i]] == SPACE:
        i += 1
    while end > i and flat[row + data[end - 1]] == SPACE:
        end -= 1
    if i == end:
        return
    for _ in range(1 + twice):
        put_point(state, out, DOLLAR)
    write_text(data, i, end, row, state, out, flat, references)
    state[GAP] = 0
    for _ in range(1 + twice):
        put_point(state, out, DOLLAR)
