"""From signals to ranks: the share of a group's tokens that is easier than a document, from a weighted sample
(docs/curriculum.md).

Kept as at most 4,097 knots, so that any number of workers can rank without sorting the corpus. Values that hold at
least 1/2048 of the weight (0.0, the marks of a judge) are knots with their exact weight below and up to them. Between
two knots there is less than 1/2048 of the weight, interpolated linearly, so the error of a rank is below 1/2048 against
the sample, and zero where the sample has 2,048 values or fewer. The error of the sample itself is about 0.5 /
sqrt(size): as much, at a million.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gristmill.kernels.base.types import Floats

STEPS = 2048


@dataclass(frozen=True)
class Ranks:
    """A share `below` of the weight is below values[i], a share `upto` at most values[i]. Without values nothing is
    known."""

    values: Floats
    below: Floats
    upto: Floats

    @classmethod
    def of(cls, values: Floats, weights: Floats) -> Ranks:
        """From a sample in any order. Values that are not finite count as unknown and are left out."""
        finite = np.isfinite(values) & (weights > 0)
        values, weights = values[finite].astype(np.float64) + 0.0, weights[finite].astype(np.float64)  # -0.0 is 0.0
        order = np.lexsort((weights, values))
        values, weights = values[order], weights[order]
        if not len(values):
            return cls(np.zeros(0), np.zeros(0), np.zeros(0))
        first = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
        sums = np.cumsum(weights)
        upto = np.append(sums[first[1:] - 1], sums[-1]) / sums[-1]
        below = np.append(0.0, upto[:-1])
        kept = cls(values[first], below, upto)
        return kept if len(first) <= STEPS else kept._fewer()

    def _fewer(self) -> Ranks:
        """Every value that is heavy or at which a whole step of the weight falls; the lowest and the highest value
        too."""
        crosses = np.floor(self.below * STEPS) != np.floor(self.upto * STEPS)
        keep = crosses | (self.upto - self.below >= 1 / STEPS)
        keep[[0, -1]] = True
        return Ranks(self.values[keep], self.below[keep], self.upto[keep])

    def rank(self, values: Floats, ties: Floats) -> Floats:
        """In [0, 1), rising with (value, tie). `ties` are chances in [0, 1) that play no part in places; unknown values
        rank by them alone."""
        finite = np.isfinite(values)
        if not len(self.values):
            return ties.astype(np.float64)
        wanted = np.where(finite, values, 0.0)
        knot = np.searchsorted(self.values, wanted, side="right") - 1
        here = np.maximum(knot, 0)
        following = np.minimum(here + 1, len(self.values) - 1)
        gap = self.values[following] - self.values[here]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            way = np.where(gap > 0, (wanted - self.values[here]) / gap, 1.0)
        on = self.below[here] + ties * (self.upto[here] - self.below[here])
        between = self.upto[here] + np.clip(way, 0, 1) * (self.below[following] - self.upto[here])
        beyond = (knot == len(self.values) - 1) & (wanted > self.values[here])
        ranked = np.select(
            [~finite, knot < 0, wanted == self.values[here], beyond],
            [ties, 0.0, on, 1.0],
            np.minimum(between, self.below[following]),
        )
        ranks: Floats = np.minimum(ranked, np.nextafter(1.0, 0.0))
        return ranks
