"""Which texts are surely in a Unicode normal form: the quick check of UAX 15, slightly sharper; and normalisation of
the others.

A character that may compose with the one before (the standard's "maybe") passes where the character before composes
with nothing. So Bengali and Tamil vowel signs, which are such characters, send few texts to the slow path. The rest go
to `unicodedata.normalize`, which sorts marks by insertion: 600 kB of alternating acute and dot below took it 138 s. So
long runs of marks are sorted first.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Literal

import numpy as np

from gristmill.kernels.base.bare import code_point, kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import POINTS, kept_table, mark_all

Form = Literal["NFC", "NFKC"]
APART: dict[Form, Literal["NFD", "NFKD"]] = {"NFC": "NFD", "NFKC": "NFKD"}
LONG_RUN = 64  # marks in a row: more than any writing has, and few enough to be sorted in any way
# Values of the table above the combining class (0 to 254).
CHANGES, MAY_COMPOSE, BEGINS = 1 << 8, 1 << 9, 1 << 10


@cache
def normal_form(form: Form) -> Array:
    """uint16[0x110000]: the combining class, and the bits above: changes on its own; may join the one before; may be
    joined."""

    def make() -> Array:
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
                # Any piece may be joined anew: a dot below goes in before the caron of `Ž`, and Hangul letters make
                # syllables.
                table[[point, *map(ord, parts)]] |= BEGINS
        return table

    return kept_table(f"{form.lower()}-{unicodedata.unidata_version}", make)


def in_normal_form(text: str, form: Form) -> str:
    """`unicodedata.normalize`, in a time that is never quadratic."""

    def in_order(run: re.Match[str]) -> str:
        apart = "".join(unicodedata.normalize(APART[form], mark) for mark in run[0])
        return "".join(sorted(apart, key=unicodedata.combining))  # stable, as the standard's order is

    return unicodedata.normalize(form, long_runs(form).sub(in_order, text) if _may_have_long_runs(text, form) else text)


def _may_have_long_runs(text: str, form: Form) -> bool:
    """A long run contains one of every LONG_RUN characters, and half a run on one side of it, so few characters are
    read."""
    mark_set, half = marks(form), LONG_RUN // 2
    every = text[LONG_RUN - 1 :: LONG_RUN]
    return not mark_set.isdisjoint(every) and any(
        mark in mark_set
        and (mark_set.issuperset(text[place - half + 1 : place + 1]) or mark_set.issuperset(text[place : place + half]))
        for place, mark in zip(range(LONG_RUN - 1, len(text), LONG_RUN), every, strict=True)
    )


@cache
def marks(form: Form) -> frozenset[str]:
    """Characters that decompose into marks alone."""
    table = normal_form(form)
    changed = np.flatnonzero((table & CHANGES != 0) & (table & 0xFF == 0)).tolist()
    taken_apart = [
        point for point in changed if unicodedata.combining(unicodedata.normalize(APART[form], chr(point))[0])
    ]
    return frozenset(map(chr, [*np.flatnonzero(table & 0xFF).tolist(), *taken_apart]))


@cache
def long_runs(form: Form) -> re.Pattern[str]:
    """Runs of marks, whose meaning does not change when they are sorted."""
    points = np.array(sorted(map(ord, marks(form))))
    ranges = np.split(points, np.flatnonzero(np.diff(points) > 1) + 1)
    return re.compile(f"[{''.join(f'{chr(r[0])}-{chr(r[-1])}' for r in ranges)}]{{{LONG_RUN},}}")


@kernel
def find_unnormal(data, offsets, wanted, table, unnormal):
    """Sets `unnormal` for the documents with `wanted` that may not be in the normal form."""
    for row in range(len(offsets) - 1):
        unnormal[row] = 0
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
                unnormal[row] = 1
                break
            last_class = order
            if not order:
                starter = entry & BEGINS
