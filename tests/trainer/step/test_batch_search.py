"""The largest step that fits is found, and the smallest that is as fast is taken."""

from __future__ import annotations

import pytest

from gristmill.trainer.run.batch_search import TooLarge, divisors, predicted_step, search, step_rows_on_cpu


class Memory:
    """Holds so many rows; speed rises up to `enough` rows."""

    def __init__(self, holds: int, enough: int) -> None:
        self.holds, self.enough = holds, enough
        self.asked: list[int] = []

    def __call__(self, rows: int) -> float | None:
        self.asked.append(rows)
        return None if rows > self.holds else min(rows, self.enough) / self.enough


@pytest.mark.parametrize("rows", [1, 2, 12, 60, 64, 97, 512])
def test_the_largest_that_fits(rows: int) -> None:
    candidates = divisors(rows)
    assert all(rows % d == 0 for d in candidates) and candidates[0] == 1 and candidates[-1] == rows
    assert sorted(candidates) == candidates == [d for d in range(1, rows + 1) if rows % d == 0]
    for holds in range(1, rows + 3):
        memory = Memory(holds, enough=10_000)
        assert search(candidates, memory) == max(d for d in candidates if d <= holds)
        assert len(set(memory.asked)) == len(memory.asked)


def test_few_are_tried() -> None:
    memory = Memory(700, 10_000)
    assert 693 <= search(list(range(1, 4097)), memory) <= 700  # within 1 % of the best speed
    assert 700 in memory.asked and len(memory.asked) < 25


def test_the_smallest_that_is_as_fast() -> None:
    assert search(divisors(64), Memory(64, enough=8)) == 8
    assert search(divisors(64), lambda rows: [1, 2, 3.97, 4, 4.005, 3, 2][rows.bit_length() - 1]) == 4


def test_nothing_fits() -> None:
    with pytest.raises(TooLarge, match="not even a step of 1 row"):
        search(divisors(8), Memory(0, 1))


def test_on_the_cpu_a_step_is_bounded_by_tokens() -> None:
    assert [step_rows_on_cpu(12, length, 12) for length in (128, 4096, 8192, 40_000)] == [12, 4, 2, 1]


def test_predicted_with_room_to_spare() -> None:
    assert predicted_step(lambda rows: 10 + rows, 64, 100, 64) == 64
    assert predicted_step(lambda rows: 10 + 2 * rows, 64, 100, 64) == 32
    with pytest.raises(TooLarge, match="a step of 1 row is predicted to take"):
        predicted_step(lambda rows: 90 * rows, 64, 100, 64)
