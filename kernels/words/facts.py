"""The numbers and names of a text, and whether another text has them: a second look at two texts whose vectors are
alike.

Weather reports, product pages and licences of one template are as near to each other as paraphrases are. What sets them
apart is that they state other facts. A token (`gristmill.kernels.words.token_rules`) is a fact if it has a digit, an
upper-case letter behind its first, or begins with one though no sentence begins there. A text has a fact if the token
stands anywhere in it, so that a name may move to the beginning of a sentence. Order and negation are not seen.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.bare import helper, kernel, point_at
from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.types import Array, Offsets
from gristmill.kernels.base.unicode import NUMBER, TERMINAL, UPPER, properties
from gristmill.kernels.words.token_rules import token_hash_plain, tokens_plain
from gristmill.kernels.words.tokens import token_column

_NUMBER, _UPPER, _TERMINAL = np.uint16(NUMBER), np.uint16(UPPER), np.uint16(TERMINAL)
_NAME, _FACT = np.uint64((1 << 64) - 2), np.uint64(1)


def words_and_facts(column: TextColumn) -> tuple[Array, Offsets]:
    """The words of each text, sorted and without repeats: their hashes, with the lowest bit set where the word is a
    fact somewhere in the text. Words `first[i]` to `first[i + 1]` are those of text i."""
    tokens = token_column(column)
    marks = np.zeros(len(tokens.hashes), np.uint8)
    _mark_facts(column.data, column.offsets, tokens.starts, tokens.ends, tokens.first, properties(), marks)
    text = np.repeat(np.arange(len(column)), np.diff(tokens.first))
    names = tokens.hashes & _NAME
    order = np.lexsort((names, text))
    names, text = names[order], text[order]
    begins = np.ones(len(names), bool)
    begins[1:] = (names[1:] != names[:-1]) | (text[1:] != text[:-1])
    places = np.flatnonzero(begins)
    facts = np.maximum.reduceat(marks[order], places) if len(places) else marks[:0]
    first = np.searchsorted(text[places], np.arange(len(column) + 1)).astype(np.int64)
    return names[places] | facts.astype(np.uint64), first


def shared(words: Array, first: Offsets, last: Offsets, left: Array, right: Array) -> tuple[Array, Array]:
    """Of pairs of texts, whose words are `words[first[i]:last[i]]`: the Jaccard similarity of their words; and the
    share of facts that the other text has, of the text where it is smaller (1 where there are none)."""
    jaccard, facts = np.zeros(len(left)), np.ones(len(left))
    _shared(words, first, last, left, right, jaccard, facts)
    return jaccard, facts


@helper
def _is_fact(data, start, end, begins_sentence, table):
    place, number = start, 0
    while place < end:
        point, size = point_at(data, place, end)
        if table[point] & _NUMBER or (table[point] & _UPPER and (number or not begins_sentence)):
            return True
        place += size
        number += 1
    return False


@helper
def _ends_sentence(data, start, end, table):
    place = start
    while place < end:
        point, size = point_at(data, place, end)
        if point == 10 or table[point] & _TERMINAL:
            return True
        place += size
    return False


@kernel
def _mark_facts(data, offsets, starts, ends, first, table, marks):
    for d in range(len(first) - 1):
        for k in range(first[d], first[d + 1]):
            begins = k == first[d] or _ends_sentence(data, ends[k - 1], starts[k], table)
            if _is_fact(data, starts[k], ends[k], begins, table):
                marks[k] = 1


@kernel
def _shared(words, first, last, left, right, jaccard, facts):
    for p in range(len(left)):
        a, a_end, b, b_end = first[left[p]], last[left[p]], first[right[p]], last[right[p]]
        together = a_end - a + b_end - b
        both, of_a, of_b, missing_a, missing_b = 0, 0, 0, 0, 0
        while a < a_end or b < b_end:
            x = words[a] & _NAME if a < a_end else _NAME
            y = words[b] & _NAME if b < b_end else _NAME
            from_a = a < a_end and (b >= b_end or x <= y)
            from_b = b < b_end and (a >= a_end or y <= x)
            if from_a and words[a] & _FACT:
                of_a += 1
                missing_a += not from_b
            if from_b and words[b] & _FACT:
                of_b += 1
                missing_b += not from_a
            both += from_a and from_b
            a += from_a
            b += from_b
        if together:
            jaccard[p] = both / (together - both)
        if of_a:
            facts[p] = min(facts[p], 1 - missing_a / of_a)
        if of_b:
            facts[p] = min(facts[p], 1 - missing_b / of_b)


def words_and_facts_plain(text: str) -> dict[int, bool]:
    """Of one text: the hash of each word, and whether it is a fact."""
    table, data = properties(), text.encode()
    found: dict[int, bool] = {}
    before: int | None = None
    for start, end, token in tokens_plain(text):
        gap = "" if before is None else data[before:start].decode()
        begins = before is None or any(c == "\n" or table[ord(c)] & TERMINAL for c in gap)
        points = [int(table[ord(c)]) for c in data[start:end].decode()]
        fact = any(kind & NUMBER or (kind & UPPER and (n or not begins)) for n, kind in enumerate(points))
        name = token_hash_plain(token) & ~1
        found[name] = found.get(name, False) or bool(fact)
        before = end
    return found


def shared_plain(left: dict[int, bool], right: dict[int, bool]) -> tuple[float, float]:
    both = left.keys() & right.keys()
    facts = 1.0
    for own, other in ((left, right), (right, left)):
        stated = [name for name, fact in own.items() if fact]
        if stated:
            facts = min(facts, 1 - sum(name not in other for name in stated) / len(stated))
    return len(both) / len(left.keys() | right.keys()) if left or right else 0.0, facts
