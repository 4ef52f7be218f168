"""The largest step that is predicted to fit is taken."""

from __future__ import annotations

import pytest

from gristmill.trainer.run.batch_search import TooLarge, divisors, predicted_step, step_rows_on_cpu


def test_on_the_cpu_a_step_is_bounded_by_tokens() -> None:
    assert [step_rows_on_cpu(12, length, 12) for length in (128, 4096, 8192, 40_000)] == [12, 4, 2, 1]


def test_predicted_with_room_to_spare() -> None:
    assert predicted_step(lambda rows: 10 + rows, 64, 100, 64) == 64
    assert predicted_step(lambda rows: 10 + 2 * rows, 64, 100, 64) == 32
    with pytest.raises(TooLarge, match="a step of 1 row is predicted to take"):
        predicted_step(lambda rows: 90 * rows, 64, 100, 64)


def test_steps_are_of_one_size() -> None:
    for rows in (1, 2, 12, 60, 64, 97, 512):
        assert divisors(rows) == [d for d in range(1, rows + 1) if rows % d == 0]
