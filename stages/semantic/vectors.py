"""Vectors as columns: of documents, a list of 8-bit numbers of one length; in the rounds of a flow, bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.types import Array, Mask
from gristmill.kernels.vectors.int8 import WIDEST, rounded
from gristmill.stages.stage import CannotRun


def vector_column(vectors_NW: Array) -> pa.FixedSizeListArray:
    """float32 to numbers of 8 bits; null for a vector of zeros."""
    small = rounded(vectors_NW)
    values = pa.array(small.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, small.shape[1], mask=pa.array(~small.any(axis=1)))


def vectors_in(docs: pa.Table, name: str) -> tuple[Array, Mask]:
    """int8_NW, a row for each document that has a vector; and which those are. Vectors of other numbers, as an input
    may have them, are rounded."""
    if name not in docs.column_names:
        raise CannotRun(f"documents have no signal {name!r}; `embed` or `corpus_embed` before this stage makes one")
    column = docs[name].combine_chunks()
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not pa.types.is_nested(column.type) or not is_number(column.type.value_type):
        raise CannotRun(f"{name!r} is {column.type}; lists of numbers, all of one length, were expected")
    there = pc.is_valid(column).to_numpy(zero_copy_only=False)
    column = column.filter(pa.array(there))
    sizes = pc.list_value_length(column).to_numpy()
    width = int(sizes[0]) if len(sizes) else 0
    if (sizes != width).any() or width > WIDEST:
        raise CannotRun(f"{name!r}: vectors are of one length, and that is {WIDEST:,} at most")
    values = pc.list_flatten(column).to_numpy(zero_copy_only=False)
    vectors = values.reshape(-1, width) if width else np.zeros((len(column), 0), np.int8)
    if vectors.dtype != np.int8:
        vectors = rounded(vectors)
    some = vectors.any(axis=1)
    there[np.flatnonzero(there)[~some]] = False
    return np.ascontiguousarray(vectors[some]), there


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def as_bytes(rows: Array) -> pa.FixedSizeBinaryArray:
    """Rows of numbers of any type."""
    rows = np.ascontiguousarray(rows)
    size = rows.shape[1] * rows.itemsize
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(rows), [None, pa.py_buffer(rows.tobytes())])


def from_bytes(column: pa.ChunkedArray, kind: type) -> Array:
    """What `as_bytes` was given."""
    array = column.combine_chunks()
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    size = array.type.byte_width
    rows = np.frombuffer(array.buffers()[1], np.uint8)[: (array.offset + len(array)) * size] if len(array) else b""
    flat = (
        np.frombuffer(rows, np.uint8).reshape(-1, size)[array.offset :] if len(array) else np.zeros((0, size), np.uint8)
    )
    return np.ascontiguousarray(flat).view(kind)
