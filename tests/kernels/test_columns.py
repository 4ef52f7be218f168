"""Every layout of an Arrow text column gives a kernel the same bytes."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.base.columns import text_column

texts = st.lists(st.one_of(st.none(), st.text(max_size=20)), max_size=12)
KINDS = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.dictionary(pa.int32(), pa.string()),
]


def as_seen(array):
    data, offsets = text_column(array)
    assert data.dtype == np.uint8 and offsets.dtype == np.int64
    assert (
        not data.flags.writeable
        and not offsets.flags.writeable
        and data.flags.c_contiguous
        and offsets.flags.c_contiguous
    )
    return [bytes(data[a:b]) for a, b in pairwise(offsets)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(values=texts, start=st.integers(0, 5))
def test_any_layout_and_slice(kind, values, start):
    expected = [(v or "").encode("utf-8", "surrogatepass") for v in values]
    given_ = [
        None if v is None else e if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else v
        for v, e in zip(values, expected, strict=True)
    ]
    array = pa.array(given_, pa.string() if pa.types.is_dictionary(kind) else kind)
    array = array.dictionary_encode() if pa.types.is_dictionary(kind) else array
    assert as_seen(array.slice(start)) == expected[start:]
    assert as_seen(pa.chunked_array([array.slice(0, start), array.slice(start)])) == expected


def test_no_chunks_and_only_nulls():
    assert as_seen(pa.chunked_array([], pa.string())) == []
    assert as_seen(pa.nulls(3)) == [b"", b"", b""]
