"""The stack of open elements of a page, and the block of text that is being written.

The stack is bounded: an element that lies deeper than `DEEPEST` becomes a child of the one there. What start and end
tags do to the stack is in `gristmill.kernels.html.tree`.
"""

# ruff: noqa: SIM109 (compiled, `in` is a loop over a tuple)

from __future__ import annotations

import numpy as np

from gristmill.kernels.html import names
from gristmill.kernels.html.compiled import inner
from gristmill.kernels.html.names import TAGS
from gristmill.kernels.html.tables import INLINE, LEAF, UNSEEN
from gristmill.kernels.html.tags import BITS, CLOSED, FIRST_CLASS, HAS_HREF, IS_OPEN, SHADOW
from gristmill.kernels.html.text import (
    BEGIN,
    BLANK,
    CHARACTERS,
    GAP,
    GAP_LINE,
    LINE_POINT,
    LINK_FROM,
    LINKED,
    PRE,
    SHOWN,
    W,
    put_space,
)

DEEPEST = 512
DEAD = 255  # the place in the stack of an inline element that was closed inside a block that it holds
CLASS_FACTOR = np.uint64(0x9E3779B97F4A7C15)

A, P, LI, DT, DD, TABLE, TR, TD, TH, TBODY, THEAD, TFOOT, CAPTION, COL, COLGROUP = (
    np.int64(TAGS.index(name)) for name in (
        "a", "p", "li", "dt", "dd", "table", "tr", "td", "th", "tbody", "thead", "tfoot", "caption", "col", "colgroup",
    )
)  # fmt: skip
HTML, HEAD, BODY, FORM, BUTTON, OPTION, OPTGROUP, DIV, ADDRESS, DIALOG, TEMPLATE, BR, SPAN, PRE_TAG, LISTING = (
    np.int64(TAGS.index(name)) for name in (
        "html", "head", "body", "form", "button", "option", "optgroup", "div", "address", "dialog", "template", "br",
        "span", "pre", "listing",
    )
)  # fmt: skip
RT, RP, MATH, SVG, TITLE, MI, MO, MN, MS, MTEXT, ANNOTATION_XML = (
    np.int64(TAGS.index(name)) for name in (
        "rt", "rp", "math", "svg", "title", "mi", "mo", "mn", "ms", "mtext", "annotation-xml",
    )
)  # fmt: skip

# The rest of the state, after the places of the text that is being written.
#
# OVER: open elements beyond DEEPEST. LOW: the least depth at which the block has text; LOWEST: the least depth since
# its last text; ELEMENT: the element at LOW. LINKS: open links. SKIP and MATH_AT: depth of the element whose content
# is not shown, and of the open <math>.
DEPTH, OVER, LOW, LOWEST, ELEMENT, LINKS, SKIP, MATH_AT, ELEMENTS, BLOCKS, HEADS = range(9, 20)
# The text as it was when <math> began, to go back to; and whether the formula is a line of its own.
MATH_W, MATH_BLOCKS, MATH_CHARACTERS, MATH_LINKED, MATH_GAP, MATH_BLANK, MATH_TWICE = range(20, 27)
NOSCRIPT_END = 27  # where the end tag of the last <noscript> is
OPEN = 32  # from here on, how many elements of each tag are open
STATE = OPEN + 256

# Columns of the stack, and flags of an element in it.
TAG, HASH, PLACE, FLAGS = range(4)
IS_LINK, KEEPS_SPACE = 1, 2


@inner
def flush(state, out, blocks):
    """Ends the current block, if there is one."""
    w, begin = state[W], state[BEGIN]
    if state[BLANK]:
        w = begin
    else:
        linked = linked_so_far(state)
        if state[PRE]:
            while out[w - 1] == 32 or out[w - 1] == 9 or out[w - 1] == 10:
                w -= 1
                state[CHARACTERS] -= 1
        block, characters = state[BLOCKS], state[CHARACTERS]
        blocks[block, 0], blocks[block, 1], blocks[block, 2], blocks[block, 3] = (
            w - begin,
            state[ELEMENT],
            min(linked, characters),
            characters,
        )
        state[BLOCKS] += 1
    state[W] = state[BEGIN] = w
    state[GAP] = state[SHOWN] = state[CHARACTERS] = state[LINKED] = state[LINK_FROM] = 0
    state[BLANK] = 1
    state[LOW] = -1


