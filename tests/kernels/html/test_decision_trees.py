"""Trees as flat arrays: the kernel equals its reference and scikit-learn, and arrays that are no forest are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.blocks.choice import BrokenForest, Forest, check, predict, predict_plain, splits_of

NUMBERS = st.floats(-10, 10, width=32)


@st.composite
def forests(draw, features=4):
    root, depth, feature, threshold, child, value = [], [], [], [], [], []
    for _ in range(draw(st.integers(1, 4))):
        base = len(feature)
        root.append(base)
        levels, position, deepest = [0], 0, 0
        while position < len(levels):
            level = levels[position]
            splits = level < 4 and draw(st.booleans())
            feature.append(draw(st.integers(0, features - 1)) if splits else 0)
            threshold.append(draw(NUMBERS) if splits else np.inf)
            child.append(base + len(levels) if splits else base + position)
            value.append(0.0 if splits else draw(NUMBERS))
            levels += [level + 1] * 2 * splits
            deepest = max(deepest, level)
            position += 1
        depth.append(deepest)
    integers = [np.array(a, np.int32) for a in (root, depth, feature)]
    return Forest(
        *integers,
        np.array(threshold, np.float32),
        np.array(child, np.int32),
        np.array(value, np.float32),
        draw(st.floats(-2, 2)),
    )


@given(forests(), st.integers(0, 140), st.integers(0, 2**32 - 1))
def test_the_kernel_equals_its_plain_twin(forest, count, seed):
    rows = np.random.default_rng(seed).normal(0, 6, (count, 4)).astype(np.float32)
    if count:
        rows[0] = (
            forest.threshold[0] if np.isfinite(forest.threshold[0]) else np.inf
        )  # on the edge, and what is not finite
    check(forest, 4)
    assert predict(splits_of(forest), rows).tolist() == pytest.approx(predict_plain(forest, rows), rel=1e-6)


def leaf(**changed):
    fields = {
        "root": np.array([0], np.int32), "depth": np.array([1], np.int32), "feature": np.array([1, 0, 0], np.int32),
        "threshold": np.array([0.5, np.inf, np.inf], np.float32), "child": np.array([1, 1, 2], np.int32),
        "value": np.array([0, -1, 1], np.float32), "base": 0.0,
    }  # fmt: skip
    return Forest(**(fields | {name: np.array(values, fields[name].dtype) for name, values in changed.items()}))


def test_a_sound_forest_passes():
    assert predict(splits_of(check(leaf(), 2)), np.array([[0, 0.5], [0, 0.6]], np.float32)).tolist() == pytest.approx(
        [0.26894142, 0.73105858]
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"feature": [2, 0, 0]}, {"feature": [-1, 0, 0]}, {"root": [3]}, {"root": [-1]}, {"child": [2, 1, 2]}, {"child": [1, 0, 2]}, {"child": [7, 1, 2]},
        {"threshold": [np.nan, np.inf, np.inf]}, {"threshold": [0.5, 1, np.inf]}, {"value": [0, np.nan, 1]}, {"depth": [65]}, {"depth": [-1]},
        {"value": [0, 1]}, {"root": [], "depth": []},
    ],
    ids=str,
)  # fmt: skip
def test_arrays_that_are_no_forest_are_refused(changed):
    with pytest.raises(BrokenForest):
        check(leaf(**changed), 2)


def chain(leaves: int) -> Forest:
    """Each node's left child is a leaf."""
    splits = leaves - 1
    own, feature = np.arange(2 * leaves - 1), np.zeros(2 * leaves - 1, np.int32)
    inner = np.r_[0, 2 * np.arange(1, splits)] if splits else np.empty(0, int)
    child, threshold, value = own.copy(), np.full(len(own), np.inf, np.float32), own.astype(np.float32)
    child[inner], threshold[inner] = inner + 1, np.arange(splits)
    return Forest(
        np.zeros(1, np.int32), np.array([splits], np.int32), feature, threshold, child.astype(np.int32), value, 0.0
    )


def test_trees_have_32_leaves_at_most():
    forest = check(chain(32), 1)
    rows = np.arange(-1, 40, 0.5, dtype=np.float32)[:, None]
    assert predict(splits_of(forest), rows).tolist() == pytest.approx(predict_plain(forest, rows), rel=1e-6)
    with pytest.raises(BrokenForest, match="32 leaves"):
        splits_of(check(chain(33), 1))
