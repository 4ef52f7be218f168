"""The memory that a worker may hold, as a person writes it: 4GB, 500MiB, a share of the machine's such as 0.2, 0 for no
limit, or auto."""

from __future__ import annotations

from gristmill.kernels.common.settings import UNITS, number_and_unit

AUTO = "auto"
LEAST = 64_000_000  # in less no worker comes to its first task


def check_memory(text: str) -> None:
    """ValueError says what is wrong with it."""
    if text == AUTO:
        return
    found = number_and_unit(text)
    if found is None:
        raise ValueError(f"a size was expected, such as 4GB, or auto, not {text!r}")
    number, unit = found
    is_share = not unit and number <= 1
    if not is_share and number * UNITS[unit] < LEAST:
        hint = "" if unit else "; it has no unit, such as GB"
        raise ValueError(f"{text} is {float(number * UNITS[unit]):,.0f} bytes, in which no worker can live{hint}")
