"""Which documents of a source a model marks: a sample by tokens, chosen by hash, and what each stands for.

Each document draws the key -ln(u) / w from a hash u of its uid and the seed, where w is its tokens up to the cut, and
the smallest keys are taken (Efraimidis and Spirakis 2006): any order, any split of the documents gives the same sample.
Given the first key that was not taken, t, a document was in with probability 1 - exp(-w t); one over that, times its
tokens, is what it stands for (Cohen and Kaplan 2007). That makes sums and means unbiased also where a source has few
documents or few long ones: where all are taken each stands for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gristmill.kernels.base.splitmix import ALL, mixed_all, mixed_plain
from gristmill.kernels.base.types import Floats, Integers, Words

PURPOSE = 0x6D656475  # sets this draw apart from others with the same seed
BYTES_A_TOKEN = 4


@dataclass(frozen=True)
class DocumentSample:
    rows: Integers  # in the order of their keys
    weights: Floats  # tokens that each stands for


def sample(uids: Words, tokens: Floats, most: int = 256, cut: int = 512, seed: int = 0) -> DocumentSample:
    """Of one source. Documents without tokens are never taken."""
    if most < 1 or cut < 1:
        raise ValueError("most and cut must be 1 or more")
    tokens = np.asarray(tokens, np.float64)
    if len(uids) != len(tokens) or not np.all(np.isfinite(tokens)) or np.any(tokens < 0):
        raise ValueError("each document needs a uid and a number of tokens, 0 or more")
    some = np.flatnonzero(tokens > 0)
    weight = np.minimum(tokens[some], cut)
    hashes = mixed_all(np.asarray(uids, np.uint64)[some] ^ np.uint64(mixed_plain(PURPOSE ^ mixed_plain(seed & ALL))))
    uniform = ((hashes >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    keys = -np.log(uniform) / weight
    order = np.lexsort((np.asarray(uids, np.uint64)[some], keys))
    taken = order[:most]
    chance = -np.expm1(-weight[taken] * keys[order[most]]) if len(order) > most else np.ones(len(taken))
    return DocumentSample(some[taken].astype(np.int64), tokens[some[taken]] / chance)


def cut_texts(texts: Sequence[str], most: int = 512) -> list[str]:
    """Each text's beginning of `most` tokens of 4 bytes."""
    return [first_bytes(text, most * BYTES_A_TOKEN) for text in texts]


def first_bytes(text: str, most: int) -> str:
    return text[:most].encode("utf-8", "replace")[:most].decode("utf-8", "ignore")
