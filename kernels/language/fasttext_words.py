"""Texts as fastText should get them, for training and for scoring: one line each, without tokens that fastText
reserves.

To fastText a newline ends a text, the word `</s>` does too, and a word that begins with `__label__` is a label: a page
with one could hide what follows, or train as what it says. Such bytes become spaces, so that every word stays where it
is.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import re

import numpy as np

from gristmill.kernels.base.bare import helper, kernel
from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.language.fasttext_bytes import END, LABEL_PREFIX, begins, spelt


def only_words(column: TextColumn) -> TextColumn:
    """A column of equal length, with spaces in place of what is no word."""
    start, end = int(column.offsets[0]), int(column.offsets[-1])
    data, offsets = np.empty(end - start, np.uint8), column.offsets - start
    _only_words(column.data, column.offsets, data)
    for array in (data, offsets):
        array.flags.writeable = False
    return TextColumn(data, offsets)


def only_words_plain(text: str) -> str:
    """The remaining words of fastText with one space between them. Lines end where `str.splitlines` ends them."""
    words = re.split("[ \t\0]+", " ".join(text.splitlines()))
    return " ".join(word for word in words if word and word != "</s>" and not word.startswith("__label__"))


@helper
def _gap(data, i, end):
    """The number of bytes at i that are whitespace to fastText or end a line in Python; 0 for none."""
    byte = data[i]
    if byte <= 32:
        return 1 if byte == 32 or 9 <= byte <= 13 or byte == 0 or 28 <= byte <= 30 else 0
    if byte == 0xC2 and i + 1 < end and data[i + 1] == 0x85:
        return 2
    if byte == 0xE2 and i + 2 < end and data[i + 1] == 0x80 and (data[i + 2] == 0xA8 or data[i + 2] == 0xA9):
        return 3
    return 0


@kernel
def _only_words(data, offsets, out):
    shift = offsets[0]
    for document in range(len(offsets) - 1):
        i, end = offsets[document], offsets[document + 1]
        while i < end:
            gap = _gap(data, i, end)
            if gap:
                for k in range(gap):
                    out[i + k - shift] = 32
                i += gap
                continue
            start = i
            while i < end and _gap(data, i, end) == 0:
                out[i - shift] = data[i]
                i += 1
            if begins(data, start, i, LABEL_PREFIX) or spelt(data, start, i, END):
                for k in range(start, i):
                    out[k - shift] = 32
