"""How many texts of each source and each cell a training set takes: shares that hold, labels that are equally many."""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.types import Array


def share_quotas(counts_S: Array, shares_S: Array) -> Array:
    """int64_S: as many as can be had so that each source has its share; the scarcest gives all that it has."""
    shares_S = np.asarray(shares_S, np.float64) / np.sum(shares_S)
    most = float((counts_S / shares_S).min())
    return np.minimum(np.maximum(np.floor(most * shares_S + 1e-9).astype(np.int64), 1), counts_S)


def cell_quotas(counts_CL: Array, texts: int | None) -> Array:
    """int64_CL: of each cell (a language, a step of length) and label, for at most so many texts in all: in proportion
    to what there is. Where labels are equally many in every cell they stay so."""
    if texts is None or counts_CL.sum() <= texts:
        return counts_CL
    if (counts_CL == counts_CL[:, :1]).all():
        labels = counts_CL.shape[1]
        return np.repeat(apportion(counts_CL[:, 0], texts // labels)[:, None], labels, axis=1)
    return apportion(counts_CL.reshape(-1), texts).reshape(counts_CL.shape)


def apportion(counts: Array, total: int) -> Array:
    """int64: `total`, in proportion to the counts, by largest remainders (Hamilton); equal ones go to the first."""
    exact = counts * (total / counts.sum())
    whole = np.floor(exact).astype(np.int64)
    lacking = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:lacking]] += 1
    return np.asarray(whole)


def smallest(hashes: Array, count: int) -> Array:
    """Places of the `count` smallest; equal ones in their order."""
    return np.asarray(np.argsort(hashes, kind="stable")[:count])


def draw_places(place_N: Array, source_N: Array, hash_N: Array, wanted_P: Array) -> Array:
    """bool_N: of each place (a cell and label) so many, of each source in proportion to what it has there, and of a
    source those with the smallest hashes. Hashes alone would favour sources of which only small ones are left."""
    place_source = place_N * (int(source_N.max(initial=0)) + 1) + source_N
    depth_N = (_rank_in(place_source, hash_N) + 0.5) / np.bincount(place_source)[place_source]
    return _rank_in(place_N, depth_N, hash_N) < wanted_P[place_N]


def _rank_in(place_N: Array, *keys: Array) -> Array:
    """int64_N: how many of the same place come before each, by the keys, the first first."""
    order = np.lexsort((*keys[::-1], place_N))
    rank_N = np.empty(len(order), np.int64)
    rank_N[order] = np.arange(len(order)) - np.searchsorted(place_N[order], place_N[order])
    return rank_N
