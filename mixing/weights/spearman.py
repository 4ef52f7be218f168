"""Spearman's rank correlation (1904): how far two columns put the same items in the same order.

Not scipy's `spearmanr`: mixing laws and `gristmill judge rate` need it in the base install, which has no scipy. It
would save four lines here, and takes a second to import.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.types import Array


def spearman(a: Array, b: Array) -> float | None:
    """Of the mean ranks, -1 to 1; None where one of the columns is constant and so has no order."""
    ranks_a, ranks_b = ranks(a) - (len(a) + 1) / 2, ranks(b) - (len(b) + 1) / 2
    length = float(np.sqrt((ranks_a @ ranks_a) * (ranks_b @ ranks_b)))
    return float(ranks_a @ ranks_b) / length if length > 0 else None


def ranks(values: Array) -> Array:
    """From 1; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place])
