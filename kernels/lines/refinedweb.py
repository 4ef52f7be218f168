"""The line rules of RefinedWeb (Penedo et al. 2023, appendix G.2) in the order and with the thresholds of DCLM (Li et
al. 2024).

A line is dropped if too much of it is upper case or digits, if it is a counter ("3 likes"), or if it has too few words.
A short line loses phrases anywhere in it, then at its end, then at its beginning, and is dropped if nothing is left.
All else is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gristmill.kernels.base.bare import code_point, helper, inlined, kernel
from gristmill.kernels.base.unicode import DENSE, DIGIT, LETTER, NUMBER, SPACE, UPPER, properties
from gristmill.kernels.lines.lines import (
    NEWLINE,
    copy_bytes,
    copy_kept,
    count_words,
    count_words_plain,
    skip_space,
    skip_space_back,
    trimmed,
)
from gristmill.kernels.lines.phrases import follow, lower, may_begin, phrases_in

COUNTER, ANYWHERE, SUFFIX, PREFIX = 1, 2, 4, 8  # bits of the phrases
LINES_REMOVED, LINES_CHANGED, WORDS_BEFORE, WORDS_AFTER = 0, 1, 2, 3  # columns of `counts`
_ALL = 1 << 60
_PHRASES = ANYWHERE | SUFFIX | PREFIX
_COMMA, _STOP, _UNDERSCORE = 0x2C, 0x2E, 0x5F


@helper
def _match_end(data, i, end, wanted, lower_case, pairs, classes, moves, phrase_bits, width):
    """The end of the longest of the `wanted` phrases that begins at byte i; -1 if there is none."""
    last = np.int64(-1)
    if i < end and may_begin(data, i, end, pairs):
        node = np.int64(0)
        while i < end:
            point, length = code_point(data, i, end)
            node = follow(node, data, i, length, point, lower_case, classes, moves, width)
            if node == 0:
                break
            i += length
            if phrase_bits[node] & wanted:
                last = i
    return last


@inlined
def _skip_marks(data, i, end, properties):
    """The next letter, number, or underscore."""
    while i < end:
        point, length = code_point(data, i, end)
        if point == _UNDERSCORE or properties[point] & (LETTER | NUMBER):
            return i
        i += length
    return i


@helper
def _is_counter(data, start, end, properties, lower_case, pairs, classes, moves, phrase_bits, width):
    """Whether the line is a number such as 1,204 or 3.5k and one of the counted things, with only marks around them."""
    i = _skip_marks(data, start, end, properties)
    if i == end or not properties[code_point(data, i, end)[0]] & DIGIT:
        return False
    while i < end:
        point, length = code_point(data, i, end)
        if not (properties[point] & DIGIT or point in (_COMMA, _STOP)):
            break
        i += length
    if i < end and (data[i] | 0x20 == 0x6B or data[i] | 0x20 == 0x6D or data[i] | 0x20 == 0x62):  # k, m, b
        i += 1
    after = skip_space(data, i, end, properties)
    if after == i:
        return False
    stop = _match_end(data, after, end, COUNTER, lower_case, pairs, classes, moves, phrase_bits, width)
    return stop >= 0 and _skip_marks(data, stop, end, properties) == end


@helper
def _without_phrases(data, start, end, out, at, properties, lower_case, pairs, classes, moves, phrase_bits, width):
    """Writes the short line data[start:end] without the phrases to out[at:]; returns the end of the copy."""
    stop = at
    i = start
    while i < end:
        after = _match_end(data, i, end, ANYWHERE, lower_case, pairs, classes, moves, phrase_bits, width)
        if after < 0:
            out[stop] = data[i]
            stop += 1
            i += 1
        else:
            stop = skip_space_back(out, at, stop, properties)
            i = after
    stop = skip_space_back(out, at, stop, properties)
    first = skip_space(out, at, stop, properties)
    for i in range(first, stop):
        if _match_end(out, i, stop, SUFFIX, lower_case, pairs, classes, moves, phrase_bits, width) == stop:
            stop = skip_space_back(out, first, i, properties)
            break
    after = _match_end(out, first, stop, PREFIX, lower_case, pairs, classes, moves, phrase_bits, width)
    if after >= 0:
        first = skip_space(out, after, stop, properties)
    for i in range(stop - first):
        out[at + i] = out[first + i]
    return at + stop - first


@inlined
def _measure(data, start, end, properties):
    """(characters, upper case, digits, words) of a line; words as `count_words` counts them."""
    characters = upper = digits = words = np.int64(0)
    outside = np.int64(1)
    halved = False
    i = start
    while i < end:
        if data[i] < 0x80:
            length = 1
            facts = np.int64(properties[data[i]])
            halved = False
        else:
            point, length = code_point(data, i, end)
            facts = np.int64(properties[point])
            halved = facts & DENSE != 0 and facts & LETTER != 0 and not halved
        space = np.int64(facts & SPACE != 0)
        characters += 1
        upper += np.int64(facts & UPPER != 0)
        digits += np.int64(facts & DIGIT != 0)
        words += (outside | halved) & ~space
        outside = space
        i += length
    return characters, upper, digits, words


@inlined
def _is_space(byte):
    return (byte == 0x20) | ((byte >= 0x09) & (byte <= 0x0D))


@inlined
def _measure_ascii(line):
    """The same for a line of ASCII, in a loop that the compiler can vectorise."""
    upper = digits = np.int64(0)
    words = np.int64(1)  # the line is trimmed
    for k in range(len(line)):
        upper += (line[k] >= 0x41) & (line[k] <= 0x5A)
        digits += (line[k] >= 0x30) & (line[k] <= 0x39)
    rest = line[1:]
    for k in range(len(rest)):
        words += _is_space(line[k]) & (not _is_space(rest[k]))
    return np.int64(len(line)), upper, digits, words


@kernel
def refinedweb_lines(
    data, offsets, max_upper, max_digits, min_words, short_words, properties, lower_case, pairs, classes, moves,
    phrase_bits, width, out, out_offsets,
    counts,
):  # fmt: skip
    """Writes the lines that stay of each document to `out`; `counts` has a row for each document."""
    size = np.int64(0)
    out_offsets[0] = 0
    for document in range(len(offsets) - 1):
        line, end = offsets[document], offsets[document + 1]
        begin = size
        removed = changed = 0
        before = after = np.int64(0)
        copied = line  # all before it is in `out`, or dropped
        while line < end:
            stop = line
            seen = np.uint8(0)
            while stop < end and data[stop] != NEWLINE:
                seen |= data[stop]
                stop += 1
            first = skip_space(data, line, stop, properties)
            last = skip_space_back(data, first, stop, properties)
            if first < last:
                if seen < 0x80:
                    characters, upper, digits, words = _measure_ascii(data[first:last])
                else:
                    characters, upper, digits, words = _measure(data, first, last, properties)
                before += words
                if (
                    upper > max_upper * characters
                    or digits > max_digits * characters
                    or words < min_words
                    or (
                        (digits and (data[first] < 0x41 or data[first] > 0x7A))  # no letter of ASCII comes first
                        and _is_counter(
                            data, first, last, properties, lower_case, pairs, classes, moves, phrase_bits, width
                        )
                    )
                ):
                    removed += 1
                    size = copy_kept(data, copied, line, out, begin, size, properties)
                    copied = min(stop + 1, end)
                else:
                    after += words
                    if words <= short_words and _PHRASES & phrases_in(
                        data, first, last, lower_case, pairs, classes, moves, phrase_bits, width
                    ):
                        kept = copy_kept(data, copied, line, out, begin, size, properties)
                        rest = _without_phrases(
                            data,
                            first,
                            last,
                            out,
                            kept,
                            properties,
                            lower_case,
                            pairs,
                            classes,
                            moves,
                            phrase_bits,
                            width,
                        )
                        if rest - kept < last - first:
                            after += count_words(out, kept, rest, _ALL, properties) - words
                            size = rest
                            if rest > kept:
                                changed += 1
                                copied = stop
                            else:
                                removed += 1
                                copied = min(stop + 1, end)
            line = stop + 1
        if removed + changed:
            size = copy_kept(data, copied, end, out, begin, size, properties)
            size = skip_space_back(out, begin, size, properties)
        else:
            size = copy_bytes(data, copied, end, out, size)
        out_offsets[document + 1] = size
        counts[document, LINES_REMOVED], counts[document, LINES_CHANGED] = removed, changed
        counts[document, WORDS_BEFORE], counts[document, WORDS_AFTER] = before, after


def refinedweb_lines_plain(
    text: str, max_upper: float, max_digits: float, min_words: int, short_words: int, phrases: Mapping[str, int]
) -> tuple[str, list[int]]:
    bits = properties()
    kept = []
    removed = changed = before = after = 0
    for line in text.split("\n"):
        bare = trimmed(line)
        if not bare:
            kept.append(line)
            continue
        words = count_words_plain(bare)
        before += words
        upper = sum(bool(bits[ord(c)] & UPPER) for c in bare)
        digits = sum(bool(bits[ord(c)] & DIGIT) for c in bare)
        if (
            upper > max_upper * len(bare)
            or digits > max_digits * len(bare)
            or words < min_words
            or _is_counter_plain(bare, [phrase for phrase, bit in phrases.items() if bit & COUNTER])
        ):
            removed += 1
            continue
        rest = _without_phrases_plain(bare, phrases) if words <= short_words else bare
        after += count_words_plain(rest)
        if rest == bare:
            kept.append(line)
        elif rest:
            kept.append(rest)
            changed += 1
        else:
            removed += 1
    done = "\n".join(kept)
    return trimmed(done) if removed or changed else text, [removed, changed, before, after]


def _is_counter_plain(line: str, counted: list[str]) -> bool:
    import regex

    things = "|".join(map(regex.escape, sorted(counted, key=len, reverse=True)))
    marks = r"[^\p{L}\p{N}_]*"
    return bool(counted) and bool(
        regex.fullmatch(rf"{marks}\p{{Nd}}[\p{{Nd}},.]*+[kmb]?\p{{White_Space}}+(?>{things}){marks}", lower(line))
    )


def _without_phrases_plain(line: str, phrases: Mapping[str, int]) -> str:
    def starting_at(text: str, i: int, wanted: int) -> int:
        lengths = [len(phrase) for phrase, bit in phrases.items() if bit & wanted and lower(text).startswith(phrase, i)]
        return i + max(lengths) if lengths else -1

    rest, i = "", 0
    while i < len(line):
        after = starting_at(line, i, ANYWHERE)
        rest = trimmed("." + rest)[1:] if after >= 0 else rest + line[i]
        i = after if after >= 0 else i + 1
    rest = trimmed(rest)
    for i in range(len(rest)):
        if starting_at(rest, i, SUFFIX) == len(rest):
            rest = trimmed(rest[:i])
            break
    after = starting_at(rest, 0, PREFIX)
    return trimmed(rest[after:]) if after >= 0 else rest
