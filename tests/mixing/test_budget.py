"""The linear programme, beside SciPy's solver."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gristmill.mixing.weights.budget import most_utility
from gristmill.mixing.weights.supply import ShortSupply, Supply

sources = st.lists(
    st.tuples(st.floats(0.1, 1e5), st.sampled_from([0.0, 0.25, 0.3, 0.5, 1.0, -2.0])), min_size=1, max_size=15
)


def test_the_best_source_is_filled_to_its_cap_and_then_the_next() -> None:
    supply = Supply.of({"a": 10.0, "b": 10.0, "c": 100.0}, budget=100.0, max_epochs=4)
    assert np.allclose(most_utility(supply, np.array([0.5, 0.9, 0.1])), [0.4, 0.4, 0.2])


def test_equal_sources_share() -> None:
    supply = Supply.of({"a": 10.0, "b": 50.0, "c": 100.0}, budget=100.0, max_epochs=1)
    assert np.allclose(most_utility(supply, np.array([0.5, 0.5, 0.1])), [0.1, 0.5, 0.4])
    assert np.allclose(most_utility(supply, np.ones(3)), [0.1, 0.45, 0.45])


def test_too_little_text_is_an_error() -> None:
    with pytest.raises(ShortSupply):
        most_utility(Supply.of({"a": 10.0}, budget=100.0), np.ones(1))


@given(sources, st.floats(0.01, 1.0), st.randoms(use_true_random=False))
def test_no_worse_than_scipy_in_any_order(table: list[tuple[float, float]], fill: float, random) -> None:  # type: ignore[no-untyped-def]
    linprog = pytest.importorskip("scipy.optimize").linprog
    sizes, utility = np.array(table).T
    supply = Supply.of({str(i): size for i, size in enumerate(sizes)}, 4 * sizes.sum() * fill)
    mix = most_utility(supply, utility)
    supply.check_mix(mix)
    found = linprog(-utility, A_eq=np.ones((1, len(sizes))), b_eq=[1.0], bounds=[(0, cap) for cap in supply.caps_N])
    if found.success:
        assert abs(mix @ utility + found.fun) < 1e-6
    order = list(range(len(sizes)))
    random.shuffle(order)
    other = most_utility(Supply.of({str(i): sizes[i] for i in order}, supply.budget), utility[order])
    assert np.allclose(other, mix[order], atol=1e-9)
