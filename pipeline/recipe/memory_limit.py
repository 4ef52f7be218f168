"""The memory that a worker may hold, as a person writes it: 4GB, 500MiB, a share of the machine's such as 0.2, 0 for no
limit, or auto."""

from __future__ import annotations

import re

AUTO = "auto"
WRITTEN = re.compile(r"(\d+(?:\.\d*)?|\.\d+) *([a-z]*)")
UNITS = {"": 1, "b": 1} | {
    f"{letter}{rest}": (1024 if rest == "ib" else 1000) ** (power + 1)
    for power, letter in enumerate("kmgtp")
    for rest in ("", "b", "ib")
}
LEAST = 64_000_000  # in less no worker comes to its first task


def check_memory(text: str) -> None:
    """ValueError says what is wrong with it."""
    match = WRITTEN.fullmatch(text.strip().lower())
    if text == AUTO:
        return
    if match is None or match[2] not in UNITS:
        raise ValueError(f"a size was expected, such as 4GB, or auto, not {text!r}")
    number = float(match[1])
    is_share = not match[2] and number <= 1
    if not is_share and number * UNITS[match[2]] < LEAST:
        hint = "" if match[2] else "; it has no unit, such as GB"
        raise ValueError(f"{text} is {number * UNITS[match[2]]:,.0f} bytes, in which no worker can live{hint}")
