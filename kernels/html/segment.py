"""A page as a flat tree of elements and blocks of text, straight from its bytes, in one pass and without recursion.

A streaming tokenizer after the HTML standard and a light tree builder: 512 open elements at most, deeper ones are
flattened. A page of n bytes with t times `<` takes time linear in n (150 ns a byte at worst, for end tags of nothing)
and at most 3.5 n + 140 t bytes of memory.

Measured on 1,497 pages of 416 MB, one core (benchmarks/text/segment.py): 780 MB/s, 2.9 times as fast as resiliparse's
parser and 2.1 times as lexbor's, both of which only build a tree and extract no text. Its words are those of lexbor's
tree on 745 of 749 pages; the other four have shadow roots (<template shadowrootmode>), which browsers show and lexbor
leaves out.
"""

# ruff: noqa: SIM109 (compiled, `in` is a loop over a tuple)

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gristmill.kernels.base.bare import inlined
from gristmill.kernels.base.compiled import helper, kernel
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.html.compiled import inner, rare
from gristmill.kernels.html.foreign import after_svg, formula, math_begins, math_said
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
    TAGS,
)
from gristmill.kernels.html.open_elements import (
    BLOCKS,
    DEEPEST,
    DEPTH,
    ELEMENT,
    ELEMENTS,
    FLAGS,
    HASH,
    HEADS,
    LI,
    LOW,
    MATH,
    MATH_AT,
    NOSCRIPT_END,
    PLACE,
    PRE_TAG,
    SKIP,
    STATE,
    SVG,
    TAG,
    TD,
    TH,
    TITLE,
    flush,
    text_at,
)
from gristmill.kernels.html.tables import AS_IT_STANDS, ENDS_TAG_NAME, RAW, RCDATA, TEXT, name_hash, tables  # fmt: skip
from gristmill.kernels.html.tags import (
    CLOSED,
    FACTS,
    HAS_NUMBER,
    KIND_FROM,
    KIND_TO,
    NUMBER,
    SPANS,
    after_declaration,
    attributes,
    end_of_cdata,
    end_of_raw,
    end_of_script,
    hashed,
    is_cdata,
    media_type,
    tag_of,
)
from gristmill.kernels.html.text import (
    BLANK,
    LESS,
    PRE,
    SLACK,
    SLASH,
    TAG_CLOSES,
    TAG_OPENS,
    W,
    find_byte,
    put_point,
    put_power,
    write_text,
)
from gristmill.kernels.html.tree import end_tag, start_tag

META, LINK, BASE, TIME, SCRIPT, NOSCRIPT, ANNOTATION, HTML, XMP, PLAINTEXT, SUP, OL = (
    np.int64(TAGS.index(name)) for name in (
        "meta", "link", "base", "time", "script", "noscript", "annotation", "html", "xmp", "plaintext", "sup", "ol",
    )
)  # fmt: skip
JSON, TEX, MATH_TEX, DISPLAYED = (
    np.uint64(name_hash(kind)) for kind in (b"application/ld+json", b"application/x-tex", b"math/tex", b"display")
)
LONGEST = 2**31 - 1


class Page(NamedTuple):
    """Elements, parents before their children, and blocks of text inside them, both in page order."""

    tag: Bytes  # [elements] index into TAGS (0: any other); element 0 is the root
    parent: Array  # int32[elements]: -1 for the root
    bits: Array  # uint32[elements]: what class, id, role, style, hidden say (kernels/html/names.py)
    alike: Array  # uint32[elements]: of tag and first class
    text: Bytes  # UTF-8 of all blocks
    start: Offsets  # int64[blocks + 1]: block b is text[start[b]:start[b + 1]]
    element: Array  # int32[blocks]: the innermost element that holds all of it
    linked: Array  # int32[blocks]: characters of it inside <a href>
    characters: Array  # int32[blocks]: code points
    # [heads] HEAD_TITLE and so on: data[head_start:head_end] is the text of a title or of JSON-LD, or else a tag; a
    # HEAD_LIST for each <ol>, a HEAD_PRE for each <pre>. HEAD_CELL: head_start is a cell
    # that states spans, and head_end is rows << 16 | columns. HEAD_ITEM: an <li>, and the number that it states
    head_kind: Bytes
    head_start: Offsets
    head_end: Offsets


def segment(data: Bytes) -> Page:
    """The page of these bytes of UTF-8."""
    if len(data) > LONGEST:
        raise ValueError(f"a page of {len(data):,} bytes; no more than {LONGEST:,} can be taken")
    data = np.ascontiguousarray(data).view()
    data.flags.writeable = False
    return Page(*whole_page(data, *tables()))


