"""SVG and MathML inside a page. SVG has no text of the page; a formula is shown as its LaTeX where that is given.

Formulas are the standard's MathML (`alttext`), and MathML as KaTeX, MathJax and LaTeXML write it (`<annotation
encoding="application/x-tex">`).
"""

# ruff: noqa: SIM109 (compiled, `in` is a loop over a tuple)

from __future__ import annotations

import numpy as np

from gristmill.kernels.html.compiled import rare
from gristmill.kernels.html.names import TAGS
from gristmill.kernels.html.open_elements import (
    BLOCKS,
    DEPTH,
    MATH,
    MATH_AT,
    MATH_BLANK,
    MATH_BLOCKS,
    MATH_CHARACTERS,
    MATH_GAP,
    MATH_LINKED,
    MATH_TWICE,
    MATH_W,
    OPEN,
    SKIP,
    TAG,
    linked_so_far,
    text_at,
)
from gristmill.kernels.html.tables import ATTRIBUTE, BLOCK, BREAKS_OUT, ENDS_TAG_NAME, SPACE, TEXT
from gristmill.kernels.html.tags import (
    ALT_FROM,
    ALT_TO,
    AS_BLOCK,
    CLOSED,
    after_declaration,
    attributes,
    hashed,
    tag_of,
)
from gristmill.kernels.html.text import (
    BLANK,
    CHARACTERS,
    GAP,
    LINK_FROM,
    LINKED,
    TAG_OPENS,
    W,
    find_byte,
    write_formula,
)

SVG, FOREIGNOBJECT, DESC, TITLE = (np.int64(TAGS.index(name)) for name in ["svg", "foreignobject", "desc", "title"])
FOREIGN = np.int64(1)


@rare
def after_svg(data, i, n, facts, state, flat, hashes, kinds, words):
    """From behind an `<svg>` to behind its end, or to a tag of HTML that ends an open one. Nothing in it is text."""
    depth, inside_html = 1, 0
    while True:
        i = find_byte(data, i, n, TAG_OPENS)
        if i + 1 >= n:
            return n
        byte = data[i + 1]
        if byte == 33 or byte == 63:
            i = after_declaration(data, i, n, FOREIGN)
            continue
        closing = byte == 47
        begin = i + 1 + closing
        if begin >= n or not 97 <= data[begin] | 32 <= 122:
            i += 1
            continue
        value, after = hashed(data, begin, n, flat, ENDS_TAG_NAME)
        tag = tag_of(value, flat, hashes)
        if closing:
            breaks = kinds[tag] & BLOCK and state[OPEN + tag]
        else:
            breaks = kinds[tag] & BREAKS_OUT
        if breaks and not inside_html:
            return i
        after = attributes(data, after, n, facts, flat, hashes, words)
        if after < 0:
            return n
        i = after
        if facts[CLOSED]:
            continue
        step = -1 if closing else 1
        if tag == SVG:
            depth += step
            if depth == 0:
                return i
        elif tag == FOREIGNOBJECT or tag == DESC or tag == TITLE:
            inside_html = max(inside_html + step, 0)


@rare
def math_begins(data, state, stack, out, facts, flat, kinds, references):
    """<math>: its `alttext` stands for all of it."""
    if state[SKIP] or state[MATH_AT]:
        return
    depth = state[DEPTH]
    if stack[depth, TAG] == MATH and not facts[CLOSED]:
        state[MATH_AT] = depth
        state[MATH_W], state[MATH_BLOCKS], state[MATH_CHARACTERS] = state[W], state[BLOCKS], state[CHARACTERS]
        state[MATH_LINKED], state[MATH_GAP], state[MATH_BLANK], state[MATH_TWICE] = (
            linked_so_far(state),
            state[GAP],
            state[BLANK],
            facts[AS_BLOCK],
        )
    if formula(
        data, facts[ALT_FROM], facts[ALT_TO], ATTRIBUTE, facts[AS_BLOCK], state, stack, out, flat, kinds, references
    ):
        state[SKIP] = state[MATH_AT]


@rare
def math_said(data, i, n, state, stack, out, flat, kinds, references):
    """The LaTeX of an <annotation> replaces the text of <math> so far; the rest of <math> is left out."""
    end = find_byte(data, i, n, TAG_OPENS)
    begin = i
    while begin < end and flat[TEXT + data[begin]] == SPACE:
        begin += 1
    if begin < end and state[BLOCKS] == state[MATH_BLOCKS]:
        state[W], state[CHARACTERS], state[LINKED] = state[MATH_W], state[MATH_CHARACTERS], state[MATH_LINKED]
        state[LINK_FROM] = state[CHARACTERS]
        state[GAP], state[BLANK] = state[MATH_GAP], state[MATH_BLANK]
        formula(data, begin, end, TEXT, state[MATH_TWICE], state, stack, out, flat, kinds, references)
        state[SKIP] = state[MATH_AT]
    return end


@rare
def formula(data, i, end, row, twice, state, stack, out, flat, kinds, references):
    """Writes a formula as text of the block-level element, whatever hides its <math>. Returns whether there was one."""
    before = state[CHARACTERS]
    write_formula(data, i, end, row, twice, state, out, flat, references)
    if state[CHARACTERS] == before:
        return False
    depth = state[DEPTH]
    while depth > 0 and not kinds[stack[depth, TAG]] & BLOCK:
        depth -= 1
    text_at(state, stack, depth)
    return True
