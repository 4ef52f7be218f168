"""Student's and the normal distribution beside scipy's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st
from scipy import special, stats

from gristmill.mixing.verdicts.student import incomplete_beta, normal_below, t_above, t_quantile


@given(st.floats(1, 5000), st.floats(1e-6, 1 - 1e-6))
def test_quantiles_are_those_of_scipy(degrees: float, share: float) -> None:
    assert t_quantile(share, degrees) == pytest.approx(stats.t.ppf(share, degrees), rel=1e-8, abs=1e-9)


@given(st.floats(1, 5000), st.floats(-50, 50))
def test_tails_are_those_of_scipy(degrees: float, t: float) -> None:
    assert t_above(t, degrees) == pytest.approx(stats.t.sf(t, degrees), rel=1e-8, abs=1e-15)


@given(st.floats(0.5, 500), st.floats(0.5, 500), st.floats(0, 1))
def test_incomplete_beta_is_that_of_scipy(a: float, b: float, x: float) -> None:
    assert incomplete_beta(a, b, x) == pytest.approx(special.betainc(a, b, x), rel=1e-8, abs=1e-12)


def test_without_an_end_of_degrees_it_is_the_normal_distribution() -> None:
    assert t_quantile(0.975, math.inf) == pytest.approx(1.959963984540054, abs=1e-12)
    assert normal_below(1.959963984540054) == pytest.approx(0.975, abs=1e-15)
    assert t_above(-math.inf, math.inf) == 1.0 and t_above(math.inf, 3) == 0.0


@pytest.mark.parametrize(("share", "degrees"), [(0.0, 3), (1.0, 3), (math.nan, 3), (0.9, 0)])
def test_what_has_no_quantile_is_refused(share: float, degrees: float) -> None:
    with pytest.raises(ValueError):
        t_quantile(share, degrees)
