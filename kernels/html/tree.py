"""The open elements of a page, and the blocks of text that they bound: what a start tag or an end tag closes, opens and
cuts.

After "The rules for parsing tokens in HTML content" of the standard, as far as text can tell: implied end tags, scopes,
end tags that match nothing. Left out: what moves text (foster parents) and reopens inline elements (`</p>` inside <b>).
The stack has an end: elements that lie deeper than `DEEPEST` become children of the one there.
"""

# ruff: noqa: SIM109 (compiled, `in` is a loop over a tuple)

from __future__ import annotations

import numpy as np

from gristmill.kernels.html import names
from gristmill.kernels.html.compiled import inner
from gristmill.kernels.html.names import TAGS
from gristmill.kernels.html.tables import (
    BLOCK,
    BREAKS_OUT,
    BUTTON_SCOPE,
    ENDS_P,
    FORMATTING,
    HEADING,
    INLINE,
    LEAF,
    LIST_SCOPE,
    SCOPE,
    SPECIAL,
    TABLE_SCOPE,
    UNSEEN,
    name_hash,
)  # fmt: skip
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

A, P, LI, DT, DD, TABLE, TR, TD, TH, TBODY, THEAD, TFOOT, CAPTION, COL, COLGROUP = (
    np.int64(TAGS.index(name))
    for name in [
        "a",
        "p",
        "li",
        "dt",
        "dd",
        "table",
        "tr",
        "td",
        "th",
        "tbody",
        "thead",
        "tfoot",
        "caption",
        "col",
        "colgroup",
    ]
)
HTML, HEAD, BODY, FORM, BUTTON, OPTION, OPTGROUP, DIV, ADDRESS, DIALOG, TEMPLATE, BR, SPAN, PRE_TAG, LISTING = (
    np.int64(TAGS.index(name))
    for name in [
        "html",
        "head",
        "body",
        "form",
        "button",
        "option",
        "optgroup",
        "div",
        "address",
        "dialog",
        "template",
        "br",
        "span",
        "pre",
        "listing",
    ]
)
RT, RP, MATH, SVG, FOREIGNOBJECT, DESC, TITLE, MI, MO, MN, MS, MTEXT, ANNOTATION_XML = (
    np.int64(TAGS.index(name))
    for name in [
        "rt",
        "rp",
        "math",
        "svg",
        "foreignobject",
        "desc",
        "title",
        "mi",
        "mo",
        "mn",
        "ms",
        "mtext",
        "annotation-xml",
    ]
)
FOREIGN = np.int64(1)
TR_HASH = np.uint64(name_hash(b"tr"))
CLASS_FACTOR = np.uint64(0x9E3779B97F4A7C15)

# More places of the state, after those of the text.
DEPTH, OVER, LOW, LOWEST, ELEMENT, LINKS, SKIP, MATH_AT, ELEMENTS, BLOCKS, HEADS = range(9, 20)
# OVER: elements that were open too deep to be kept; LOW: the least depth at which the block has text; LOWEST: the least
# since its last text; ELEMENT: the one at LOW; LINKS: open links; SKIP, MATH_AT: depth of the element whose content is
# not shown, of the open <math>.
MATH_W, MATH_BLOCKS, MATH_CHARACTERS, MATH_LINKED, MATH_GAP, MATH_BLANK, MATH_TWICE = range(20, 27)
# What the text was when <math> began, to go back to; whether its formula is a line of its own.
OPEN = 32  # and how many elements of each tag are open
STATE = OPEN + 256

# Columns of the stack, and flags of an element in it.
TAG, HASH, PLACE, FLAGS = range(4)
IS_LINK, KEEPS_SPACE = 1, 2


@inner
def flush(state, out, blocks):
    """End the block that is being written, where there is one."""
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
    """Where there is new text, it is in the element at that depth."""
    if not state[SHOWN]:
        return
    low = depth if state[LOW] < 0 else min(state[LOW], state[LOWEST], depth)
    if low != state[LOW]:
        state[LOW] = low
        state[ELEMENT] = stack[low, PLACE]
    state[LOWEST], state[SHOWN] = state[DEPTH], 0


@inner
def line_break(state, out, blocks):
    """<br>: a newline; the second in a row is the end of the block."""
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
    """The element at that depth and all in it."""
    while state[DEPTH] >= depth:
        pop(state, stack)


