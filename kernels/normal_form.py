"""Which texts are surely in a Unicode normal form already: the quick check of UAX 15, made a little sharper.

A character that may compose with the one before (the standard's "maybe") is let pass where the character before composes with nothing:
so Bengali and Tamil vowel signs, which are such characters, send few texts to the slow way. The rest go to `unicodedata.normalize`.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import Literal

import numpy as np

from kernels.bare import code_point, kernel
from kernels.unicode import POINTS, Table, kept_table, mark_all

Form = Literal["NFC", "NFKC"]
# Values of the table above the combining class (0 to 254).
CHANGES, MAY_COMPOSE, BEGINS = 1 << 8, 1 << 9, 1 << 10


@cache
def normal_form(form: Form) -> Table:
    """uint16[0x110000]: the combining class, and the bits above: changed on its own; may join what is before; may be joined."""

    def make() -> Table:
        table = np.zeros(POINTS, np.uint16)
        mark_all(table, rf"\p{{{form}_Quick_Check=N}}", CHANGES, add=True)
        mark_all(table, rf"\p{{{form}_Quick_Check=M}}", MAY_COMPOSE, add=True)
        for point in range(POINTS):
            character = chr(point)
            table[point] |= unicodedata.combining(character)
            if unicodedata.normalize(form, character) != character:
                table[point] |= CHANGES
            parts = unicodedata.normalize("NFD", character)
            if len(parts) > 1:
                # Any piece may be joined anew: a dot below goes in before the caron of `Ž`, and Hangul letters make syllables.
                table[[point, *map(ord, parts)]] |= BEGINS
        return table

    return kept_table(f"{form.lower()}-{unicodedata.unidata_version}", make)


@kernel
def find_unnormal(data, offsets, wanted, table, found):  # type: ignore[no-untyped-def]
    """Sets `found` for the documents with `wanted` that may not be in the normal form."""
    for row in range(len(offsets) - 1):
        found[row] = 0
        if not wanted[row]:
            continue
        i, end = offsets[row], offsets[row + 1]
        last_class, starter = 0, 0
        while i < end:
            if data[i] < 0x80:
                last_class, starter = 0, BEGINS
                i += 1
                continue
            point, length = code_point(data, i, end)
            i += length
            entry = np.int64(table[point])
            order = entry & 0xFF
            if entry & CHANGES or (order and last_class > order) or (entry & MAY_COMPOSE and starter):
                found[row] = 1
                break
            last_class = order
            if not order:
                starter = entry & BEGINS
