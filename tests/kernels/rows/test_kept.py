"""Texts that stay are those of Arrow's own filter."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.rows.kept import kept_texts, kept_views, places_in_order

TEXTS = st.lists(st.tuples(st.one_of(st.none(), st.text(max_size=20)), st.booleans()), max_size=20)


@given(TEXTS, st.integers(0, 3), st.sampled_from([pa.string(), pa.large_string(), pa.string_view()]))
def test_texts_that_stay(rows, start, kind):
    texts = pa.array(["left out"] * start + [text for text, _ in rows], kind).slice(start)
    kept = (kept_views if kind == pa.string_view() else kept_texts)(texts, np.array([stays for _, stays in rows], bool))
    kept.validate(full=True)
    assert kept.type == kind and kept.to_pylist() == [text for text, stays in rows if stays]


@pytest.mark.parametrize(
    ("wanted", "places"), [([], []), ([5, 9], [0, 3]), ([9, 5], None), ([5, 5], None), ([6], None)]
)
def test_places_in_order(wanted, places):
    found = places_in_order(np.array([5, 3, 8, 9], np.uint64), np.array(wanted, np.uint64))
    assert (None if found is None else found.tolist()) == places
