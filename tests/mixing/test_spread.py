"""Variances of seeds and of data orders, and how often their intervals hold."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.mixing.verdicts.spread import spread


def drawn(seeds: int, orders: int, seed_sd: float, order_sd: float, random: np.random.Generator) -> np.ndarray:
    return random.normal(0, seed_sd, (seeds, 1)) + random.normal(0, order_sd, (seeds, orders))


def test_both_variances_are_found_again() -> None:
    found = spread(drawn(2000, 3, 0.004, 0.002, np.random.default_rng(0)))
    assert found is not None and found.seed is not None and found.order is not None
    assert found.seed.sd == pytest.approx(0.004, rel=0.06) and found.order.sd == pytest.approx(0.002, rel=0.06)
    assert found.run.sd == pytest.approx(np.hypot(0.004, 0.002), rel=0.05)
    assert (found.seed.degrees, found.order.degrees) == (1999, 4000)


def test_one_order_a_seed_cannot_tell_them_apart() -> None:
    found = spread(np.array([[1.0], [2.0], [3.0]]))
    assert found is not None and found.seed is None and found.order is None
    assert found.run.sd == pytest.approx(1.0) and found.run.degrees == 2
    assert spread(np.array([[1.0, 2.0]])) is None


def test_nothing_varies() -> None:
    found = spread(np.ones((3, 2)))
    assert found is not None and found.seed is not None and found.run.sd == found.seed.sd == 0


@pytest.mark.parametrize(("seed_sd", "order_sd"), [(1.0, 1.0), (0.0, 1.0), (2.0, 0.5)])
def test_intervals_hold_the_truth_in_95_percent(seed_sd: float, order_sd: float) -> None:
    random, trials, held = np.random.default_rng(1), 1500, np.zeros(3)
    for _ in range(trials):
        found = spread(drawn(4, 2, seed_sd, order_sd, random))
        assert found is not None and found.seed is not None and found.order is not None
        truth = (seed_sd, order_sd, np.hypot(seed_sd, order_sd))
        parts = found.seed, found.order, found.run
        held += [part.low <= t <= part.high for part, t in zip(parts, truth, strict=True)]
    of_seed, of_order, of_run = held / trials
    assert of_order == pytest.approx(0.95, abs=0.02) and of_seed > 0.93 and of_run > 0.91
