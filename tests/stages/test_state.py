"""What is noticed of an object that changes, and what looking costs."""

from __future__ import annotations

import array
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gristmill.stages.state import changes, state_of


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


def set_bits(filter_: Any) -> None:
    """As a Bloom filter does for a batch of a thousand documents."""
    for place in np.random.default_rng(1).integers(0, len(filter_), 10_000).tolist():
        filter_[place] = 1


@pytest.mark.parametrize(
    ("held", "change"),
    [
        ({"a"}, lambda held: held.add("b")),
        ({"a": 1}, lambda held: held.update(a=2)),
        ({n: n for n in range(10**6)}, lambda held: held.update(a=2)),
        ({n: {n} for n in range(9000)}, lambda held: held[8500].add("b")),
        ([SimpleNamespace(n=1)], lambda held: setattr(held[0], "n", 2)),
        ({"n": 1, "texts": []}, lambda held: held["texts"].append("b")),
        (np.zeros(9), lambda held: held.__setitem__(8, 1)),
        (np.zeros((9, 9))[::2, ::3], lambda held: held.__setitem__((1, 1), 1)),
        (np.zeros(1 << 26, np.uint8), set_bits),
        (bytearray(1 << 26), set_bits),
        (array.array("L", bytes(1 << 26)), set_bits),
    ],
    ids=[
        "a set",
        "a dictionary",
        "a million keys",
        "a set in a dictionary of many",
        "an object in a list",
        "a list in a dictionary with numbers",
        "an array",
        "a view of an array",
        "a large filter",
        "a filter of bytes",
        "a filter of Python",
    ],
)
def test_a_change_is_noticed(held: Any, change: Callable[[Any], Any]) -> None:
    holder = Holder(held)
    before = state_of(holder)
    assert changes(before, state_of(holder)) == []
    change(held)
    assert changes(before, state_of(holder)) == ["held"]


@pytest.mark.parametrize(
    "held",
    [
        np.zeros(1 << 27),
        np.zeros((1 << 12, 1 << 13)).T[:, ::2],
        [np.zeros(size) for size in (1 << 16, 9, 0) for _ in range(100)],
        np.array(["x"] * 10**6, dtype=object),
        {n: n for n in range(10**6)},
        {n: {m: m for m in range(900)} for n in range(900)},
        [[SimpleNamespace(n=n) for n in range(100)] for _ in range(100)],
    ],
    ids=["an array", "a view", "arrays", "objects", "a dictionary", "dictionaries", "a tree"],
)
def test_looking_takes_little_however_much_is_held(held: Any) -> None:
    holder = Holder(held)
    times = []
    for _ in range(5):
        begun = time.process_time()
        state_of(holder)
        times.append(time.process_time() - begun)
    assert min(times) < 0.01, times
