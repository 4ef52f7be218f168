"""Passages of forgotten documents in other places: stretches of 32 bytes that no document holds that stays.

What is looked through for them (reports, logs, tables of a user's) is small beside the documents. So its stretches are
gathered first; then the forgotten documents say which of them are theirs, and those that stay, which are theirs too.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.base.types import Array, Hashes
from gristmill.kernels.duplicates.windows import window_hashes

WIDTH = 32  # bytes
MOST = 1 << 22  # bytes that are looked at in one go


def slices(column: TextColumn) -> Iterable[TextColumn]:
    """Some texts at a time, about MOST bytes; one that is longer comes alone."""
    start, offsets = 0, column.offsets
    while start < len(column):
        end = max(start + 1, int(np.searchsorted(offsets, offsets[start] + MOST, side="right")) - 1)
        yield TextColumn(column.data, offsets[start : end + 1])
        start = end


class Passages:
    """The stretches of some texts that were looked through, less those that do not count."""

    def __init__(self) -> None:
        self._seen: list[Hashes] = []
        self.candidates: Hashes = np.zeros(0, np.uint64)
        self._theirs: Array = np.zeros(0, np.bool_)

    def look_through(self, texts: pa.Array | pa.ChunkedArray) -> None:
        for part in slices(text_column(texts)):
            self._seen.append(np.unique(window_hashes(part, WIDTH)[0]))

    def close(self) -> None:
        """All was looked through."""
        self.candidates = np.unique(np.concatenate([*self._seen, np.zeros(0, np.uint64)]))
        self._theirs, self._seen = np.zeros(len(self.candidates), np.bool_), []

    def _places(self, texts: pa.Array | pa.ChunkedArray) -> Iterable[Array]:
        if not len(self.candidates):
            return
        for part in slices(text_column(texts)):
            hashes = window_hashes(part, WIDTH)[0]
            places = np.minimum(np.searchsorted(self.candidates, hashes), len(self.candidates) - 1)
            yield places[self.candidates[places] == hashes]

    def are_theirs(self, texts: pa.Array | pa.ChunkedArray) -> None:
        for places in self._places(texts):
            self._theirs[places] = True

    def stay(self, texts: pa.Array | pa.ChunkedArray) -> None:
        """Called after all of `are_theirs`."""
        for places in self._places(texts):
            self._theirs[places] = False

    @property
    def any(self) -> bool:
        return bool(self._theirs.any())

    def in_each(self, texts: pa.Array | pa.ChunkedArray) -> Array:
        """Which texts hold a passage that is only theirs."""
        column = text_column(texts)
        found = np.zeros(len(column), np.bool_)
        if not self.any:
            return found
        theirs, done = self.candidates[self._theirs], 0
        for part in slices(column):
            hashes, first = window_hashes(part, WIDTH)
            places = np.minimum(np.searchsorted(theirs, hashes), len(theirs) - 1)
            hits = np.concatenate([[0], np.cumsum(theirs[places] == hashes)])
            found[done : done + len(part)] = hits[first[1:]] > hits[first[:-1]]
            done += len(part)
        return found
