"""Features of every block of a page, from which a model tells main text from the rest: what it says, where it hangs,
what stands around it.

Time is linear in blocks and elements: sums over containers go up the tree once, and from each block at most LOOK_UP
ancestors are seen. No feature knows a language or a site; names in class and id count by what they mean
(kernels/html/names.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.blocks import text as said
from gristmill.kernels.blocks.tree import (
    PROSE,
    S_BLOCKS,
    S_CHARACTERS,
    S_LINKED,
    S_PROSE,
    S_PUNCTUATION,
    S_TERMINALS,
    chain,
    is_prose,
    share,
    sum_up,
    tree_shape,
)
from gristmill.kernels.html.names import TAGS

LOOK_UP = 64
FAR = 64  # the distance to what is not there
BITS = 31  # of Page.bits; the last is of formulas

# Kinds of element whose nearest is looked for above a block.
KINDS = (
    ("nav",), ("header",), ("footer",), ("aside",), ("main",), ("article",), ("section",), ("form", "fieldset"), ("ul", "menu"), ("ol",), ("li",),
    ("table",), ("td", "th"), ("p",), ("h1",), ("h2",), ("h3",), ("h4", "h5", "h6"), ("blockquote",), ("pre", "code"), ("figure",),
    ("figcaption", "caption"), ("a",), ("button", "label", "legend", "option", "optgroup"), ("dl", "dt", "dd"), ("details", "summary"),
    ("dialog",), ("noscript",), ("address",), ("tr",), ("div",),
)  # fmt: skip
KIND = {name: index for index, names in enumerate(KINDS) for name in names}
KIND_OF_TAG = np.array([KIND.get(tag, -1) for tag in TAGS], np.int8)
HEADING_OF_TAG = np.array([int(tag[1]) if tag in {"h1", "h2", "h3", "h4", "h5", "h6"} else 0 for tag in TAGS], np.int8)
BIT_NAMES = (
    "hidden", "veiled", "folded", "navigation", "paging", "header", "footer", "sidebar", "social", "consent", "advert", "related", "newsletter",
    "popup", "login", "search", "labels", "byline", "comment", "forum", "review", "main", "article", "content", "summary", "product", "listing",
    "title", "caption", "code", "contents",
)  # fmt: skip
KNOWN = (
    "article",
    "product",
    "website",
    "news",
    "forum",
    "list",
    "recipe",
    "faq",
    "place",
    "event",
    "video",
)  # bits of `known`: what a page says it is

OWN = (
    "characters", "words", "link_share", "letter_share", "upper_share", "digit_share", "punctuation_share", "terminal_share", "comma_share",
    "symbol_share", "word_length", "last", "first", "lines", "json_share", "meta_share", "title_share", "copies", "copy",
)  # fmt: skip
PLACED = ("index_share", "before_share", "block_count", "page_characters", "page_link_share", "depth")
ABOVE = tuple(f"to_{name}" for name in BIT_NAMES) + tuple(f"to_<{names[0]}>" for names in KINDS)
LEVELS = (0, 1, 2, 3, 5)
CONTAINED = tuple(
    f"{what}_{level}_up"
    for level in LEVELS
    for what in ("share", "link_share", "punctuation", "per_block", "terminals")
)
REPEATED = (
    "alike_blocks", "alike_share", "alike_length", "alike_link_share", "alike_terminals",
    "siblings", "sibling_index", "sibling_level", "siblings_share", "siblings_length", "siblings_link_share", "sibling_length_ratio",
    "most_siblings_share", "most_siblings", "most_siblings_level", "most_siblings_link_share",
)  # fmt: skip
HEADED = (
    "heading",
    "last_heading",
    "since_heading",
    "blocks_since_heading",
    "until_heading",
    "from_h1",
    "blocks_from_h1",
    "from_title",
    "blocks_from_title",
)
CORED = (
    "core_steps", "core_join", "core_share", "core_position", "branch_share", "branch_link_share", "branch_terminals", "branch_per_block",
    "branch_siblings", "branch_siblings_share", "bulk_steps", "bulk_join", "bulk_share", "prose_before", "prose_after",
)  # fmt: skip
BESIDE = ("length", "link", "terminals", "punctuation", "upper", "digits")
AROUND = (
    *(f"{what}_{distance:+d}" for distance in (-3, -2, -1, 1, 2, 3) for what in BESIDE),
    "like_previous",
    "like_next",
)
WINDOWS = tuple(
    f"{what}_within_{reach}" for reach in (4, 12) for what in ("length", "link", "terminals", "punctuation")
)
OVERALL = (
    "elements", "articles", "mains", "forms", "h1s", "headings", "paragraph_share", "item_share", "cell_share", "terminal_density",
    "json_covered", "long_blocks", *(f"says_{what}" for what in KNOWN),
)  # fmt: skip
FEATURES = OWN + PLACED + ABOVE + CONTAINED + REPEATED + HEADED + CORED + AROUND + WINDOWS + OVERALL

AT_PLACED = len(OWN)
AT_ABOVE = AT_PLACED + len(PLACED)
AT_CONTAINED = AT_ABOVE + len(ABOVE)
AT_REPEATED = AT_CONTAINED + len(CONTAINED)
AT_HEADED = AT_REPEATED + len(REPEATED)
AT_CORED = AT_HEADED + len(HEADED)
AT_AROUND = AT_CORED + len(CORED)
AT_WINDOWS = AT_AROUND + len(AROUND)
AT_OVERALL = AT_WINDOWS + len(WINDOWS)
LEVEL_COLUMN = np.array([LEVELS.index(level) if level in LEVELS else -1 for level in range(max(LEVELS) + 1)], np.int8)
TAG_ARTICLE, TAG_MAIN, TAG_FORM, TAG_H1 = (TAGS.index(name) for name in ("article", "main", "form", "h1"))
KIND_P, KIND_LI, KIND_TD = (KIND[name] for name in ("p", "li", "td"))


@kernel
def own_features(counts, hashes, linked, out):
    """What a block says of itself, and how often the page says the same."""
    n = len(counts)
    size = 16
    while size < 2 * n:
        size *= 2
    keys, times = np.zeros(size, np.uint64), np.zeros(size, np.int32)
    mask = np.uint64(size - 1)
    places = np.empty(n, np.int64)
    for b in range(n):
        row, c = out[b], counts[b]
        characters = c[said.CHARACTERS]
        row[0], row[1], row[2] = characters, c[said.WORDS], share(min(linked[b], characters), characters)
        row[3], row[4], row[5] = (
            share(c[said.LETTERS], characters),
            share(c[said.UPPERS], c[said.LETTERS]),
            share(c[said.DIGITS], characters),
        )
        row[6], row[7] = share(c[said.PUNCTUATIONS], characters), share(c[said.TERMINALS], characters)
        row[8], row[9] = share(c[said.COMMAS], characters), share(c[said.SYMBOLS], characters)
        row[10] = share(c[said.LETTERS] + c[said.DIGITS], c[said.WORDS])
        row[11], row[12], row[13] = c[said.LAST], c[said.FIRST], c[said.LINES]
        row[14], row[15] = share(c[said.IN_JSON], c[said.TRIPLES]), share(c[said.IN_META], c[said.TRIPLES])
        row[16] = share(c[said.IN_TITLE], c[said.WORDS])
        key = hashes[b] | np.uint64(1)
        place = key & mask
        while keys[place] != 0 and keys[place] != key:
            place = (place + np.uint64(1)) & mask
        keys[place] = key
        row[18] = times[place]
        times[place] += 1
        places[b] = place
    for b in range(n):
        out[b, 17] = times[places[b]]


@kernel
def placed_features(
    tag, parent, bits, element, linked, counts, sums, core, core_end, bulk, bulk_end, path, group, siblings, sibling, group_sums, heading, out
):  # fmt: skip
    """Where a block hangs: the kinds of element above it, what its containers hold, and what is like it."""
    n = len(element)
    total, total_blocks = sums[0, S_CHARACTERS], sums[0, S_BLOCKS]
    core_rank, bulk_rank = core[core_end], bulk[bulk_end]
    prose = 0
    levels = len(LEVELS)
    before = 0
    size = 16
    while size < 2 * n:
        size *= 2
    keys, numbers = np.zeros(size, np.uint64), np.zeros(size, np.int32)
    alike_sums, mask, paths = np.zeros((n, 4), np.int64), np.uint64(size - 1), 0
    mine = np.empty(n, np.int32)
    first_inside, last_inside = n, -1
    for b in range(n):
        row, e = out[b], element[b]
        characters = counts[b, said.CHARACTERS]
        row[AT_PLACED], row[AT_PLACED + 1], row[AT_PLACED + 2] = share(b, n), share(before, total), n
        row[AT_PLACED + 3], row[AT_PLACED + 4] = total, share(sums[0, S_LINKED], total)
        before += characters
        row[AT_ABOVE : AT_ABOVE + len(ABOVE)] = FAR
        heading[b] = 0
        steps, branch, held, at = 0, 0, -1, e
        nearest_group, most_group, nearest_level, most_level, nearest_of = -1, -1, FAR, FAR, -1
        join, core_steps, bulk_join, bulk_steps, off, below = -1, FAR, -1, FAR, e, e
        while at >= 0 and steps < LOOK_UP:
            what = bits[at]
            bit = 0
            while what != 0 and bit < BITS:
                if what & 1 and row[AT_ABOVE + bit] == FAR:
                    row[AT_ABOVE + bit] = steps
                what >>= 1
                bit += 1
            kind = KIND_OF_TAG[tag[at]]
            if kind >= 0 and row[AT_ABOVE + BITS + kind] == FAR:
                row[AT_ABOVE + BITS + kind] = steps
            if heading[b] == 0 and steps < 4:
                heading[b] = HEADING_OF_TAG[tag[at]]
            if sums[at, S_BLOCKS] > held:
                held = sums[at, S_BLOCKS]
                if branch < len(LEVEL_COLUMN) and LEVEL_COLUMN[branch] >= 0:
                    level = AT_CONTAINED + 5 * LEVEL_COLUMN[branch]
                    mass = sums[at, S_CHARACTERS]
                    row[level], row[level + 1] = share(mass, total), share(sums[at, S_LINKED], mass)
                    row[level + 2], row[level + 3] = share(sums[at, S_PUNCTUATION], mass), share(mass, held)
                    row[level + 4] = share(sums[at, S_TERMINALS], mass)
                branch += 1
            g = group[at]
            if g >= 0 and siblings[g] >= 3:
                if nearest_group < 0:
                    nearest_group, nearest_level, nearest_of = g, steps, at
                if most_group < 0 or group_sums[g, S_CHARACTERS] > group_sums[most_group, S_CHARACTERS]:
                    most_group, most_level = g, steps
            if join < 0 and core[at] >= 0:
                join, core_steps, off = core[at], steps, below
            if bulk_join < 0 and bulk[at] >= 0:
                bulk_join, bulk_steps = bulk[at], steps
            below = at
            steps += 1
            at = parent[at]
        row[AT_PLACED + 5] = steps
        for column in range(levels):  # fewer containers than levels: the outermost stands for those above it
            if LEVELS[column] >= branch:
                level = AT_CONTAINED + 5 * column
                row[level], row[level + 1] = share(total, total), share(sums[0, S_LINKED], total)
                row[level + 2], row[level + 3] = share(sums[0, S_PUNCTUATION], total), share(total, total_blocks)
                row[level + 4] = share(sums[0, S_TERMINALS], total)
        r = AT_REPEATED
        if nearest_group >= 0:
            g, s = nearest_group, group_sums[nearest_group]
            length = share(s[S_CHARACTERS], siblings[g])
            row[r + 5], row[r + 6], row[r + 7] = siblings[g], share(sibling[nearest_of], siblings[g]), nearest_level
            row[r + 8], row[r + 9], row[r + 10] = (
                share(s[S_CHARACTERS], total),
                length,
                share(s[S_LINKED], s[S_CHARACTERS]),
            )
            row[r + 11] = share(sums[nearest_of, S_CHARACTERS], length)
            s = group_sums[most_group]
            row[r + 12], row[r + 13], row[r + 14] = share(s[S_CHARACTERS], total), siblings[most_group], most_level
            row[r + 15] = share(s[S_LINKED], s[S_CHARACTERS])
        else:
            row[r + 5 : r + 16] = 0
        key = path[e] | np.uint64(1)
        place = key & mask
        while keys[place] != 0 and keys[place] != key:
            place = (place + np.uint64(1)) & mask
        if keys[place] == 0:
            keys[place], numbers[place] = key, paths
            paths += 1
        mine[b] = numbers[place]
        like = alike_sums[mine[b]]
        like[0] += 1
        like[1] += characters
        like[2] += min(linked[b], characters)
        like[3] += counts[b, said.TERMINALS]
        row[AT_CORED], row[AT_CORED + 1] = core_steps, core_rank - join if join >= 0 else FAR
        row[AT_CORED + 2] = share(sums[core_end, S_CHARACTERS], total)
        s, g = sums[off], group[off]
        row[AT_CORED + 4], row[AT_CORED + 5] = share(s[S_CHARACTERS], total), share(s[S_LINKED], s[S_CHARACTERS])
        row[AT_CORED + 6], row[AT_CORED + 7] = (
            share(s[S_TERMINALS], s[S_CHARACTERS]),
            share(s[S_CHARACTERS], s[S_BLOCKS]),
        )
        row[AT_CORED + 8], row[AT_CORED + 9] = siblings[g], share(group_sums[g, S_CHARACTERS], total)
        row[AT_CORED + 10], row[AT_CORED + 11] = bulk_steps, bulk_rank - bulk_join if bulk_join >= 0 else FAR
        row[AT_CORED + 12] = share(sums[bulk_end, S_CHARACTERS], total)
        row[AT_CORED + 13] = share(prose, sums[0, S_PROSE])
        if is_prose(counts[b], linked[b]):
            prose += characters
        row[AT_CORED + 14] = share(sums[0, S_PROSE] - prose, sums[0, S_PROSE])
        if join == core_rank:
            first_inside, last_inside = min(first_inside, b), b
    for b in range(n):
        row, like = out[b], alike_sums[mine[b]]
        row[AT_REPEATED], row[AT_REPEATED + 1] = like[0], share(like[0], n)
        row[AT_REPEATED + 2], row[AT_REPEATED + 3], row[AT_REPEATED + 4] = (
            share(like[1], like[0]),
            share(like[2], like[1]),
            share(like[3], like[1]),
        )
        position = 0
        if last_inside >= 0:
            position = min(b - first_inside, 0) + max(b - last_inside, 0)
        row[AT_CORED + 3] = np.float32(position) / np.float32(n)
        row[AT_AROUND + 36] = b > 0 and mine[b] == mine[b - 1]
        row[AT_AROUND + 37] = b + 1 < n and mine[b] == mine[b + 1]


@kernel
def around_features(tag, counts, linked, heading, known, out):
    """What stands before and after a block, which heading it stands under, and what the page is as a whole."""
    n = len(counts)
    first_h1, titled, best = -1, -1, np.float32(0)
    total = paragraphs = items = cells = terminals = covered = long_blocks = headings = 0
    ends = np.zeros((n + 1, 4), np.int64)  # sums of length, link, terminals, punctuation up to each block
    for b in range(n):
        c = counts[b]
        characters = c[said.CHARACTERS]
        ends[b + 1, 0] = ends[b, 0] + characters
        ends[b + 1, 1] = ends[b, 1] + min(linked[b], characters)
        ends[b + 1, 2] = ends[b, 2] + c[said.TERMINALS]
        ends[b + 1, 3] = ends[b, 3] + c[said.PUNCTUATIONS]
        total += characters
        terminals += c[said.TERMINALS]
        headings += heading[b] > 0
        long_blocks += characters >= 2 * PROSE
        if out[b, AT_ABOVE + BITS + KIND_P] < FAR:
            paragraphs += characters
        if out[b, AT_ABOVE + BITS + KIND_LI] < FAR:
            items += characters
        if out[b, AT_ABOVE + BITS + KIND_TD] < FAR:
            cells += characters
        if 2 * c[said.IN_JSON] > c[said.TRIPLES]:
            covered += characters
        if first_h1 < 0 and heading[b] == 1:
            first_h1 = b
        if c[said.IN_TITLE] > 1 or c[said.IN_TITLE] == c[said.WORDS]:
            worth = share(c[said.IN_TITLE] * c[said.IN_TITLE], c[said.WORDS]) * (2 if heading[b] > 0 else 1)
            if worth > best:
                titled, best = b, worth
    articles = mains = forms = h1s = 0
    for e in range(len(tag)):
        t = tag[e]
        articles += t == TAG_ARTICLE
        mains += t == TAG_MAIN
        forms += t == TAG_FORM
        h1s += t == TAG_H1
    last_level, last_at = 0, -1
    for b in range(n):
        row = out[b]
        h = AT_HEADED
        row[h], row[h + 1] = heading[b], last_level
        row[h + 2] = ends[b, 0] - ends[last_at + 1, 0]
        row[h + 3] = b - last_at
        if heading[b] > 0:
            last_level, last_at = heading[b], b
        row[h + 5] = share(ends[b, 0] - ends[first_h1, 0], total) if first_h1 >= 0 else 2
        row[h + 6] = b - first_h1 if first_h1 >= 0 else 10_000
        row[h + 7] = share(ends[b, 0] - ends[titled, 0], total) if titled >= 0 else 2
        row[h + 8] = b - titled if titled >= 0 else 10_000
        column = AT_AROUND
        for d in range(-3, 4):
            if d == 0:
                continue
            if 0 <= b + d < n:
                other = out[b + d]
                row[column], row[column + 1], row[column + 2] = other[0], other[2], other[7]
                row[column + 3], row[column + 4], row[column + 5] = other[6], other[4], other[5]
            else:
                row[column : column + 6] = -1
            column += 6
        column = AT_WINDOWS
        for reach in (4, 12):
            low, high = max(b - reach, 0), min(b + reach + 1, n)
            length = ends[high, 0] - ends[low, 0]
            row[column] = share(length, high - low)
            for what in range(1, 4):
                row[column + what] = share(ends[high, what] - ends[low, what], length)
            column += 4
        column = AT_OVERALL
        row[column], row[column + 1], row[column + 2], row[column + 3] = len(tag), articles, mains, forms
        row[column + 4], row[column + 5] = h1s, headings
        row[column + 6], row[column + 7], row[column + 8] = (
            share(paragraphs, total),
            share(items, total),
            share(cells, total),
        )
        row[column + 9], row[column + 10], row[column + 11] = (
            share(terminals, total),
            share(covered, total),
            long_blocks,
        )
        for k in range(len(KNOWN)):
            row[column + 12 + k] = (known >> k) & 1
    until = ends[n, 0]
    for b in range(n - 1, -1, -1):
        out[b, AT_HEADED + 4] = until - ends[b + 1, 0]
        if heading[b] > 0:
            until = ends[b, 0]


class Tree(NamedTuple):
    """What was found on the way, for those who look at a page a second time."""

    sums: Array  # int64[elements, S_...]
    path: Array  # uint64[elements]: a hash of the tags and first classes from the root on
    group: Array  # int32[elements]: the same for elements that are alike beside each other; -1 where nothing is in one
    heading: Array  # int8[blocks]: 1 to 6 where a block is a heading


def block_features(page: Any, counts: Array, hashes: Array, known: int, room: int = 0) -> tuple[Array, Tree]:
    """float32[blocks, FEATURES] of a page (kernels/html/segment.py), with `room` for more columns; `counts` and
    `hashes` as block_text.measure filled them, `known` bits of KNOWN."""
    blocks, elements = len(page.element), len(page.tag)
    out = np.zeros((blocks, len(FEATURES) + room), np.float32)
    sums, group_sums = np.zeros((elements, 6), np.int64), np.empty((elements, 6), np.int64)
    core, bulk, group, siblings, sibling = (np.empty(elements, np.int32) for _ in range(5))
    path, heading = np.empty(elements, np.uint64), np.zeros(blocks, np.int8)
    if blocks:
        own_features(counts, hashes, page.linked, out)
        sum_up(page.parent, page.element, page.linked, counts, sums)
        tree_shape(page.parent, page.alike, sums, path, group, siblings, sibling, group_sums)
        core_end, bulk_end = chain(page.parent, sums, S_PROSE, core), chain(page.parent, sums, S_CHARACTERS, bulk)
        placed_features(
            page.tag, page.parent, page.bits, page.element, page.linked, counts, sums, core, core_end, bulk, bulk_end, path, group, siblings,
            sibling, group_sums, heading, out,
        )  # fmt: skip
        around_features(page.tag, counts, page.linked, heading, known, out)
    return out, Tree(sums, path, group, heading)
