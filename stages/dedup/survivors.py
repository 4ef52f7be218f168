"""Of rows that met their like: groups with the same 128-bit key, the first of each by the policy, and what becomes of
the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.types import Array
from gristmill.stages.dedup.sorted_rows import begins_run

RUN = "run"  # the column with the earlier run that kept a document (`Flow.load`)
HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


class Groups(NamedTuple):
    """Rows sorted by key and then by the policy; the group of each, its size, and its place in it, the survivor 0."""

    rows: pa.Table
    group: Array
    size: Array
    place: Array


def groups(rows: pa.Table, order: Sequence[tuple[str, str]]) -> Groups:
    """`rows` have `key` and `low`, the halves of 128 bits, and what `order` sorts by."""
    rows = rows.take(pc.sort_indices(rows, sort_keys=[("key", "ascending"), ("low", "ascending"), *order]))
    key, low = rows["key"].to_numpy(), rows["low"].to_numpy()
    begins = begins_run(key, low)
    first = np.flatnonzero(begins)
    group = np.cumsum(begins) - 1
    sizes = np.diff(np.append(first, len(rows)))
    return Groups(
        rows, group, sizes[group], np.arange(len(rows)) - first[group] if len(rows) else np.zeros(0, np.int64)
    )


def members(
    rows: pa.Table, order: Sequence[tuple[str, str]], reason: str, same: str, size: str, run: str | None = None
) -> pa.Table:
    """The members of groups of two and more, as `Flow.drop` takes them: the survivor without a reason, the others with
    one, and with a detail that names the survivor (`same` and its uid). `size` names the signal with the group's size,
    `run` the column with the earlier run that kept a document."""
    grouped = groups(rows, order)
    uid = grouped.rows["uid"].to_numpy()
    survivor = uid[grouped.place == 0][grouped.group] if len(uid) else uid
    loses = pa.array(grouped.place > 0)
    nothing = pa.scalar(None, pa.string())
    detail = pc.binary_join_element_wise(f"{same} ", hexadecimal(survivor), "")
    if run is not None:
        detail = kept_by(detail, first_of_group(grouped, run))
    columns = {
        "home": grouped.rows["home"],
        "uid": grouped.rows["uid"],
        "reason": pc.if_else(loses, pa.scalar(reason), nothing),
        "detail": pc.if_else(loses, detail, nothing),
        size: pa.array(grouped.size.astype(np.uint32)),
    }
    return pa.table(columns).filter(pa.array(grouped.size > 1))


def first_of_group(grouped: Groups, column: str) -> pa.ChunkedArray:
    return grouped.rows[column].take(pa.array(np.flatnonzero(grouped.place == 0)[grouped.group]))


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
