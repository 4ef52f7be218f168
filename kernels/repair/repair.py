"""Repair of a text column: entities, mojibake, normal form, characters and spaces, in rounds until nothing changes.

One step exposes work for another (an entity with a zero-width space inside, `&Atilde;&copy;`), so the steps run in
rounds: repairing a repaired text changes nothing. A survey first finds which documents may need which step
(`kernels/repair/characters.py`); the others are not touched. Only the few texts that may not be in the normal form go
through Python's `unicodedata.normalize`.
"""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import kernel
from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import properties, script
from gristmill.kernels.repair import characters as c
from gristmill.kernels.repair.entities import decode_entities, decode_entities_plain, names
from gristmill.kernels.repair.mojibake import behaviours, byte_of, repair_mojibake, repair_mojibake_plain
from gristmill.kernels.repair.normal_form import Form, find_unnormal, in_normal_form, normal_form

ROUNDS = 16  # a text that nests repairs more deeply stays half repaired
EVERY_STEP = 0xFF


class Steps(NamedTuple):
    """What to repair: the bits ENTITIES, MOJIBAKE, CONTROLS, ZERO_WIDTH, WHITESPACE of kernels/repair/characters.py,
    and the normal form."""

    bits: int
    form: Form | None


class Counts(NamedTuple):
    """For each document: references decoded, characters decoded from mojibake, characters removed, and U+FFFD in the
    result."""

    entities: Array
    mojibake: Array
    controls: Array
    zero_width: Array
    replacements: Array


class Repaired(NamedTuple):
    text: TextColumn
    changed: Array  # rows whose text changed
    counts: Counts
    normalised: Array  # rows that went through `unicodedata.normalize`


def repair(column: TextColumn, steps: Steps) -> Repaired:
    """The repaired column; the same arrays where nothing was to be done."""
    rows = len(column)
    counts = Counts(*(np.zeros(rows, np.int32) for _ in Counts._fields))
    normalised = np.zeros(rows, bool)
    source, here = (
        np.full(rows, -1, np.int64),
        np.zeros(rows, np.int64),
    )  # where each changed row's text lies: which round, which place in it
    rounds: list[TextColumn] = []
    needs, counts.replacements[:] = _survey(column, steps)
    work, places = column, np.flatnonzero(needs)
    work = _taken(work, places)
    while len(places) and len(rounds) < ROUNDS:
        after = _round(work, needs[places], steps, places, counts, normalised)
        changed = np.flatnonzero(_differ(work, after, np.ones(len(places), np.uint8)))
        work, places = _taken(after, changed), places[changed]
        source[places], here[places] = len(rounds), np.arange(len(places))
        rounds.append(work)
        needs[places], counts.replacements[places] = _survey(work, steps)
    changed = np.flatnonzero(source >= 0)
    return Repaired(_woven(column, rounds, source, here) if len(changed) else column, changed, counts, normalised)


def repair_plain(text: str, steps: Steps) -> tuple[str, tuple[int, int, int, int, int]]:
    """The same, one text at a time, with its counts."""
    total = np.zeros(4, int)
    for _ in range(ROUNDS):
        before, entities, mojibake = text, 0, 0
        if steps.bits & c.ENTITIES:
            text, entities = decode_entities_plain(text)
        for _ in range(ROUNDS if steps.bits & c.MOJIBAKE else 0):
            misread = text
            text, decoded = repair_mojibake_plain(misread)
            mojibake += decoded
            if text == misread:
                break
        if steps.form:
            text = unicodedata.normalize(steps.form, text)
        text, controls, hidden = c.clean_characters_plain(text, steps.bits)
        total += entities, mojibake, controls, hidden
        if text == before:
            break
    return text, (*total.tolist(), text.count("\ufffd"))


def _survey(column: TextColumn, steps: Steps) -> tuple[Array, Array]:
    rows = len(column)
    needs, lost, unnormal = np.zeros(rows, np.uint8), np.zeros(rows, np.int32), np.zeros(rows, np.uint8)
    c.survey(column.data, column.offsets, c.kinds(), needs, lost)
    if steps.form:
        find_unnormal(column.data, column.offsets, needs & c.FOREIGN, normal_form(steps.form), unnormal)
    return needs & steps.bits | unnormal * np.uint8(c.FOREIGN), lost


