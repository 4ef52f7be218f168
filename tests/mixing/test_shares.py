"""Mixes that look at sizes alone, and UniMax."""

import numpy as np
import pytest
from hypothesis import given as hypothesis_given, strategies as st

from gristmill.mixing.weights.shares import given, proportional, temperature
from gristmill.mixing.weights.simplex import nearest_mix
from gristmill.mixing.weights.supply import ShortSupply, Supply
from gristmill.mixing.weights.unimax import unimax

SIZES = {"a": 1.0, "b": 4.0, "c": 16.0}
named_sizes = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=20).map(
    lambda sizes: {str(i): size for i, size in enumerate(sizes)}
)


def test_given_numbers_are_scaled_to_shares_in_the_order_of_sources() -> None:
    assert given(Supply.of(SIZES, 1.0), {"c": 5, "a": 1, "b": 2}).tolist() == [0.125, 0.25, 0.625]


@pytest.mark.parametrize(
    "numbers", [{"a": 1}, {"a": 1, "b": 1, "c": 1, "d": 1}, {"a": -1, "b": 1, "c": 1}, {"a": 0, "b": 0, "c": 0}]
)
def test_wrong_numbers_are_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        given(Supply.of(SIZES, 1.0), numbers)


def test_huge_and_tiny_numbers_do_not_overflow() -> None:
    assert np.allclose(given(Supply.of(SIZES, 1.0), {"a": 1e308, "b": 1e308, "c": 1e308}), 1 / 3)


def test_proportional_sees_every_token_equally_often() -> None:
    supply = Supply.of(SIZES, 42.0)
    assert np.allclose(supply.epochs(proportional(supply)), 2.0)


def test_temperature_by_hand() -> None:
    supply = Supply.of(SIZES, 1.0)
    assert np.allclose(temperature(supply, 2.0), np.array([1, 2, 4]) / 7)
    assert np.allclose(temperature(supply, np.inf), 1 / 3)
    assert np.allclose(temperature(supply, 1e-4), [0, 0, 1])


def test_a_hot_mix_that_repeats_too_often_is_an_error() -> None:
    with pytest.raises(ShortSupply, match="'a' runs short by 3 tokens"):
        temperature(Supply.of(SIZES, 21.0, 4.0), np.inf)


def test_unimax_by_hand() -> None:
    # caps 4, 16, 64 of 60: the first is full at 4, what is left is halved (28 > 16: full), the last takes 40
    assert np.allclose(unimax(Supply.of(SIZES, 60.0, 4.0)), np.array([4, 16, 40]) / 60)
    assert np.allclose(unimax(Supply.of(SIZES, 3.0, 4.0)), 1 / 3)


def test_unimax_beyond_all_caps_is_an_error() -> None:
    with pytest.raises(ShortSupply, match="16 too few"):
        unimax(Supply.of(SIZES, 100.0, 4.0))


@hypothesis_given(named_sizes, st.floats(0.01, 1.0), st.randoms(use_true_random=False))
def test_unimax_is_the_most_even_mix_in_any_order(sizes: dict[str, float], fill: float, random) -> None:  # type: ignore[no-untyped-def]
    supply = Supply.of(sizes, 4 * sum(sizes.values()) * fill, 4.0)
    mix = unimax(supply)
    supply.check_mix(mix)
    assert np.allclose(mix, nearest_mix(np.zeros(len(mix)), supply.caps_N), atol=1e-9)
    names = list(sizes)
    random.shuffle(names)
    other = unimax(Supply.of({name: sizes[name] for name in names}, supply.budget, 4.0))
    assert np.allclose(other, [mix[supply.names.index(name)] for name in names], atol=1e-12)


@hypothesis_given(named_sizes, st.floats(0.01, 0.99), st.floats(1.0, 10.0))
def test_more_text_never_lowers_a_sources_weight(sizes: dict[str, float], fill: float, growth: float) -> None:
    budget = 4 * sum(sizes.values()) * fill
    before = unimax(Supply.of(sizes, budget))
    after = unimax(Supply.of({**sizes, "0": sizes["0"] * growth}, budget))
    assert after[0] >= before[0] - 1e-12 and np.all(after[1:] <= before[1:] + 1e-12)
