"""Lines and shares of languages are what plain Python counts."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.measures.letters import lines_of, share_lines


def shares_plain(lines: list[tuple[int, int]]) -> tuple[list[int], list[int], int]:
    """The two best labels, their letters and those of all, and how many labels there are."""
    sums: Counter[int] = Counter()
    for label, letters in lines:
        if label >= 0 and letters:
            sums[label] += letters
    best = sorted(sums, key=lambda label: (-sums[label], label))[:2]
    return (
        best + [-1] * (2 - len(best)),
        [sums[b] for b in best] + [0] * (2 - len(best)) + [sum(sums.values())],
        len(sums),
    )


@given(st.lists(st.text(alphabet="ab\n\r是"), max_size=8), st.integers(0, 3))
def test_lines(texts, start):
    data, offsets = text_column(pa.array(texts, pa.string()).slice(start))
    begins, first = lines_of(data, offsets)
    found = [bytes(data[a:b]).decode() for a, b in itertools.pairwise(begins)]
    expected = [[piece + "\n" for piece in text.split("\n")[:-1]] + [text.split("\n")[-1]] for text in texts[start:]]
    assert [found[a:b] for a, b in itertools.pairwise(first)] == [
        [line for line in lines if line] for lines in expected
    ]


@given(st.lists(st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 5)), max_size=9), max_size=6))
def test_shares(documents):
    first = np.cumsum([0, *map(len, documents)]).astype(np.int64)
    labels = np.array([label for lines in documents for label, _ in lines], np.int32)
    letters = np.array([n for lines in documents for _, n in lines], np.int64)
    best, sums, counts = (
        np.empty((len(documents), 2), np.int32),
        np.empty((len(documents), 3), np.int64),
        np.empty(len(documents), np.int32),
    )
    scratch = np.zeros(5, np.int64)
    share_lines(first, labels, letters, scratch, best, sums, counts)
    assert not scratch.any()
    assert [(b.tolist(), s.tolist(), c) for b, s, c in zip(best, sums, counts.tolist(), strict=True)] == [
        shares_plain(d) for d in documents
    ]