def _round(
    work: TextColumn, needs: Array, steps: Steps, places: Array, counts: Counts, normalised: Array
) -> TextColumn:
    """Every step once. A document that one step changed goes through all later ones, whatever the survey found."""

    def settle(after: TextColumn, wanted: Array) -> TextColumn:
        needs[_differ(work, after, wanted) != 0] = EVERY_STEP
        return after

    rows = len(work)
    if (wanted := needs & c.ENTITIES & steps.bits).any():
        out, ends, count = _room(work, 4)
        decode_entities(work.data, work.offsets, wanted, *names(), out, ends, count)
        counts.entities[places] += count
        work = settle(_column(out, ends), wanted)
    wanted, windows = needs & c.MOJIBAKE & steps.bits, names().windows
    for _ in range(ROUNDS):  # to the end: what is cleaned below are bytes of texts that were misread twice
        if not wanted.any():
            break
        out, ends, count = _room(work, 2)
        repair_mojibake(
            work.data, work.offsets, wanted, byte_of(), properties(), behaviours(), script(), windows, out, ends, count
        )
        counts.mojibake[places] += count
        after = _column(out, ends)
        wanted = _differ(work, after, wanted)
        needs[wanted != 0] = EVERY_STEP
        work = after
    if steps.form and (wanted := needs & c.FOREIGN).any():
        unnormal = np.zeros(rows, np.uint8)
        find_unnormal(work.data, work.offsets, wanted, normal_form(steps.form), unnormal)
        normalised[places] |= unnormal != 0
        work = settle(_normalised(work, unnormal, steps.form), wanted)
    if (wanted := needs & (c.CONTROLS | c.ZERO_WIDTH | c.WHITESPACE) & steps.bits).any():
        out, ends, count = _room(work, 0)
        hidden = np.zeros(rows, np.int32)
        c.clean_characters(work.data, work.offsets, wanted, steps.bits, c.kinds(), out, ends, count, hidden)
        counts.controls[places] += count
        counts.zero_width[places] += hidden
        work = _column(out, ends)
    return work


def _normalised(column: TextColumn, wanted: Array, form: Form) -> TextColumn:
    if not wanted.any():
        return column
    texts = [column.data[a:b].tobytes() for a, b in pairwise(column.offsets)]
    texts = [in_normal_form(t.decode(), form).encode() if w else t for t, w in zip(texts, wanted, strict=True)]
    ends = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    return _column(np.frombuffer(b"".join(texts), np.uint8), ends)


def _room(column: TextColumn, share: int) -> tuple[Array, Array, Array]:
    """Arrays for a result: text (longer by one part in `share`), offsets, a count a document."""
    size = int(column.offsets[-1] - column.offsets[0])
    return (
        np.empty(size + (size // share if share else 0) + 4, np.uint8),
        np.empty(len(column) + 1, np.int64),
        np.zeros(len(column), np.int32),
    )


def _column(data: Array, offsets: Array) -> TextColumn:
    for array in (data, offsets):
        array.flags.writeable = False
    return TextColumn(data, offsets)


def _taken(column: TextColumn, rows: Array) -> TextColumn:
    """Some rows as a column of their own."""
    lengths = column.offsets[rows + 1] - column.offsets[rows]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    out = np.empty(int(ends[-1]), np.uint8)
    _copy(column.data, column.offsets[rows], ends, np.arange(len(rows)), out)
    return _column(out, ends)


def _woven(column: TextColumn, rounds: list[TextColumn], source: Array, here: Array) -> TextColumn:
    """Each row from the round that changed it last, or from the original column."""
    every = [column, *rounds]
    starts, lengths = column.offsets[:-1].copy(), np.diff(column.offsets)
    for which, repaired in enumerate(rounds):
        rows = np.flatnonzero(source == which)
        starts[rows], lengths[rows] = repaired.offsets[here[rows]], np.diff(repaired.offsets)[here[rows]]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    out = np.empty(int(ends[-1]), np.uint8)
    for which, repaired in enumerate(every, -1):
        rows = np.flatnonzero(source == which)
        _copy(repaired.data, starts[rows], ends, rows, out)
    return _column(out, ends)


@kernel
def _copy(data, starts, ends, rows, out):
    """Text k begins at starts[k] of `data` and becomes row rows[k] of `out`."""
    for k in range(len(rows)):
        shift = starts[k] - ends[rows[k]]
        for i in range(ends[rows[k]], ends[rows[k] + 1]):
            out[i] = data[i + shift]


def _differ(a: TextColumn, b: TextColumn, wanted: Array) -> Array:
    differs = np.zeros(len(a), np.uint8)
    _find_differences(a.data, a.offsets, b.data, b.offsets, wanted, differs)
    return differs


@kernel
def _find_differences(data, offsets, other, other_offsets, wanted, differs):
    for row in range(len(offsets) - 1):
        length, shift = offsets[row + 1] - offsets[row], other_offsets[row] - offsets[row]
        differs[row] = wanted[row] != 0 and other_offsets[row + 1] - other_offsets[row] != length
        if wanted[row] and not differs[row]:
            for i in range(offsets[row], offsets[row + 1]):
                if data[i] != other[i + shift]:
                    differs[row] = 1
                    break
