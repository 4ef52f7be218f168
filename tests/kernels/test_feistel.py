"""A shuffle place by place: every place is taken once, the kernel is the plain function, and it looks like chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from gristmill.kernels.base.feistel import LARGEST, permuted, permuted_plain

KEYS = st.integers(0, 2**64 - 1)


def whole(size: int, key: int) -> np.ndarray:
    return permuted(np.arange(size), np.full(size, size), np.full(size, key, np.uint64))


@given(st.integers(1, 3000), KEYS)
@example(1, 0)
@example(2, 1)
@example(4096, 2**64 - 1)
@example(4097, 5)
def test_every_place_is_taken_once(size, key):
    assert np.array_equal(np.sort(whole(size, key)), np.arange(size))


@given(
    st.lists(st.tuples(st.one_of(st.integers(1, 300), st.integers(1, LARGEST)), st.fractions(0, 1), KEYS), max_size=20)
)
def test_the_kernel_is_the_plain_function(given_places):
    places = [min(int(share * size), size - 1) for size, share, _ in given_places]
    sizes, keys = [size for size, _, _ in given_places], [key for _, _, key in given_places]
    found = permuted(np.array(places, np.int64), np.array(sizes, np.int64), np.array(keys, np.uint64))
    assert found.tolist() == [permuted_plain(*each) for each in zip(places, sizes, keys, strict=True)]


@pytest.mark.parametrize("size", [2, 3, 5, 8, 17, 100])
def test_every_place_goes_everywhere_equally_often(size):
    """Chi-squared per cell over keys in a row, which is what seeds and epochs would be at worst."""
    tries = 200 * size
    counts = np.zeros((size, size))
    places = np.tile(np.arange(size), tries)
    found = permuted(places, np.full(len(places), size), np.repeat(np.arange(tries, dtype=np.uint64), size))
    np.add.at(counts, (places, found), 1)
    chi = ((counts - tries / size) ** 2 / (tries / size)).sum()
    freedom = (size - 1) ** 2
    assert abs(chi - freedom) < 5 * np.sqrt(2 * freedom) + 3


def test_all_orders_of_four_are_equally_likely():
    tries = 24_000
    found = permuted(
        np.tile(np.arange(4), tries), np.full(4 * tries, 4), np.repeat(np.arange(tries, dtype=np.uint64), 4)
    ).reshape(-1, 4)
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 24 and ((counts - 1000) ** 2 / 1000).sum() < 60  # chi-squared of 23: 49.7 once in a thousand


def test_neighbours_do_not_stay_together():
    """Correlation of a place with where it goes, and of the steps between neighbours, is that of chance: a standard
    deviation is 0.001."""
    found = whole(1_000_003, 12).astype(float)
    assert abs(np.corrcoef(np.arange(len(found)), found)[0, 1]) < 0.005
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.005
    assert (np.diff(found) == 1).sum() < 12  # one is expected


def test_a_place_that_is_not_there_is_refused():
    for place, size in [(-1, 3), (3, 3), (0, 0), (0, LARGEST + 1)]:
        with pytest.raises(ValueError, match="a place must be"):
            permuted(np.array([place]), np.array([size]), np.zeros(1, np.uint64))
