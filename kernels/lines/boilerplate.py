"""Lines that are no part of a text: menus, counters, cookie and policy notices, recognised by their phrases
(kernels/lines/phrases.py)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gristmill.kernels.base.bare import kernel
from gristmill.kernels.base.unicode import NUMBER
from gristmill.kernels.lines.lines import copy_bytes, copy_kept, find_newline, skip_space_back, trimmed
from gristmill.kernels.lines.phrases import scan_words, scan_words_plain

WHOLE, WITHIN = 1, 2  # bits of the phrases: all there is in a line but numbers; anywhere in a line that is not too long


@kernel
def boilerplate_lines(
    data,
    offsets,
    max_words,
    properties,
    lower_case,
    pairs,
    classes,
    moves,
    phrase_bits,
    width,
    out,
    out_offsets,
    removed,
):
    """Writes each document without its boilerplate to `out`; the rest is unchanged."""
    size = np.int64(0)
    out_offsets[0] = 0
    for document in range(len(offsets) - 1):
        line, end = offsets[document], offsets[document + 1]
        begin = size
        count = 0
        copied = line  # all before it is in `out`, or dropped
        while line < end:
            stop = find_newline(data, line, end)
            bits, first, _, words = scan_words(
                data, line, stop, NUMBER, max_words, properties, lower_case, pairs, classes, moves, phrase_bits, width
            )
            if first & WHOLE or (bits & WITHIN and words <= max_words):
                size = copy_kept(data, copied, line, out, begin, size, properties)
                copied = min(stop + 1, end)
                count += 1
            line = stop + 1
        if count:
            size = skip_space_back(out, begin, copy_kept(data, copied, end, out, begin, size, properties), properties)
        else:
            size = copy_bytes(data, copied, end, out, size)
        out_offsets[document + 1] = size
        removed[document] = count


def boilerplate_lines_plain(text: str, max_words: int, phrases: Mapping[str, int]) -> tuple[str, int]:
    lines = text.split("\n")
    kept = []
    for line in lines:
        bits, first, _, words = scan_words_plain(line, phrases, NUMBER)
        if not (first & WHOLE or (bits & WITHIN and words <= max_words)):
            kept.append(line)
    return (trimmed("\n".join(kept)) if len(kept) < len(lines) else text), len(lines) - len(kept)
