"""Spearman's rank correlation, held against scipy's."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gristmill.mixing.weights.spearman import ranks, spearman


@given(st.lists(st.tuples(st.integers(-3, 3), st.floats(-5, 5)), min_size=2, max_size=30))
def test_ranks_and_their_correlation_are_scipys(pairs: list[tuple[int, float]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    a, b = np.array(pairs, np.float64).T
    assert np.array_equal(ranks(a), stats.rankdata(a)) and np.array_equal(ranks(b), stats.rankdata(b))
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
    else:
        assert spearman(a, b) is None


def test_what_is_not_defined_is_none() -> None:
    nothing = np.zeros(0)
    assert [spearman(nothing, nothing), spearman(np.ones(1), np.ones(1)), spearman(np.ones(3), np.arange(3))] == [
        None
    ] * 3
    assert spearman(np.arange(3), np.array([2, 4, 9])) == 1 and spearman(np.arange(3), np.array([9, 4, 2])) == -1
