"""Lookup tables of the HTML segmenter: tags and attributes by hash, kinds of byte, words of classes, named character
references.

They are made from `kernels/html/names.py` and Python's `html.entities.html5` (the standard's list) at first use: 0.1 s
a process.
"""

from __future__ import annotations

import html.entities
from collections import deque
from functools import cache
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.kernels.html import names

# Constants that are handed to functions of kernels are numpy's: for each Python integer numba would compile the
# function anew.

# Kinds of element, as bits of `Tables.kinds`.
BLOCK, LEAF, SPECIAL, ENDS_P, FORMATTING, RAW, UNSEEN, BREAKS_OUT, INLINE, HEADING, RCDATA = (1 << i for i in range(11))
SCOPE, BUTTON_SCOPE, LIST_SCOPE, TABLE_SCOPE = (np.int64(1 << i) for i in range(11, 15))

# Attributes that are looked at. Those up to ITEMTYPE and TESTID say what an element is, by words.
ATTRIBUTES = (
    "", "class", "id", "role", "itemprop", "itemtype", "data-testid", "data-component", "style", "hidden",
    "aria-hidden", "href", "type",
    "encoding", "alttext", "display", "shadowrootmode", "open", "colspan", "rowspan", "value",
)  # fmt: skip
(CLASS, STYLE, HIDDEN, ARIA_HIDDEN, HREF, TYPE, ENCODING, ALTTEXT, DISPLAY, SHADOWROOTMODE, OPEN, COLSPAN, ROWSPAN,
    VALUE) = (
    ATTRIBUTES.index(name)
    for name in (
        "class",
        "style",
        "hidden",
        "aria-hidden",
        "href",
        "type",
        "encoding",
        "alttext",
        "display",
        "shadowrootmode",
        "open",
        "colspan",
        "rowspan",
        "value",
    )
)  # fmt: skip

# Places in `Tables.flat`, each of 256 bytes. TEXT, ATTRIBUTE, AS_IT_STANDS: what a byte is between tags, in an
# attribute, in raw text.
SLOTS = 1024
MARKS, LETTERS, TEXT, ATTRIBUTE, AS_IT_STANDS = map(np.int64, range(0, 1280, 256))
TAG_SLOTS, ATTRIBUTE_SLOTS, META_SLOTS, KIND_SLOTS = range(1280, 1280 + 4 * SLOTS, SLOTS)

SAID = 28  # column of `Tables.words`

# What a byte is to names and values in a tag: bits at MARKS.
WHITE, ENDS_TAG_NAME, ENDS_ATTRIBUTE_NAME, ENDS_VALUE = 1, 2, 4, 8

# What a byte of text is: values at TEXT. The first two are copied as they are; the value counts code points.
CONTINUES, BEGINS, SPACE, TAG, REFERENCE, CONTROL, LOOK = range(7)

