"""The packers in plain Python: the references that `gristmill.kernels.rows.pack` equals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Piece = tuple[int, int, int, int, int]  # row, offset, document, start, length


def best_fit_plain(lengths: Sequence[int], row_length: int, bounds: Sequence[int]) -> list[Piece]:
    """Of rows with equal room the one that was added to last."""
    rows: list[list[tuple[int, int]]] = []  # of (document, start), the first of which opened it
    for low, high in pairwise(bounds):
        rows += sorted(_window([(d, lengths[d]) for d in range(low, high)], row_length), key=lambda row: row[0])
    return [
        piece
        for number, row in enumerate(rows)
        for piece in _row(number, [(d, start, min(lengths[d] - start, row_length)) for d, start in sorted(row)])
    ]


def _window(documents: Sequence[tuple[int, int]], row_length: int) -> list[list[tuple[int, int]]]:
    full = [[(d, at)] for d, length in documents for at in range(0, length - row_length + 1, row_length)]
    tails = [(d, length - length % row_length, length % row_length) for d, length in documents if length % row_length]
    rows: list[list[tuple[int, int]]] = []
    room: list[int] = []
    added: list[int] = []  # when
    for now, (d, start, length) in enumerate(sorted(tails, key=lambda tail: (-tail[2], tail))):
        fits = [r for r in range(len(rows)) if room[r] >= length]
        chosen = min(fits, key=lambda r: (room[r], -added[r]), default=len(rows))
        if chosen == len(rows):
            rows.append([])
            room.append(row_length)
            added.append(now)
        rows[chosen].append((d, start))
        room[chosen] -= length
        added[chosen] = now
    return full + rows


def one_each_plain(lengths: Sequence[int], row_length: int) -> list[Piece]:
    pieces = [
        (d, at, min(length - at, row_length)) for d, length in enumerate(lengths) for at in range(0, length, row_length)
    ]
    return [piece for number, alone in enumerate(pieces) for piece in _row(number, [alone])]


def concatenate_plain(lengths: Sequence[int], row_length: int) -> list[Piece]:
    tokens = [(d, at) for d, length in enumerate(lengths) for at in range(length)]
    made = []
    for number in range(-(-len(tokens) // row_length)):
        row = tokens[number * row_length : (number + 1) * row_length]
        runs = {d: [at for other, at in row if other == d] for d in dict.fromkeys(d for d, _ in row)}
        made += _row(number, [(d, run[0], len(run)) for d, run in runs.items()])
    return made


def _row(number: int, pieces: Sequence[tuple[int, int, int]]) -> list[Piece]:
    made: list[Piece] = []
    offset = 0
    for d, start, length in pieces:
        made.append((number, offset, d, start, length))
        offset += length
    return made
