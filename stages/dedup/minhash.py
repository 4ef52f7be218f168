"""Documents that are nearly the same: MinHash bands nominate, the Jaccard similarity of the real shingles decides (Broder 1997; Leskovec et al., ch. 3).

Two documents of similarity s share a band with the chance 1 - (1 - s**rows)**bands, and a shared band is all that most tools ask before they delete.
Here it only brings two documents together; `stages.dedup.near` has the rest of the road. Definitions of words and shingles: `kernels.tokens_plain`.
Recall by kind of edit and speed beside others: benchmarks/minhash.py, docs/dedup.md.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from kernels.columns import text_column
from kernels.minhash import band_hashes, bands_for, chance_of_meeting
from kernels.nominate import PASSED_ON, pairs_in_buckets
from kernels.tokens import jaccard_of_pairs, shingle_sets
from stages.dedup.near import NO_CLUSTER, NearDuplicates, Sketches
from stages.stage import Dataset, Flow, Rows

Array = np.ndarray[Any, np.dtype[Any]]

MOST_SHINGLES = (
    1 << 16
)  # of a longer document the smallest so many hashes: a similarity is then off by 0.002 (standard deviation), and memory is bounded


class MinHashDedup(NearDuplicates):
    """Keep one of documents that share most of their word n-grams.

    A document goes only if the Jaccard similarity of its n-grams with those of a document that stays is at least `threshold`. Who stays: by
    `prefer`, then by uid. Words are runs of letters and digits, caseless; in scripts without spaces each letter is a word. A document of fewer
    words than `ngram` is like another only if all its words are the same; one without words is like none.
    All members of a cluster get its name and size; one that stays gets `minhash_copies`, how many documents it stands for.
    """

    threshold: Annotated[float, Field(description="the Jaccard similarity from which two documents are alike", gt=0, le=1)] = 0.8
    ngram: Annotated[int, Field(description="words in a shingle", ge=1, le=64)] = 5
    hashes: Annotated[int, Field(description="length of a signature", ge=1, le=1 << 14)] = 128
    recall: Annotated[
        float, Field(description="bands are cut so that a pair at the threshold is nominated with this chance at least", gt=0, lt=1)
    ] = 0.97
    bands: Annotated[int | None, Field(description="bands, if they are not to follow from threshold and recall; with rows", ge=1)] = None
    rows: Annotated[int | None, Field(description="rows of a band", ge=1)] = None
    seed: Annotated[int, Field(description="of all hashes", ge=0)] = 0

    prefix: ClassVar[str] = "minhash"

    @model_validator(mode="after")
    def _bands_fit(self) -> Self:
        if (self.bands is None) != (self.rows is None):
            raise ValueError("bands and rows go together: give both or neither")
        if self.bands is not None and self.rows is not None and self.bands * self.rows > self.hashes:
            raise ValueError(f"{self.bands} bands of {self.rows} rows need {self.bands * self.rows} hashes; there are {self.hashes}")
        if self.bands is None:
            bands_for(self.threshold, self.hashes, self.recall)
        return self

    @property
    def shape(self) -> tuple[int, int]:
        """Bands and rows."""
        if self.bands is not None and self.rows is not None:
            return self.bands, self.rows
        return bands_for(self.threshold, self.hashes, self.recall)

    @property
    def facts(self) -> list[str]:
        bands, rows = self.shape
        chances = ", ".join(f"{s:.2f}: {chance_of_meeting(s, bands, rows):.1%}" for s in (0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95))
        return [f"{bands} bands of {rows} rows. Chance that a pair is compared, by its similarity: {chances}. Every pair is then checked."]

    @property
    def at_least(self) -> float:
        return self.threshold

    def nominated(self, docs: Dataset, flow: Flow) -> Rows:
        bands = flow.map(self.sign, docs, columns=("uid", "text"), by="key", fan=self.shape[0])
        return flow.exchange(self.nominate, bands)

    def sign(self, docs: pa.Table) -> pa.Table:
        """A row for each band of each document that has words; `sibling` tells of its next band, `kernels.nominate` what for."""
        bands, rows = self.shape
        keys, shingles = band_hashes(
            text_column(docs["text"]), width=self.ngram, bands=bands, rows=rows, seed=self.seed, places=self.hashes
        )
        keys = keys[shingles > 0]
        uid = docs["uid"].to_numpy()[shingles > 0]
        sibling = np.empty(keys.shape, np.uint32)
        sibling[:, :-1] = keys[:, 1:] & 0xFFFFFFFF | PASSED_ON
        sibling[:, -1] = keys[:, 0] & 0xFFFFFFFE
        return pa.table(
            {"key": pa.array(keys.reshape(-1)), "uid": pa.array(np.repeat(uid, bands)), "sibling": pa.array(sibling.reshape(-1))}
        )

    def nominate(self, rows: pa.Table) -> pa.Table:
        """Pairs of documents that share a band."""
        met = those_that_meet(rows)
        uid, home = met["uid"].to_numpy(), met["home"].to_numpy()
        a, b = pairs_in_buckets(met["key"].to_numpy(), met["sibling"].to_numpy(), uid)
        left, right = np.where(uid[a] < uid[b], a, b), np.where(uid[a] < uid[b], b, a)
        return pa.table(
            {
                "home": pa.array(home[left]),
                "left": pa.array(uid[left]),
                "right": pa.array(uid[right]),
                "right_home": pa.array(home[right]),
                "cluster": pa.array(np.full(len(left), NO_CLUSTER, np.uint64)),
            }
        )

    def sketches(self, text: pa.ChunkedArray) -> Sketches:
        values, first = shingle_sets(text_column(text), self.ngram, self.seed)
        counts = np.diff(first)
        if counts.max(initial=0) <= MOST_SHINGLES:
            return values, first
        kept = np.concatenate([values[a : a + min(n, MOST_SHINGLES)] for a, n in zip(first[:-1].tolist(), counts.tolist(), strict=True)])
        return kept, np.concatenate([[0], np.cumsum(np.minimum(counts, MOST_SHINGLES))]).astype(np.int64)

    def similarities(self, sketches: Sketches, left: Array, right: Array) -> Array:
        values, first = sketches
        found = jaccard_of_pairs(values, first, left, right)
        long = np.diff(first) == MOST_SHINGLES
        for pair in np.flatnonzero(long[left] | long[right]).tolist():
            found[pair] = jaccard_of_least(*(values[first[side] : first[side + 1]] for side in (left[pair], right[pair])))
        return found


def jaccard_of_least(a: Array, b: Array) -> float:
    """From the smallest MOST_SHINGLES of each set (all of one that has fewer): of what lies below the end of both samples."""
    end = min([int(s[-1]) for s in (a, b) if len(s) == MOST_SHINGLES])
    a, b = a[a <= end], b[b <= end]
    shared = len(np.intersect1d(a, b, assume_unique=True))
    return shared / (len(a) + len(b) - shared)


def those_that_meet(rows: pa.Table) -> pa.Table:
    """Rows whose key another has too, in order of key, sibling and uid."""
    key = rows["key"].to_numpy()
    order = np.argsort(key)
    key = key[order]
    same = key[1:] == key[:-1]
    met = order[np.concatenate([same, [False]]) | np.concatenate([[False], same])]
    rows = rows.take(pa.array(met))
    return rows.take(pa.array(np.lexsort((rows["uid"].to_numpy(), rows["sibling"].to_numpy(), rows["key"].to_numpy()))))
