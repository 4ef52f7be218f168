"""The columns of a block's features: their names, which are saved with a model, and their numbers, which kernels use.

The order of the names is the order of the columns, so a new feature needs new models.
"""

from __future__ import annotations

from gristmill.kernels.html.names import KNOWN

BIT_NAMES = (
    "hidden", "veiled", "folded", "navigation", "paging", "header", "footer", "sidebar", "social", "consent", "advert",
    "related", "newsletter", "popup", "login", "search", "labels", "byline", "comment", "forum", "review", "main",
    "article", "content", "summary", "product", "listing", "title", "caption", "code", "contents",
)  # fmt: skip
FAR = 64  # the distance to what is not there
BITS = len(BIT_NAMES)  # of Page.bits; the last bit, of formulas, is no feature

# Kinds of element: the distance to the nearest of each above a block is a feature.
KINDS = (
    ("nav",), ("header",), ("footer",), ("aside",), ("main",), ("article",), ("section",), ("form", "fieldset"),
    ("ul", "menu"), ("ol",), ("li",), ("table",), ("td", "th"), ("p",), ("h1",), ("h2",), ("h3",), ("h4", "h5", "h6"),
    ("blockquote",), ("pre", "code"), ("figure",), ("figcaption", "caption"), ("a",),
    ("button", "label", "legend", "option", "optgroup"), ("dl", "dt", "dd"), ("details", "summary"), ("dialog",),
    ("noscript",), ("address",), ("tr",), ("div",),
)  # fmt: skip
KIND = {name: index for index, names in enumerate(KINDS) for name in names}

LEVELS = (0, 1, 2, 3, 5)  # containers of a block, counted from the innermost, whose contents are features
BESIDE = ("length", "link", "terminals", "punctuation", "upper", "digits")  # of each of six neighbours
REACHES = (4, 12)  # blocks before and after a block that a window spans

OWN = (
    "characters", "words", "link_share", "letter_share", "upper_share", "digit_share", "punctuation_share",
    "terminal_share", "comma_share", "symbol_share", "word_length", "last", "first", "lines", "json_share",
    "meta_share", "title_share", "copies", "copy",
)  # fmt: skip
PLACED = ("index_share", "before_share", "block_count", "page_characters", "page_link_share", "depth")
ABOVE = tuple(f"to_{name}" for name in BIT_NAMES) + tuple(f"to_<{names[0]}>" for names in KINDS)
CONTAINED = tuple(
    f"{what}_{level}_up"
    for level in LEVELS
    for what in ("share", "link_share", "punctuation", "per_block", "terminals")
)
REPEATED = (
    "alike_blocks", "alike_share", "alike_length", "alike_link_share", "alike_terminals", "siblings", "sibling_index",
    "sibling_level", "siblings_share", "siblings_length", "siblings_link_share", "sibling_length_ratio",
    "most_siblings_share", "most_siblings", "most_siblings_level", "most_siblings_link_share",
)  # fmt: skip
HEADED = (
    "heading", "last_heading", "since_heading", "blocks_since_heading", "until_heading", "from_h1", "blocks_from_h1",
    "from_title", "blocks_from_title",
)  # fmt: skip
CORED = (
    "core_steps", "core_join", "core_share", "core_position", "branch_share", "branch_link_share", "branch_terminals",
    "branch_per_block", "branch_siblings", "branch_siblings_share", "bulk_steps", "bulk_join", "bulk_share",
    "prose_before", "prose_after",
)  # fmt: skip
AROUND = (
    *(f"{what}_{distance:+d}" for distance in (-3, -2, -1, 1, 2, 3) for what in BESIDE),
    "like_previous",
    "like_next",
)
WINDOWS = tuple(
    f"{what}_within_{reach}" for reach in REACHES for what in ("length", "link", "terminals", "punctuation")
)
OVERALL = (
    "elements", "articles", "mains", "forms", "h1s", "headings", "paragraph_share", "item_share", "cell_share",
    "terminal_density", "json_covered", "long_blocks", *(f"says_{what}" for what in KNOWN),
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

# The number of each column, as kernels need it.
(
    CHARACTERS, WORDS, LINK_SHARE, LETTER_SHARE, UPPER_SHARE, DIGIT_SHARE, PUNCTUATION_SHARE, TERMINAL_SHARE,
    COMMA_SHARE, SYMBOL_SHARE, WORD_LENGTH, LAST, FIRST, LINES, JSON_SHARE, META_SHARE, TITLE_SHARE, COPIES, COPY,
) = range(AT_PLACED)  # fmt: skip
INDEX_SHARE, BEFORE_SHARE, BLOCK_COUNT, PAGE_CHARACTERS, PAGE_LINK_SHARE, DEPTH = range(AT_PLACED, AT_ABOVE)
TO_BIT = AT_ABOVE
TO_KIND = AT_ABOVE + BITS
(
    ALIKE_BLOCKS, ALIKE_SHARE, ALIKE_LENGTH, ALIKE_LINK_SHARE, ALIKE_TERMINALS, SIBLINGS, SIBLING_INDEX, SIBLING_LEVEL,
    SIBLINGS_SHARE, SIBLINGS_LENGTH, SIBLINGS_LINK_SHARE, SIBLING_LENGTH_RATIO, MOST_SIBLINGS_SHARE, MOST_SIBLINGS,
    MOST_SIBLINGS_LEVEL, MOST_SIBLINGS_LINK_SHARE,
) = range(AT_REPEATED, AT_HEADED)  # fmt: skip
(
    HEADING, LAST_HEADING, SINCE_HEADING, BLOCKS_SINCE_HEADING, UNTIL_HEADING, FROM_H1, BLOCKS_FROM_H1, FROM_TITLE,
    BLOCKS_FROM_TITLE,
) = range(AT_HEADED, AT_CORED)  # fmt: skip
(
    CORE_STEPS, CORE_JOIN, CORE_SHARE, CORE_POSITION, BRANCH_SHARE, BRANCH_LINK_SHARE, BRANCH_TERMINALS,
    BRANCH_PER_BLOCK, BRANCH_SIBLINGS, BRANCH_SIBLINGS_SHARE, BULK_STEPS, BULK_JOIN, BULK_SHARE, PROSE_BEFORE,
    PROSE_AFTER,
) = range(AT_CORED, AT_AROUND)  # fmt: skip
LIKE_PREVIOUS, LIKE_NEXT = AT_WINDOWS - 2, AT_WINDOWS - 1
(
    ELEMENTS, ARTICLES, MAINS, FORMS, H1S, HEADINGS, PARAGRAPH_SHARE, ITEM_SHARE, CELL_SHARE, TERMINAL_DENSITY,
    JSON_COVERED, LONG_BLOCKS,
) = range(AT_OVERALL, AT_OVERALL + 12)  # fmt: skip
SAYS = AT_OVERALL + 12

# In the five columns of a container, from the first.
CONTAINER_SHARE, CONTAINER_LINK_SHARE, CONTAINER_PUNCTUATION, CONTAINER_PER_BLOCK, CONTAINER_TERMINALS = range(5)
CONTAINER_COLUMNS = 5
