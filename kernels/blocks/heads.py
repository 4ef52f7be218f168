"""What a page says of itself, cut from its head: names and values of meta tags, the language, the canonical address,
the types that JSON-LD names. Of hundreds of tags a page has a dozen that are looked at; only these reach Python.

A tag is read as the standard's tokenizer reads it (`tags.attributes`), of each name the first attribute.
"""

# ruff: noqa: SIM109 (compiled, `in` is a loop over a tuple)

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.compiled import helper
from gristmill.kernels.blocks.features import FROM_JSON, FROM_META, FROM_TITLE
from gristmill.kernels.html import names
from gristmill.kernels.html.compiled import inner
from gristmill.kernels.html.names import (
    HEAD_BASE,
    HEAD_CELL,
    HEAD_HTML,
    HEAD_ITEM,
    HEAD_JSON,
    HEAD_LINK,
    HEAD_LIST,
    HEAD_META,
    HEAD_PRE,
    HEAD_TIME,
    HEAD_TITLE,
    KNOWN,
    META_NAMES,
)
from gristmill.kernels.html.tables import (
    ENDS_ATTRIBUTE_NAME,
    ENDS_TAG_NAME,
    ENDS_VALUE,
    KIND_SLOTS,
    MARKS,
    META_SLOTS,
    SLOTS,
    WHITE,
    name_hash,
)
from gristmill.kernels.html.tags import BASIS, PRIME, small_hash
from gristmill.kernels.html.text import find_byte

PROPERTY, NAME, ITEMPROP, EQUIVALENT, CONTENT, REL, HREF, LANG, XML_LANG, DATETIME = (
    np.uint64(name_hash(name.encode()))
    for name in (
        "property", "name", "itemprop", "http-equiv", "content", "rel", "href", "lang", "xml:lang", "datetime",
    )
)  # fmt: skip
CANONICAL, OPENGRAPH = np.uint64(name_hash(b"canonical")), np.uint64(name_hash(b"og:"))
OG_TYPE = META_NAMES.index("og:type")
PRODUCT = 1 << KNOWN.index("product")
OF_METAS, OF_KINDS = np.int64(2), np.int64(3)  # tables of names
KINDS, METAS = np.int64(KIND_SLOTS), np.int64(META_SLOTS)
NOTHING = np.int64(0)

TAG_BYTES, JSON_BYTES = 16 << 10, 256 << 10  # of one span; longer tags are cut, longer JSON is not read
MOST_TAGS, MOST_JSON = 400, 8
# A row of what is cut: one of these kinds; of META the index in META_NAMES, or -1 where Python is to read the name; of
# JSON the bits of the types that it names, and UNCLEAR; from where to where the value is, and the name.
TITLE, META, REFRESH, CANONICAL_LINK, LANGUAGE, BASE, TIME, JSON = map(np.int64, range(8))
FACT, SAYS, FROM, TO, NAME_FROM, NAME_TO = range(6)
UNCLEAR = 1 << 20  # JSON may have types that are not among its bits
# What an attribute or a tag says: a hash, from where to where.
HASH, FIRST, LAST = range(3)
WORDS_OF_NAMES = tuple(np.frombuffer(word.encode(), np.uint8) for word in (*names.DESCRIBING, *names.OF_PRODUCTS))
DESCRIPTION, TITLE_OF, HEADLINE, PRODUCT_OF, PRICE = WORDS_OF_NAMES
REFRESHES, LANGUAGES = (np.frombuffer(word, np.uint8) for word in (b"refresh", b"content-language"))


