"""Which phrases of a list begin where in a text: a trie over UTF-8 bytes, entered only where the first two bytes match
a phrase.

Text is read in one of two ways. `phrases_in` reads letter by letter, in lower case. `phrases_in_words_at` reads words:
whatever separates two words is one space, so that "read more" is found in "Read-more!" and never in "bread morels";
each character of a script without spaces, and each emoji, is a word of its own and is found inside any text. Phrases
are cut into words in the same way (`in_words`). A place costs at most the length of the longest phrase, so time is
linear in the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import code_point, helper, inlined, kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import DENSE, EMOJI, FORMAT, LETTER, MARK, NUMBER, properties

_CASED = 0x1F000  # no character above has a lower case
LINE, GAP = 0x0A, 0x20  # how a reading in words ends; what stands around a word
_ALL = 1 << 60
_OUTSIDE, _WORD, _ALONE, _LEFT_OUT = (
    0,
    1,
    2,
    3,
)  # where a reading in words is; _ALONE is after a character that stands for itself


class Trie(NamedTuple):
    """Node n has for byte b the child moves[n * width + classes[b]], 0 for none; node 0 is the root."""

    pairs: Array  # bool[65536]: may a phrase begin with these two bytes?
    classes: Array  # uint8[256]; 0 is any byte that no phrase has
    moves: Array  # int32[nodes * width]
    phrase_bits: Array  # uint32[nodes]: bits of the phrases that end there
    width: int


def trie(phrases: Mapping[str, int]) -> Trie:
    """From phrases in lower case and their bits."""
    used = sorted({byte for phrase in phrases for byte in phrase.encode()})
    classes = np.zeros(256, np.uint8)
    classes[used] = np.arange(1, len(used) + 1)
    for capital in range(ord("A"), ord("Z") + 1):
        classes[capital] = classes[capital + 32]
    width = len(used) + 1
    children: list[dict[int, int]] = [{}]
    phrase_bits = [0]
    pairs = np.zeros((256, 256), np.bool_)
    for phrase, bits in phrases.items():
        if not phrase:
            raise ValueError("a phrase is empty")
        _allow(pairs, phrase)
        node = 0
        for byte in phrase.encode():
            column = int(classes[byte])
            if column not in children[node]:
                children[node][column] = len(children)
                children.append({})
                phrase_bits.append(0)
            node = children[node][column]
        phrase_bits[node] |= bits
    moves = np.zeros((len(children), width), np.int32)
    for node, row in enumerate(children):
        moves[node, list(row)] = list(row.values())
    return Trie(
        _fixed(pairs.reshape(-1)),
        _fixed(classes),
        _fixed(moves.reshape(-1)),
        _fixed(np.array(phrase_bits, np.uint32)),
        width,
    )


def _allow(pairs: Array, phrase: str) -> None:
    """Marks the two bytes with which the phrase, in any case, may begin."""
    for first in _spellings(phrase[0]):
        if len(first) > 1:
            pairs[first[0], first[1]] = True
        elif len(phrase) > 1 and phrase[1].isascii() and phrase[1].isalnum():
            pairs[first[0], 0x80:] = True  # something invisible, or another spelling
            pairs[first[0], [ord(phrase[1]), ord(phrase[1].upper())]] = True
        else:
            pairs[first[0]] = True


def _spellings(small: str) -> list[bytes]:
    points = np.flatnonzero(lower_case() == ord(small)).tolist() or [ord(small)]
    return [chr(point).encode() for point in points]


@cache
def lower_case() -> Array:
    """uint32[0x1F000]: the lower case of each code point that has one of a single character, else itself."""
    table = np.arange(_CASED, dtype=np.uint32)
    for point in range(_CASED):
        small = chr(point).lower()
        if len(small) == 1:
            table[point] = ord(small)
    return _fixed(table)


def lower(text: str) -> str:
    """As in the kernels: character by character ("İ", whose lower case is two characters, stays)."""
    return "".join(small if len(small := character.lower()) == 1 else character for character in text)


@helper
def follow(node, data, i, length, point, lower_case, classes, moves, width):
    """The node after the character `point`, which is data[i:i + length]."""
    if point < 0x80:
        return np.int64(moves[node * width + classes[data[i]]])
    small = np.int64(lower_case[point]) if point < len(lower_case) else point
    if small == point:
        for k in range(length):
            node = np.int64(moves[node * width + classes[data[i + k]]])
        return node
    if small < 0x80:
        return np.int64(moves[node * width + classes[small]])
    if small < 0x800:
        node = np.int64(moves[node * width + classes[0xC0 | small >> 6]])
    else:
        if small < 0x10000:
            node = np.int64(moves[node * width + classes[0xE0 | small >> 12]])
        else:
            node = np.int64(moves[node * width + classes[0xF0 | small >> 18]])
            node = np.int64(moves[node * width + classes[0x80 | small >> 12 & 0x3F]])
        node = np.int64(moves[node * width + classes[0x80 | small >> 6 & 0x3F]])
    return np.int64(moves[node * width + classes[0x80 | small & 0x3F]])


@inlined
def may_begin(data, i, end, pairs):
    return pairs[np.int64(data[i]) << 8 | (np.int64(data[i + 1]) if i + 1 < end else GAP)]


@inlined
def phrases_in(data, start, end, lower_case, pairs, classes, moves, phrase_bits, width):
    """Bits of the phrases that begin anywhere in data[start:end], letter by letter."""
    return phrases_from(data, start, end, end, lower_case, pairs, classes, moves, phrase_bits, width)


@inlined
def phrases_from(data, first, last, end, lower_case, pairs, classes, moves, phrase_bits, width):
    """Bits of the phrases in data[first:end] that begin before byte `last`."""
    bits = np.int64(0)
    for i in range(first, last):
        if may_begin(data, i, end, pairs):
            node = np.int64(0)
            k = i
            while k < end:
                if data[k] < 0x80:
                    node = np.int64(moves[node * width + classes[data[k]]])
                    k += 1
                else:
                    point, length = code_point(data, k, end)
                    node = follow(node, data, k, length, point, lower_case, classes, moves, width)
                    k += length
                if node == 0:
                    break
                bits |= phrase_bits[node]
    return bits


@helper
def phrases_in_words_at(data, i, end, left_out, properties, lower_case, classes, moves, phrase_bits, width):
    """Bits of the phrases that begin with the word at byte i. Words whose first character is of `left_out` are
    skipped."""
    node = np.int64(0)
    bits = np.int64(0)
    where = _OUTSIDE
    while i < end:
        point, length = code_point(data, i, end)
        facts = np.int64(properties[point])
        alone = facts & (DENSE | EMOJI) != 0 and facts & NUMBER == 0
        lettered = facts & (LETTER | MARK | NUMBER) != 0
        if (where == _WORD and (alone or not (lettered or facts & FORMAT))) or (
            where == _ALONE and not alone and not facts & FORMAT
        ):  # a word ends here
            node = np.int64(moves[node * width + classes[GAP]])
            bits |= phrase_bits[node]
            if node == 0:
                return bits
        if alone:
            where = _ALONE
        elif lettered:
            if where in (_OUTSIDE, _ALONE):
                where = _LEFT_OUT if facts & left_out else _WORD
        elif not facts & FORMAT:
            where = _OUTSIDE
        if (where == _WORD and lettered) or alone:
            node = follow(node, data, i, length, point, lower_case, classes, moves, width)
            bits |= phrase_bits[node]
            if node == 0:
                return bits
        i += length
    if where in (_WORD, _ALONE):
        node = np.int64(moves[node * width + classes[GAP]])
        bits |= phrase_bits[node]
    return bits | phrase_bits[moves[node * width + classes[LINE]]] if node else bits


@inlined
def _first_word_may_match(data, i, end, properties, classes, moves, width):
    """Whether a phrase begins with the ASCII letters and digits from byte i on. The first few rule out most words."""
    node = np.int64(0)
    while i < end and data[i] < 0x80 and properties[data[i]] & (LETTER | NUMBER):
        node = np.int64(moves[node * width + classes[data[i]]])
        if node == 0:
            return False
        i += 1
    return i == end or data[i] >= 0x80 or moves[node * width + classes[GAP]] != 0


@inlined
def scan_words(data, start, end, left_out, most, properties, lower_case, pairs, classes, moves, phrase_bits, width):
    """(bits of phrases anywhere, bits of phrases that begin with the first word, places with a phrase, words) of
    data[start:end]. Stops beyond `most` words."""
    bits = np.int64(0)
    first = np.int64(-1)
    places = 0
    words = 0
    where = _OUTSIDE
    i = start
    while i < end and words <= most:
        if data[i] < 0x80:
            length = 1
            facts = np.int64(properties[data[i]])
        else:
            point, length = code_point(data, i, end)
            facts = np.int64(properties[point])
        begins = False
        if facts & (DENSE | EMOJI) and not facts & NUMBER:
            begins = True
            where = _ALONE
            words += 1
        elif facts & (LETTER | MARK | NUMBER):
            if where in (_OUTSIDE, _ALONE):
                words += 1
                begins = facts & left_out == 0
                where = _WORD if begins else _LEFT_OUT
        elif not facts & FORMAT:
            where = _OUTSIDE
        if begins:
            here = np.int64(0)
            if may_begin(data, i, end, pairs) and _first_word_may_match(
                data, i, end, properties, classes, moves, width
            ):
                here = phrases_in_words_at(
                    data, i, end, left_out, properties, lower_case, classes, moves, phrase_bits, width
                )
                bits |= here
                places += here != 0
            if first < 0:
                first = here
        i += length
        if where in (_WORD, _LEFT_OUT):
            while i < end and data[i] < 0x80 and properties[data[i]] & (LETTER | NUMBER):  # the rest of the word
                i += 1
    return bits, max(first, 0), places, words


def in_words(text: str, left_out: int = 0) -> tuple[str, int]:
    """The reference of reading in words: the remaining words with one space after each, and their number."""
    bits = properties()
    out, words, where = "", 0, _OUTSIDE
    for character in text:
        facts = int(bits[ord(character)])
        if stands_alone(character):
            out += (" " if where == _WORD else "") + lower(character)
            words += 1
            where = _ALONE
        elif facts & (LETTER | MARK | NUMBER):
            if where in (_OUTSIDE, _ALONE):
                words += 1
                out += " " if where == _ALONE else ""
                where = _LEFT_OUT if facts & left_out else _WORD
            out += lower(character) if where == _WORD else ""
        elif not facts & FORMAT:
            out += " " if where in (_WORD, _ALONE) else ""
            where = _OUTSIDE
    return out + (" " if where in (_WORD, _ALONE) else "") + "\n", words


def stands_alone(character: str) -> bool:
    facts = int(properties()[ord(character)])
    return bool(facts & (DENSE | EMOJI) and not facts & NUMBER)


def phrase_within(phrase: str) -> str:
    """A phrase as it is searched within a line read in words; empty if it has no word."""
    read = in_words(phrase)[0][:-1]
    return read[:-1] if read and stands_alone(read[:-1][-1:] or " ") else read


def phrase_as_line(phrase: str) -> str:
    """A phrase that is a whole line; empty if it has no word."""
    read = in_words(phrase)[0]
    return read if read != "\n" else ""


def scan_words_plain(text: str, phrases: Mapping[str, int], left_out: int = 0) -> tuple[int, int, int, int]:
    read, words = in_words(text, left_out)
    starts = [
        i
        for i, character in enumerate(read)
        if character not in " \n"
        and (i == 0 or read[i - 1] == " " or stands_alone(read[i - 1]) or stands_alone(character))
    ]
    here = []
    for start in starts:
        here.append(0)
        for phrase, bits in phrases.items():
            here[-1] |= bits if read.startswith(phrase, start) else 0
    every = 0
    for bits in here:
        every |= bits
    return every, here[0] if here else 0, sum(map(bool, here)), words


@kernel
def count_phrases(data, offsets, rows, properties, lower_case, pairs, classes, moves, phrase_bits, width, out):
    """out[i] = the number of places of document i where a phrase begins, for each document i of `rows`."""
    for k in range(len(rows)):
        i = rows[k]
        out[i] = scan_words(
            data, offsets[i], offsets[i + 1], 0, _ALL, properties, lower_case, pairs, classes, moves, phrase_bits, width
        )[2]


def _fixed(table: Array) -> Array:
    table.flags.writeable = False
    return table
