"""Makes `__init__.pyi`, the list of stages as type checkers read it: `python -m gristmill.stages.stub`."""

from __future__ import annotations

from pathlib import Path

import gristmill.stages as stages

LINE = 120  # characters
STUB = Path(stages.__file__).with_suffix(".pyi")


def stub() -> str:
    names: dict[str, list[str]] = {}
    for name, module in (stages.HOMES | stages.BASES).items():
        names.setdefault(module, []).append(f"{name} as {name}")
    lines = [import_line(module, sorted(names[module])) for module in sorted(names)]
    return "\n".join(["# Made by stub.py.", *lines, "", "BASES: dict[str, str]", "HOMES: dict[str, str]", ""])


def import_line(module: str, names: list[str]) -> str:
    """As ruff lays it out."""
    line = f"from {module} import {', '.join(names)}"
    return line if len(line) <= LINE else "\n".join([f"from {module} import (", *(f"    {n}," for n in names), ")"])


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
