"""Student's and the normal distribution: figures of printed tables, and what has none."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gristmill.mixing.verdicts.paired import Errors
from gristmill.mixing.verdicts.student import normal_below, t_above, t_quantile


@pytest.mark.parametrize(
    ("share", "degrees", "t"),
    [(0.975, 1, 12.706205), (0.975, 4, 2.776445), (0.995, 10, 3.169273), (0.95, 30, 1.697261)],
)
def test_quantiles_are_those_of_the_tables(share: float, degrees: float, t: float) -> None:
    assert t_quantile(share, degrees) == pytest.approx(t, abs=5e-7)
    assert t_quantile(1 - share, degrees) == pytest.approx(-t, abs=5e-7)
    assert t_above(t, degrees) == pytest.approx(1 - share, abs=1e-7)


@given(st.floats(1, 5000), st.floats(-14, -0.31))
def test_a_quantile_has_its_tail_above_it_however_small(degrees: float, digits: float) -> None:
    share = 1 - 10**digits
    assert t_above(t_quantile(share, degrees), degrees) == pytest.approx(1 - share, rel=1e-9)


def test_without_an_end_of_degrees_it_is_the_normal_distribution() -> None:
    assert t_quantile(0.975, math.inf) == pytest.approx(1.959963984540054, abs=1e-12)
    assert normal_below(np.array([1.959963984540054])) == pytest.approx(0.975, abs=1e-15)
    assert t_above(-math.inf, math.inf) == 1.0 and t_above(math.inf, 3) == 0.0


@pytest.mark.parametrize(("share", "degrees"), [(0.0, 3), (1.0, 3), (math.nan, 3), (0.9, 0)])
def test_what_has_no_quantile_is_refused(share: float, degrees: float) -> None:
    with pytest.raises(ValueError):
        t_quantile(share, degrees)


def test_without_scipy_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def lacking(name: str, *more: Any) -> Any:
        if name == "scipy":
            raise ModuleNotFoundError("No module named 'scipy'")
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(ImportError, match=r"pip install '\.\[gpu\]'"):
        Errors(0.1, 0.01, 0.02, 3, 9.0).interval()
