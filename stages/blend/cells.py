"""Cells of several columns (topic, format, a bucket of quality): epoch caps by parts of their names, and small cells
joined.

A cell's name is that of its group (stages/blend/groups.py). A cap names a cell, or parts of cells: `topic=science` is
all cells of that topic, `topic=science, format=tutorial` those of both. A cell takes the cap that names most of it; of
several that name as much, the lowest; else that of `others`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gristmill.kernels.common.settings import in_a_sentence, nearest
from gristmill.stages.blend.groups import parts_of, quoted

OTHERS = "others"
SMALL = "(small)"  # the last part of the name of joined cells


def parts_named(key: str, by: Sequence[str]) -> dict[str, str] | None:
    """`topic=science, format=tutorial` as values by column; None if this is no such key."""
    pairs = [pair.partition("=") for pair in key.split(",")]
    named = {column.strip(): value.strip() for column, equals, value in pairs if equals}
    return named if len(named) == len(pairs) and named.keys() <= set(by) else None


def is_by_part(caps: Mapping[str, float], by: Sequence[str]) -> bool:
    """Does a cap speak of parts of cells, or of all others?"""
    return OTHERS in caps or any(parts_named(key, by) for key in caps)


def caps_of(
    caps: Mapping[str, float], by: Sequence[str], names: Collection[str], partial: bool, small: Mapping[str, str]
) -> dict[str, float]:
    """The cap of each cell. A key that no cell fits is an error, unless this is a part of the input. `small`: groups
    that were joined, and the cell that each is in now."""
    values = {name: dict(zip(by, parts_of(name, len(by)), strict=False)) for name in names}
    named = {key: parts for key in caps if key not in values and (parts := parts_named(key, by)) is not None}
    unknown = [key for key in caps if key != OTHERS and key not in values and key not in named]
    unknown += [
        key for key, parts in named.items() if not any(parts.items() <= of_cell.items() for of_cell in values.values())
    ]
    for name, cell in () if partial else small.items():
        parts = dict(zip(by, parts_of(name, len(by)), strict=True))
        meant = [key for key in unknown if key == name or (key in named and named[key].items() <= parts.items())]
        if meant:
            raise ValueError(
                f"max_epochs: {meant[0]} speaks of the group {name!r}, which has fewer than least_tokens and is part of"
                f" the cell {cell!r}: name that one, or lower least_tokens"
            )
    if unknown and not partial:
        column = next(iter(named.get(unknown[0], {})), None)
        there = {f"{column}={of_cell[column]}" for of_cell in values.values() if column in of_cell} if column else names
        near = nearest(unknown[0], sorted(there))
        hint = f"; did you mean {near[0]}?" if near else f"; there are {in_a_sentence(sorted(there)[:6])}"
        raise ValueError(f"max_epochs: no cell is {unknown[0]}{hint}")
    found: dict[str, float] = {}
    for name, of_cell in values.items():
        fits = [(len(parts), -caps[key]) for key, parts in named.items() if parts.items() <= of_cell.items()]
        if name in caps:
            found[name] = caps[name]
        elif fits:
            found[name] = -max(fits)[1]
        elif OTHERS in caps:
            found[name] = caps[OTHERS]
    lacking = sorted(set(names) - set(found))
    if lacking:
        raise ValueError(
            f"max_epochs: says nothing of {in_a_sentence(lacking[:6])}{' and others' if len(lacking) > 6 else ''};"
            f" `{OTHERS}: 4` is for all that are not named"
        )
    return found


def joined(tokens: Mapping[str, float], columns: int, least: float) -> dict[str, str]:
    """The cell of each group: its own, or, of groups with fewer tokens than `least`, one that they share.

    Groups that differ only in the last column are joined first. What they have together may still be too little: it is
    joined with its like of the next column, and so on; in the end all small cells are one.
    """
    cell_of = {name: name for name in tokens}
    for kept in reversed(range(columns)):
        sums: dict[str, float] = {}
        for name, cell in cell_of.items():
            sums[cell] = sums.get(cell, 0.0) + tokens[name]
        for name, cell in cell_of.items():
            if sums[cell] < least:
                values = parts_of(name, columns)[:kept]
                cell_of[name] = "/".join([*(quoted(value, columns) for value in values), SMALL])
    return cell_of


def smaller_than(tokens: Mapping[str, float], least: float) -> list[str]:
    """Cells with fewer tokens, the smallest first."""
    return sorted((name for name, count in tokens.items() if count < least), key=lambda name: (tokens[name], name))
