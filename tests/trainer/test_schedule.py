"""Schedules have exactly these values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from gristmill.trainer.run.schedule import RateSchedule, cosine, linear, stable, warmup_share


def test_a_warm_up_rises_in_even_steps_and_ends_at_the_full_rate() -> None:
    assert [warmup_share(step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert warmup_share(0, 0) == 1


def test_linear_goes_to_zero_and_its_last_update_still_moves() -> None:
    assert [linear(step, 6, 2) for step in range(7)] == [0.5, 1, 1, 0.75, 0.5, 0.25, 0]
    assert [linear(step, 4, 0, 0.2) for step in (0, 2, 4, 9)] == pytest.approx([1, 0.6, 0.2, 0.2])


def test_cosine_is_half_a_cosine() -> None:
    assert [cosine(step, 8) for step in (0, 2, 4, 8)] == pytest.approx([1, (1 + math.sqrt(0.5)) / 2, 0.5, 0])
    assert cosine(5, 10, 0, 0.1) == pytest.approx(0.55)


def test_stable_stays_and_then_falls_and_can_be_trained_on_from_before_the_fall() -> None:
    assert [stable(step, 10, 2, 4) for step in range(11)] == [0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]
    assert stable(7, 10, 0, 4, 0.0, "sqrt") == pytest.approx(0.5)
    assert [stable(step, 10, 2, 4) for step in range(6)] == [stable(step, 10_000, 2, 4) for step in range(6)]


@given(
    st.sampled_from(["constant", "linear", "cosine", "stable"]),
    st.integers(1, 500),
    st.floats(0, 0.5),
    st.floats(0, 0.5),
    st.floats(0, 1),
)
def test_every_schedule_stays_between_nothing_and_the_peak(
    kind: str, updates: int, warmup: float, decay: float, floor: float
) -> None:
    schedule = RateSchedule(kind, warmup, decay, floor)  # type: ignore[arg-type]
    shares = [schedule.share(step, updates) for step in range(updates)]
    assert all(0 < share <= 1 for share in shares)
    peak = shares.index(max(shares))
    assert shares[: peak + 1] == sorted(shares[: peak + 1]) and shares[peak:] == sorted(shares[peak:], reverse=True)


def test_shares_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="must fit"):
        RateSchedule("stable", 0.7, 0.7)
