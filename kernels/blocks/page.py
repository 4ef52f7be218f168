"""A page from its bytes to its kept blocks, its text and what it says of itself, in one call.

The parts are helpers of other files: code and formulas that are rewritten first (html/hints.py), blocks
(html/segment.py), the head (heads.py), features (features.py), forests and the choice (choice.py), text
(html/paragraphs.py)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gristmill.kernels.base.compiled import helper, kernel
from gristmill.kernels.base.types import Array, Bytes
from gristmill.kernels.base.unicode import properties
from gristmill.kernels.blocks.choice import Splits, comments_of, mended, probability_of, put_choice
from gristmill.kernels.blocks.features import CHARACTERS, CONTEXT, WORDS, counted, features_of
from gristmill.kernels.blocks.heads import head_of
from gristmill.kernels.html.hints import REWRITTEN, TABLE, WORD, hints_in
from gristmill.kernels.html.names import HEAD_ITEM, HEAD_LIST
from gristmill.kernels.html.paragraphs import CODE, ROW, paragraphs_of, places_in
from gristmill.kernels.html.segment import LONGEST, page_of
from gristmill.kernels.html.tables import tables

# Places of `Read.numbers`: bits of the hints of code and formulas that are to be rewritten, before anything else is
# done; blocks, where they are too many; bits of KNOWN; words and characters of the page, and characters of the kept
# blocks; whether `written` is their text, which is not so where there are rows of tables, code, or numbers of lists.
HINTED, TOO_MANY, SAYS_IT_IS, PAGE_WORDS, PAGE_CHARACTERS, KEPT_CHARACTERS, IS_WRITTEN = range(7)
NUMBERS = 7
FEW_NUMBERS = len("<ol start=2>")


class Choosing(NamedTuple):
    """How blocks are chosen (choice.py)."""

    first: Splits
    second: Splits
    hopeless: float
    sharpness: float
    recall: float
    least: float


class Read(NamedTuple):
    """What there is to a page."""

    numbers: Array  # int64[NUMBERS]
    places: Array  # int64: of hints (html/hints.py)
    head: Array  # int64[rows, 6] (heads.py)
    written: Bytes
    page: Any  # the fields of Page
    counts: Array  # int32[blocks, COUNTS]
    rows: Array  # float32[blocks, COLUMNS]
    tree: Any  # the fields of Tree
    probability: Array  # float32[blocks]
    kept: Array  # bool[blocks]
    comments: Array  # bool[blocks]: readers' comments, which `kept` has too


def read_page(
    data: Bytes, choosing: Choosing, most_blocks: int, rewritten: bool, with_comments: bool, markdown: bool
) -> Read:
    """The page of these bytes of UTF-8; `rewritten` if its code and formulas are. The text has readers' comments if
    they are wanted."""
    if len(data) > LONGEST:
        raise ValueError(f"a page of {len(data):,} bytes; no more than {LONGEST:,} can be taken")
    first, second, *numbers = choosing
    return Read(
        *whole(
            data, rewritten, with_comments, markdown, most_blocks, properties(), *tables(), *first, *second, *numbers
        )
    )


@helper
def shows_numbers(data, kinds, starts, ends):
    """Whether a list of the page may not count from 1."""
    for h in range(len(kinds)):
        if kinds[h] == HEAD_ITEM:
            return True
        if kinds[h] == HEAD_LIST and ends[h] - starts[h] >= FEW_NUMBERS:
            for i in range(starts[h] + 3, min(ends[h], starts[h] + 4096) - 2):
                first, second, third = data[i] | 32, data[i + 1] | 32, data[i + 2] | 32
                if (first == 115 and second == 116 and third == 97) or (
                    first == 114 and second == 101 and third == 118
                ):
                    return True
    return False


@kernel
def whole(
    data, rewritten, with_comments, markdown, most_blocks, properties, flat, hashes, kinds, words, references,
    columns_1, feature_1, threshold_1, left_1, first_split_1, value_1, first_leaf_1, base_1,
    columns_2, feature_2, threshold_2, left_2, first_split_2, value_2, first_leaf_2, base_2,
    hopeless, sharpness, recall, least,
) -> Any:  # fmt: skip
    numbers, places = np.zeros(NUMBERS, np.int64), np.empty(0, np.int64)
    if not rewritten:
        bits, places = hints_in(data)
        if bits & REWRITTEN or (bits & WORD and bits & TABLE):
            numbers[HINTED] = bits
            data = data[:0]
    page = page_of(data, flat, hashes, kinds, words, references)
    if len(page[6]) > most_blocks:
        numbers[TOO_MANY] = len(page[6])
        data = data[:0]
        page = page_of(data, flat, hashes, kinds, words, references)
    tag, parent, bits, alike, text, start, element, linked, _, head_kind, head_start, head_end = page
    head, says, spans = head_of(data, head_kind, head_start, head_end, flat, hashes)
    numbers[SAYS_IT_IS] = says
    counts, hashes_of_text = counted(data, spans[:, 0], spans[:, 1], spans[:, 2], properties, text, start)
    rows, sums, path, group, heading = features_of(
        tag, parent, bits, alike, element, linked, counts, hashes_of_text, says, len(CONTEXT)
    )
    probability = probability_of(
        columns_1, feature_1, threshold_1, left_1, first_split_1, value_1, first_leaf_1, base_1,
        columns_2, feature_2, threshold_2, left_2, first_split_2, value_2, first_leaf_2, base_2,
        hopeless, rows, counts, parent, element, sums, path, group, heading,
    )  # fmt: skip
    kept = np.zeros(len(element), np.bool_)
    if len(element) > 0:
        put_choice(probability, counts[:, WORDS], sharpness, recall, least, kept)
    kept = mended(kept, probability, tag, parent, element, text, start, counts, rows, heading)
    comments = comments_of(kept, counts, rows)
    count = 0
    for b in range(len(element)):
        numbers[PAGE_WORDS] += counts[b, WORDS]
        numbers[PAGE_CHARACTERS] += counts[b, CHARACTERS]
        if kept[b] and (with_comments or not comments[b]):
            numbers[KEPT_CHARACTERS] += counts[b, CHARACTERS]
            count += 1
    chosen, last = np.empty(count, np.int64), 0
    for b in range(len(element)):
        if kept[b] and (with_comments or not comments[b]):
            chosen[last] = b
            last += 1
    rows_of_places, around, _ = places_in(tag, parent, element[chosen])
    above, plain = np.empty((count, 8), np.int32), True
    for k in range(count):
        above[k] = rows_of_places[element[chosen[k]]]
        plain &= above[k, ROW] < 0 and above[k, CODE] < 0
    written = np.empty(0, np.uint8)
    if plain and not shows_numbers(data, head_kind, head_start, head_end):
        lists = np.empty((0, 3), np.int64)
        written = paragraphs_of(text, start, chosen, above, around, tag, parent, lists, markdown)
        numbers[IS_WRITTEN] = 1
    return (
        numbers, places, head, written, page, counts, rows, (sums, path, group, heading), probability, kept, comments,
    )  # fmt: skip
