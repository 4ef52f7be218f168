"""Hashes of every stretch of so many bytes of texts: which texts hold a passage of another, whatever stands around it.

A hash rolls over the bytes (Karp and Rabin 1987, modulo 2**64) and is mixed at the end, so that its top bits are as
good as the others.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.bare import kernel
from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.splitmix import ALL, mixed, mixed_plain
from gristmill.kernels.base.types import Hashes, Offsets

BASE = 0x9E3779B97F4A7C15
_BASE, _ONE = np.uint64(BASE), np.uint64(1)


def window_hashes(column: TextColumn, width: int) -> tuple[Hashes, Offsets]:
    """The hashes of all windows of `width` bytes, text by text, and where those of each text begin; a shorter text has
    none."""
    counts = np.maximum(np.diff(column.offsets) - (width - 1), 0)
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    out = np.empty(int(first[-1]), np.uint64)
    _windows(column.data, column.offsets, first, width, out)
    return out, first


@kernel
def _windows(data, offsets, first, width, out):
    top = _ONE
    for _ in range(width):
        top *= _BASE
    for d in range(len(offsets) - 1):
        hashed = np.uint64(0)
        at = first[d]
        for i in range(offsets[d], offsets[d + 1]):
            hashed = hashed * _BASE + np.uint64(data[i]) + _ONE
            if i - offsets[d] >= width:
                hashed -= top * (np.uint64(data[i - width]) + _ONE)
            if i - offsets[d] >= width - 1:
                out[at] = mixed(hashed)
                at += 1


def window_hashes_plain(text: bytes, width: int) -> list[int]:
    """Of one text."""
    hashes = []
    for start in range(len(text) - width + 1):
        hashed = 0
        for byte in text[start : start + width]:
            hashed = (hashed * BASE + byte + 1) & ALL
        hashes.append(mixed_plain(hashed))
    return hashes
