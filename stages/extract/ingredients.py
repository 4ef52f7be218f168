"""A recipe's ingredients, where the page states them in JSON-LD and the choice of blocks left some out.

Lines of an ingredient list have few words, and in many markups nothing around them says what they are. The page's own
`recipeIngredient` does: blocks that say it again, several in a row, are the list.
"""

from __future__ import annotations

import html as entities
import re
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
    lines = [plain(line) for line in (stated[:MOST] if isinstance(stated, list) else []) if isinstance(line, str)]
    ingredients = {number: words for number, words in enumerate(map(words_of, lines)) if words}
    if len(ingredients) < FEWEST:
        return kept
    words, candidates = counts[:, WORDS], np.flatnonzero(kept)[:MOST_BLOCKS]
    blocks = texts_in(page, candidates.tolist())
    text = BETWEEN.decode().join(blocks)
    # Those that no block says: the words alone stand in the instructions too.
    missing = {number: of_line for number, of_line in ingredients.items() if not says(text, lines[number])}
    with_word = by_word(missing)
    known = frozenset(with_word)
    for block in blocks if missing else ():
        for number, count in shared_words(words_of(block) & known, with_word).items():
            if number in missing and count >= ENOUGH * len(missing[number]):
                del missing[number]
    if not missing:
        return kept
    short = np.flatnonzero((words <= LONGEST) & (words > 0))[:MOST_BLOCKS].tolist()
    with_word = by_word(missing)
    known = frozenset(with_word)
    of_block = {
        block: said_by(words_of(text), with_word, known)
        for block, text in zip(short, texts_in(page, short), strict=True)
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


def texts_in(page: Page, blocks: list[int]) -> list[str]:
    """The texts of these blocks, as `plain` makes them."""
    text, start = page.text.tobytes(), page.start.tolist()
    joined = BETWEEN.join([text[start[block] : start[block + 1]] for block in blocks])
    return plain(joined.decode("utf-8", "replace")).split(BETWEEN.decode()) if blocks else []


def plain(line: str) -> str:
    """In small letters, without character references."""
    return (entities.unescape(line) if "&" in line else line).lower()


def words_of(line: str) -> frozenset[str]:
    return frozenset(WORD.findall(line))


def says(text: str, line: str) -> bool:
    """Whether a line stands in a text as it is, from the begin of a word to the end of one."""
    first = text.find(line)
    if first < 0 or not line:
        return False
    last = first + len(line)
    begins = first == 0 or WORD.match(text[first - 1]) is None or WORD.match(line) is None
    return begins and (last == len(text) or WORD.match(text[last]) is None or WORD.match(line[-1]) is None)


def by_word(ingredients: dict[int, frozenset[str]]) -> dict[str, list[int]]:
    """The numbers of the ingredients that have a word."""
    numbers: dict[str, list[int]] = {}
    for number, words in ingredients.items():
        for word in words:
            numbers.setdefault(word, []).append(number)
    return numbers


def shared_words(words: frozenset[str], with_word: dict[str, list[int]]) -> dict[int, int]:
    """How many of these words, all of which some ingredient has, each ingredient has."""
    shared: dict[int, int] = {}
    for word in words:
        for number in with_word[word]:
            shared[number] = shared.get(number, 0) + 1
    return shared


def said_by(block: frozenset[str], with_word: dict[str, list[int]], known: frozenset[str]) -> list[int]:
    """Which ingredients a block says, or a part of them."""
    there, least = block & known, ENOUGH * len(block)
    if len(there) < least:
        return []
    return [number for number, count in shared_words(there, with_word).items() if count >= least]


def runs(blocks: list[int]) -> list[list[int]]:
    """Blocks that stand together."""
    together: list[list[int]] = []
    for block in blocks:
        if together and block - together[-1][-1] <= GAP:
            together[-1].append(block)
        else:
            together.append([block])
    return together