@inner
def linked_so_far(state):
    return state[LINKED] + (state[CHARACTERS] - state[LINK_FROM] if state[LINKS] else 0)


@inner
def text_at(state, stack, depth):
    """Notes that new text is in the element at that depth."""
    if not state[SHOWN]:
        return
    low = depth if state[LOW] < 0 else min(state[LOW], state[LOWEST], depth)
    if low != state[LOW]:
        state[LOW] = low
        state[ELEMENT] = stack[low, PLACE]
    state[LOWEST], state[SHOWN] = state[DEPTH], 0


@inner
def line_break(state, out, blocks):
    """<br>: a newline; the second in a row ends the block."""
    if state[SKIP]:
        return
    if state[PRE]:
        put_space(state, out, LINE_POINT)
    elif state[GAP] == GAP_LINE:
        flush(state, out, blocks)
    elif not state[BLANK]:
        state[GAP] = GAP_LINE


@inner
def unlink(state):
    state[LINKS] -= 1
    if state[LINKS] == 0:
        state[LINKED] += state[CHARACTERS] - state[LINK_FROM]


@inner
def pop(state, stack):
    depth = state[DEPTH]
    tag, flags = stack[depth, TAG], stack[depth, FLAGS]
    state[OPEN + tag] -= 1
    if flags & IS_LINK:
        unlink(state)
    if flags & KEEPS_SPACE:
        state[PRE] -= 1
    if state[SKIP] == depth:
        state[SKIP] = 0
    if state[MATH_AT] == depth:
        state[MATH_AT] = 0
    state[DEPTH] = depth - 1
    state[LOWEST] = min(state[LOWEST], depth - 1)


@inner
def close(state, stack, depth):
    """Closes the element at that depth and all in it."""
    while state[DEPTH] >= depth:
        pop(state, stack)


@inner
def kill(state, stack, depth):
    """Closes an inline element whose blocks stay open."""
    state[OPEN + stack[depth, TAG]] -= 1
    if stack[depth, FLAGS] & IS_LINK:
        unlink(state)
    stack[depth, TAG], stack[depth, HASH], stack[depth, FLAGS] = DEAD, 0, 0
    state[OPEN + DEAD] += 1


@inner
def nearest(state, stack, kinds, tag, scope):
    """The depth of the innermost open element of a tag that is in scope; 0 if there is none."""
    if state[OPEN + tag] == 0:
        return 0
    depth = state[DEPTH]
    while depth > 0:
        open_tag = stack[depth, TAG]
        if open_tag == tag:
            return depth
        if kinds[open_tag] & scope:
            return 0
        depth -= 1
    return 0


@inner
def push(state, stack, elements, kind, tag, value, facts):
    """Records an element, and keeps it open unless it cannot have content."""
    place = stack[state[DEPTH], PLACE]
    bits = facts[BITS]
    if tag == DIALOG and not facts[IS_OPEN]:
        bits |= names.HIDDEN
    if not state[SKIP] and (bits or not kind & INLINE):
        new = state[ELEMENTS]
        elements[new, 0], elements[new, 1], elements[new, 2], elements[new, 3] = (
            tag,
            place,
            bits,
            alike(value, facts[FIRST_CLASS]),
        )
        state[ELEMENTS] = new + 1
        place = new
    if kind & LEAF or (facts[CLOSED] and (state[MATH_AT] or tag == MATH)):
        return
    if state[DEPTH] >= DEEPEST:
        state[OVER] += 1
        return
    depth = state[DEPTH] + 1
    state[DEPTH] = depth
    state[OPEN + tag] += 1
    stack[depth, TAG], stack[depth, HASH], stack[depth, PLACE], stack[depth, FLAGS] = tag, np.int64(value), place, 0
    if tag == A and facts[HAS_HREF]:
        stack[depth, FLAGS] = IS_LINK
        if state[LINKS] == 0:
            state[LINK_FROM] = state[CHARACTERS]
        state[LINKS] += 1
    elif tag == PRE_TAG or tag == LISTING:
        stack[depth, FLAGS] = KEEPS_SPACE
        state[PRE] += 1
    if not state[SKIP] and (
        (kind & UNSEEN and not facts[SHADOW]) or ((tag == SPAN or tag == A) and bits & names.LEFT_OUT)
    ):
        state[SKIP] = depth


@inner
def alike(value, first_class):
    return (value ^ (np.uint64(first_class) * CLASS_FACTOR)) >> np.uint64(32)
