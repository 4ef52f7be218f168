"""The compute multiplier: the law that is fitted, the share of tokens at a loss, and how often its interval holds."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.training.multiplier_coverage import DrawnAblation, covered
from gristmill.mixing.verdicts.multiplier import LossCurve, fitted, multiplier
from gristmill.mixing.verdicts.paired import Errors

SHARES = np.array([0.25, 0.5, 0.75, 1.0, 1.5])


def losses(shares: np.ndarray, floor: float = 1.0, scale: float = 0.6, exponent: float = 0.35) -> np.ndarray:
    return floor + scale * shares**-exponent


def curve(seeds: int = 3) -> LossCurve:
    return LossCurve(SHARES, np.tile(losses(SHARES), (seeds, 1)))


def sure(mean: float, error: float = 1e-9) -> Errors:
    return Errors(mean, error, error, 5, 100.0)


@pytest.mark.parametrize(("floor", "exponent"), [(1.0, 0.35), (0.0, 0.1), (2.0, 1.5)])
def test_a_law_is_found_again(floor: float, exponent: float) -> None:
    law = fitted(SHARES, losses(SHARES, floor, 0.6, exponent))
    assert law is not None and law.exponent == pytest.approx(exponent, rel=0.05)
    assert law.floor + law.scale == pytest.approx(floor + 0.6, abs=2e-3)


@pytest.mark.parametrize("planted", [0.5, 0.8, 1.0, 1.25, 1.8])
def test_an_arm_as_good_as_more_tokens_is_worth_so_much_compute(planted: float) -> None:
    arm = float(losses(np.array([planted]))[0] - losses(np.array([1.0]))[0])
    found = multiplier(curve(), 1.6, sure(arm))
    assert found is not None and found.value == pytest.approx(planted, rel=0.02) and found.beyond is None
    assert found.low <= found.value <= found.high


def test_beyond_the_curve_it_says_more_or_less() -> None:
    better, worse = multiplier(curve(), 1.6, sure(-0.5)), multiplier(curve(), 1.6, sure(1.0))
    assert better is not None and (better.value, better.beyond) == (pytest.approx(3.0), "more")
    assert worse is not None and (worse.value, worse.beyond) == (pytest.approx(0.125), "less")


def test_without_a_falling_curve_there_is_none() -> None:
    flat = LossCurve(SHARES, np.ones((3, 5)))
    assert multiplier(flat, 1.0, sure(0.0)) is None
    assert multiplier(LossCurve(SHARES[:2], losses(SHARES[:2])[None]), 1.6, sure(0.0)) is None


def test_a_difference_without_bounds_has_a_multiplier_without_bounds() -> None:
    found = multiplier(curve(), 1.6, Errors(0.0, 0.01, float("inf"), 5, 1.0))
    assert found is not None and (found.low, found.high) == pytest.approx(found.reach)


def test_a_curve_that_seeds_disagree_about_widens_the_interval() -> None:
    noisy = LossCurve(SHARES, losses(SHARES) + np.array([[0.2], [0.0], [-0.2]]) * (SHARES - 1))
    known, unknown = (multiplier(each, 1.6, sure(-0.03)) for each in (curve(), noisy))
    assert known is not None and unknown is not None
    assert unknown.value == pytest.approx(known.value, rel=0.02)
    assert unknown.high - unknown.low > 1.5 * (known.high - known.low) + 0.05


@pytest.mark.parametrize("planted", [0.8, 1.0, 1.25])
@pytest.mark.parametrize("on_the_way", [False, True])
def test_intervals_hold_what_was_planted(planted: float, on_the_way: bool) -> None:
    found = covered(DrawnAblation(hosts=60), planted, 200, on_the_way, seed=3)
    assert found["told"] == 200 and found["inside"] >= 182  # 95 % would be 190
    assert found["median_value"] == pytest.approx(planted, abs=0.02) and found["median_half_width"] < 0.15