@inner
def next_attribute(data, i, end, flat, found):
    """Reads the attribute at or behind i, and returns where the next may begin; -1: there is none."""
    while i < end and (flat[MARKS + data[i]] & WHITE or data[i] == 47):
        i += 1
    if i >= end or data[i] == 62:
        return np.int64(-1)
    value = BASIS
    if data[i] == 61:
        value = (value ^ np.uint64(61)) * PRIME
        i += 1
    while i < end and not flat[MARKS + data[i]] & ENDS_ATTRIBUTE_NAME:
        byte = data[i]
        if 65 <= byte <= 90:
            byte |= 32
        value = (value ^ np.uint64(byte)) * PRIME
        i += 1
    while i < end and flat[MARKS + data[i]] & WHITE:
        i += 1
    first = last = i
    if i < end and data[i] == 61:
        i += 1
        while i < end and flat[MARKS + data[i]] & WHITE:
            i += 1
        if i >= end:
            return np.int64(-1)
        quote = data[i]
        if quote == 34 or quote == 39:
            first = i + 1
            last = find_byte(data, first, end, quote)
            if last >= end:
                return np.int64(-1)
            i = last + 1
        else:
            first = i
            while i < end and not flat[MARKS + data[i]] & ENDS_VALUE:
                i += 1
            last = i
    found[HASH], found[FIRST], found[LAST] = np.int64(value), first, last
    return i


@inner
def behind_name(data, i, end, flat):
    """Where the attributes of the tag begin whose `<` is at i."""
    i += 1
    while i < end and not flat[MARKS + data[i]] & ENDS_TAG_NAME:
        i += 1
    return i


@inner
def trim(data, found, flat):
    """Cuts white space off both ends; whether anything is left."""
    first, last = found[FIRST], found[LAST]
    while first < last and flat[MARKS + data[first]] & WHITE:
        first += 1
    while last > first and flat[MARKS + data[last - 1]] & WHITE:
        last -= 1
    found[FIRST], found[LAST] = first, last
    return first < last


@inner
def value_of_hash(value, flat, hashes, table, at):
    """What a table of names says of the one with this hash; 0 for none."""
    slot = np.int64(value & np.uint64(SLOTS - 1))
    while hashes[table * SLOTS + slot]:
        if hashes[table * SLOTS + slot] == value:
            return np.int64(flat[at + slot])
        slot = (slot + 1) & (SLOTS - 1)
    return np.int64(0)


@inner
def bit_of_kind(value, flat, hashes):
    kind = value_of_hash(value, flat, hashes, OF_KINDS, KINDS)
    return np.int64(1) << (kind - 1) if kind else np.int64(0)


@inner
def is_simple(data, i, end):
    while i < end:
        byte = data[i]
        if not (97 <= byte | 32 <= 122 or 48 <= byte <= 58 or byte == 95 or byte == 45 or byte == 46):
            return False
        i += 1
    return True


@inner
def stands_at(data, i, end, word):
    """Whether a word of small letters is at i, in whatever case."""
    if i < 0 or i + len(word) > end:
        return False
    for k in range(len(word)):
        byte = data[i + k]
        if 65 <= byte <= 90:
            byte |= 32
        if byte != word[k]:
            return False
    return True


@inner
def stands_in(data, i, end, word):
    while i + len(word) <= end:
        if stands_at(data, i, end, word):
            return True
        i += 1
    return False


@inner
def ends_in(data, first, last, word):
    return last - len(word) >= first and stands_at(data, last - len(word), last, word)


@inner
def put_row(rows, row, fact, says, first, last):
    rows[row, FACT], rows[row, SAYS], rows[row, FROM], rows[row, TO] = fact, says, first, last
    rows[row, NAME_FROM] = rows[row, NAME_TO] = 0
    return row + 1