@kernel
def whole_page(data, flat, hashes, kinds, words, references) -> Any:
    return page_of(data, flat, hashes, kinds, words, references)


@helper
def page_of(data, flat, hashes, kinds, words, references):
    """The arrays of `Page`."""
    bound = 1  # of elements that are written, of blocks, of tags that hold metadata
    for at in range(len(data)):
        bound += data[at] == 60
    elements = np.empty((2 * bound, 4), np.uint32)  # tag, parent, bits, alike; a cell may come with a row
    blocks = np.empty((bound + 1, 4), np.int32)  # bytes, element, linked, characters
    heads = np.empty((bound, 3), np.int64)  # kind, start, end
    out = np.empty(len(data) + len(data) // 5 + SLACK, np.uint8)
    state, stack, facts = np.zeros(STATE, np.int64), np.empty((DEEPEST + 2, 4), np.int64), np.zeros(FACTS, np.int64)
    read_page(data, state, stack, elements, heads, blocks, out, facts, flat, hashes, kinds, words, references)
    count = state[ELEMENTS]
    tag, parent = np.empty(count, np.uint8), np.empty(count, np.int32)
    bits, alike = np.empty(count, np.uint32), np.empty(count, np.uint32)
    for e in range(count):
        tag[e], parent[e], bits[e], alike[e] = elements[e, 0], np.int32(elements[e, 1]), elements[e, 2], elements[e, 3]
    count = state[BLOCKS]
    start = np.empty(count + 1, np.int64)
    element, linked, characters = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, np.int32)
    start[0] = 0
    for b in range(count):
        start[b + 1] = start[b] + blocks[b, 0]
        element[b], linked[b], characters[b] = blocks[b, 1], blocks[b, 2], blocks[b, 3]
    count = state[HEADS]
    head_kind, head_start, head_end = np.empty(count, np.uint8), np.empty(count, np.int64), np.empty(count, np.int64)
    for h in range(count):
        head_kind[h], head_start[h], head_end[h] = heads[h, 0], heads[h, 1], heads[h, 2]
    return (
        tag, parent, bits, alike, out[: state[W]], start, element, linked, characters, head_kind, head_start, head_end,
    )  # fmt: skip


@helper
def read_page(data, state, stack, elements, heads, blocks, out, facts, flat, hashes, kinds, words, references):
    """Fills `elements`, `heads`, `blocks` and `out`; their counts are in `state`."""
    state[BLANK], state[LOW], state[ELEMENTS] = 1, -1, 1
    stack[0, TAG], stack[0, HASH], stack[0, PLACE], stack[0, FLAGS] = HTML, 0, 0, 0
    elements[0, 0], elements[0, 1], elements[0, 2], elements[0, 3] = HTML, np.uint32(0xFFFFFFFF), 0, 0
    i, n = np.int64(0), np.int64(len(data))
    while i < n:
        end = state[NOSCRIPT_END] if i < state[NOSCRIPT_END] else n  # nothing that is open in it goes on behind it
        i = one_token(
            data, i, end, state, stack, elements, heads, blocks, out, facts, flat, hashes, kinds, words, references
        )
    flush(state, out, blocks)