@inner
def kill(state, stack, depth):
    """End an inline element whose blocks stay open."""
    state[OPEN + stack[depth, TAG]] -= 1
    if stack[depth, FLAGS] & IS_LINK:
        unlink(state)
    stack[depth, TAG], stack[depth, HASH], stack[depth, FLAGS] = DEAD, 0, 0
    state[OPEN + DEAD] += 1


@inner
def nearest(state, stack, kinds, tag, scope):
    """The depth of the innermost open element of a tag that is in scope, 0 if there is none."""
    if state[OPEN + tag] == 0:
        return 0
    depth = state[DEPTH]
    while depth > 0:
        found = stack[depth, TAG]
        if found == tag:
            return depth
        if kinds[found] & scope:
            return 0
        depth -= 1
    return 0


@inner
def close_inline(state, stack, kinds, tag):
    """An end tag as of <a> or <b>: blocks that were opened inside stay open."""
    depth = nearest(state, stack, kinds, tag, SCOPE)
    if depth:
        above = depth + 1
        while above <= state[DEPTH] and not kinds[stack[above, TAG]] & SPECIAL:
            above += 1
        if above > state[DEPTH]:
            close(state, stack, depth)
        else:
            kill(state, stack, depth)


@inner
def close_item(state, stack, kinds, first, second):
    """What <li>, and what <dt> or <dd>, closes: the item before it, not one that holds the list it is in."""
    depth = state[DEPTH]
    while depth > 0:
        tag = stack[depth, TAG]
        if tag == first or tag == second:
            close(state, stack, depth)
            return
        if kinds[tag] & SPECIAL and tag != ADDRESS and tag != DIV and tag != P:
            return
        depth -= 1


@inner
def close_implied(state, stack, kinds, tag):
    """Close what a start tag ends without saying so. False where it counts for nothing: parts of a table outside one, a
    form in a form."""
    kind = kinds[tag]
    if kind & ENDS_P and state[OPEN + P]:
        depth = nearest(state, stack, kinds, P, BUTTON_SCOPE)
        if depth:
            close(state, stack, depth)
    top = stack[state[DEPTH], TAG]
    if kind & HEADING:
        if kinds[top] & HEADING:
            pop(state, stack)
    elif tag == A:
        close_inline(state, stack, kinds, A)
    elif tag == LI:
        close_item(state, stack, kinds, LI, LI)
    elif tag == DT or tag == DD:
        close_item(state, stack, kinds, DT, DD)
    elif tag == BUTTON:
        depth = nearest(state, stack, kinds, BUTTON, SCOPE)
        if depth:
            close(state, stack, depth)
    elif tag == OPTION or tag == OPTGROUP:
        if top == OPTION or top == tag:
            pop(state, stack)
    elif tag == RT or tag == RP:
        if top == RT or top == RP:
            pop(state, stack)
    elif tag == FORM:
        return state[OPEN + FORM] == 0
    elif tag == TABLE:
        if top == TABLE or top == TBODY or top == THEAD or top == TFOOT or top == TR:
            close(state, stack, nearest(state, stack, kinds, TABLE, TABLE_SCOPE))
    elif is_part_of_table(tag):
        table = nearest(state, stack, kinds, TABLE, TABLE_SCOPE)
        if table == 0:
            return False
        close_to_context(state, stack, tag, table)
    return True


@inner
def is_part_of_table(tag):
    return (
        tag == TD
        or tag == TH
        or tag == TR
        or tag == TBODY
        or tag == THEAD
        or tag == TFOOT
        or tag == CAPTION
        or tag == COLGROUP
        or tag == COL
    )


@inner
def close_to_context(state, stack, tag, table):
    """Back to what may hold a part of a table: cells a row, rows a section or the table, sections the table."""
    while state[DEPTH] > table:
        top = stack[state[DEPTH], TAG]
        if (tag == TD or tag == TH) and top == TR:
            return
        if (tag == TD or tag == TH or tag == TR) and (top == TBODY or top == THEAD or top == TFOOT):
            return
        pop(state, stack)


