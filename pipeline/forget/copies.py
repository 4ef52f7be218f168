"""Copies of forgotten documents under other uids: texts that are the same, and texts that share most of their 5-grams
of words (MinHash nominates, sets of n-grams decide)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.duplicates.minhash import band_hashes, bands_for

SIMILAR = 0.7  # Jaccard similarity of the sets of 5-grams
NGRAM = 5
BANDS, BAND_ROWS = bands_for(SIMILAR, 128, 0.99)


class Copy(TypedDict):
    """A copy in the receipt."""

    uid: str
    of: str  # the uid of the forgotten document
    similarity: float  # 1: the same text
    fate: str  # `kept`, or the stage that dropped it and why
    taken: bool


class Known(NamedTuple):
    uid: int
    grams: frozenset[int]


class Copies:
    """The texts of forgotten documents, to hold others against."""

    def __init__(self) -> None:
        self._same: dict[int, int] = {}  # hash of a text -> uid
        self._texts: list[Known] = []
        self._bands: dict[int, list[int]] = {}  # hash of a band -> places in `_texts`
        self._keys: Array | None = None

    def add(self, uids: Array, texts: pa.Array | pa.ChunkedArray) -> None:
        """Any version of the text of a document may be given."""
        column = text_column(texts)
        bands, _ = band_hashes(column, width=NGRAM, bands=BANDS, rows=BAND_ROWS)
        for row, text in enumerate(_texts_of(column)):
            same = xxhash.xxh3_128_intdigest(text)
            if not text.strip() or self._same.get(same) == int(uids[row]):
                continue
            self._same.setdefault(same, int(uids[row]))
            for band in bands[row].tolist():
                self._bands.setdefault(band, []).append(len(self._texts))
            self._texts.append(Known(int(uids[row]), grams_of(text)))
        self._keys = None

    def like(self, uids: Array, texts: pa.Array | pa.ChunkedArray) -> dict[int, tuple[int, float]]:
        """Of these documents those that are copies: the uid of what each is a copy of, and how similar they are."""
        if not self._texts:
            return {}
        if self._keys is None:
            self._keys = np.sort(np.fromiter(self._bands, np.uint64, len(self._bands)))
        column = text_column(texts)
        bands, counts = band_hashes(column, width=NGRAM, bands=BANDS, rows=BAND_ROWS)
        places = np.minimum(np.searchsorted(self._keys, bands), len(self._keys) - 1)
        nominated = (self._keys[places] == bands).any(axis=1) & (counts > 0)
        found = {}
        for row, text in enumerate(_texts_of(column)):
            if not text.strip():
                continue
            same = self._same.get(xxhash.xxh3_128_intdigest(text))
            if same is not None:
                found[int(uids[row])] = (same, 1.0)
            elif nominated[row]:
                best = self._nearest(bands[row].tolist(), grams_of(text))
                if best is not None:
                    found[int(uids[row])] = best
        return found

    def _nearest(self, bands: Iterable[int], grams: frozenset[int]) -> tuple[int, float] | None:
        near = {place for band in bands for place in self._bands.get(band, ())}
        scored = [(similarity(grams, self._texts[place].grams), self._texts[place].uid) for place in near]
        best = max(scored, key=lambda pair: (pair[0], -pair[1]), default=(0.0, 0))
        return (best[1], round(best[0], 4)) if best[0] >= SIMILAR else None


def similarity(left: frozenset[int], right: frozenset[int]) -> float:
    return len(left & right) / max(1, len(left | right))


def grams_of(text: bytes) -> frozenset[int]:
    words = text.lower().split()
    grams = [b" ".join(words[i : i + NGRAM]) for i in range(max(1, len(words) - NGRAM + 1))]
    return frozenset(map(xxhash.xxh3_64_intdigest, grams))


def _texts_of(column: TextColumn) -> Iterable[bytes]:
    data = column.data
    for start, end in zip(column.offsets[:-1].tolist(), column.offsets[1:].tolist(), strict=True):
        yield data[start:end].tobytes()
