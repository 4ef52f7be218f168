"""The line rules of C4 (Raffel et al. 2020, section 2.2, and the code of its data set), in one pass from text to text.

A line is trimmed and loses its citation marks ([1], [edit], [citation needed]). It is dropped, in this order, if it has
too long a word, does not end in a terminal mark (an ellipsis is none), has too few words, mentions "javascript", or has
a policy phrase. Lines that stay are counted for the document rules: "lorem ipsum" (seen before the javascript rule),
"{" (before the policy rule), sentences.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.bare import code_point, helper, inlined, kernel
from gristmill.kernels.base.unicode import DENSE, DIGIT, LETTER, SPACE, properties
from gristmill.kernels.base.wide import bytes_before
from gristmill.kernels.lines.lines import (
    copy_bytes,
    count_words,
    count_words_plain,
    has_longer_word,
    line_break_at,
    skip_space,
    skip_space_back,
    trimmed,
)
from gristmill.kernels.lines.phrase_blocks import phrases_by_blocks
from gristmill.kernels.lines.phrases import lower
from gristmill.kernels.words.sentences import count_sentences, count_sentences_plain

LOREM_IPSUM, JAVASCRIPT, POLICY = 1, 2, 4  # bits of the automaton
REMOVED, LOREM, CURLY, SENTENCES = 0, 1, 2, 3  # columns of `counts`
CITATIONS = ("edit]", "citation needed]")
_NEWLINE, _BRACKET, _CURLY, _STOP = 0x0A, 0x5B, 0x7B, 0x2E
_EDIT, _NEEDED = (np.frombuffer(word.encode(), np.uint8) for word in CITATIONS)
_plain_bytes = bytes_before(
    32, (0x0A, 0x0D), (0xC2, 0xC2), (0xE2, 0xE2), (_BRACKET, _BRACKET), (_CURLY, _CURLY)
)  # before what c4_lines looks at


@helper
def _citation_end(data, i, end, properties):
    """The end of the citation mark that begins with the bracket at byte i; i if there is none."""
    position = i + 1
    while position < end:
        point, length = code_point(data, position, end)
        if point == 0x5D:
            return position + 1
        if not properties[point] & DIGIT:
            break
        position += length
    if position == i + 1:
        for word in (_EDIT, _NEEDED):
            same = 0
            while same < len(word) and i + 1 + same < end and data[i + 1 + same] == word[same]:
                same += 1
            if same == len(word):
                return i + 1 + same
    return i


@helper
def _without_citations(out, start, end, properties):
    """Removes citation marks from out[start:end] and trims it again; returns its new end."""
    size = start
    i = start
    while i < end:
        after = _citation_end(out, i, end, properties) if out[i] == _BRACKET else i
        if after > i:
            i = after
            if size == start:
                i = skip_space(out, i, end, properties)
        else:
            out[size] = out[i]
            size += 1
            i += 1
    return skip_space_back(out, start, size, properties)


@inlined
def _ends_well(data, start, end, marks):
    """Whether the last character is one of `marks`, and no ellipsis."""
    if end == start:
        return False
    i = end - 1
    while i > start and end - i < 4 and data[i] & 0xC0 == 0x80:
        i -= 1
    point, _ = code_point(data, i, end)
    if point == _STOP and end - start >= 3 and data[end - 2] == _STOP and data[end - 3] == _STOP:
        return False
    for mark in marks:  # noqa: SIM110
        if point == mark:
            return True
    return False


@kernel
def c4_lines(
    data,
    offsets,
    marks,
    citations,
    max_word_length,
    min_words,
    properties,
    lower_case,
    pairs,
    classes,
    moves,
    phrase_bits,
    width,
    blocks,
    step,
    out,
    out_offsets,
    counts,
):
    """Writes the lines that stay of each document to `out`; `counts` has a row for each document. Without `marks` a
    line may end in anything. `blocks` and `step` are `phrase_blocks.blocks_of` the phrases before them."""
    size = np.int64(0)
    out_offsets[0] = 0
    for document in range(len(offsets) - 1):
        i, end = offsets[document], offsets[document + 1]
        begin = size
        removed = lorem = curly_lines = sentences = 0
        while i < end:
            line = i
            bracket = curly = False
            length = 0
            while i < end:
                if i + 32 <= end:
                    plain = _plain_bytes(data, i)
                    i += plain
                    if plain == 32:
                        continue
                byte = data[i]
                if byte < 0x0E or byte >= 0xC2:
                    length = line_break_at(data, i, end)
                    if length:
                        break
                bracket |= byte == _BRACKET
                curly |= byte == _CURLY
                i += 1
            first = skip_space(data, line, i, properties)
            last = skip_space_back(data, first, i, properties)
            i += length
            length = 0
            if first == last and min_words > 0:
                continue
            start = size
            if size > begin:
                out[size] = _NEWLINE
                start += 1
            stop = copy_bytes(data, first, last, out, start)
            if bracket and citations:
                stop = _without_citations(out, start, stop, properties)
            too_long = stop - start > max_word_length and has_longer_word(out, start, stop, max_word_length, properties)
            bad_end = len(marks) and not _ends_well(out, start, stop, marks)
            if too_long or bad_end or count_words(out, start, stop, min_words, properties) < min_words:
                removed += 1
                continue
            bits = phrases_by_blocks(
                out, start, stop, blocks, step, lower_case, pairs, classes, moves, phrase_bits, width
            )
            lorem += bits & LOREM_IPSUM != 0
            if bits & JAVASCRIPT:
                removed += 1
                continue
            curly_lines += curly
            if bits & POLICY:
                removed += 1
                continue
            sentences += count_sentences(out, start, stop, properties)
            size = stop
        size = skip_space_back(out, begin, size, properties)
        out_offsets[document + 1] = size
        counts[document, REMOVED], counts[document, LOREM] = removed, lorem
        counts[document, CURLY], counts[document, SENTENCES] = curly_lines, sentences


def c4_lines_plain(
    text: str, marks: str, citations: bool, max_word_length: int, min_words: int, phrases: dict[str, int]
) -> tuple[str, list[int]]:
    import regex

    kept: list[str] = []
    removed = lorem = curly = sentences = 0
    lines = regex.split("\r\n|[\n\v\f\r\x85\u2028\u2029]", text)
    for raw in lines[:-1] if lines[-1] == "" else lines:
        line = trimmed(raw)
        if not line and min_words > 0:
            continue
        if citations:
            line = trimmed(regex.sub(r"\[\p{Nd}*\]|\[edit\]|\[citation needed\]", "", line))
        bits = 0
        for phrase, bit in phrases.items():
            bits |= bit if phrase in lower(line) else 0
        bad_end = bool(marks) and (not line.endswith(tuple(marks)) or line.endswith("..."))
        if max(map(len, _pieces(line)), default=0) > max_word_length or bad_end or count_words_plain(line) < min_words:
            removed += 1
            continue
        lorem += bool(bits & LOREM_IPSUM)
        if bits & JAVASCRIPT:
            removed += 1
            continue
        curly += "{" in line
        if bits & POLICY:
            removed += 1
            continue
        sentences += count_sentences_plain(line)
        kept.append(line)
    return trimmed("\n".join(kept)), [removed, lorem, curly, sentences]


def _pieces(line: str) -> list[str]:
    """The words, cut around characters that are words of their own."""
    bits = properties()
    pieces, inside = [""], False
    for character in line:
        facts = int(bits[ord(character)])
        if facts & SPACE or not inside or (facts & DENSE and facts & LETTER):
            pieces.append("")
        inside = not facts & SPACE
        pieces[-1] += character if inside else ""
    return pieces
