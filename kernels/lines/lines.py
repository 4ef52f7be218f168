"""Lines of a text: where they end, what they consist of, and text reassembled from the lines that stay.

All line rules share this. Words are divided by white space, as in the published rules; but in scripts without spaces
every two letters count as one word, about the length of a Chinese or Japanese word, so that a Chinese line is not one
word.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.bare import code_point, helper, inlined
from gristmill.kernels.base.unicode import DENSE, LETTER, SPACE, properties

NEWLINE = 0x0A
_SPACE = 0x20
# What may begin a line break of Unicode (UAX 14, classes BK, CR, LF, NL): \n \v \f \r, U+0085, U+2028, U+2029.


@inlined
def find_newline(data, i, end):
    while i < end and data[i] != NEWLINE:
        i += 1
    return i


@inlined
def line_break_at(data, i, end):
    """The number of bytes of the line break at byte i; 0 if there is none."""
    byte = data[i]
    if byte < 0x80:
        if byte == 0x0D and i + 1 < end and data[i + 1] == NEWLINE:
            return 2
        return 1 if 0x0A <= byte <= 0x0D else 0
    if byte == 0xC2:
        return 2 if i + 1 < end and data[i + 1] == 0x85 else 0
    if byte == 0xE2:
        return 3 if i + 2 < end and data[i + 1] == 0x80 and (data[i + 2] == 0xA8 or data[i + 2] == 0xA9) else 0
    return 0


@inlined
def skip_space(data, start, end, properties):
    while start < end:
        if data[start] < 0x80:
            length = 1
            if not properties[data[start]] & SPACE:
                return start
        else:
            point, length = code_point(data, start, end)
            if not properties[point] & SPACE:
                return start
        start += length
    return start


@inlined
def skip_space_back(data, start, end, properties):
    while end > start:
        i = end - 1
        if data[i] >= 0x80:
            while i > start and end - i < 4 and data[i] & 0xC0 == 0x80:
                i -= 1
            point, length = code_point(data, i, end)
            if length != end - i or not properties[point] & SPACE:
                return end
        elif not properties[data[i]] & SPACE:
            return end
        end = i
    return end


@inlined
def copy_bytes(data, start, end, out, at):
    """Copies data[start:end] to out[at:]; returns the end of the copy."""
    source = data[start:end]
    target = out[at : at + len(source)]
    for k in range(len(source)):  # over slices, which tells the compiler that no index is negative: 9 times as fast
        target[k] = source[k]
    return at + len(source)


@inlined
def copy_kept(data, start, end, out, begin, at, properties):
    """Appends data[start:end] to a document that begins at out[begin], without white space at its beginning."""
    if at == begin:
        start = skip_space(data, start, end, properties)
    return copy_bytes(data, start, end, out, at)


@inlined
def count_words(data, start, end, most, properties):
    """The number of words; stops counting beyond `most`."""
    words = np.int64(0)
    outside = np.int64(1)
    halved = False  # after the first of two letters that make a word
    i = start
    while i < end and words < most:
        if data[i] < 0x80:
            space = np.int64(properties[data[i]] & SPACE != 0)
            words += outside & ~space
            outside = space
            halved = False
            i += 1
        else:
            point, length = code_point(data, i, end)
            facts = properties[point]
            halved = facts & DENSE and facts & LETTER and not halved
            space = np.int64(facts & SPACE != 0)
            words += (outside | halved) & ~space
            outside = space
            i += length
    return words


@helper
def has_longer_word(data, start, end, most, properties):
    """Whether a word has more than `most` characters."""
    while (
        start + most < end
    ):  # such a word has as many bytes without a space of ASCII; where one is near, no character has to be read
        space = start + most
        while space >= start and data[space] != _SPACE:
            space -= 1
        if space < start:
            break
        start = space + 1
    if start + most >= end:
        return False
    characters = 0
    i = start
    while i < end:
        point, length = code_point(data, i, end)
        facts = properties[point]
        if facts & SPACE:
            characters = 0
        else:
            characters = 1 if facts & DENSE and facts & LETTER else characters + 1
            if characters > most:
                return True
        i += length
    return False


def count_words_plain(line: str) -> int:
    bits = properties()
    words, inside, halved = 0, False, False
    for character in line:
        facts = int(bits[ord(character)])
        halved = bool(facts & DENSE and facts & LETTER) and not halved
        words += halved or not (inside or facts & SPACE)
        inside = not facts & SPACE
    return words


def trimmed(text: str) -> str:
    bits = properties()
    first, last = 0, len(text)
    while first < last and bits[ord(text[first])] & SPACE:
        first += 1
    while last > first and bits[ord(text[last - 1])] & SPACE:
        last -= 1
    return text[first:last]