@inner
def put_meta(data, i, end, flat, hashes, seen, rows, row, spans, state):
    """The rows of one meta tag; counts it among the descriptions of the page (`spans`) where it is one."""
    found, content, equivalent, named = seen[0], seen[1], seen[2], seen[3:]
    content[LAST] = equivalent[LAST] = named[0, LAST] = named[1, LAST] = named[2, LAST] = -1
    while True:
        i = next_attribute(data, i, end, flat, found)
        if i < 0:
            break
        value = np.uint64(found[HASH])
        if value == CONTENT:
            at = content
        elif value == PROPERTY:
            at = named[0]
        elif value == NAME:
            at = named[1]
        elif value == ITEMPROP:
            at = named[2]
        elif value == EQUIVALENT:
            at = equivalent
        else:
            continue
        if at[LAST] < 0:
            at[FIRST], at[LAST] = found[FIRST], found[LAST]
    if content[LAST] < 0:
        return row
    first, last = content[FIRST], content[LAST]
    if not trim(data, content, flat):
        return row
    if equivalent[LAST] > 0:
        if stands_in(data, equivalent[FIRST], equivalent[LAST], REFRESHES):
            row = put_row(rows, row, REFRESH, NOTHING, first, last)
        elif stands_in(data, equivalent[FIRST], equivalent[LAST], LANGUAGES):
            row = put_row(rows, row, LANGUAGE, NOTHING, first, last)
    for which in range(3):
        name = named[which]
        if name[LAST] < 0 or not trim(data, name, flat):
            continue
        a, b = name[FIRST], name[LAST]
        simple = is_simple(data, a, b)
        known = value_of_hash(small_hash(data, a, b, BASIS), flat, hashes, OF_METAS, METAS) if simple else -1
        if known:
            row = put_row(rows, row, META, known, first, last)
            rows[row - 1, NAME_FROM], rows[row - 1, NAME_TO] = a, b
        if ends_in(data, a, b, DESCRIPTION) or ends_in(data, a, b, TITLE_OF) or ends_in(data, a, b, HEADLINE):
            spans[state[0], 0], spans[state[0], 1], spans[state[0], 2] = FROM_META, first, last
            state[0] += 1
        if known == OG_TYPE:
            state[1] |= bit_of_kind(small_hash(data, content[FIRST], content[LAST], OPENGRAPH), flat, hashes)
        elif stands_at(data, a, b, PRODUCT_OF) or stands_at(data, a, b, PRICE):
            state[1] |= PRODUCT
    return row


@inner
def types_in(data, i, end, flat, hashes):
    """Bits of the types that JSON-LD names; UNCLEAR where there are lists of types, or names written in another way."""
    bits = np.int64(0)
    while True:
        i = find_byte(data, i, end, np.uint8(64)) + 1
        if i >= end:
            return bits
        if not (
            i + 5 < end and data[i - 2] == 34 and data[i] == 116 and data[i + 1] == 121 and data[i + 2] == 112
            and data[i + 3] == 101 and data[i + 4] == 34
        ):  # fmt: skip
            continue
        j = i + 5
        while j < end and flat[MARKS + data[j]] & WHITE:
            j += 1
        if j >= end or data[j] != 58:
            continue
        j += 1
        while j < end and flat[MARKS + data[j]] & WHITE:
            j += 1
        if j < end and data[j] == 91:
            bits |= UNCLEAR
            j += 1
            while j < end and flat[MARKS + data[j]] & WHITE:
                j += 1
        if j >= end or data[j] != 34:
            bits |= UNCLEAR
            continue
        j += 1
        begin, value = j, BASIS
        while j < end and j - begin <= 60 and (97 <= data[j] | 32 <= 122 or 46 <= data[j] <= 47 or data[j] == 58):
            byte = data[j]
            if 65 <= byte <= 90:
                byte |= 32
            value = BASIS if byte == 47 or byte == 58 else (value ^ np.uint64(byte)) * PRIME
            j += 1
        if j < end and data[j] == 34 and 0 < j - begin <= 60:
            bits |= bit_of_kind(value, flat, hashes)
        else:
            bits |= UNCLEAR
        i = j


@inner
def put_value(data, i, end, flat, seen, rows, row, fact, wanted, other):
    """A row of the first attribute of this hash that is not blank, or else of the other one."""
    found, second = seen[0], seen[1]
    second[LAST] = -1
    while True:
        i = next_attribute(data, i, end, flat, found)
        if i < 0:
            break
        if np.uint64(found[HASH]) == wanted and trim(data, found, flat):
            return put_row(rows, row, fact, NOTHING, found[FIRST], found[LAST])
        if np.uint64(found[HASH]) == other and second[LAST] < 0 and trim(data, found, flat):
            second[FIRST], second[LAST] = found[FIRST], found[LAST]
    if second[LAST] > 0:
        return put_row(rows, row, fact, NOTHING, second[FIRST], second[LAST])
    return row


