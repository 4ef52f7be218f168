"""Texts that a training set should have once: copies and near copies of one label, and texts that stand under two.

A text under two labels teaches nothing; a near copy of a training text among the held-out ones flatters every figure.
Bands of MinHash nominate pairs (kernels/duplicates/minhash.py), and the Jaccard similarity of all their runs of words
decides. Of copies under one label the first stays. What stands under two labels, also nearly, leaves both, or stays
under the one label that is named. Rounds go on until nothing is nominated that is alike: of a bucket of thousands only
a few pairs are compared at a time, and what leaves makes it smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.duplicates.forest import keepers, neighbours
from gristmill.kernels.duplicates.minhash import band_hashes, bands_for
from gristmill.kernels.duplicates.nominate import pairs_in_buckets, siblings
from gristmill.kernels.words.tokens import jaccard_of_pairs, shingle_sets

STAYS, COPY, NEAR_COPY, UNDER_TWO, NEARLY_UNDER_TWO = range(5)  # fates
NO_LABEL = -1
HASHES = 128


@dataclass(frozen=True)
class Alike:
    """What counts as a near copy: this Jaccard similarity of runs of so many words. A `similarity` of None: only equal
    texts are copies."""

    similarity: float | None = 0.8
    width: int = 5

    def __post_init__(self) -> None:
        if self.similarity is not None and not 0 < self.similarity <= 1:
            raise ValueError(f"a similarity of {self.similarity}: it lies above 0 and up to 1")


USUAL = Alike()


def fates(texts: pa.Array, labels_N: Array, stays_under: int = NO_LABEL, alike: Alike = USUAL) -> Array:
    """uint8_N: what becomes of each text. Texts come in the order in which they are preferred."""
    fate_N = np.zeros(len(texts), np.uint8)
    if not len(texts):
        return fate_N
    code_N = texts.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    pairs, first, of = np.unique(np.stack([code_N, labels_N]), axis=1, return_index=True, return_inverse=True)
    fate_N[np.arange(len(texts)) != first[of.reshape(-1)]] = COPY
    if alike.similarity is not None:
        _near(texts, labels_N, stays_under, alike, fate_N)
    under_N = np.bincount(pairs[0], minlength=len(texts))[code_N]
    fate_N[np.isin(fate_N, (STAYS, NEARLY_UNDER_TWO)) & (under_N > 1) & (labels_N != stays_under)] = UNDER_TWO
    return fate_N


def _near(texts: pa.Array, labels_N: Array, stays_under: int, alike: Alike, fate_N: Array) -> None:
    """Texts that are equal under two labels take part, so that a near copy of one meets the other too."""
    rows = np.flatnonzero(fate_N == STAYS)
    bands, height = bands_for(float(alike.similarity or 1), HASHES)
    keys_NB, shingles_N = band_hashes(
        text_column(texts.take(pa.array(rows))), width=alike.width, bands=bands, rows=height
    )
    rows, keys_NB = rows[shingles_N > 0], keys_NB[shingles_N > 0]
    while len(rows):
        first_ends, second_ends, similarity = _alike_pairs(texts.take(pa.array(rows)), keys_NB, alike)
        if not len(first_ends):
            return
        label_R = labels_N[rows]
        same = label_R[first_ends] == label_R[second_ends]
        keeper_R = keepers(
            *neighbours(first_ends[same], second_ends[same], similarity[same], len(rows)), float(alike.similarity or 1)
        )
        fate_N[rows[keeper_R >= 0]] = NEAR_COPY
        first_ends, second_ends = first_ends[~same], second_ends[~same]
        met = (keeper_R[first_ends] < 0) & (keeper_R[second_ends] < 0)
        both = np.unique(np.concatenate([first_ends[met], second_ends[met]]))
        leave = both[label_R[both] != stays_under]
        fate_N[rows[leave]] = NEARLY_UNDER_TWO
        stays = fate_N[rows] == STAYS  # of every pair at least one has left
        rows, keys_NB = rows[stays], keys_NB[stays]


def _alike_pairs(texts: pa.Array, keys_NB: Array, alike: Alike) -> tuple[Array, Array, Array]:
    """Places of texts that share a band and are alike, the earlier first, each pair once, with their similarity."""
    count, bands = keys_NB.shape
    key, sibling, row = (
        keys_NB.reshape(-1),
        siblings(keys_NB).reshape(-1),
        np.repeat(np.arange(count, dtype=np.uint64), bands),
    )
    order = np.lexsort((row, sibling, key))
    key, sibling, row = key[order], sibling[order], row[order]
    met = np.zeros(len(key) + 1, np.bool_)
    met[1:-1] = key[1:] == key[:-1]
    shared = met[1:] | met[:-1]
    key, sibling, row = key[shared], sibling[shared], row[shared]
    a, b = pairs_in_buckets(key, sibling, row)
    if not len(a):
        none = np.empty(0, np.int64)
        return none, none, np.empty(0, np.float64)
    ends = np.sort(np.stack([row[a], row[b]], axis=1).astype(np.int64), axis=1)
    first_ends, second_ends = np.unique(ends, axis=0).T
    members, places = np.unique(np.stack([first_ends, second_ends]), return_inverse=True)
    places = places.reshape(2, -1)
    sets = shingle_sets(text_column(texts.take(pa.array(members))), alike.width)
    similarity = jaccard_of_pairs(*sets, places[0], places[1])
    kept = similarity >= float(alike.similarity or 1)
    return first_ends[kept], second_ends[kept], similarity[kept]
