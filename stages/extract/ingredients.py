"""A recipe's ingredients, where the page states them in JSON-LD and the choice of blocks left some out.

Lines of an ingredient list have few words, and in many markups nothing around them says what they are. The page's own
`recipeIngredient` does: blocks that say it again, several in a row, are the list.
"""

from __future__ import annotations

import html as entities
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.kernels.blocks.features import WORDS
from gristmill.kernels.html.segment import Page

WORD = re.compile(r"\w+")
BETWEEN = b"\0"  # which no text has
MOST, MOST_BLOCKS = 200, 5000  # ingredients, and short blocks that are held against them
LONGEST = 30  # words of a block
ENOUGH = 0.8  # of an ingredient's words in the text, or of a block's words in an ingredient
FEWEST = 3  # ingredients that make a list
GAP = 3  # blocks between two lines of one list


def with_ingredients(page: Page, counts: Array, kept: Array, stated: Any) -> Array:
    """The choice, and with it the list in which most of the missing ingredients stand. `stated`: `recipeIngredient`."""
    lines = stated[:MOST] if isinstance(stated, list) else []
    ingredients = [words for words in (words_of(line) for line in lines if isinstance(line, str)) if words]
    if len(ingredients) < FEWEST:
        return kept
    words = counts[:, WORDS]
    with_word = by_word(ingredients)
    missing = dict(enumerate(ingredients))  # a block must say it: the words alone stand in the instructions too
    candidates = np.flatnonzero(kept)[:MOST_BLOCKS]
    is_long = words[candidates] > LONGEST
    for blocks in (candidates[~is_long], candidates[is_long]):
        for block_words in words_in(page, blocks.tolist()):
            for number, count in shared_words(block_words, with_word).items():
                if count >= ENOUGH * len(ingredients[number]):
                    missing.pop(number, None)
        if not missing:
            return kept
    short = np.flatnonzero((words <= LONGEST) & (words > 0))[:MOST_BLOCKS].tolist()
    with_word = by_word(list(missing.values()))
    of_block = {
        block: said_by(block_words, with_word) for block, block_words in zip(short, words_in(page, short), strict=True)
    }
    best: list[int] = []
    most = 0
    for run in runs([b for b, numbers in of_block.items() if numbers]):
        covered = len({number for b in run for number in of_block[b]})
        if covered > most:
            best, most = run, covered
    if most < min(FEWEST, len(missing)):
        return kept
    kept = kept.copy()
    kept[best[0] : best[-1] + 1] = True  # with amounts and remarks between them
    return kept


def words_in(page: Page, blocks: list[int]) -> Iterator[frozenset[str]]:
    """The words of each of these blocks."""
    text, start = page.text.tobytes(), page.start.tolist()
    joined = BETWEEN.join([text[start[block] : start[block + 1]] for block in blocks])
    lines = joined.decode("utf-8", "replace").split(BETWEEN.decode()) if blocks else []
    return map(words_of, lines)


def words_of(line: str) -> frozenset[str]:
    return frozenset(WORD.findall((entities.unescape(line) if "&" in line else line).lower()))


def by_word(ingredients: list[frozenset[str]]) -> dict[str, list[int]]:
    """The numbers of the ingredients that have a word."""
    numbers: dict[str, list[int]] = {}
    for number, words in enumerate(ingredients):
        for word in words:
            numbers.setdefault(word, []).append(number)
    return numbers


def shared_words(block: frozenset[str], with_word: dict[str, list[int]]) -> dict[int, int]:
    """How many words a block shares with each ingredient."""
    shared: dict[int, int] = {}
    for word in block:
        for number in with_word.get(word, ()):
            shared[number] = shared.get(number, 0) + 1
    return shared


def said_by(block: frozenset[str], with_word: dict[str, list[int]]) -> list[int]:
    """Which of them a block says, or a part of them."""
    return [number for number, count in shared_words(block, with_word).items() if count >= ENOUGH * len(block)]


def runs(blocks: list[int]) -> list[list[int]]:
    """Blocks that stand together."""
    together: list[list[int]] = []
    for block in blocks:
        if together and block - together[-1][-1] <= GAP:
            together[-1].append(block)
        else:
            together.append([block])
    return together
