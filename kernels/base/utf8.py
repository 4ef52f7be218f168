"""Whether bytes are UTF-8, and how much of them is beyond ASCII."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.kernels.base import bare
from gristmill.kernels.base.wide import bytes_before

WIDTH = 32
usual = bytes_before(WIDTH, (0x00, 0x00), (0x1B, 0x1B), (0x80, 0xFF))


@bare.inlined
def continues(data, i, n, low, high):
    """Whether the byte at i is from `low` to `high`."""
    return i < n and low <= data[i] <= high


@bare.inlined
def length_at(data, i, n):
    """The bytes of the character at i, which is not ASCII; 0 where it is no UTF-8 (Unicode, table 3-7)."""
    byte = data[i]
    if byte < 0xC2 or byte > 0xF4:
        return 0
    if byte < 0xE0:
        return 2 if continues(data, i + 1, n, 0x80, 0xBF) else 0
    low, high = 0x80, 0xBF
    if byte == 0xE0:
        low = 0xA0
    elif byte == 0xED:
        high = 0x9F
    elif byte == 0xF0:
        low = 0x90
    elif byte == 0xF4:
        high = 0x8F
    if not (continues(data, i + 1, n, low, high) and continues(data, i + 2, n, 0x80, 0xBF)):
        return 0
    if byte < 0xF0:
        return 3
    return 4 if continues(data, i + 3, n, 0x80, 0xBF) else 0


@bare.kernel
def measured_utf8(data) -> Any:
    """The number of characters beyond ASCII, -1 where the bytes are no UTF-8; and whether there are NULs or escapes, as
    encodings have them that are none of ASCII's kin."""
    i, n, count, odd = np.int64(0), np.int64(len(data)), np.int64(0), False
    while i < n:
        byte = data[i]
        if 0xC2 <= byte < 0xE0 and i + 1 < n and data[i + 1] & 0xC0 == 0x80:
            count, i = count + 1, i + 2
        elif byte >= 0x80:
            length = length_at(data, i, n)
            if length == 0:
                return np.int64(-1), odd
            count, i = count + 1, i + length
        elif byte == 0 or byte == 0x1B:
            odd = True
            i += 1
        elif i + WIDTH <= n:
            i += usual(data, i)
        else:
            i += 1
    return count, odd
