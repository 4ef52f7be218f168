"""Tags, comments and raw text after the tokenizer of the HTML standard (13.2.5): where each ends, and what attributes
say.

Each function takes the page and a place in it, and returns where the next token begins; none reads a byte twice.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.wide import eight_bytes
from gristmill.kernels.html import names, tables as kinds
from gristmill.kernels.html.compiled import inner, rare
from gristmill.kernels.html.tables import (
    ATTRIBUTE_SLOTS,
    ENDS_ATTRIBUTE_NAME,
    ENDS_TAG_NAME,
    ENDS_VALUE,
    FNV_BASIS,
    FNV_PRIME,
    LETTERS,
    MARKS,
    SAID,
    SLOTS,
    TAG_SLOTS,
    WHITE,
    name_hash,
)
from gristmill.kernels.html.text import TAG_CLOSES, TAG_OPENS, find_byte

BASIS, PRIME = np.uint64(FNV_BASIS), np.uint64(FNV_PRIME)
OF_MARKS, OF_LETTERS, NOTHING, ONE = np.uint64(MARKS), np.uint64(LETTERS), np.uint64(0), np.uint64(1)
SCRIPT = np.uint64(name_hash(b"script"))

# What the attributes of one tag say, an int64 array.
BITS, FIRST_CLASS, HAS_HREF, KIND_FROM, KIND_TO, ALT_FROM, ALT_TO, AS_BLOCK, SHADOW, IS_OPEN, CLOSED, SPANS = range(12)
HAS_NUMBER, NUMBER = 12, 13
# FIRST_CLASS: its hash; KIND_FROM, KIND_TO: the value of `type` or `encoding`; ALT_FROM, ALT_TO: of `alttext`; CLOSED:
# ends in `/>`; SPANS: rows and columns that a cell says it spans, rows << 16 | columns, 0 where it says nothing of it;
# NUMBER: the whole number that `value` begins with, of nine digits at most.
SAYINGS = 14
# From here on, values that were read: where one begins, its length, what its words say, the hash of the first.
SEEN = SAYINGS
FACTS = SEEN + 4 * 512
WIDEST, TALLEST = 1000, 65534  # a cell, in the standard


@inner
def hashed(data, i, n, flat, stop):
    """The hash of a name in lower case, and where it ends."""
    value, position, last = BASIS, np.uint64(i), np.uint64(n)  # numba looks whether a signed place is negative
    while position < last and not flat[OF_MARKS + data[position]] & stop:
        byte = data[position]
        if 65 <= byte <= 90:
            byte |= 32
        value = (value ^ np.uint64(byte)) * PRIME
        position += ONE
    return value, np.int64(position)


@inner
def tag_of(value, flat, hashes):
    slot = np.int64(value & np.uint64(SLOTS - 1))
    while hashes[slot]:
        if hashes[slot] == value:
            return np.int64(flat[TAG_SLOTS + slot])
        slot = (slot + 1) & (SLOTS - 1)
    return np.int64(0)


@inner
def attribute_of(value, flat, hashes):
    slot = np.int64(value & np.uint64(SLOTS - 1))
    while hashes[SLOTS + slot]:
        if hashes[SLOTS + slot] == value:
            return np.int64(flat[ATTRIBUTE_SLOTS + slot])
        slot = (slot + 1) & (SLOTS - 1)
    return np.int64(0)


@inner
def words_say(data, i, end, flat, words):
    """The bits of all words in a value."""
    state, symbol, bits = np.uint64(words[0, 0]), NOTHING, np.int64(0)
    position, last = np.uint64(i), np.uint64(end)
    while position < last:
        before, symbol = symbol, np.uint64(flat[OF_LETTERS + data[position]])
        position += ONE
        if symbol or before:
            state = np.uint64(words[state, symbol])
            bits |= said(words, state)
    if symbol:
        bits |= said(words, np.uint64(words[state, NOTHING]))
    return bits


@inner
def said(words, state):
    return np.int64(words[state, SAID]) | np.int64(words[state, SAID + 1]) << 16


@rare
def class_hash(data, i, end, flat):
    """The hash of the first word of a value."""
    while i < end and flat[MARKS + data[i]] & WHITE:
        i += 1
    value = BASIS
    while i < end and not flat[MARKS + data[i]] & WHITE:
        value = (value ^ np.uint64(data[i])) * PRIME
        i += 1
    return np.int64(value)


@inner
def value_says(data, i, end, facts, flat, words):
    """The bits of all words in a value, and the hash of its first. A value that the page has had, as most lists of
    classes are, is not read letter by letter."""
    size = end - i
    if size < 8:
        return words_say(data, i, end, flat, words), class_hash(data, i, end, flat)
    value = BASIS ^ np.uint64(size)
    for j in range(i, end - 8, 8):
        value = (value ^ eight_bytes(data, j)) * PRIME
        value ^= value >> np.uint64(32)
    value = (value ^ eight_bytes(data, end - 8)) * PRIME
    slot = SEEN + 4 * np.int64(value >> np.uint64(64 - 9))
    first = facts[slot]
    known = facts[slot + 1] == size and eight_bytes(data, first + size - 8) == eight_bytes(data, end - 8)
    j = i
    while known and j < end - 8:
        known = eight_bytes(data, j) == eight_bytes(data, first + j - i)
        j += 8
    if not known:
        facts[slot], facts[slot + 1] = i, size
        facts[slot + 2], facts[slot + 3] = words_say(data, i, end, flat, words), class_hash(data, i, end, flat)
    return facts[slot + 2], facts[slot + 3]


@inner
def attributes(data, i, n, facts, flat, hashes, words):
    """From behind a tag's name to behind its `>`; -1 where the page ends before. Fills `facts`."""
    for place in range(SAYINGS):
        facts[place] = 0
    while True:
        slash = False
        while i < n and (flat[MARKS + data[i]] & WHITE or data[i] == 47):
            slash = data[i] == 47
            i += 1
        if i >= n:
            return -1
        if data[i] == 62:
            facts[CLOSED] = slash
            return i + 1
        value = BASIS
        if data[i] == 61:  # a name may begin with `=`
            value = (value ^ np.uint64(61)) * PRIME
            i += 1
        position, last_byte = np.uint64(i), np.uint64(n)
        while position < last_byte and not flat[OF_MARKS + data[position]] & ENDS_ATTRIBUTE_NAME:
            byte = data[position]
            if 65 <= byte <= 90:
                byte |= 32
            value = (value ^ np.uint64(byte)) * PRIME
            position += ONE
        i = np.int64(position)
        while i < n and flat[MARKS + data[i]] & WHITE:
            i += 1
        first = last = i
        if i < n and data[i] == 61:
            i += 1
            while i < n and flat[MARKS + data[i]] & WHITE:
                i += 1
            if i >= n:
                return -1
            quote = data[i]
            if quote == 34 or quote == 39:
                first = i + 1
                last = find_byte(data, first, n, quote)
                i = last + 1
            else:
                first = i
                while i < n and not flat[MARKS + data[i]] & ENDS_VALUE:
                    i += 1
                last = i
            if i > n:
                return -1
        which = attribute_of(value, flat, hashes)
        if which:
            attribute_says(data, first, last, which, facts, flat, words)


