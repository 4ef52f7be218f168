"""How much of a text is in runs of words without the symbols of program code: code with as many symbols as `characters`
counts is no language where that is little."""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.base.unicode import DENSE, code_point, properties

# What a byte of ASCII is; from SYMBOL on, what code is full of.
BLANK, LETTER, DIGIT, OTHER, SYMBOL, BRACKET, INNER = range(7)
KINDS = np.full(128, OTHER, np.uint8)
KINDS[:33] = KINDS[127] = BLANK
KINDS[[byte for byte in range(128) if chr(byte).isalpha()]] = LETTER
KINDS[list(b"0123456789")] = DIGIT
KINDS[list(b"{}[]<>=;_\\|&$*+~^#@`%")] = SYMBOL
KINDS[list(b"()")] = BRACKET  # as INNER, symbols only without a blank on either side, and not between digits
KINDS[list(b'/:".,')] = INNER
KINDS.flags.writeable = False

RUN = 5  # words in a row that code seldom has


def shares_of_prose(data: Bytes, offsets: Offsets, wanted: Array) -> Array:
    """float32_N: of a wanted text's letters, the share in runs of words without symbols of code."""
    prose = np.zeros(len(offsets) - 1, np.float32)
    find_prose(data, offsets, wanted, KINDS, properties(), prose)
    return prose


@kernel
def find_prose(data, offsets, wanted, kinds, table, prose):
    for document in range(len(offsets) - 1):
        if not wanted[document]:
            continue
        letters, in_runs = np.int64(0), np.int64(0)
        words, of_words, of_word, plain = np.int64(0), np.int64(0), np.int64(0), True  # of the run; of the open word
        i, end = offsets[document], offsets[document + 1]
        before = BLANK
        while i <= end:
            kind = BLANK
            if i < end and data[i] >= 0x80:
                point, size = code_point(data, i, end)
                words += (table[point] & DENSE) != 0
                kind = LETTER
                i += size
            else:
                if i < end:
                    kind = kinds[data[i]]
                i += 1
            if kind == LETTER:
                letters += 1
                of_word += 1
            elif kind >= SYMBOL:
                after = BLANK
                if i < end:
                    after = kinds[data[i]] if data[i] < 0x80 else LETTER
                inside = before != BLANK and after != BLANK and not (before == DIGIT and after == DIGIT)
                plain &= kind != SYMBOL and not (inside and before != BRACKET and after != BRACKET)
            elif kind == BLANK and before != BLANK:
                if plain and of_word > 0:
                    words += 1
                    of_words += of_word
                elif not plain:
                    in_runs += of_words if words >= RUN else 0
                    words, of_words = np.int64(0), np.int64(0)
                of_word, plain = np.int64(0), True
            before = kind
        in_runs += of_words if words >= RUN else 0
        if letters:
            prose[document] = np.float32(in_runs / letters)
