"""A recipe's ingredients, where the page states them in JSON-LD and the choice of blocks left some out.

Lines of an ingredient list have few words, and in many markups nothing around them says what they are. The page's own
`recipeIngredient` does: blocks that say it again, several in a row, are the list.
"""

from __future__ import annotations

import html as entities
import re
from collections import Counter
from typing import Any

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.kernels.blocks.features import WORDS
from gristmill.kernels.html.segment import Page

WORD = re.compile(r"\w+")
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
    text, edges = page.text.tobytes(), page.start.tolist()

    def words_in(block: int) -> frozenset[str]:
        return words_of(text[edges[block] : edges[block + 1]].decode("utf-8", "replace"))

    with_word = by_word(ingredients)
    shown: set[int] = set()  # a block must say it: the words alone stand in the instructions too
    for block in np.flatnonzero(kept)[:MOST_BLOCKS].tolist():
        shared = shared_words(words_in(block), with_word)
        shown |= {number for number, count in shared.items() if count >= ENOUGH * len(ingredients[number])}
    missing = [each for number, each in enumerate(ingredients) if number not in shown]
    if not missing:
        return kept
    short = np.flatnonzero((counts[:, WORDS] <= LONGEST) & (counts[:, WORDS] > 0))[:MOST_BLOCKS].tolist()
    with_word = by_word(missing)
    of_block = {b: said_by(words_in(b), with_word) for b in short}
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


def words_of(line: str) -> frozenset[str]:
    return frozenset(WORD.findall(entities.unescape(line).lower()))


def by_word(ingredients: list[frozenset[str]]) -> dict[str, list[int]]:
    """The numbers of the ingredients that have a word."""
    numbers: dict[str, list[int]] = {}
    for number, words in enumerate(ingredients):
        for word in words:
            numbers.setdefault(word, []).append(number)
    return numbers


def shared_words(block: frozenset[str], with_word: dict[str, list[int]]) -> Counter[int]:
    """How many words a block shares with each ingredient."""
    return Counter(number for word in block if word in with_word for number in with_word[word])


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