@inner
def attribute_says(data, first, last, which, facts, flat, words):
    if which <= kinds.STYLE:
        bits, first_class = value_says(data, first, last, facts, flat, words)
        facts[BITS] |= bits & names.HIDDEN if which == kinds.STYLE else bits
        if which == kinds.CLASS:
            facts[FIRST_CLASS] = first_class
    elif which == kinds.HIDDEN:
        facts[BITS] |= names.HIDDEN
    elif which == kinds.ARIA_HIDDEN:
        if first < last and data[first] | 32 == 116:  # true
            facts[BITS] |= names.HIDDEN
    elif which == kinds.HREF:
        facts[HAS_HREF] = 1
    elif which == kinds.TYPE or which == kinds.ENCODING:
        facts[KIND_FROM], facts[KIND_TO] = first, last
    elif which == kinds.ALTTEXT:
        facts[ALT_FROM], facts[ALT_TO] = first, last
    elif which == kinds.DISPLAY:
        facts[AS_BLOCK] = first < last and data[first] | 32 == 98  # block
    elif which == kinds.SHADOWROOTMODE:
        facts[SHADOW] = 1
    elif which == kinds.COLSPAN:
        facts[SPANS] = facts[SPANS] & ~0xFFFF | min(number(data, first, last, flat), WIDEST)
    elif which == kinds.ROWSPAN:
        facts[SPANS] = facts[SPANS] & 0xFFFF | min(number(data, first, last, flat), TALLEST) << 16
    elif which == kinds.VALUE:
        facts[HAS_NUMBER], facts[NUMBER] = signed(data, first, last, flat)
    else:
        facts[IS_OPEN] = 1


@rare
def number(data, i, end, flat):
    """A number of digits, as far as they go; 0 for none."""
    while i < end and flat[MARKS + data[i]] & WHITE:
        i += 1
    value = np.int64(0)
    while i < end and 48 <= data[i] <= 57 and value < 100_000:
        value = value * 10 + np.int64(data[i]) - 48
        i += 1
    return value


@rare
def signed(data, i, end, flat):
    """Whether a whole number of nine digits at most begins here, and the number."""
    while i < end and flat[MARKS + data[i]] & WHITE:
        i += 1
    sign = np.int64(1)
    if i < end and (data[i] == 43 or data[i] == 45):
        sign = 44 - np.int64(data[i])
        i += 1
    first, value = i, np.int64(0)
    while i < end and i < first + 10 and 48 <= data[i] <= 57:
        value = value * 10 + np.int64(data[i]) - 48
        i += 1
    return np.int64(0 < i - first < 10), sign * value


