"""Features of every block of a page, from which a model tells main text from the rest: its own text, its place in the
tree, its surroundings; and for a second look, a first model's probabilities of the blocks around it.

Text: no language is assumed. Letters, digits, punctuation and sentence ends are Unicode's (kernels/base/unicode.py);
words are runs of letters, marks, digits and `_`. A page's title, description and JSON-LD often repeat its main text, so
three consecutive words that a block shares with them are counted (hashed, ASCII letters in lower case).

Tree: sums over the contents of each element, groups of like elements, and the chain of elements that leads to most of
the text. Time is linear in blocks and elements: parents stand before their children, so one pass up and one pass down
suffice, and each block looks at LOOK_UP ancestors at most. No feature knows a site; names in class and id count by what
they mean (kernels/html/names.py).

Context: main text is contiguous, but the first model sees each block alone. The second model also gets the first one's
mean probability, weighted by characters, over the neighbors, the containers, the blocks on the same path, the section
under the same heading, and the page.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gristmill.kernels.base import bare
from gristmill.kernels.base.bare import code_point, point_at
from gristmill.kernels.base.compiled import helper, kernel
from gristmill.kernels.base.types import Array, Bytes
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
    properties,
)
from gristmill.kernels.base.wide import bits_of, eight_bytes, lowest
from gristmill.kernels.blocks import columns
from gristmill.kernels.blocks.columns import ABOVE, BITS, FAR, FEATURES, KIND, KNOWN, LEVELS, REACHES
from gristmill.kernels.html.names import TAGS

# --- text: counts of each block ---------------------------------------------------------------------------------------

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
WIDTH = 64  # bytes that are looked at together for words
in_word_bits = bits_of(WIDTH, (48, 57), (65, 90), (95, 95), (97, 122), (128, 255))
beyond_bits = bits_of(WIDTH, (128, 255))
WORD_BITS = 14  # of a word's hash that say whether it may be among the hints' words
ONE, BYTE = np.uint64(1), np.uint64(255)
LOW_BITS, HIGH_BITS, FROM_A, BEYOND_Z = (
    np.uint64(int.from_bytes(bytes([byte]) * 8, "little")) for byte in (0x7F, 0x80, 0x80 - 65, 0x80 - 91)
)
SEED, TITLE_SEED, PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x9AE16A3B2F90404F), np.uint64(0x9E3779B97F4A7C15)


@bare.inlined
def mixed(hash_, value):
    hash_ = (hash_ ^ np.uint64(value)) * PRIME
    return hash_ ^ (hash_ >> np.uint64(29))


@bare.inlined
def triple(first, second, third):
    return mixed(mixed(mixed(SEED, first), second), third)


@bare.inlined
def title_word(word):
    return mixed(TITLE_SEED, word)


@bare.inlined
def chunk_of(data, i, end):
    """Up to eight bytes from i on as one integer, the first byte lowest; ASCII letters in lower case."""
    if i + 8 <= len(data):
        chunk = eight_bytes(data, i)
        if end - i < 8:
            chunk &= (ONE << np.uint64(8 * (end - i))) - ONE
    else:
        chunk = np.uint64(0)
        for k in range(min(end - i, 8)):
            chunk |= np.uint64(data[i + k]) << np.uint64(8 * k)
    small = chunk & LOW_BITS  # of a byte of 65 to 90, and of no other, the sum with 63 has its highest bit, with 37 not
    capital = (small + FROM_A) & ~(small + BEYOND_Z) & ~chunk & HIGH_BITS
    return chunk | capital >> np.uint64(2)


@bare.inlined
def bytes_hash(data, i, end):
    value = SEED ^ np.uint64(end - i)
    while i < end:
        value = mixed(value, chunk_of(data, i, end))
        i += 8
    return value


@bare.inlined
def remember(keys, values, key, value):
    mask = np.uint64(len(keys) - 1)
    place = key & mask
    while keys[place] != 0 and keys[place] != key:
        place = (place + np.uint64(1)) & mask
    keys[place] = key
    values[place] |= value


@bare.inlined
def recall(keys, values, key):
    mask = np.uint64(len(keys) - 1)
    place = key & mask
    while keys[place] != 0:
        if keys[place] == key:
            return values[place]
        place = (place + np.uint64(1)) & mask
    return np.uint8(0)


@bare.inlined
def may_have(words, word):
    """Whether a word may be among those of the hints: their bits in `words`."""
    bit = word >> np.uint64(64 - WORD_BITS)
    return words[bit >> np.uint64(6)] >> (bit & np.uint64(63)) & ONE != 0


@bare.helper
def in_words(data, i, end, properties):
    """Whether a letter, mark or number is at i, which is not ASCII, and where the next character begins."""
    c, length = code_point(data, i, end)
    return properties[c] & (LETTER | MARK | NUMBER) != 0, i + length


@bare.helper
def cut_run(data, i, end, properties, is_word, out, count):
    """Cuts a run of bytes of words and of characters beyond ASCII, which may be no letters, into words."""
    first = end
    while i < end:
        if data[i] < 0x80:
            inside, after = is_word[data[i]], i + 1
        else:
            inside, after = in_words(data, i, end, properties)
        if inside:
            first = min(first, i)
        elif first < end:
            out[count, 0], out[count, 1] = first, i
            count, first = count + 1, end
        i = after
    if first < end:
        out[count, 0], out[count, 1] = first, end
        count += 1
    return count


@bare.inlined
def cut_words(data, i, end, properties, is_word, out):
    """Writes from where to where each word is, and returns how many there are. `is_word` says of each ASCII byte
    whether it belongs to one."""
    count, first, mixed_run = 0, np.int64(-1), False
    while i < end:
        width = min(WIDTH, end - i)
        if i + WIDTH <= len(data):
            bits, beyond = in_word_bits(data, i), beyond_bits(data, i)
        else:
            bits, beyond = np.uint64(0), np.uint64(0)
            for k in range(width):
                byte = data[i + k]
                bits |= np.uint64(byte >= 0x80 or is_word[byte]) << np.uint64(k)
                beyond |= np.uint64(byte >= 0x80) << np.uint64(k)
        if width < WIDTH:
            bits &= (ONE << np.uint64(width)) - ONE
        mixed_run |= beyond != 0
        at = np.int64(0)
        while at < width:
            if first < 0:
                rest = bits >> np.uint64(at)
                if rest == 0:
                    break
                at += lowest(rest)
                first = i + at
            rest = ~bits >> np.uint64(at)
            if rest == 0:
                break
            at += lowest(rest)
            if at >= width:
                break
            if mixed_run:
                count = cut_run(data, first, i + at, properties, is_word, out, count)
            else:
                out[count, 0], out[count, 1] = first, i + at
                count += 1
            first = np.int64(-1)
        mixed_run = beyond != 0 and first >= 0
        i += WIDTH
    return cut_run(data, first, end, properties, is_word, out, count) if first >= 0 else count


@bare.helper
def unescape(data, i, end, out):
    """Writes a JSON text with the characters that its escapes stand for; those that belong to no word are spaces."""
    at = 0
    while i < end:
        if data[i] != 92:
            out[at] = data[i]
            i, at = i + 1, at + 1
            continue
        value, length = np.int64(32), 2
        if i + 5 < end and data[i + 1] == 117:  # \n, \t, \", \/ ...: none belongs to a word
            value, length = np.int64(0), 6
            for k in range(i + 2, i + 6):
                c = np.int64(data[k])
                if 48 <= c <= 57:
                    value = value * 16 + c - 48
                elif 97 <= c | 32 <= 102:
                    value = value * 16 + (c | 32) - 87
                else:
                    value, length = np.int64(32), 2
                    break
        if 0xD800 <= value < 0xE000 or value < 32:
            value = np.int64(32)
        if value < 0x80:
            out[at] = value
            at += 1
        elif value < 0x800:
            out[at], out[at + 1] = 0xC0 | value >> 6, 0x80 | value & 0x3F
            at += 2
        else:
            out[at], out[at + 1], out[at + 2] = 0xE0 | value >> 12, 0x80 | value >> 6 & 0x3F, 0x80 | value & 0x3F
            at += 3
        i += length
    return at


@bare.helper
def put_hints(data, end, kind, properties, is_word, cut, keys, values, words):
    """Remembers the words of a title, or the triples of words of anything else."""
    before, last = np.uint64(0), np.uint64(0)
    for w in range(cut_words(data, 0, end, properties, is_word, cut)):
        word = bytes_hash(data, cut[w, 0], cut[w, 1])
        bit = word >> np.uint64(64 - WORD_BITS)
        words[bit >> np.uint64(6)] |= ONE << (bit & np.uint64(63))
        if kind == FROM_TITLE:
            remember(keys, values, title_word(word) | ONE, np.uint8(kind))
        else:
            if before != 0:
                remember(keys, values, triple(before, last, word) | ONE, np.uint8(kind))
            before, last = last, word


@helper
def hints(data, kinds, starts, ends, properties, is_word) -> tuple[Any, Any, Any]:
    """A hash table of the words of a page's title, and of the word triples of its meta tags and JSON-LD; and a bit for
    each of these words.

    `kinds` are FROM_TITLE, FROM_META, FROM_JSON for spans of the page's bytes.
    """
    total = 0
    for s in range(len(kinds)):
        total += min(max(ends[s] - starts[s], 0), HINT_BYTES) + 1
    size = 16
    while size < min(total, HINT_BYTES) // 2 + 2:
        size *= 2  # a word and what ends it take two bytes at least, so that a place is always free
    keys, values, words = np.zeros(size, np.uint64), np.zeros(size, np.uint8), np.zeros(1 << WORD_BITS - 6, np.uint64)
    remaining = HINT_BYTES
    for s in range(len(kinds)):
        i, end = starts[s], min(ends[s], starts[s] + max(remaining, 0))
        remaining -= max(end - i, 0) + 1
        cut = np.empty((max(end - i, 0) // 2 + 1, 2), np.int64)
        out, size = np.empty(max(end - i, 0), np.uint8), np.int64(0)
        if kinds[s] == FROM_JSON:
            size = unescape(data, i, end, out)
        else:
            while i + size < end:
                out[size] = data[i + size]
                size += 1
        put_hints(out, size, kinds[s], properties, is_word, cut, keys, values, words)
    return keys, values, words


# Numbers of a byte's kinds in one integer, eight bits each, so that 255 bytes are counted by one addition each.
OF_LETTER, OF_UPPER, OF_DIGIT, OF_PUNCTUATION, OF_TERMINAL, OF_COMMA, OF_SYMBOL, OF_LINE = (
    np.uint64(8 * place) for place in range(8)
)
AT_ONCE = 255


@bare.helper
def put_bytes(properties, packed, is_word):
    """Fills what each ASCII byte counts for, and whether it belongs to a word."""
    for c in range(128):
        p = properties[c]
        is_word[c] = p & (LETTER | MARK | NUMBER) != 0 or c == 95
        counted = np.uint64(p & LETTER != 0) << OF_LETTER | np.uint64(p & LETTER != 0 and p & UPPER != 0) << OF_UPPER
        counted |= np.uint64(p & LETTER == 0 and p & DIGIT != 0) << OF_DIGIT
        counted |= np.uint64(p & PUNCTUATION != 0) << OF_PUNCTUATION | np.uint64(p & TERMINAL != 0) << OF_TERMINAL
        counted |= np.uint64(is_comma(c)) << OF_COMMA | np.uint64(c == 10) << OF_LINE
        packed[c] = counted | np.uint64(p & PUNCTUATION == 0 and not is_word[c] and p & SYMBOL != 0) << OF_SYMBOL


@bare.inlined
def is_comma(c):
    return c == 44 or c == 59 or c == 0x3001 or c == 0xFF0C or c == 0x60C


@bare.inlined
def kind_of(c, p):
    """What a character is to `first` and `last`."""
    if p & LETTER:
        return CAPITAL if p & UPPER else SMALL if p & LOWER else CASELESS
    if p & (MARK | NUMBER) or c == 95:
        return DIGITAL if p & DIGIT else PUNCTUATED if c == 95 else OTHER
    if p & PUNCTUATION:
        return ENDS_SENTENCE if p & TERMINAL else COLON if c == 58 or c == 0xFF1A else PUNCTUATED
    return OTHER


@bare.inlined
def last_kind(text, first, end, properties):
    """Of the last character; of the one before a quote or bracket that closes after a full stop."""
    found = OTHER
    while end > first:
        i = end - 1
        while i > first and text[i] & 0xC0 == 0x80:
            i -= 1
        c, _ = point_at(text, i, end)
        kind = kind_of(c, properties[c])
        if kind != PUNCTUATED or c == 95:
            return kind if found == OTHER or kind == ENDS_SENTENCE else found
        found, end = PUNCTUATED, i
    return found


@bare.inlined
def put_characters(text, i, end, properties, packed, row):
    """Fills the columns of counts of characters."""
    characters = letters = upper = digits = punctuation = terminals = commas = symbols = np.int64(0)
    lines = np.int64(1)
    while i < end:
        if text[i] < 0x80:
            last, sums, begin = min(i + AT_ONCE, end), np.uint64(0), i
            while i + 8 <= last:
                chunk = eight_bytes(text, i)
                if chunk & HIGH_BITS != 0:
                    break
                for k in range(8):
                    sums += packed[chunk >> np.uint64(8 * k) & BYTE]
                i += 8
            while i < last and text[i] < 0x80:
                sums += packed[text[i]]
                i += 1
            characters += i - begin
            letters += np.int64(sums >> OF_LETTER & BYTE)
            upper += np.int64(sums >> OF_UPPER & BYTE)
            digits += np.int64(sums >> OF_DIGIT & BYTE)
            punctuation += np.int64(sums >> OF_PUNCTUATION & BYTE)
            terminals += np.int64(sums >> OF_TERMINAL & BYTE)
            commas += np.int64(sums >> OF_COMMA & BYTE)
            symbols += np.int64(sums >> OF_SYMBOL & BYTE)
            lines += np.int64(sums >> OF_LINE & BYTE)
            continue
        c, length = point_at(text, i, end)
        i += length
        characters += 1
        p = properties[c]
        if p & LETTER:
            letters += 1
            upper += p & UPPER != 0
        elif p & (MARK | NUMBER):
            digits += p & DIGIT != 0
        else:
            terminals += p & TERMINAL != 0
            if p & PUNCTUATION:
                punctuation += 1
                commas += is_comma(c)
            else:
                symbols += p & SYMBOL != 0
    row[CHARACTERS], row[LETTERS], row[UPPERS], row[DIGITS] = characters, letters, upper, digits
    row[PUNCTUATIONS], row[TERMINALS], row[COMMAS], row[SYMBOLS] = punctuation, terminals, commas, symbols
    row[LINES] = lines


@bare.inlined
def put_words(text, i, end, properties, is_word, cut, keys, values, known, row):
    """Fills the columns of counts of words."""
    triples = in_json = in_meta = in_title = 0
    before, previous = np.uint64(0), np.uint64(0)
    words = cut_words(text, i, end, properties, is_word, cut)
    for w in range(words):
        word = bytes_hash(text, cut[w, 0], cut[w, 1])
        triples += before != 0
        if may_have(known, word):
            in_title += recall(keys, values, title_word(word) | ONE) & FROM_TITLE != 0
            if before != 0:
                sources = recall(keys, values, triple(before, previous, word) | ONE)
                in_json += (sources & FROM_JSON) != 0
                in_meta += (sources & FROM_META) != 0
        before, previous = previous, word
    row[WORDS], row[TRIPLES] = words, triples
    row[IN_JSON], row[IN_META], row[IN_TITLE] = in_json, in_meta, in_title


@helper
def counted(data, kinds, starts, ends, properties, text, start) -> tuple[Any, Any]:
    """counts[block, column of COUNTS] and a hash of each block's text; the spans are those of `hints`."""
    blocks = len(start) - 1
    counts, hashes = np.empty((blocks, len(COUNTS)), np.int32), np.empty(blocks, np.uint64)
    packed, is_word = np.empty(128, np.uint64), np.empty(128, np.bool_)
    put_bytes(properties, packed, is_word)
    keys, values, known = hints(data, kinds, starts, ends, properties, is_word)
    longest = 0
    for b in range(blocks):
        longest = max(longest, start[b + 1] - start[b])
    cut = np.empty((longest // 2 + 1, 2), np.int64)
    put_counts(text, start, properties, packed, is_word, cut, keys, values, known, counts, hashes)
    return counts, hashes


@bare.helper
def put_counts(text, start, properties, packed, is_word, cut, keys, values, known, counts, hashes):
    for b in range(len(start) - 1):
        i, end, row = start[b], start[b + 1], counts[b]
        put_characters(text, i, end, properties, packed, row)
        put_words(text, i, end, properties, is_word, cut, keys, values, known, row)
        row[FIRST] = row[LAST] = OTHER
        if i < end:
            c, _ = point_at(text, i, end)
            row[FIRST], row[LAST] = kind_of(c, properties[c]), last_kind(text, i, end, properties)
        hashes[b] = whole_hash(text, i, end)


@bare.inlined
def whole_hash(text, i, end):
    value = SEED ^ np.uint64(end - i)
    while i + 8 <= end:
        value = mixed(value, eight_bytes(text, i))
        i += 8
    while i < end:
        value = mixed(value, text[i])
        i += 1
    return value


# --- tree: sums, groups, chains ---------------------------------------------------------------------------------------

# Columns of `sums` over what is inside an element.
S_CHARACTERS, S_LINKED, S_PUNCTUATION, S_TERMINALS, S_BLOCKS, S_PROSE = range(6)
PROSE = 60  # characters of a block of prose at least


class ElementGroups(NamedTuple):
    """Elements with the same parent, tag and first class, as `tree_shape` fills them."""

    of_element: Array  # int32[elements]; -1 where no block is inside the element
    index: Array  # int32[elements]: the element's place in its group, from 0
    sizes: Array  # int32[groups]
    sums: Array  # int64[groups, S_...]


class Chain(NamedTuple):
    """The way from the root down to most of a page's text."""

    rank: Array  # int32[elements]: 0 for the root; -1 beside the chain
    end: int  # the innermost element


@bare.inlined
def share(part, whole):
    return np.float32(part) / np.float32(whole) if whole > 0 else np.float32(0)


@bare.inlined
def is_prose(counts, linked):
    return counts[CHARACTERS] >= PROSE and counts[TERMINALS] > 0 and 2 * linked < counts[CHARACTERS]


@bare.helper
def sum_up(parent, element, linked, counts, sums):
    """sums[element, S_...] over the blocks inside each element; a parent stands before its children."""
    for b in range(len(element)):
        row, c = sums[element[b]], counts[b]
        row[S_CHARACTERS] += c[CHARACTERS]
        row[S_LINKED] += min(linked[b], c[CHARACTERS])
        row[S_PUNCTUATION] += c[PUNCTUATIONS]
        row[S_TERMINALS] += c[TERMINALS]
        row[S_BLOCKS] += 1
        if is_prose(c, linked[b]):
            row[S_PROSE] += c[CHARACTERS]
    for e in range(len(parent) - 1, 0, -1):
        if parent[e] >= 0:
            add_row(sums, parent[e], sums, e)


@bare.inlined
def add_row(to, row, values, other):
    for column in range(6):
        to[row, column] += values[other, column]


@helper
def table_for(count) -> tuple[Any, Any]:
    """Keys and numbers of an empty hash table of so many rows."""
    size = 16
    while size < 2 * count:
        size *= 2
    return np.zeros(size, np.uint64), np.zeros(size, np.int32)


@bare.helper
def tree_shape(parent, alike, sums, path, groups, keys, numbers):
    """Fills a hash of each element's path, and the groups of like elements; `keys`, `numbers`: a table for elements."""
    n = len(parent)
    mask = np.uint64(len(keys) - 1)
    count = 0
    for e in range(n):
        up = parent[e]
        path[e] = mixed(path[up] if up >= 0 else SEED, alike[e])
        if sums[e, S_BLOCKS] == 0:  # no block is inside: no group needs it
            groups.of_element[e], groups.index[e] = -1, 0
            continue
        key = mixed(mixed(SEED, up + 1), alike[e]) | np.uint64(1)
        place = key & mask
        while keys[place] != 0 and keys[place] != key:
            place = (place + np.uint64(1)) & mask
        if keys[place] == 0:
            keys[place] = key
            numbers[place] = count
            groups.sizes[count] = 0
            for column in range(6):
                groups.sums[count, column] = 0
            count += 1
        g = numbers[place]
        groups.of_element[e], groups.index[e] = g, groups.sizes[g]
        groups.sizes[g] += 1
        add_row(groups.sums, g, sums, e)


@bare.helper
def chain(parent, sums, column, ranks, heaviest):
    """Fills ranks[element] along the chain from the root to the innermost element with half of the page's sum in a
    column; -1 beside it. Returns the end of the chain."""
    n = len(parent)
    for e in range(n):
        up = parent[e]
        ranks[e] = heaviest[e] = -1
        if up >= 0 and (heaviest[up] < 0 or sums[e, column] > sums[heaviest[up], column]):
            heaviest[up] = e
    e, rank = 0, 0
    ranks[0] = 0
    while heaviest[e] >= 0 and sums[0, column] > 0 and 2 * sums[heaviest[e], column] >= sums[0, column]:
        e, rank = heaviest[e], rank + 1
        ranks[e] = rank
    return e


# --- features of a block ----------------------------------------------------------------------------------------------

LOOK_UP = 64

KIND_OF_TAG = np.array([KIND.get(tag, -1) for tag in TAGS], np.int8)
HEADING_OF_TAG = np.array([int(tag[1]) if tag in {"h1", "h2", "h3", "h4", "h5", "h6"} else 0 for tag in TAGS], np.int8)
LEVEL_COLUMN = np.array([LEVELS.index(level) if level in LEVELS else -1 for level in range(max(LEVELS) + 1)], np.int8)
TAG_ARTICLE, TAG_MAIN, TAG_FORM, TAG_H1 = (TAGS.index(name) for name in ("article", "main", "form", "h1"))
TO_P, TO_LI, TO_TD = (columns.TO_KIND + KIND[name] for name in ("p", "li", "td"))


class Elements(NamedTuple):
    """The elements of a page, parents before their children."""

    tag: Array
    parent: Array
    bits: Array
    sums: Array  # int64[elements, S_...]
    path: Array  # uint64[elements]: a hash of the tags and first classes from the root on


class PageBlocks(NamedTuple):
    """The blocks of a page."""

    element: Array
    linked: Array
    counts: Array


class Ancestry(NamedTuple):
    """What a block meets on the way up to the root."""

    steps: int  # elements above it, LOOK_UP at most
    levels: int  # containers that hold more blocks than the one before
    nearest_group: int  # of three siblings or more; -1 if there is none
    nearest_level: int
    nearest_element: int  # the one that is in the nearest group
    most_group: int  # the group with the most text
    most_level: int
    core_join: int  # the rank in the core of the first element that belongs to it; -1 if none does
    core_steps: int
    branch: int  # the element through which the block hangs in the core
    bulk_join: int
    bulk_steps: int


@bare.helper
def own_features(counts, hashes, linked, keys, times, places, out):
    """The features of a block's own text, and how often the page repeats it; `keys`, `times`: a table for blocks."""
    n = len(counts)
    mask = np.uint64(len(keys) - 1)
    for b in range(n):
        row, c = out[b], counts[b]
        characters = c[CHARACTERS]
        row[columns.CHARACTERS] = characters
        row[columns.WORDS] = c[WORDS]
        row[columns.LINK_SHARE] = share(min(linked[b], characters), characters)
        row[columns.LETTER_SHARE] = share(c[LETTERS], characters)
        row[columns.UPPER_SHARE] = share(c[UPPERS], c[LETTERS])
        row[columns.DIGIT_SHARE] = share(c[DIGITS], characters)
        row[columns.PUNCTUATION_SHARE] = share(c[PUNCTUATIONS], characters)
        row[columns.TERMINAL_SHARE] = share(c[TERMINALS], characters)
        row[columns.COMMA_SHARE] = share(c[COMMAS], characters)
        row[columns.SYMBOL_SHARE] = share(c[SYMBOLS], characters)
        row[columns.WORD_LENGTH] = share(c[LETTERS] + c[DIGITS], c[WORDS])
        row[columns.LAST] = c[LAST]
        row[columns.FIRST] = c[FIRST]
        row[columns.LINES] = c[LINES]
        row[columns.JSON_SHARE] = share(c[IN_JSON], c[TRIPLES])
        row[columns.META_SHARE] = share(c[IN_META], c[TRIPLES])
        row[columns.TITLE_SHARE] = share(c[IN_TITLE], c[WORDS])
        key = hashes[b] | np.uint64(1)
        place = key & mask
        while keys[place] != 0 and keys[place] != key:
            place = (place + np.uint64(1)) & mask
        keys[place] = key
        row[columns.COPY] = times[place]
        times[place] += 1
        places[b] = place
    for b in range(n):
        out[b, columns.COPIES] = times[places[b]]


@bare.inlined
def _put_container(row, level, inside, total):
    """What a container holds, in the columns of this number in LEVELS."""
    first = columns.AT_CONTAINED + columns.CONTAINER_COLUMNS * level
    characters = inside[S_CHARACTERS]
    row[first + columns.CONTAINER_SHARE] = share(characters, total)
    row[first + columns.CONTAINER_LINK_SHARE] = share(inside[S_LINKED], characters)
    row[first + columns.CONTAINER_PUNCTUATION] = share(inside[S_PUNCTUATION], characters)
    row[first + columns.CONTAINER_PER_BLOCK] = share(characters, inside[S_BLOCKS])
    row[first + columns.CONTAINER_TERMINALS] = share(inside[S_TERMINALS], characters)


@bare.inlined
def _climb(b, start, elements, groups, core, bulk, total, heading, row):
    """Walks from a block's element to the root, and fills the columns of what is above the block on the way."""
    row[columns.AT_ABOVE : columns.AT_ABOVE + len(ABOVE)] = FAR
    heading[b] = 0
    steps, branches, most_blocks = 0, 0, np.int64(-1)
    nearest_group, nearest_level, nearest_element = np.int64(-1), FAR, np.int64(-1)
    most_group, most_level = np.int64(-1), FAR
    core_join, core_steps, bulk_join, bulk_steps = np.int64(-1), FAR, np.int64(-1), FAR
    element = branch = below = np.int64(start)
    while element >= 0 and steps < LOOK_UP:
        bits = elements.bits[element]
        bit = 0
        while bits != 0 and bit < BITS:
            if bits & 1 and row[columns.TO_BIT + bit] == FAR:
                row[columns.TO_BIT + bit] = steps
            bits >>= 1
            bit += 1
        kind = KIND_OF_TAG[elements.tag[element]]
        if kind >= 0 and row[columns.TO_KIND + kind] == FAR:
            row[columns.TO_KIND + kind] = steps
        if heading[b] == 0 and steps < 4:
            heading[b] = HEADING_OF_TAG[elements.tag[element]]
        if elements.sums[element, S_BLOCKS] > most_blocks:
            most_blocks = elements.sums[element, S_BLOCKS]
            if branches < len(LEVEL_COLUMN) and LEVEL_COLUMN[branches] >= 0:
                _put_container(row, LEVEL_COLUMN[branches], elements.sums[element], total)
            branches += 1
        group = np.int64(groups.of_element[element])
        if group >= 0 and groups.sizes[group] >= 3:
            if nearest_group < 0:
                nearest_group, nearest_level, nearest_element = group, steps, element
            if most_group < 0 or groups.sums[group, S_CHARACTERS] > groups.sums[most_group, S_CHARACTERS]:
                most_group, most_level = group, steps
        if core_join < 0 and core.rank[element] >= 0:
            core_join, core_steps, branch = np.int64(core.rank[element]), steps, below
        if bulk_join < 0 and bulk.rank[element] >= 0:
            bulk_join, bulk_steps = np.int64(bulk.rank[element]), steps
        below = element
        steps += 1
        element = np.int64(elements.parent[element])
    return Ancestry(
        steps, branches, nearest_group, nearest_level, nearest_element, most_group, most_level, core_join, core_steps,
        branch, bulk_join, bulk_steps,
    )  # fmt: skip


@bare.inlined
def _put_siblings(row, above, groups, sums, total):
    """The nearest group of like siblings above a block, and the one with the most text."""
    if above.nearest_group < 0:
        row[columns.SIBLINGS : columns.MOST_SIBLINGS_LINK_SHARE + 1] = 0
        return
    size, inside = groups.sizes[above.nearest_group], groups.sums[above.nearest_group]
    length = share(inside[S_CHARACTERS], size)
    row[columns.SIBLINGS] = size
    row[columns.SIBLING_INDEX] = share(groups.index[above.nearest_element], size)
    row[columns.SIBLING_LEVEL] = above.nearest_level
    row[columns.SIBLINGS_SHARE] = share(inside[S_CHARACTERS], total)
    row[columns.SIBLINGS_LENGTH] = length
    row[columns.SIBLINGS_LINK_SHARE] = share(inside[S_LINKED], inside[S_CHARACTERS])
    row[columns.SIBLING_LENGTH_RATIO] = share(sums[above.nearest_element, S_CHARACTERS], length)
    most = groups.sums[above.most_group]
    row[columns.MOST_SIBLINGS_SHARE] = share(most[S_CHARACTERS], total)
    row[columns.MOST_SIBLINGS] = groups.sizes[above.most_group]
    row[columns.MOST_SIBLINGS_LEVEL] = above.most_level
    row[columns.MOST_SIBLINGS_LINK_SHARE] = share(most[S_LINKED], most[S_CHARACTERS])


@bare.inlined
def _put_core(row, above, groups, core, bulk, sums, total):
    """How far a block is from the page's core (most of its prose) and bulk (most of its text), and its branch."""
    row[columns.CORE_STEPS] = above.core_steps
    row[columns.CORE_JOIN] = core.rank[core.end] - above.core_join if above.core_join >= 0 else FAR
    row[columns.CORE_SHARE] = share(sums[core.end, S_CHARACTERS], total)
    inside, group = sums[above.branch], groups.of_element[above.branch]
    row[columns.BRANCH_SHARE] = share(inside[S_CHARACTERS], total)
    row[columns.BRANCH_LINK_SHARE] = share(inside[S_LINKED], inside[S_CHARACTERS])
    row[columns.BRANCH_TERMINALS] = share(inside[S_TERMINALS], inside[S_CHARACTERS])
    row[columns.BRANCH_PER_BLOCK] = share(inside[S_CHARACTERS], inside[S_BLOCKS])
    row[columns.BRANCH_SIBLINGS] = groups.sizes[group]
    row[columns.BRANCH_SIBLINGS_SHARE] = share(groups.sums[group, S_CHARACTERS], total)
    row[columns.BULK_STEPS] = above.bulk_steps
    row[columns.BULK_JOIN] = bulk.rank[bulk.end] - above.bulk_join if above.bulk_join >= 0 else FAR
    row[columns.BULK_SHARE] = share(sums[bulk.end, S_CHARACTERS], total)


@bare.helper
def placed_features(elements, blocks, groups, core, bulk, heading, keys, numbers, path_of, alike, out):
    """The features of a block's place: the elements above it, what its containers hold, and what is like it. `keys`,
    `numbers`: a table for blocks; `alike`: blocks, characters, linked, terminals by path."""
    n, sums = len(blocks.element), elements.sums
    total, all_prose = sums[0, S_CHARACTERS], sums[0, S_PROSE]
    core_rank = core.rank[core.end]
    before = prose = paths = 0
    mask = np.uint64(len(keys) - 1)
    first_inside, last_inside = n, -1
    for b in range(n):
        row, element = out[b], blocks.element[b]
        characters = blocks.counts[b, CHARACTERS]
        row[columns.INDEX_SHARE] = share(b, n)
        row[columns.BEFORE_SHARE] = share(before, total)
        row[columns.BLOCK_COUNT] = n
        row[columns.PAGE_CHARACTERS] = total
        row[columns.PAGE_LINK_SHARE] = share(sums[0, S_LINKED], total)
        before += characters
        above = _climb(b, element, elements, groups, core, bulk, total, heading, row)
        row[columns.DEPTH] = above.steps
        for level in range(len(LEVELS)):  # fewer containers than levels: the outermost stands for those above it
            if LEVELS[level] >= above.levels:
                _put_container(row, level, sums[0], total)
        _put_siblings(row, above, groups, sums, total)
        _put_core(row, above, groups, core, bulk, sums, total)
        row[columns.PROSE_BEFORE] = share(prose, all_prose)
        if is_prose(blocks.counts[b], blocks.linked[b]):
            prose += characters
        row[columns.PROSE_AFTER] = share(all_prose - prose, all_prose)
        if above.core_join == core_rank:
            first_inside, last_inside = min(first_inside, b), b
        key = elements.path[element] | np.uint64(1)
        place = key & mask
        while keys[place] != 0 and keys[place] != key:
            place = (place + np.uint64(1)) & mask
        if keys[place] == 0:
            keys[place], numbers[place] = key, paths
            paths += 1
        path_of[b] = numbers[place]
        like = alike[path_of[b]]
        like[0] += 1
        like[1] += characters
        like[2] += min(blocks.linked[b], characters)
        like[3] += blocks.counts[b, TERMINALS]
    for b in range(n):
        row, like = out[b], alike[path_of[b]]
        row[columns.ALIKE_BLOCKS] = like[0]
        row[columns.ALIKE_SHARE] = share(like[0], n)
        row[columns.ALIKE_LENGTH] = share(like[1], like[0])
        row[columns.ALIKE_LINK_SHARE] = share(like[2], like[1])
        row[columns.ALIKE_TERMINALS] = share(like[3], like[1])
        position = 0
        if last_inside >= 0:
            position = min(b - first_inside, 0) + max(b - last_inside, 0)
        row[columns.CORE_POSITION] = np.float32(position) / np.float32(n)
        row[columns.LIKE_PREVIOUS] = b > 0 and path_of[b] == path_of[b - 1]
        row[columns.LIKE_NEXT] = b + 1 < n and path_of[b] == path_of[b + 1]


@bare.inlined
def _put_neighbours(b, out, row):
    """Six columns of each of the three blocks before and the three after; -1 where the page ends."""
    column = columns.AT_AROUND
    for distance in range(-3, 4):
        if distance == 0:
            continue
        if 0 <= b + distance < len(out):
            other = out[b + distance]
            row[column] = other[columns.CHARACTERS]
            row[column + 1] = other[columns.LINK_SHARE]
            row[column + 2] = other[columns.TERMINAL_SHARE]
            row[column + 3] = other[columns.PUNCTUATION_SHARE]
            row[column + 4] = other[columns.UPPER_SHARE]
            row[column + 5] = other[columns.DIGIT_SHARE]
        else:
            row[column : column + 6] = -1
        column += 6


@bare.inlined
def _put_windows(b, n, ends, row):
    """Means over the blocks within each reach."""
    column = columns.AT_WINDOWS
    for reach in REACHES:
        low, high = max(b - reach, 0), min(b + reach + 1, n)
        length = ends[high, 0] - ends[low, 0]
        row[column] = share(length, high - low)
        for what in range(1, 4):
            row[column + what] = share(ends[high, what] - ends[low, what], length)
        column += 4


@bare.helper
def around_features(tag, counts, linked, heading, page_kinds, ends, out):
    """The features of a block's neighbours, of the heading above it, and of the page as a whole; `ends`: sums of
    length, link, terminals, punctuation up to each block."""
    n = len(counts)
    first_h1, titled, best = -1, -1, np.float32(0)
    total = paragraphs = items = cells = terminals = covered = long_blocks = headings = 0
    for b in range(n):
        c = counts[b]
        characters = c[CHARACTERS]
        ends[b + 1, 0] = ends[b, 0] + characters
        ends[b + 1, 1] = ends[b, 1] + min(linked[b], characters)
        ends[b + 1, 2] = ends[b, 2] + c[TERMINALS]
        ends[b + 1, 3] = ends[b, 3] + c[PUNCTUATIONS]
        total += characters
        terminals += c[TERMINALS]
        headings += heading[b] > 0
        long_blocks += characters >= 2 * PROSE
        if out[b, TO_P] < FAR:
            paragraphs += characters
        if out[b, TO_LI] < FAR:
            items += characters
        if out[b, TO_TD] < FAR:
            cells += characters
        if 2 * c[IN_JSON] > c[TRIPLES]:
            covered += characters
        if first_h1 < 0 and heading[b] == 1:
            first_h1 = b
        in_title = c[IN_TITLE]
        if in_title > 1 or in_title == c[WORDS]:
            worth = share(in_title * in_title, c[WORDS]) * (2 if heading[b] > 0 else 1)
            if worth > best:
                titled, best = b, worth
    articles = mains = forms = h1s = 0
    for e in range(len(tag)):
        t = tag[e]
        articles += t == TAG_ARTICLE
        mains += t == TAG_MAIN
        forms += t == TAG_FORM
        h1s += t == TAG_H1
    last_level, last_block = 0, -1
    for b in range(n):
        row = out[b]
        row[columns.HEADING] = heading[b]
        row[columns.LAST_HEADING] = last_level
        row[columns.SINCE_HEADING] = ends[b, 0] - ends[last_block + 1, 0]
        row[columns.BLOCKS_SINCE_HEADING] = b - last_block
        if heading[b] > 0:
            last_level, last_block = heading[b], b
        row[columns.FROM_H1] = share(ends[b, 0] - ends[first_h1, 0], total) if first_h1 >= 0 else 2
        row[columns.BLOCKS_FROM_H1] = b - first_h1 if first_h1 >= 0 else 10_000
        row[columns.FROM_TITLE] = share(ends[b, 0] - ends[titled, 0], total) if titled >= 0 else 2
        row[columns.BLOCKS_FROM_TITLE] = b - titled if titled >= 0 else 10_000
        _put_neighbours(b, out, row)
        _put_windows(b, n, ends, row)
        row[columns.ELEMENTS] = len(tag)
        row[columns.ARTICLES] = articles
        row[columns.MAINS] = mains
        row[columns.FORMS] = forms
        row[columns.H1S] = h1s
        row[columns.HEADINGS] = headings
        row[columns.PARAGRAPH_SHARE] = share(paragraphs, total)
        row[columns.ITEM_SHARE] = share(items, total)
        row[columns.CELL_SHARE] = share(cells, total)
        row[columns.TERMINAL_DENSITY] = share(terminals, total)
        row[columns.JSON_COVERED] = share(covered, total)
        row[columns.LONG_BLOCKS] = long_blocks
        for k in range(len(KNOWN)):
            row[columns.SAYS + k] = (page_kinds >> k) & 1
    until = ends[n, 0]
    for b in range(n - 1, -1, -1):
        out[b, columns.UNTIL_HEADING] = until - ends[b + 1, 0]
        if heading[b] > 0:
            until = ends[b, 0]


COLUMNS_OF_BLOCK = len(FEATURES)


class Tree(NamedTuple):
    """What the features of a page were computed from, for a second look at it."""

    sums: Array  # int64[elements, S_...]
    path: Array  # uint64[elements]: a hash of the tags and first classes from the root on
    group: Array  # int32[elements]: the same for like elements with one parent; -1 where no block is inside
    heading: Array  # int8[blocks]: 1 to 6 where a block is a heading


@helper
def features_of(tag, parent, bits, alike, element, linked, counts, hashes, page_kinds, room):
    """The rows of features of a page whose blocks are measured, and the fields of `Tree`."""
    blocks, elements = len(element), len(tag)
    out = np.zeros((blocks, COLUMNS_OF_BLOCK + room), np.float32)
    sums, group_sums = np.zeros((elements, 6), np.int64), np.empty((elements, 6), np.int64)
    core, bulk = np.empty(elements, np.int32), np.empty(elements, np.int32)
    of_element, sizes, index = np.empty(elements, np.int32), np.empty(elements, np.int32), np.empty(elements, np.int32)
    path, heading = np.empty(elements, np.uint64), np.zeros(blocks, np.int8)
    if blocks > 0:
        groups = ElementGroups(of_element, index, sizes, group_sums)
        own_features(counts, hashes, linked, *table_for(blocks), np.empty(blocks, np.int64), out)
        sum_up(parent, element, linked, counts, sums)
        tree_shape(parent, alike, sums, path, groups, *table_for(elements))
        heaviest = np.empty(elements, np.int32)
        placed_features(
            Elements(tag, parent, bits, sums, path),
            PageBlocks(element, linked, counts),
            groups,
            Chain(core, chain(parent, sums, S_PROSE, core, heaviest)),
            Chain(bulk, chain(parent, sums, S_CHARACTERS, bulk, heaviest)),
            heading,
            *table_for(blocks),
            np.empty(blocks, np.int32),
            np.zeros((blocks, 4), np.int64),
            out,
        )
        around_features(tag, counts, linked, heading, page_kinds, np.zeros((blocks + 1, 4), np.int64), out)
    return out, sums, path, of_element, heading


@kernel
def measured_page(
    data, kinds, starts, ends, properties, text, start, tag, parent, bits, alike, element, linked, page_kinds, room
) -> Any:
    """What `measure_page` returns, in one call."""
    counts, hashes = counted(data, kinds, starts, ends, properties, text, start)
    return counts, features_of(tag, parent, bits, alike, element, linked, counts, hashes, page_kinds, room)


def measure_page(
    data: Bytes, page: Any, kinds: Array, starts: Array, ends: Array, page_kinds: int, room: int = 0
) -> tuple[Array, Array, Tree]:
    """int32[blocks, COUNTS] and float32[blocks, FEATURES] of a page (kernels/html/segment.py), with `room` for more
    columns, and the tree. Spans of `data` (kinds FROM_TITLE, FROM_META, FROM_JSON) say what the page is about, and
    `page_kinds` (bits of KNOWN) what it calls itself."""
    counts, (rows, *tree) = measured_page(
        data, kinds, starts, ends, properties(), page.text, page.start, page.tag, page.parent, page.bits, page.alike,
        page.element, page.linked, page_kinds, room,
    )  # fmt: skip
    return counts, rows, Tree(*tree)


# --- context: columns for the second model ----------------------------------------------------------------------------

CONTEXT = (
    "said", "said_-2", "said_-1", "said_+1", "said_+2", "said_within_4", "said_within_12",
    *(f"said_{level}_up" for level in LEVELS),
    "said_alike", "said_siblings", "said_page", "said_section", "said_last_section", "rank", "after_first",
    "before_last",
)  # fmt: skip
COLUMNS = COLUMNS_OF_BLOCK + len(CONTEXT)
AT_CONTEXT = COLUMNS_OF_BLOCK
AT_LEVELS = AT_CONTEXT + 7
AT_ALIKE = AT_LEVELS + len(LEVELS)
STEPS = 64  # of rank


@helper
def put_context(first, counts, parent, element, tree_sums, path, group, heading, out):
    """Fills the columns from AT_CONTEXT on; `first` are the first model's probabilities, float32[blocks]."""
    n, elements = len(first), len(parent)
    keys, _ = table_for(2 * n)
    fill_context(
        first, counts, parent, element, tree_sums, path, group, heading, np.zeros((elements, 2)), np.zeros((n + 1, 2)),
        np.zeros(STEPS + 1), keys, np.zeros((len(keys), 2)), np.zeros((elements, 2)), np.empty(n, np.int64), out,
    )  # fmt: skip


@bare.helper
def fill_context(
    first, counts, parent, element, tree_sums, path, group, heading, inside, ends, ranks, keys, alike, among, places, out
):  # fmt: skip
    """As `put_context`; `inside`: characters of an element, and characters times probability."""
    n, elements = len(first), len(parent)
    begin, finish = -1, -1
    for b in range(n):
        weight = counts[b, CHARACTERS]
        weighted = weight * np.float64(first[b])
        inside[element[b], 0] += weight
        inside[element[b], 1] += weighted
        ends[b + 1, 0] = ends[b, 0] + weight
        ends[b + 1, 1] = ends[b, 1] + weighted
        ranks[np.int64(first[b] * STEPS)] += weight
        if first[b] > 0.5:
            begin = b if begin < 0 else begin
            finish = b
    for e in range(elements - 1, 0, -1):
        if parent[e] >= 0:
            inside[parent[e], 0] += inside[e, 0]
            inside[parent[e], 1] += inside[e, 1]
    for e in range(elements):
        if group[e] >= 0:
            among[group[e], 0] += inside[e, 0]
            among[group[e], 1] += inside[e, 1]
    mask = np.uint64(len(keys) - 1)
    for b in range(n):
        key = path[element[b]] | np.uint64(1)
        place = key & mask
        while keys[place] != 0 and keys[place] != key:
            place = (place + np.uint64(1)) & mask
        keys[place] = key
        alike[place, 0] += ends[b + 1, 0] - ends[b, 0]
        alike[place, 1] += ends[b + 1, 1] - ends[b, 1]
        places[b] = place
    above = ends[n, 0]
    for step in range(STEPS + 1):
        above -= ranks[step]
        ranks[step] = above
    section_from, section_to, last_section = 0, -1, np.float32(-1)
    for b in range(n):
        row = out[b]
        row[AT_CONTEXT] = first[b]
        column = AT_CONTEXT + 1
        for d in (-2, -1, 1, 2):
            row[column] = first[b + d] if 0 <= b + d < n else -1
            column += 1
        for reach in (4, 12):
            low, high = max(b - reach, 0), min(b + reach + 1, n)
            row[column] = share(ends[high, 1] - ends[low, 1], ends[high, 0] - ends[low, 0])
            column += 1
        ancestor, steps, branch, held, nearest = element[b], 0, 0, -1, -1
        while ancestor >= 0 and steps < LOOK_UP:
            if tree_sums[ancestor, S_BLOCKS] > held:
                held = tree_sums[ancestor, S_BLOCKS]
                for level in range(len(LEVELS)):
                    if LEVELS[level] == branch:
                        row[AT_LEVELS + level] = share(inside[ancestor, 1], inside[ancestor, 0])
                branch += 1
            around = max(parent[ancestor], 0)
            if nearest < 0 and group[ancestor] >= 0 and tree_sums[ancestor, S_BLOCKS] < tree_sums[around, S_BLOCKS]:
                nearest = group[ancestor]
            steps += 1
            ancestor = parent[ancestor]
        for level in range(len(LEVELS)):
            if LEVELS[level] >= branch:
                row[AT_LEVELS + level] = share(inside[0, 1], inside[0, 0])
        row[AT_ALIKE] = share(alike[places[b], 1], alike[places[b], 0])
        row[AT_ALIKE + 1] = share(among[nearest, 1], among[nearest, 0]) if nearest >= 0 else -1
        row[AT_ALIKE + 2] = share(ends[n, 1], ends[n, 0])
        if b > section_to:  # a section: one heading or several in a row, and the blocks up to the next heading
            if section_to >= 0:
                last_section = share(ends[b, 1] - ends[section_from, 1], ends[b, 0] - ends[section_from, 0])
            section_from = section_to = b
            while section_to + 1 < n and heading[section_to + 1] > 0 and heading[section_to] > 0:
                section_to += 1
            while section_to + 1 < n and heading[section_to + 1] == 0:
                section_to += 1
        row[AT_ALIKE + 3] = share(
            ends[section_to + 1, 1] - ends[section_from, 1], ends[section_to + 1, 0] - ends[section_from, 0]
        )
        row[AT_ALIKE + 4] = last_section
        row[AT_ALIKE + 5] = share(ranks[np.int64(first[b] * STEPS)], ends[n, 0])
        row[AT_ALIKE + 6] = b - begin if begin >= 0 else 10_000
        row[AT_ALIKE + 7] = finish - b if begin >= 0 else 10_000


@kernel
def context_features(first, counts, parent, element, tree_sums, path, group, heading, out) -> None:
    """As `put_context`, for those who have the first model's probabilities from elsewhere."""
    put_context(first, counts, parent, element, tree_sums, path, group, heading, out)
