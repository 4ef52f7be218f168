"""Hashes of numbered places are those of the xxhash package."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given, strategies as st

from gristmill.kernels.rows.numbered import LONGEST, hashes_of_numbered
from gristmill.stages.documents import uid_of, uids_of

NUMBERS = [
    *range(12),
    *(10**digits for digits in range(1, 19)),
    *(10**digits - 1 for digits in range(2, 19)),
    2**63 - 1,
]


@pytest.mark.parametrize("length", range(LONGEST + 10))
def test_every_length(length):
    beginning = np.random.default_rng(length).integers(0, 256, length, np.uint8).tobytes()
    numbers = np.array(NUMBERS, np.int64)
    expected = [xxhash.xxh3_64_intdigest(beginning + str(number).encode()) for number in NUMBERS]
    assert hashes_of_numbered(beginning, numbers).tolist() == expected


@given(st.text(max_size=20), st.text(max_size=150), st.lists(st.integers(0, 2**63 - 1), max_size=5), st.integers(0, 99))
def test_uids_of_rows_are_those_of_each(source, path, rows, group):
    source, path = source.replace("\ud800", ""), path.encode("utf-8", "replace").decode()
    found = uids_of(source, path, np.array(rows, np.int64), f"{group}:")
    assert found.dtype == np.uint64 and found.tolist() == [uid_of(source, path, f"{group}:{row}") for row in rows]