DROPPED = (
    *range(0x00, 0x09), *range(0x0E, 0x20), 0x7F, 0xAD, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F),
    *range(0x2060, 0x2065), *range(0x2066, 0x206A), 0xFEFF,
)  # fmt: skip
SPACES = (*range(0x09, 0x0E), 0x20, 0xA0, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
# What &#128; to &#159; stand for: Windows-1252, where it has a character.
WINDOWS = tuple(
    ord(bytes([b]).decode("cp1252")) if b not in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else b for b in range(0x80, 0xA0)
)

ROOT = len(WINDOWS)  # where the tree of `Tables.references` begins
FNV_BASIS, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


class Tables(NamedTuple):
    """A few arrays of many tables, since each argument of a kernel costs time at every call inside it."""

    # uint8: the tables of bytes, at MARKS, LETTERS, TEXT ...; by slot of their hash tags, attributes, names of meta
    # tags (indexes into META_NAMES) and types of pages (1 more than the index into KNOWN)
    flat: Array
    hashes: Array  # uint64[SLOTS * 4]: what is in a slot, of each of these; open addressing, 0 is empty
    kinds: Array  # int64[256], by tag
    # uint16[states, 32]: the automaton over words of classes; 27 steps, and at SAID and behind it the low and the high
    # half of what is said by words that end there. A state is a line of the processor's cache
    words: Array
    references: Array  # int32: see `_references`


def name_hash(name: bytes) -> int:
    """FNV-1a of a name in lower case; never 0 in practice."""
    hashed = FNV_BASIS
    for byte in name:
        hashed = ((hashed ^ byte) * FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return hashed


@cache
def tables() -> Tables:
    kinds = {name: 1 + names.KNOWN.index(kind) for kind, types in names.KIND_OF.items() for name in types}
    by_hash = [
        _hashed({name: index for index, name in enumerate(each) if name})
        for each in (names.TAGS, ATTRIBUTES, names.META_NAMES)
    ]
    hashes, values = zip(*by_hash, _hashed(kinds), strict=True)
    flat = np.concatenate([_marks(), _letters(), _bytes().reshape(-1), *values])
    all_tables = Tables(flat, np.concatenate(hashes), _kinds(), _words(), _references())
    for table in all_tables:
        table.flags.writeable = False
    return all_tables


def _hashed(value_of: dict[str, int]) -> tuple[Array, Array]:
    hashes, values = np.zeros(SLOTS, np.uint64), np.zeros(SLOTS, np.uint8)
    for name, value in value_of.items():
        hashed = name_hash(name.encode())
        slot = hashed % SLOTS
        while hashes[slot]:
            slot = (slot + 1) % SLOTS
        hashes[slot], values[slot] = hashed, value
    return hashes, values


def _kinds() -> Array:
    kinds = np.zeros(256, np.int64)
    for bit, which in (
        (BLOCK, names.BLOCK), (LEAF, names.VOID), (LEAF, names.RAW), (LEAF, names.RCDATA), (LEAF, "svg plaintext"),
        (SPECIAL, names.SPECIAL), (SCOPE, names.SCOPE), (ENDS_P, names.ENDS_P),
        (FORMATTING, names.FORMATTING), (RAW, names.RAW), (RCDATA, names.RCDATA), (UNSEEN, names.UNSEEN),
        (BREAKS_OUT, names.BREAKS_OUT),
        (INLINE, names.INLINE), (HEADING, names.HEADINGS), (BUTTON_SCOPE, names.SCOPE + " button"),
        (LIST_SCOPE, names.SCOPE + " ol ul"),
        (TABLE_SCOPE, "html table template"),
    ):  # fmt: skip
        for name in which.split():
            kinds[names.TAGS.index(name)] |= bit
    return kinds


def _marks() -> Array:
    marks = np.zeros(256, np.uint8)
    for byte in b"\t\n\f\r ":
        marks[byte] = WHITE | ENDS_TAG_NAME | ENDS_ATTRIBUTE_NAME | ENDS_VALUE
    marks[ord("/")] = ENDS_TAG_NAME | ENDS_ATTRIBUTE_NAME
    marks[ord(">")] = ENDS_TAG_NAME | ENDS_ATTRIBUTE_NAME | ENDS_VALUE
    marks[ord("=")] = ENDS_ATTRIBUTE_NAME
    return marks


def _bytes() -> Array:
    kinds = np.full((3, 256), BEGINS, np.uint8)
    kinds[:, 0x80:0xC0] = CONTINUES
    kinds[:, :0x20] = kinds[:, 0x7F] = CONTROL
    kinds[:, 0x09:0x0E] = kinds[:, 0x20] = SPACE
    kinds[:, [0xC2, 0xE2, 0xE3, 0xEF]] = LOOK  # all that is in DROPPED or SPACES begins with one of these
    kinds[:2, ord("&")] = REFERENCE
    kinds[0, ord("<")] = TAG
    return kinds


def _letters() -> Array:
    letters = np.zeros(256, np.uint8)
    letters[ord("a") : ord("z") + 1] = letters[ord("A") : ord("Z") + 1] = np.arange(1, 27)
    return letters


def _words() -> Array:
    """Aho and Corasick (1975): one step a byte, and at each state the bits of all patterns that end there."""
    children: list[dict[int, int]] = [{}]
    says = [0]
    for bit, patterns in names.WORDS.items():
        for pattern in patterns.split():
            state = 0
            for letter in pattern.encode():
                symbol = 0 if letter == ord("-") else letter - ord("a") + 1
                if symbol not in children[state]:
                    children[state][symbol] = len(children)
                    children.append({})
                    says.append(0)
                state = children[state][symbol]
            says[state] |= bit
    steps = np.zeros((len(children), 27), np.int16)
    queue = deque([(0, 0)])  # a state, and the state of its longest proper suffix
    while queue:
        state, suffix = queue.popleft()
        if state:
            steps[state] = steps[suffix]
            says[state] |= says[suffix]
        for symbol, child in children[state].items():
            queue.append((child, int(steps[suffix, symbol]) if state else 0))
            steps[state, symbol] = child
    table = np.zeros((len(steps), 32), np.uint16)
    table[:, :27], bits = steps, np.array(says, np.uint32)
    table[:, SAID], table[:, SAID + 1] = bits & 0xFFFF, bits >> 16
    return table


def _references() -> Array:
    """A trie of names. A node is [text that ends here or -1, edges n, n bytes, n nodes]; a text is [point, point, needs
    no semicolon]. The first 32 numbers are `WINDOWS`, then the root follows."""
    spelled: dict[bytes, tuple[int, int, int]] = {}
    for name, text in html.entities.html5.items():
        free = name.rstrip(";") in html.entities.html5
        spelled[name.rstrip(";").encode()] = ord(text[0]), ord(text[1]) if len(text) > 1 else 0, free
    below: dict[bytes, set[bytes]] = {b"": set()}
    for name in spelled:
        for size in range(len(name)):
            below.setdefault(name[:size], set()).add(name[: size + 1])
        below.setdefault(name, set())
    places, size = {}, ROOT
    for node, children in below.items():
        places[node] = size
        size += 2 + 2 * len(children) + 3 * (node in spelled)
    table = np.zeros(size, np.int32)
    table[:ROOT] = WINDOWS
    for node, children in below.items():
        place, edges = places[node], sorted(children)
        edges_end = place + 2 + 2 * len(edges)
        table[place : place + 2] = edges_end if node in spelled else -1, len(edges)
        table[place + 2 : edges_end] = [edge[-1] for edge in edges] + [places[edge] for edge in edges]
        if node in spelled:
            table[edges_end : edges_end + 3] = spelled[node]
    return table
