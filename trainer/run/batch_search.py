"""The number of rows of a step, where none is given: on a GPU the largest that is predicted to fit with room to spare,
on a CPU a bounded number of tokens."""

from __future__ import annotations

from collections.abc import Callable

SPARE = 0.2  # of the GPU's memory: gaps, workspaces, documents that fall worse
ADVICE = "take recompute 'selective' or 'full', a higher zero stage, or shorter rows"
CPU_TOKENS = 16_384  # of a step on the CPU, where memory is not what bounds it


class TooLarge(RuntimeError):
    """Not even one row fits."""


def divisors(rows: int) -> list[int]:
    """Steps of one size: compiled code sees one shape."""
    small = [d for d in range(1, int(rows**0.5) + 1) if rows % d == 0]
    return sorted({*small, *(rows // d for d in small)})


def predicted_step(predict: Callable[[int], int], rows: int, room: int, most: int) -> int:
    """The largest divisor of `rows`, at most `most`, whose predicted bytes leave a share of `room` free."""
    fits = [d for d in divisors(rows) if d <= most and predict(d) <= (1 - SPARE) * room]
    if not fits:
        raise TooLarge(
            f"a step of 1 row is predicted to take {predict(1) / 2**30:.1f} of the GPU's {room / 2**30:.1f} GiB; "
            f"{ADVICE}"
        )
    return max(fits)


def step_rows_on_cpu(rows: int, row_length: int, most: int) -> int:
    return max((d for d in divisors(rows) if d <= most and d * row_length <= CPU_TOKENS), default=1)