@inlined  # a call would pass seven numbers for each array: 100 of the 120 ns that a tag took
def one_token(data, i, n, state, stack, elements, heads, blocks, out, facts, flat, hashes, kinds, words, references):
    """Reads text up to a tag, or the token that begins with the `<` at i; returns where the next begins."""
    if data[i] != 60:
        if state[SKIP]:
            return find_byte(data, i, n, TAG_OPENS)
        i = write_text(data, i, n, TEXT, state, out, flat, references)
        text_at(state, stack, state[DEPTH])
        return i
    byte = data[i + 1] if i + 1 < n else 0
    if byte == 33 or byte == 63:  # ! ?
        if state[MATH_AT] and not state[SKIP] and is_cdata(data, i, n):
            cdata_text(data, i, n, state, stack, out, flat, references)
        return after_declaration(data, i, n, state[MATH_AT])
    ends = byte == 47
    begin = i + 1 + ends
    if begin < n and 97 <= data[begin] | 32 <= 122:
        value, after = hashed(data, begin, n, flat, ENDS_TAG_NAME)
        tag = tag_of(value, flat, hashes)
        if ends and after < n and data[after] == 62:  # nothing asks what an end tag says
            after += 1
        else:
            after = attributes(data, after, n, facts, flat, hashes, words)
        if after < 0:
            return n
        if ends:
            end_tag(state, stack, blocks, out, kinds, tag, value)
            return after
        is_source = tag == ANNOTATION and state[MATH_AT] and not state[SKIP]
        if is_source and media_type(data, facts[KIND_FROM], facts[KIND_TO], flat) == TEX:
            return math_said(data, after, n, state, stack, out, flat, kinds, references)
        note(state, heads, tag, i, after)
        if tag == SUP and not state[SKIP] and not state[MATH_AT]:
            put_power(data, after, n, state, out)
            text_at(state, stack, state[DEPTH])
        known = state[ELEMENTS]
        start_tag(state, stack, elements, blocks, out, kinds, tag, value, facts)
        if (tag == TD or tag == TH) and facts[SPANS] and state[ELEMENTS] > known:
            note_as(state, heads, HEAD_CELL, state[ELEMENTS] - 1, facts[SPANS])
        elif tag == LI and facts[HAS_NUMBER] and state[ELEMENTS] > known:
            note_as(state, heads, HEAD_ITEM, state[ELEMENTS] - 1, facts[NUMBER])
        elif tag == OL:  # only now is it known whether the list is shown, and so an element
            note_as(state, heads, HEAD_LIST, i, after)
        elif tag == PRE_TAG:
            note_as(state, heads, HEAD_PRE, i, after)
        elif tag == NOSCRIPT and state[NOSCRIPT_END] <= i:
            state[NOSCRIPT_END] = end_of_raw(data, after, n, value, flat)
        if tag == SVG:
            return after if facts[CLOSED] else after_svg(data, after, n, facts, state, flat, hashes, kinds, words)
        if tag == MATH:
            math_begins(data, state, stack, out, facts, flat, kinds, references)
        elif kinds[tag] & (RAW | RCDATA) or tag == PLAINTEXT:
            return raw_text(
                data, after, n, state, stack, heads, blocks, out, facts, tag, value, flat, kinds, references
            )
        return after
    if ends and begin < n:
        if data[begin] == 62:  # </>
            return begin + 1
        return min(find_byte(data, begin, n, TAG_CLOSES) + 1, n)
    if not state[SKIP]:
        put_point(state, out, LESS)
        if ends:
            put_point(state, out, SLASH)
        text_at(state, stack, state[DEPTH])
    return begin


@rare
def cdata_text(data, i, n, state, stack, out, flat, references):
    """Writes the text of the CDATA section at i."""
    write_text(data, i + 9, end_of_cdata(data, i + 9, n), AS_IT_STANDS, state, out, flat, references)
    text_at(state, stack, state[DEPTH])


@inner
def note(state, heads, tag, start, end):
    """Notes tags that hold metadata."""
    if tag == META:
        kind = HEAD_META
    elif tag == LINK:
        kind = HEAD_LINK
    elif tag == TIME:
        kind = HEAD_TIME
    elif tag == HTML:
        kind = HEAD_HTML
    elif tag == BASE:
        kind = HEAD_BASE
    else:
        return
    note_as(state, heads, kind, start, end)


@inner
def note_as(state, heads, kind, start, end):
    if not state[SKIP]:
        row = state[HEADS]
        heads[row, 0], heads[row, 1], heads[row, 2] = kind, start, end
        state[HEADS] += 1


@rare
def raw_text(data, i, n, state, stack, heads, blocks, out, facts, tag, value, flat, kinds, references):
    """Reads the content of <script>, <title>, <xmp> and the like; returns where the end tag is."""
    if tag == PLAINTEXT:
        end = n
    elif tag == SCRIPT:
        end = end_of_script(data, i, n, flat)
    else:
        end = end_of_raw(data, i, n, value, flat)
    if state[SKIP]:
        return end
    if tag == TITLE:
        note_as(state, heads, HEAD_TITLE, i, end)
    elif tag == SCRIPT:
        form = media_type(data, facts[KIND_FROM], facts[KIND_TO], flat)
        if form == JSON:
            note_as(state, heads, HEAD_JSON, i, end)
        elif form == MATH_TEX:  # MathJax: type="math/tex; mode=display"
            last = media_type(data, max(facts[KIND_TO] - 7, facts[KIND_FROM]), facts[KIND_TO], flat)
            formula(data, i, end, AS_IT_STANDS, np.int64(last == DISPLAYED), state, stack, out, flat, kinds, references)
    elif tag == XMP or tag == PLAINTEXT:
        state[PRE] += 1
        write_text(data, i, end, AS_IT_STANDS, state, out, flat, references)
        state[ELEMENT] = state[ELEMENTS] - 1
        flush(state, out, blocks)
        state[PRE] -= 1
    return end
