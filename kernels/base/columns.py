"""Arrow text columns as kernels see them: one buffer of UTF-8 bytes and 64-bit offsets, without a copy of the text."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.types import Array, Bytes, Offsets

LARGEST_STRING = 2**31 - 1  # bytes that offsets of 32 bits can count
# Types with one buffer of bytes and one of offsets.
BYTES = frozenset(kind.id for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()))


class TextColumn(NamedTuple):
    """Document i is `data[offsets[i]:offsets[i + 1]]`. Both arrays are contiguous and read-only; offsets may start
    anywhere."""

    data: Bytes
    offsets: Offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1


def text_column(array: pa.Array | pa.ChunkedArray) -> TextColumn:
    """The bytes of a string, large_string, string_view or binary column. A null counts as empty."""
    if isinstance(array, pa.ChunkedArray):
        array = _one_array(array)
    array = _plain(array)
    if array.null_count:
        array = pc.fill_null(array, b"" if _binary(array.type) else "")
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, ends, data = array.buffers()
    count = len(array)
    if ends is None or count == 0:
        return TextColumn(_fixed(np.zeros(0, np.uint8)), _fixed(np.zeros(count + 1, np.int64)))
    offsets = np.frombuffer(ends, np.int64 if wide else np.int32)[array.offset : array.offset + count + 1].astype(
        np.int64
    )
    return TextColumn(
        _fixed(np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)),
        _fixed(offsets),
    )


def text_length(batch: pa.RecordBatch | pa.Table) -> int:
    """Bytes of all texts."""
    return int(pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0)


def texts_with(batch: pa.RecordBatch, mark: str) -> int:
    """How many texts hold a character that is not ASCII."""
    data, offsets = text_column(batch.column("text"))
    texts, wanted = data[offsets[0] : offsets[-1]], mark.encode()
    if texts.max(initial=0) < wanted[0]:
        return 0
    places = [match.start() for match in re.finditer(wanted, texts.data)]
    return len(set(np.searchsorted(offsets - offsets[0], places, side="right").tolist()))


def value_bytes(batch: pa.RecordBatch | pa.Table) -> int:
    """How many bytes the values of a batch take. `nbytes` also counts what lies under nulls and whether there is room
    to mark them, which depends on how the batch was put together."""
    total = 0
    for column in batch.columns:
        for chunk in getattr(column, "chunks", [column]):
            total += _value_bytes(chunk)
    return total


def _value_bytes(array: pa.Array) -> int:
    kind, count = array.type, len(array)
    if pa.types.is_primitive(kind):
        return (count * kind.bit_width + 7) // 8
    if kind.id in BYTES:
        return 4 * count + (pc.sum(pc.binary_length(array)).as_py() or 0)
    if isinstance(array, pa.ExtensionArray):
        return _value_bytes(array.storage)
    if isinstance(array, pa.DictionaryArray):
        return _value_bytes(array.indices) + _value_bytes(array.dictionary)
    if pa.types.is_struct(kind):
        return sum(_value_bytes(part) for part in array.flatten())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return 4 * count + _value_bytes(array.flatten())
    return int(array.nbytes)


def text_array(data: Bytes, offsets: Offsets, like: pa.Array) -> pa.Array:
    """The inverse of `text_column`: an Arrow column from what a kernel wrote, with the nulls and the type of the source
    column. Bytes up to the last offset are not copied. A type that is too small for them becomes large."""
    nulls = (
        pa.py_buffer(np.packbits(like.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
        if like.null_count
        else None
    )
    wide = not pa.types.is_string(like.type) or offsets[-1] > LARGEST_STRING
    ends = pa.py_buffer(np.ascontiguousarray(offsets) if wide else offsets.astype(np.int32))
    array = pa.Array.from_buffers(
        pa.large_string() if wide else pa.string(), len(like), [nulls, ends, pa.py_buffer(data)], like.null_count
    )
    return array.cast(like.type) if pa.types.is_string_view(like.type) else array


def widened(table: pa.Table) -> pa.Table:
    """The table with 64-bit offsets in columns that are too large for 32-bit ones. Arrow cannot put such a column into
    one array: `combine_chunks` leaves several."""
    for place, field in enumerate(table.schema):
        wide = _wide(field.type)
        if wide is not None and table.column(place).nbytes > LARGEST_STRING:
            table = table.set_column(place, field.with_type(wide), table.column(place).cast(wide))
    return table


def _wide(kind: pa.DataType) -> pa.DataType | None:
    """The type with 64-bit offsets of a type with 32-bit ones."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.large_string() if pa.types.is_string(kind) else pa.large_binary()
    return pa.large_list(kind.value_field) if pa.types.is_list(kind) else None


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    chunks = [_plain(chunk) for chunk in column.chunks] or [pa.array([], column.type)]
    if sum(chunk.nbytes for chunk in chunks) > LARGEST_STRING:
        chunks = [chunk.cast(_wide(chunk.type) or chunk.type) for chunk in chunks]
    return pa.concat_arrays(chunks)


def _plain(array: pa.Array) -> pa.Array:
    """The array with one buffer of bytes: views, dictionaries and the null type are converted."""
    kind = array.type
    if kind.id in BYTES:
        return array
    if pa.types.is_dictionary(kind):
        return _plain(array.dictionary_decode())
    if pa.types.is_binary_view(kind):
        return array.cast(pa.large_binary())
    return array.cast(pa.large_string())


def _binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _fixed(array: Array) -> Array:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array
