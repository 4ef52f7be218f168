"""What is left out while kernels are compiled (kernels/base/lean.py, kernels/base/lowering.py) changes no answer."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis.strategies import integers, lists

from gristmill.kernels.base.compiled import helper, kernel
from gristmill.kernels.html.compiled import rare


@helper
def raised(value, by):
    return value + by


@rare
def seldom(values, i):
    return values[i] * 2


@kernel
def mixture(values, table, flags, rows, out) -> Any:
    """Indexes from the end, constant and not, of one axis and two; variables of branches and loops; arrays that are
    counted; slices, columns and rows by number."""
    last, total, kept = values[-1], 0, values[0]
    for i in range(len(values)):
        before = i - 1
        total += values[before]
        flags[before] = not flags[i]
        out[i, -1] = table[i % len(table), np.uint64(1)] + raised(total, 2) + raised(total, 3) + raised(total, last)
        if values[i] > 2:
            kept = seldom(values, i)
        elif values[i] == 2:
            kept = -last
        out[i, 0] = kept
    picked, column = values[rows], table[:, 1]
    for i in range(len(column)):
        total += column[-1 - i]
    copy = np.zeros(len(values), np.int64)
    copy[1:] = values[: len(values) - 1]
    if total > 3:
        copy = copy * 2 - values
    return total, kept, picked.sum(), copy.sum()


def in_python(function: Any) -> Any:
    """A kernel as Python runs it, with its helpers."""
    names = {"raised": raised.py_func, "seldom": seldom.py_func}  # type: ignore[attr-defined]
    return FunctionType(function.py_func.__code__, globals() | names)


@given(lists(integers(-9, 9), min_size=2, max_size=12), integers(1, 5))
def test_a_kernel_answers_as_python_does(numbers: list[int], rows: int) -> None:
    def answer(function: Any) -> tuple[Any, ...]:
        values = np.array(numbers, np.int64)
        table = np.arange(2 * rows, dtype=np.int16).reshape(rows, 2)
        flags, out = values > 0, np.zeros((len(values), 3), np.float32)
        found = function(values, table, flags, np.arange(len(values))[::2].copy(), out)
        return *map(int, found), flags.tolist(), out.tolist()

    assert answer(mixture) == answer(in_python(mixture))


def test_a_helper_is_compiled_for_types_and_not_for_each_integer() -> None:
    mixture(np.ones(2, np.int64), np.ones((1, 2), np.int16), np.ones(2, bool), np.zeros(1, int), np.ones((2, 3), "f4"))
    assert len(raised.compiled.overloads) <= 1  # type: ignore[attr-defined]  # none where the cache had the kernel
