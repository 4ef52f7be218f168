"""Where in a line a phrase can be at all, from blocks of four bytes at intervals: C4's lines of web pages are searched
5 times as fast.

A phrase of n bytes contains, wherever it begins, one of the blocks that are read, if these are n - 3 bytes apart. So
only the blocks that begin in the first n - 3 bytes of a phrase matter (n is that of the shortest). Blocks are tested by
one bit of a hash, in lower case. A block with a byte beyond ASCII always passes: some signs have a lower case in ASCII
(the Kelvin sign).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import inlined
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.wide import eight_bytes
from gristmill.kernels.lines.phrases import phrases_from

_BLOCK = 4
_SMALL, _BEYOND_ASCII, _LOW = np.uint64(0x20202020), np.uint64(0x80808080), np.uint64(0xFFFFFFFF)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Blocks(NamedTuple):
    bits: Array  # uint64[512]: for 15 bits of a block's hash, may it be of a phrase?
    # from one block that is looked at to the next; 0 where phrases are too short or not of ASCII, and all places are
    # looked at
    step: int


def blocks_of(classes: Array, moves: Array, phrase_bits: Array, width: int) -> Blocks:
    """Of the phrases of a trie (`gristmill.kernels.lines.phrases`)."""
    byte_of = {int(kind): byte for byte, kind in enumerate(classes)}
    paths = [b""] * len(phrase_bits)
    for node, row in enumerate(moves.reshape(-1, width)):  # a child has a higher number
        for kind in np.flatnonzero(row):
            paths[row[kind]] = paths[node] + bytes([byte_of[int(kind)]])
    bits = np.zeros(512, np.uint64)
    step = min((len(paths[node]) for node in np.flatnonzero(phrase_bits)), default=0) - _BLOCK + 1
    if step <= 0 or not all(path.isascii() for path in paths):
        return Blocks(bits, 0)
    for path in paths:
        if _BLOCK <= len(path) < _BLOCK + step:
            h = (int.from_bytes(path[-_BLOCK:], "little") | int(_SMALL)) * int(_FACTOR) % 2**64
            bits[h >> 55] |= np.uint64(1 << (h >> 49 & 63))
    return Blocks(bits, step)


@inlined
def phrases_by_blocks(data, start, end, bits, step, lower_case, pairs, classes, moves, phrase_bits, width):
    """As `gristmill.kernels.lines.phrases.phrases_in`: bits of the phrases that begin anywhere in data[start:end]."""
    if step == 0:
        return phrases_from(data, start, end, end, lower_case, pairs, classes, moves, phrase_bits, width)
    seen = np.int64(0)
    i = start
    while i + _BLOCK <= end:
        if may_be_of_phrase(data, i, bits):
            first = max(start, i - step + 1)
            while i + _BLOCK <= end and may_be_of_phrase(data, i, bits):
                i += step
            seen |= phrases_from(data, first, i - step + 1, end, lower_case, pairs, classes, moves, phrase_bits, width)
        else:
            i += step
    return seen


@inlined
def may_be_of_phrase(data, i, bits):
    if i + 8 > len(data):
        return True
    block = eight_bytes(data, i) & _LOW
    h = (block | _SMALL) * _FACTOR
    return (
        (bits[h >> np.uint64(55)] >> (h >> np.uint64(49) & np.uint64(63)) & np.uint64(1)) | (block & _BEYOND_ASCII)
    ) != 0
