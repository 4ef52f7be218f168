"""The filter never forgets, errs as seldom as it says, and the walk is that of its reference implementation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.base.splitmix import mixed_plain as mixed
from gristmill.kernels.duplicates.bloom import (
    FilterShape,
    empty_filter,
    shape_for,
    walk,
    walk_plain,
)

KEY = st.one_of(st.integers(1, 12), st.integers(1, 2**64 - 1)).map(mixed)  # as hashes are
DOCUMENTS = st.lists(st.lists(st.lists(KEY, max_size=8), max_size=5), max_size=12)
SHARE = st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0, 2.0])


def walked(documents, most_of_unit, most_of_document, shape, calls=1):
    words, out = empty_filter(shape), []
    for batch in np.array_split(np.arange(len(documents)), calls):
        units = [unit for d in batch for unit in documents[d]]
        unit_first = np.cumsum([0, *(len(unit) for unit in units)]).astype(np.int64)
        first = np.cumsum([0, *(len(documents[d]) for d in batch)]).astype(np.int64)
        keys = np.array([key for unit in units for key in unit], np.uint64)
        found = walk(words, shape.probes, keys, unit_first, first, most_of_unit, np.full(len(batch), most_of_document))
        assert found.keys.tolist() == [sum(map(len, documents[d])) for d in batch]
        out += [
            (found.unit_goes[a:b].tolist(), bool(goes), int(met))
            for a, b, goes, met in zip(first[:-1], first[1:], found.document_goes, found.met, strict=True)
        ]
    return out, words


@given(DOCUMENTS, SHARE, SHARE, st.integers(1, 40), st.integers(1, 32), st.integers(1, 3))
def test_the_walk_is_that_of_the_plain_twin(documents, most_of_unit, most_of_document, blocks, probes, calls):
    shape = FilterShape(blocks, probes)
    assert walked(documents, most_of_unit, most_of_document, shape, calls)[0] == walk_plain(
        documents, most_of_unit, [most_of_document] * len(documents), shape
    )


@given(DOCUMENTS, SHARE, SHARE)
def test_a_large_filter_does_not_err(documents, most_of_unit, most_of_document):
    assert walked(documents, most_of_unit, most_of_document, FilterShape(1 << 14, 20))[0] == walk_plain(
        documents, most_of_unit, [most_of_document] * len(documents)
    )


@given(DOCUMENTS, st.lists(KEY, min_size=1, max_size=20))
def test_a_document_that_goes_leaves_nothing(documents, again):
    shape = FilterShape(64, 7)
    _, words = walked([*documents, [again]], 2.0, 2.0, shape)
    after, same = walked([*documents, [again], [again, [5], again]], 2.0, 0.6, shape)
    if not any(goes for _, goes, _ in after[:-1]):
        assert after[-1][1] and (words == same).all()


@pytest.mark.parametrize("false_positives", [0.1, 0.01, 0.001])
def test_no_key_is_forgotten_and_errors_are_as_many_as_promised(false_positives):
    chance, count = np.random.default_rng(7), 400_000
    keys, others = chance.integers(0, 2**64, (2, count), dtype=np.uint64)
    shape = shape_for(count, false_positives)
    words, one, all_of = empty_filter(shape), np.array([0, 1]), np.array([0, count])
    assert walk(words, shape.probes, keys, all_of, one, 2.0, np.full(1, 2.0)).met[0] == 0, (
        "keys of a unit are put in once it was judged"
    )
    assert walk(words, shape.probes, keys, all_of, one, 2.0, np.full(1, 2.0)).met[0] == count
    found = walk(words, shape.probes, others, all_of, one, 2.0, np.full(1, 2.0)).met[0] / count
    noise = 4 * (false_positives / count) ** 0.5
    assert 0.9 * false_positives - noise < found < 1.05 * false_positives + noise


def test_sizes():
    assert shape_for(0, 0.01) == FilterShape(1, 6)
    assert shape_for(10**9, 0.01).bytes / 10**9 * 8 == pytest.approx(9.90, abs=0.01)
    assert empty_filter(FilterShape(5, 1)).ctypes.data % 64 == 0 and len(empty_filter(FilterShape(5, 1))) == 40
    with pytest.raises(ValueError, match="between 0 and 1"):
        shape_for(10, 1.0)
    with pytest.raises(ValueError, match="lower than a block"):
        shape_for(10, 1e-30)
    with pytest.raises(ValueError, match="it can have"):
        empty_filter(FilterShape((1 << 32) + 1, 1))
