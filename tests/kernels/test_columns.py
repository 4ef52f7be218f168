"""Every layout of an Arrow text column gives a kernel the same bytes."""

import io
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.base.columns import text_column, value_bytes

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


def test_value_bytes_are_those_of_the_values_however_a_batch_was_put_together() -> None:
    rows = {
        "uid": pa.array(range(40), pa.uint64()),
        "text": pa.array([None if n % 5 == 4 else "a" * n for n in range(40)]),
        "url": pa.array([f"https://a.example/{n}" for n in range(40)], pa.large_string()),
        "html": pa.array([b"<p>" * n for n in range(40)], pa.binary()),
        "source": pa.array(["a", "b"] * 20).dictionary_encode(),
        "list": pa.array([[n] * (n % 3) if n % 7 else None for n in range(40)], pa.list_(pa.int16())),
        "struct": pa.array([{"a": n, "b": "x" * n} for n in range(40)]),
        "flag": pa.array([n % 2 == 0 for n in range(40)]),
    }
    file = io.BytesIO()
    pq.write_table(pa.table(rows), file)
    [batch] = pq.ParquetFile(file).iter_batches()
    whole = value_bytes(batch)
    assert whole == value_bytes(pa.table(rows)) > sum(n for n in range(40) if n % 5 != 4)
    pieces = [batch.slice(n, 1) for n in range(40)]
    glued = pa.concat_batches(pieces)
    assert glued.equals(batch) and glued.nbytes != batch.nbytes  # why there is this function
    assert value_bytes(glued) == whole
    assert value_bytes(pa.concat_batches([batch, batch]).slice(40)) == whole
    assert value_bytes(batch.filter(pa.array([True] * 40))) == whole
    assert value_bytes(batch.slice(0, 0)) < 20