@inner
def small_hash(data, i, end, value):
    """The hash of letters in lower case, after what was hashed before."""
    while i < end:
        byte = data[i]
        if 65 <= byte <= 90:
            byte |= 32
        value = (value ^ np.uint64(byte)) * PRIME
        i += 1
    return value


@rare
def media_type(data, i, end, flat):
    """The hash of a media type in lower case, without its parameters."""
    while i < end and flat[MARKS + data[i]] & WHITE:
        i += 1
    last = i
    while last < end and data[last] != 59 and not flat[MARKS + data[last]] & WHITE:
        last += 1
    return small_hash(data, i, last, BASIS)


@rare
def after_declaration(data, i, n, foreign):
    """Behind a comment, doctype or processing instruction whose `<` is at i. (The caller handles CDATA sections in
    MathML.)"""
    if i + 3 < n and data[i + 1] == 33 and data[i + 2] == 45 and data[i + 3] == 45:
        return after_comment(data, i + 4, n)
    if foreign and is_cdata(data, i, n):
        return min(end_of_cdata(data, i + 9, n) + 3, n)
    return min(find_byte(data, i + 1, n, TAG_CLOSES) + 1, n)


@inner
def after_comment(data, i, n):
    if i < n and data[i] == 62:  # <!-->
        return i + 1
    if i + 1 < n and data[i] == 45 and data[i + 1] == 62:  # <!--->
        return i + 2
    position = i
    while True:
        position = find_byte(data, position, n, TAG_CLOSES)
        if position >= n:
            return n
        dash = position - 1 if data[position - 1] != 33 else position - 2  # --> or --!>
        if dash - 1 >= i and data[dash] == 45 and data[dash - 1] == 45:
            return position + 1
        position += 1


@inner
def is_cdata(data, i, n):
    """Whether `<![CDATA[` is at i."""
    return (
        i + 8 < n and data[i + 1] == 33 and data[i + 2] == 91 and data[i + 3] == 67 and data[i + 4] == 68
        and data[i + 5] == 65
        and data[i + 6] == 84 and data[i + 7] == 65 and data[i + 8] == 91
    )  # fmt: skip


@rare
def end_of_cdata(data, i, n):
    position = i
    while True:
        position = find_byte(data, position, n, TAG_CLOSES)
        if position >= n:
            return n
        if position - 2 >= i and data[position - 1] == 93 and data[position - 2] == 93:
            return position - 2
        position += 1


@inner
def end_of_raw(data, i, n, value, flat):
    """Where raw text ends: at the end tag of that name, or `n`."""
    while True:
        i = find_byte(data, i, n, TAG_OPENS)
        if i + 2 >= n:
            return n
        if data[i + 1] == 47:
            name, after = hashed_letters(data, i + 2, n)
            if name == value and after < n and flat[MARKS + data[after]] & ENDS_TAG_NAME:
                return i
            i = max(after, i + 2)
        else:
            i += 1


@rare
def end_of_script(data, i, n, flat):
    """As `end_of_raw`, but `<!-- <script> </script> -->` hides the end tag in it ("double escaped")."""
    escaped_from, doubly = -1, False
    position = i
    while position < n:
        if escaped_from >= 0:
            while position < n and data[position] != 60 and data[position] != 62:
                position += 1
        else:
            position = find_byte(data, position, n, TAG_OPENS)
        if position >= n:
            break
        if data[position] == 62:
            if position - 2 >= escaped_from and data[position - 1] == 45 and data[position - 2] == 45:  # -->
                escaped_from, doubly = -1, False
            position += 1
        elif (
            escaped_from < 0
            and position + 3 < n
            and data[position + 1] == 33
            and data[position + 2] == 45
            and data[position + 3] == 45
        ):  # <!--
            escaped_from = position + 2
            position += 4
        elif position + 1 < n and data[position + 1] == 47:
            name, after = hashed_letters(data, position + 2, n)
            if name == SCRIPT and after < n and flat[MARKS + data[after]] & ENDS_TAG_NAME:
                if not doubly:
                    return position
                doubly = False
            position = max(after, position + 2)
        elif escaped_from >= 0 and not doubly:
            name, after = hashed_letters(data, position + 1, n)
            doubly = name == SCRIPT and after < n and flat[MARKS + data[after]] & ENDS_TAG_NAME != 0
            position = max(after, position + 1)
        else:
            position += 1
    return n


@inner
def hashed_letters(data, i, n):
    value = BASIS
    while i < n and 97 <= data[i] | 32 <= 122:
        value = (value ^ np.uint64(data[i] | 32)) * PRIME
        i += 1
    return value, i
