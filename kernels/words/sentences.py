"""The number of sentences of a text: the rule of spaCy's sentencizer, which DataTrove uses, corrected for more scripts.

A sentence opens with a letter, number or symbol and ends at terminal punctuation (Unicode's Sentence_Terminal) or at an
empty line. The stops . ! ? only end one where a space follows, after any closing quotes and brackets ("example.com",
"3.14" go on), or between a small letter and a capital ("end.Next"). Nothing ends at an ellipsis, after a single letter
("J. Smith", "e.g. this", "А. Пушкин") or after the abbreviations below. Other stops (。！？।؟) end a sentence whatever
follows, since many scripts put no space there.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.bare import code_point, helper, inlined, kernel
from gristmill.kernels.base.unicode import (
    LETTER,
    LOWER,
    NUMBER,
    PUNCTUATION,
    SPACE,
    SYMBOL,
    TERMINAL,
    UPPER,
    properties,
)

ABBREVIATIONS = (
    "Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Mt", "Jr", "Sr", "Rev", "Gen", "Gov", "Sen", "Rep", "Capt", "Lt", "Col",
    "vs", "Inc", "Ltd", "Co",
    "Corp", "Jan", "Feb", "Mar", "Apr", "Jun", "Jul", "Aug", "Sep", "Sept", "Oct", "Nov", "Dec",
)  # fmt: skip
_LONGEST = max(map(len, ABBREVIATIONS))
_ABBREVIATED = np.array([int.from_bytes(word.encode(), "big") for word in ABBREVIATIONS], np.int64)
_NEWLINE, _STOP = 0x0A, 0x2E


@inlined
def count_sentences(data, start, end, properties):
    """Sentences in data[start:end], UTF-8; `properties` is the table of gristmill.kernels.base.unicode."""
    count = 0
    opened = False
    stopped = False  # after . ! or ?, with nothing but punctuation since
    newlines = 0
    i = start
    while i < end:
        if opened and not stopped and newlines == 0:  # on to the next character that may end the sentence
            while i < end and data[i] < 0x80 and not properties[data[i]] & TERMINAL and data[i] != _NEWLINE:
                i += 1
            if i == end:
                break
        if data[i] < 0x80:
            point, length = np.int64(data[i]), 1
        else:
            point, length = code_point(data, i, end)
        bits = np.int64(properties[point])
        if bits & (LETTER | NUMBER):
            count += not opened
            opened = True
            stopped = False
            newlines = 0
        elif bits & SPACE:
            if stopped:
                opened = stopped = False
            if point == _NEWLINE:
                newlines += 1
                if newlines == 2:
                    opened = False
        else:
            newlines = 0
            if bits & TERMINAL:
                if point >= 0x80:
                    opened = stopped = False
                elif point != _STOP:
                    stopped = True
                elif not (i > start and data[i - 1] == _STOP) and not (i + 1 < end and data[i + 1] == _STOP):
                    ends, small = _word_before(data, start, i, properties)
                    if ends:
                        if small and i + 1 < end and properties[code_point(data, i + 1, end)[0]] & UPPER:
                            opened = stopped = False
                        else:
                            stopped = True
            elif not bits & PUNCTUATION:
                stopped = False
                if bits & SYMBOL:
                    count += not opened
                    opened = True
        i += length
    return count


@helper
def _word_before(data, start, stop, properties):
    """(whether a sentence may end at the stop at byte `stop`: not after one letter or an abbreviation; whether the
    character before it is a small letter)."""
    letters = 0
    small = False
    word = np.int64(0)
    i = stop
    while i > start and letters <= _LONGEST:
        j = i - 1
        while j > start and i - j < 4 and data[j] & 0xC0 == 0x80:
            j -= 1
        point, _ = code_point(data, j, stop)
        facts = properties[point]
        if i == stop:
            small = facts & LOWER != 0
        if not facts & LETTER:
            break
        word |= np.int64(min(point, 0xFF)) << (8 * letters)
        letters += 1
        i = j
    if letters == 1:
        return False, small
    if letters <= _LONGEST:
        for abbreviated in _ABBREVIATED:
            if word == abbreviated:
                return False, small
    return True, small


@kernel
def sentences(data, offsets, properties, out):
    """out[i] = the number of sentences of document i."""
    for i in range(len(offsets) - 1):
        out[i] = count_sentences(data, offsets[i], offsets[i + 1], properties)


def count_sentences_plain(text: str) -> int:
    bits = [int(b) for b in properties()[[ord(c) for c in text]]] if text else []
    ends = [_ends_after(text, bits, i) for i in range(len(text))]
    count, opened, i = 0, False, 0
    while i < len(text):
        if bits[i] & (LETTER | NUMBER | SYMBOL) and not bits[i] & (TERMINAL | PUNCTUATION):
            count += not opened
            opened = True
        if ends[i]:
            opened = False
        i += 1
    return count


def _ends_after(text: str, bits: list[int], i: int) -> bool:
    """Whether no sentence is open after character i: a stop that ends one, or the second line break of an empty
    line."""
    if text[i] == "\n":
        spaces = i
        while spaces > 0 and bits[spaces - 1] & SPACE:
            spaces -= 1
        return text[spaces : i + 1].count("\n") == 2
    if not bits[i] & TERMINAL:
        return False
    if ord(text[i]) >= 0x80:
        return True
    if text[i] == "." and (".." in text[max(i - 1, 0) : i + 2] or _is_abbreviated_plain(text, bits, i)):
        return False
    if text[i] == "." and i and bits[i - 1] & LOWER and i + 1 < len(text) and bits[i + 1] & UPPER:
        return True
    after = i + 1
    while after < len(text) and bits[after] & (PUNCTUATION | TERMINAL):
        after += 1
    return after == len(text) or bool(bits[after] & SPACE)


def _is_abbreviated_plain(text: str, bits: list[int], stop: int) -> bool:
    first = stop
    while first > 0 and bits[first - 1] & LETTER:
        first -= 1
    return stop - first == 1 or text[first:stop] in ABBREVIATIONS
