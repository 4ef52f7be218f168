"""What a start tag or an end tag closes, opens and cuts in the tree of a page.

After "The rules for parsing tokens in HTML content" of the standard, as far as text can tell: implied end tags, scopes,
end tags that match nothing. Left out: what moves text (foster parents) and what reopens inline elements (`</p>` inside
<b>).
"""

# ruff: noqa: SIM109 (compiled, `in` is a loop over a tuple)

from __future__ import annotations

import numpy as np

from gristmill.kernels.html.compiled import inner
from gristmill.kernels.html.open_elements import (
    ADDRESS,
    ANNOTATION_XML,
    BODY,
    BR,
    BUTTON,
    CAPTION,
    COL,
    COLGROUP,
    DD,
    DEEPEST,
    DEPTH,
    DIV,
    DT,
    FORM,
    HASH,
    HEAD,
    HTML,
    LI,
    MATH_AT,
    MI,
    MN,
    MO,
    MS,
    MTEXT,
    OPEN,
    OPTGROUP,
    OPTION,
    OVER,
    RP,
    RT,
    SKIP,
    TABLE,
    TAG,
    TBODY,
    TD,
    TFOOT,
    TH,
    THEAD,
    TR,
    A,
    P,
    alike,
    close,
    flush,
    kill,
    line_break,
    nearest,
    pop,
    push,
)
from gristmill.kernels.html.tables import (
    BLOCK,
    BREAKS_OUT,
    BUTTON_SCOPE,
    ENDS_P,
    FORMATTING,
    HEADING,
    LIST_SCOPE,
    SCOPE,
    SPECIAL,
    TABLE_SCOPE,
    name_hash,
)
from gristmill.kernels.html.tags import BITS, FIRST_CLASS

TR_HASH = np.uint64(name_hash(b"tr"))


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
    """What <li>, and what <dt> or <dd>, closes: the item before it, not one that holds its list."""
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
    """Closes what a start tag implicitly ends. False where the tag is ignored: parts of a table outside one, a form in
    a form."""
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
    """Closes up to what may hold a part of a table: cells a row, rows a section or the table, sections the table."""
    while state[DEPTH] > table:
        top = stack[state[DEPTH], TAG]
        if (tag == TD or tag == TH) and top == TR:
            return
        if (tag == TD or tag == TH or tag == TR) and (top == TBODY or top == THEAD or top == TFOOT):
            return
        pop(state, stack)


@inner
def start_tag(state, stack, elements, blocks, out, kinds, tag, value, facts):
    """All that a start tag does, except for the raw text that follows some."""
    kind = kinds[tag]
    if tag == BR:
        line_break(state, out, blocks)
        return
    skipped = state[SKIP]
    if kind & BLOCK and not skipped:
        flush(state, out, blocks)
    if tag == HTML:
        elements[0, 2] |= np.uint32(facts[BITS])
        elements[0, 3] = alike(value, facts[FIRST_CLASS])
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
        bits, first_class = facts[BITS], facts[FIRST_CLASS]
        facts[BITS], facts[FIRST_CLASS] = 0, 0
        push(state, stack, elements, kinds[TR], TR, TR_HASH, facts)
        facts[BITS], facts[FIRST_CLASS] = bits, first_class
    push(state, stack, elements, kind, tag, value, facts)


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
