"""How well a text compresses: the size that greedy matching as in LZ4 would give, without writing it.

Our own estimate and not a library's, so that the figure never changes with a library's version: a match of 4 bytes or
more, found through one table of the last place of each 4 bytes, at most 65,535 bytes back, costs 3 bytes and one for
each 255 beyond 19; 15 literals or more in a row cost one byte more for each 255.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.bare import inlined, kernel

_SLOTS = 1 << 13
_MULTIPLIER = np.uint32(2654435761)
_FAR = 65535


def compression_scratch() -> np.ndarray:
    return np.empty(_SLOTS, np.int64)


@kernel
def compressed_size(data, offsets, last, out):
    """out[i]: bytes of document i compressed."""
    for d in range(len(offsets) - 1):
        start, stop = offsets[d], offsets[d + 1]
        for slot in range(len(last)):
            last[slot] = -1
        size, literals, i = 0, 0, start
        while i + 4 <= stop:
            word = (
                np.uint32(data[i])
                | np.uint32(data[i + 1]) << np.uint32(8)
                | np.uint32(data[i + 2]) << np.uint32(16)
                | np.uint32(data[i + 3]) << np.uint32(24)
            )
            slot = np.uint32(word * _MULTIPLIER) >> np.uint32(19)
            back = last[slot]
            last[slot] = i
            if (
                back < 0
                or i - back > _FAR
                or data[back] != data[i]
                or data[back + 1] != data[i + 1]
                or data[back + 2] != data[i + 2]
                or data[back + 3] != data[i + 3]
            ):
                literals += 1
                i += 1
                continue
            length = 4
            while i + length < stop and data[back + length] == data[i + length]:
                length += 1
            size += cost(literals, length)
            literals = 0
            i += length
        out[d] = size + cost(literals + stop - i, 0) - 2 if stop > start else 0


@inlined
def cost(literals, length):
    """Bytes of a token, its literals, a distance, and what does not fit the token."""
    more = 1 + (literals - 15) // 255 if literals >= 15 else 0
    return 3 + literals + more + (1 + (length - 19) // 255 if length >= 19 else 0)


def compressed_size_plain(data: bytes) -> int:
    places: dict[int, int] = {}
    size = literals = i = 0
    while i + 4 <= len(data):
        slot = (int.from_bytes(data[i : i + 4], "little") * 2654435761 % 2**32) >> 19
        back = places.get(slot, -1)
        places[slot] = i
        if back < 0 or i - back > _FAR or data[back : back + 4] != data[i : i + 4]:
            literals += 1
            i += 1
            continue
        length = 4
        while i + length < len(data) and data[back + length] == data[i + length]:
            length += 1
        size += (
            3
            + literals
            + (1 + (literals - 15) // 255 if literals >= 15 else 0)
            + (1 + (length - 19) // 255 if length >= 19 else 0)
        )
        literals = 0
        i += length
    literals += len(data) - i
    return size + 1 + literals + (1 + (literals - 15) // 255 if literals >= 15 else 0) if data else 0
