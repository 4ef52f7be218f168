"""Which blocks of a page are kept, by the probability that each is main text."""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.base.types import Array


@kernel
def choose(
    probability: Array, words: Array, sharpness: float, recall: float, least: float, order: Array, kept: Array
) -> None:
    """Keeps the blocks up to the cut that promises the highest F, with `recall` the square of its beta; a block without
    words follows what its probability says."""
    hoped = 0.0
    sharp = np.empty(len(order))
    for b in range(len(order)):
        p = np.float64(probability[b])
        a, z = p**sharpness, (1 - p) ** sharpness
        sharp[b] = a / (a + z)
        hoped += sharp[b] * words[b]
    best, cut, right, taken = -1.0, 0, 0.0, 0
    for k in range(len(order)):
        b = order[k]
        if probability[b] < least:
            break
        right += sharp[b] * words[b]
        taken += words[b]
        promised = (1 + recall) * right / (taken + recall * hoped) if taken > 0 else 0.0
        if promised >= best:
            best, cut = promised, k + 1
    for k in range(cut):
        kept[order[k]] = True
