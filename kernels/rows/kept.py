"""Rows of a table that stay: their texts copied at once into memory of their size, and where rows of another table
stand among them.

Arrow grows the memory that it filters into, and touches it page by page: 446 MB of texts took it 0.3 to 1.2 s, this 0.2
to 0.3.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.base.types import Hashes, Integers, Mask


def kept_texts(texts: pa.Array, kept: Mask) -> pa.Array:
    """`texts.filter` of strings."""
    data, offsets = text_column(texts)
    sizes = np.diff(offsets)[kept]
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    copied = np.empty(ends[-1], np.uint8)  # of huge pages, where there are any
    _copy_kept(data, offsets, kept, copied)
    kind = texts.type
    valid = texts.is_valid().filter(pa.array(kept)) if texts.null_count else None  # at offset 0
    wide = pa.types.is_large_string(kind)
    buffers = [
        None if valid is None else valid.buffers()[1],
        pa.py_buffer(ends if wide else ends.astype(np.int32)),
        pa.py_buffer(copied),
    ]
    return pa.Array.from_buffers(kind, len(sizes), buffers)


def kept_views(texts: pa.Array, kept: Mask) -> pa.Array:
    """`filter` of views, for which pyarrow has none: the texts that stay, stay where they are."""
    _, views, *data = texts.buffers()
    shown = np.zeros(0, "V16") if views is None else np.frombuffer(views, "V16")
    chosen = shown[texts.offset : texts.offset + len(texts)][kept]
    valid = None
    if texts.null_count:
        valid = pa.array(texts.is_valid().to_numpy(zero_copy_only=False)[kept]).buffers()[1]
    return pa.Array.from_buffers(texts.type, len(chosen), [valid, pa.py_buffer(chosen), *data])


def places_in_order(values: Hashes, wanted: Hashes) -> Integers | None:
    """Where each of the wanted values is, if they are in the order of the values; None if they are not."""
    places = np.empty(len(wanted), np.int64)
    return places if _walk(values, wanted, places) == len(wanted) else None


@kernel
def _copy_kept(data, offsets, kept, copied):
    """Neighbors are copied together."""
    row, at = 0, 0
    while row < len(kept):
        if not kept[row]:
            row += 1
            continue
        begin = offsets[row]
        while row < len(kept) and kept[row]:
            row += 1
        size = offsets[row] - begin
        copied[at : at + size] = data[begin : begin + size]
        at += size


@kernel
def _walk(values, wanted, places):
    found = 0
    for place in range(len(values)):
        if found < len(wanted) and values[place] == wanted[found]:
            places[found] = place
            found += 1
    return found
