"""Rows with equal keys are found whatever the keys, and the first of each group is the one that sorting gives."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.duplicates.equal_keys import ROWS_A_PART, first_of_each, repeated
from gristmill.stages.dedup.survivors import sort_words

KEYS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=60)


@given(KEYS, st.sampled_from([1, 1 << 20, 1 << 40, (1 << 61) + 5]))
def test_rows_that_repeat(keys, factor):
    high = np.array([a * factor for a, _ in keys], np.uint64)
    low = np.array([b for _, b in keys], np.uint64)
    rows, group, size = repeated(high, low)
    times = Counter(keys)
    assert rows.tolist() == [row for row, key in enumerate(keys) if times[key] > 1]
    for a, number in zip(rows, group, strict=True):
        assert size[number] == times[keys[a]]
        assert [keys[b] == keys[a] for b in rows] == (group == number).tolist()


def test_more_rows_than_a_part_holds():
    dice = np.random.default_rng(3)
    count = 9 * ROWS_A_PART + 5
    high = dice.integers(0, 1 << 64, count, np.uint64)
    low = dice.integers(0, 1 << 64, count, np.uint64)
    assert len(repeated(high, low).rows) == 0
    rows, group, size = repeated(np.append(high, high[::2]), np.append(low, low[::2]))
    assert len(rows) == 2 * len(high[::2]) and (size[group] == 2).all()
    rows, group, size = repeated(np.zeros(count, np.uint64), np.zeros(count, np.uint64))
    assert len(rows) == count and (size[group] == count).all()
    assert len(repeated(np.zeros(count, np.uint64), np.arange(count, dtype=np.uint64)).rows) == 0


ORDERS = [("a", "ascending"), ("b", "descending"), ("c", "ascending"), ("uid", "ascending")]
VALUES = {
    "a": st.one_of(st.none(), st.integers(-2, 2)),
    "b": st.one_of(st.none(), st.sampled_from([-1.5, -0.0, 0.0, 2.0, float("inf"), float("-inf"), float("nan")])),
    "c": st.one_of(st.none(), st.integers(-(2**63) + 1, 2**63 - 2)),
}


@given(st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=12), st.permutations(ORDERS[:3]), st.data())
def test_the_first_of_a_group_is_that_of_pyarrow(rows, order, data):
    uids = data.draw(st.permutations(range(len(rows))))
    kinds = {"a": pa.int32(), "b": pa.float64(), "c": pa.int64()}
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()}
    table = pa.table({**columns, "uid": pa.array(uids, pa.uint64())})
    order = [*order, ORDERS[-1]]
    words = np.stack([sort_words(table[name], direction) for name, direction in order])
    first = first_of_each(np.zeros(len(rows), np.int64), 1, words)
    assert table["uid"][int(first[0])] == table.sort_by(order)["uid"][0]


@pytest.mark.parametrize("direction", ["ascending", "descending"])
def test_sort_words_are_in_order(direction):
    values = pa.chunked_array([pa.array([3, None, 1, 2**64 - 3], pa.uint64())])
    expected = [1, 3, 2**64 - 3, None] if direction == "ascending" else [2**64 - 3, 3, 1, None]
    order = np.argsort(sort_words(values, direction))
    assert values.take(pa.array(order)).to_pylist() == expected
