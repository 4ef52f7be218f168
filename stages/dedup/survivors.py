"""Of rows that met their like: groups with the same 128-bit key, the first of each by the policy, and what becomes of
the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.types import Words
from gristmill.kernels.duplicates.equal_keys import first_of_each, repeated

RUN = "run"  # the column with the earlier run that kept a document (`Flow.load`)
HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
SIGN = np.uint64(1 << 63)
NOT_A_NUMBER, NOTHING = np.uint64((1 << 64) - 2), np.uint64((1 << 64) - 1)  # after all that a sort word may be


def members(
    rows: pa.Table, order: Sequence[tuple[str, str]], reason: str, same: str, size: str, run: str | None = None
) -> pa.Table:
    """The members of groups of two and more, as `Flow.drop` takes them: the survivor without a reason, the others with
    one, and with a detail that names the survivor (`same` and its uid). `rows` have `key` and `low`, the halves of 128
    bits, and what `order` sorts by. `size` names the signal with the group's size, `run` the column with the earlier
    run that kept a document."""
    of_several, group, sizes = repeated(rows["key"].to_numpy(), rows["low"].to_numpy())
    rows = rows.drop_columns(["key", "low"]).combine_chunks().take(pa.array(of_several))
    words = np.stack([sort_words(rows[name], direction) for name, direction in order])
    survivor = first_of_each(group, len(sizes), words)[group]
    loses = pa.array(survivor != np.arange(len(rows)))
    nothing = pa.scalar(None, pa.string())
    detail = pc.binary_join_element_wise(f"{same} ", hexadecimal(rows["uid"].to_numpy()[survivor]), "")
    if run is not None:
        detail = kept_by(detail, rows[run].take(pa.array(survivor)))
    columns = {
        "home": rows["home"],
        "uid": rows["uid"],
        "reason": pc.if_else(loses, pa.scalar(reason), nothing),
        "detail": pc.if_else(loses, detail, nothing),
        size: pa.array(sizes[group].astype(np.uint32)),
    }
    return pa.table(columns)


def sort_words(column: pa.ChunkedArray, direction: str) -> Words:
    """Numbers as words that are in the same order: the smallest first. NaN and then nulls are last in any direction, as
    in pyarrow."""
    values = pc.fill_null(column, 0).to_numpy()
    if values.dtype.kind == "f":
        bits = (values.astype(np.float64) + 0.0).view(np.uint64)  # -0.0 is 0.0
        words = np.where(bits >= SIGN, ~bits, bits | SIGN)
    elif values.dtype.kind == "i":
        words = values.astype(np.int64).view(np.uint64) ^ SIGN
    else:
        words = values.astype(np.uint64)
    words = ~words if direction == "descending" else words
    if values.dtype.kind == "f":
        words = np.where(np.isnan(values), NOT_A_NUMBER, words)
    return np.where(column.is_null().to_numpy(), NOTHING, words) if column.null_count else words


def kept_by(detail: pa.Array, run: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A detail that names a survivor, with the earlier run that kept it, where one did."""
    run = run.combine_chunks() if isinstance(run, pa.ChunkedArray) else run
    return pc.binary_join_element_wise(detail, pc.fill_null(pc.binary_join_element_wise(", kept by ", run, ""), ""), "")


def hexadecimal(values: np.ndarray[Any, np.dtype[np.uint64]]) -> pa.Array:
    """Sixteen hex digits each, without a Python object a row."""
    octets = np.ascontiguousarray(values.astype(">u8")).view(np.uint8).reshape(-1, 8)
    digits = HEX[np.stack([octets >> 4, octets & 15], axis=2).reshape(-1, 16)]
    buffer = pa.py_buffer(np.ascontiguousarray(digits).tobytes())
    return pa.Array.from_buffers(pa.binary(16), len(values), [None, buffer]).cast(pa.binary()).cast(pa.string())
