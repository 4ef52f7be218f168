"""Vectors of 8-bit numbers: what kernels find is what plain arithmetic finds, whatever the order and the blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.kernels.vectors import int8
from gristmill.kernels.vectors.pooling import pooled, pooled_plain, spread

SEEDS = st.integers(0, 1 << 30)


def drawn(seed: int, rows: int, width: int = 24) -> np.ndarray:
    """Some in groups that lie close, one without a direction."""
    dice = np.random.default_rng(seed)
    middles = dice.normal(size=(4, width))
    vectors = middles[dice.integers(0, 4, rows)] + dice.normal(size=(rows, width)) * dice.uniform(0, 0.5, (rows, 1))
    if rows:
        vectors[0] = 0
    return int8.rounded(vectors)


def test_rounding_moves_a_cosine_by_little_and_drops_what_is_no_number() -> None:
    vectors = np.random.default_rng(1).normal(size=(300, 256)).astype(np.float32)
    vectors[1::2] = vectors[::2] + 0.2 * vectors[1::2]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    small = int8.rounded(vectors).astype(np.float64)
    small /= np.linalg.norm(small, axis=1, keepdims=True)
    assert np.abs((small[::2] * small[1::2]).sum(1) - (unit[::2] * unit[1::2]).sum(1)).max() < 2e-3
    assert np.abs(int8.rounded(vectors)).max(axis=1).tolist() == [127] * 300
    broken = int8.rounded(np.array([[1, np.nan], [np.inf, 1], [0, 0], [2, -1]]))
    assert broken.tolist() == [[0, 0], [0, 0], [0, 0], [127, -64]]


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(0, 60), st.integers(1, 9))
def test_the_nearest_centre(seed: int, rows: int, centres: int) -> None:
    vectors, middles = drawn(seed, rows), drawn(seed + 1, centres)
    place, cosine = int8.nearest(vectors, middles)
    for vector, found, near in zip(vectors.tolist(), place.tolist(), cosine.tolist(), strict=True):
        every = [int8.cosine_plain(vector, middle) for middle in middles.tolist()]
        assert every[found] == pytest.approx(max(every), abs=1e-6)
        assert near == pytest.approx(max(every), abs=1e-5)


def test_blocks_of_rows_and_centres_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, middles = drawn(3, 400), drawn(4, 90)
    whole = int8.nearest(vectors, middles)
    pairs = int8.near_pairs(vectors, 0.9, 5, 150)
    monkeypatch.setattr(int8, "BLOCK", 37)
    monkeypatch.setattr(int8, "CENTRES", 11)
    assert np.array_equal(whole[0], int8.nearest(vectors, middles)[0])
    assert np.array_equal(whole[1], int8.nearest(vectors, middles)[1])
    for one, other in zip(pairs, int8.near_pairs(vectors, 0.9, 5, 150), strict=True):
        assert len(one) > 100 and np.array_equal(one, other)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(0, 50), st.floats(0.1, 0.99), st.integers(1, 60), st.integers(1, 60))
def test_near_pairs_are_those_of_every_pair_compared(
    seed: int, rows: int, at_least: float, most: int, window: int
) -> None:
    vectors = drawn(seed, rows)
    found = int8.near_pairs(vectors, at_least, most, window)
    cosines = {
        (i, j): int8.cosine_plain(vectors[i].tolist(), vectors[j].tolist())
        for j in range(rows)
        for i in range(max(0, j - window), j)
    }
    for i, j, cosine in zip(found.left.tolist(), found.right.tolist(), found.cosine.tolist(), strict=True):
        assert cosine == pytest.approx(cosines[i, j]) and cosine >= at_least
    for j in range(rows):
        wanted = sorted((c for (_, right), c in cosines.items() if right == j and c >= at_least), reverse=True)[:most]
        assert sorted(found.cosine[found.right == j].tolist(), reverse=True) == pytest.approx(wanted)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(0, 60))
def test_sums_do_not_depend_on_order_or_parts(seed: int, rows: int) -> None:
    vectors = drawn(seed, rows)
    groups = np.random.default_rng(seed).integers(0, 3, rows)
    whole = int8.sums(vectors, groups, 3)
    order = np.random.default_rng(seed + 1).permutation(rows)
    half = rows // 2
    parts = [int8.sums(vectors[some], groups[some], 3) for some in (order[:half], order[half:])]
    assert np.array_equal(whole, parts[0] + parts[1])
    unit = vectors / np.maximum(int8.lengths(vectors), 1)[:, None]
    for group in range(3):
        assert whole[group] / int8.UNIT == pytest.approx(unit[groups == group].sum(0), abs=0.01 * max(rows, 1))
    assert np.abs(int8.centres_of(whole)).max(initial=0) in (0, 127)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.floats(-2, 2, width=32)), max_size=6), max_size=5), SEEDS)
def test_pooling(texts: list[list[tuple[int, float]]], seed: int) -> None:
    table = np.random.default_rng(seed).normal(size=(6, 7)).astype(np.float32)
    numbers = np.array([n for text in texts for n, _ in text], np.int64)
    values = np.array([v for text in texts for _, v in text], np.float32)
    first = np.cumsum([0, *map(len, texts)])
    rows = pooled(numbers, values, first, table)
    for row, text in zip(rows, texts, strict=True):
        assert row == pytest.approx(
            np.array(pooled_plain([n for n, _ in text], [v for _, v in text], table.tolist())), abs=1e-4
        )
    back = spread(numbers, values, first, rows, 6)
    dense = np.zeros((len(texts), 6), np.float32)
    for place, text in enumerate(texts):
        for number, value in text:
            dense[place, number] += np.float32(value)
    assert back == pytest.approx(dense.T @ rows, abs=1e-3)