@inner
def put_link(data, i, end, flat, seen, rows, row):
    """A row of the address of a link that says it is canonical."""
    found, address, says = seen[0], seen[1], False
    address[LAST] = -1
    while True:
        i = next_attribute(data, i, end, flat, found)
        if i < 0:
            break
        if np.uint64(found[HASH]) == HREF and address[LAST] < 0:
            address[FIRST], address[LAST] = found[FIRST], found[LAST]
        elif np.uint64(found[HASH]) == REL:
            first, last = found[FIRST], found[LAST]
            while first < last:
                after = first
                while after < last and not flat[MARKS + data[after]] & WHITE:
                    after += 1
                says |= small_hash(data, first, after, BASIS) == CANONICAL
                first = after + 1
    if says and address[LAST] > 0 and trim(data, address, flat):
        return put_row(rows, row, CANONICAL_LINK, NOTHING, address[FIRST], address[LAST])
    return row


@helper
def head_of(data, kinds, starts, ends, flat, hashes):
    """The rows of what a page says of itself; the bits of KNOWN that it calls itself; and the spans of its title, its
    descriptions and its JSON-LD (FROM_TITLE, FROM_META or FROM_JSON, from where, to where)."""
    count = len(kinds)
    rows, spans = np.empty((4 * min(count, MOST_TAGS + MOST_JSON + 1), 6), np.int64), np.empty((3 * count, 3), np.int64)
    state, seen = np.zeros(2, np.int64), np.empty((6, 3), np.int64)
    row, tags, scripts, titled, timed = 0, 0, 0, False, False
    for h in range(count):
        kind, start, end = kinds[h], starts[h], ends[h]
        if kind == HEAD_LIST or kind == HEAD_PRE or kind == HEAD_CELL or kind == HEAD_ITEM:
            continue
        if kind == HEAD_JSON:
            if scripts < MOST_JSON and end - start <= JSON_BYTES:
                scripts += 1
                bits = types_in(data, start, end, flat, hashes)
                state[1] |= bits & (UNCLEAR - 1)
                row = put_row(rows, row, JSON, bits, start, end)
            continue
        tags += 1
        if tags > MOST_TAGS:
            continue
        end = min(end, start + TAG_BYTES)
        if kind == HEAD_TITLE:
            seen[0, FIRST], seen[0, LAST] = start, end
            if not titled and trim(data, seen[0], flat):
                titled = True
                row = put_row(rows, row, TITLE, NOTHING, start, end)
            continue
        i = behind_name(data, start, end, flat)
        if kind == HEAD_META:
            row = put_meta(data, i, end, flat, hashes, seen, rows, row, spans, state)
        elif kind == HEAD_LINK:
            row = put_link(data, i, end, flat, seen, rows, row)
        elif kind == HEAD_HTML:
            row = put_value(data, i, end, flat, seen, rows, row, LANGUAGE, LANG, XML_LANG)
        elif kind == HEAD_BASE:
            row = put_value(data, i, end, flat, seen, rows, row, BASE, HREF, HREF)
        elif kind == HEAD_TIME and not timed:
            before = row
            row = put_value(data, i, end, flat, seen, rows, row, TIME, DATETIME, DATETIME)
            timed = row > before
    described = state[0]
    for h in range(count):
        if kinds[h] == HEAD_TITLE or kinds[h] == HEAD_JSON:
            spans[described, 0] = FROM_TITLE if kinds[h] == HEAD_TITLE else FROM_JSON
            spans[described, 1], spans[described, 2] = starts[h], ends[h]
            described += 1
    return rows[:row], state[1], spans[:described]