@inner
def push(state, stack, elements, kind, tag, value, said):
    """Record an element, and hold it open unless nothing can stand in it."""
    place = stack[state[DEPTH], PLACE]
    bits = said[BITS]
    if tag == DIALOG and not said[IS_OPEN]:
        bits |= names.HIDDEN
    if not state[SKIP] and (bits or not kind & INLINE):
        new = state[ELEMENTS]
        elements[new, 0], elements[new, 1], elements[new, 2], elements[new, 3] = (
            tag,
            place,
            bits,
            alike(value, said[FIRST_CLASS]),
        )
        state[ELEMENTS] = new + 1
        place = new
    if kind & LEAF or (said[CLOSED] and (state[MATH_AT] or tag == MATH)):
        return
    if state[DEPTH] >= DEEPEST:
        state[OVER] += 1
        return
    depth = state[DEPTH] + 1
    state[DEPTH] = depth
    state[OPEN + tag] += 1
    stack[depth, TAG], stack[depth, HASH], stack[depth, PLACE], stack[depth, FLAGS] = tag, np.int64(value), place, 0
    if tag == A and said[HAS_HREF]:
        stack[depth, FLAGS] = IS_LINK
        if state[LINKS] == 0:
            state[LINK_FROM] = state[CHARACTERS]
        state[LINKS] += 1
    elif tag == PRE_TAG or tag == LISTING:
        stack[depth, FLAGS] = KEEPS_SPACE
        state[PRE] += 1
    if not state[SKIP] and ((kind & UNSEEN and not said[SHADOW]) or (tag == SPAN and bits & names.PAINTED)):
        state[SKIP] = depth


@inner
def alike(value, first_class):
    return (value ^ (np.uint64(first_class) * CLASS_FACTOR)) >> np.uint64(32)


@inner
def start_tag(state, stack, elements, blocks, out, kinds, tag, value, said):
    """All that a start tag does, but for the text that follows some as raw text."""
    kind = kinds[tag]
    if tag == BR:
        line_break(state, out, blocks)
        return
    skipped = state[SKIP]
    if kind & BLOCK and not skipped:
        flush(state, out, blocks)
    if tag == HTML:
        elements[0, 2] |= np.uint32(said[BITS])
        elements[0, 3] = alike(value, said[FIRST_CLASS])
        return
    if tag == HEAD or (tag == BODY and state[OPEN + BODY]):
        return
    if state[MATH_AT] and kind & BREAKS_OUT:
        top = stack[state[DEPTH], TAG]
        if not (top == MI or top == MO or top == MN or top == MS or top == MTEXT or top == ANNOTATION_XML):
            close(state, stack, state[MATH_AT])
    counts = close_implied(state, stack, kinds, tag)
    if skipped and not state[SKIP] and kind & BLOCK:
        flush(state, out, blocks)
    if not counts:
        return
    if (tag == TD or tag == TH) and stack[state[DEPTH], TAG] != TR and state[DEPTH] < DEEPEST:
        bits, first_class = said[BITS], said[FIRST_CLASS]
        said[BITS], said[FIRST_CLASS] = 0, 0
        push(state, stack, elements, kinds[TR], TR, TR_HASH, said)
        said[BITS], said[FIRST_CLASS] = bits, first_class
    push(state, stack, elements, kind, tag, value, said)


@inner
def end_tag(state, stack, blocks, out, kinds, tag, value):
    kind = kinds[tag]
    if tag == BR:  # </br> is one
        line_break(state, out, blocks)
        return
    skipped = state[SKIP]
    if kind & BLOCK and not skipped:
        flush(state, out, blocks)
    if tag == HTML or tag == HEAD or tag == BODY:
        return
    if state[OVER]:
        state[OVER] -= 1
    else:
        close_by_name(state, stack, kinds, kind, tag, value)
    if skipped and not state[SKIP] and kind & BLOCK:
        flush(state, out, blocks)


@inner
def close_by_name(state, stack, kinds, kind, tag, value):
    if not state[OPEN + tag] and not kind & HEADING:
        return
    if kind & HEADING:
        depth = state[DEPTH]
        while depth > 0 and not kinds[stack[depth, TAG]] & HEADING:
            depth = 0 if kinds[stack[depth, TAG]] & SCOPE else depth - 1
    elif kind & FORMATTING or tag == FORM:
        close_inline(state, stack, kinds, tag)
        return
    elif is_part_of_table(tag) or tag == TABLE:
        depth = nearest(state, stack, kinds, tag, TABLE_SCOPE)
    elif tag == P:
        depth = nearest(state, stack, kinds, P, BUTTON_SCOPE)
    elif tag == LI:
        depth = nearest(state, stack, kinds, LI, LIST_SCOPE)
    elif kind & (BLOCK | SPECIAL):
        depth = nearest(state, stack, kinds, tag, SCOPE)
    else:
        depth = state[DEPTH]
        while depth > 0 and np.uint64(stack[depth, HASH]) != value:
            depth = 0 if kinds[stack[depth, TAG]] & SPECIAL else depth - 1
    if depth > 0:
        close(state, stack, depth)
