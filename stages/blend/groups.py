"""Groups of documents that are alike in some columns, each with a name that no other group can have."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.stages.stage import CannotRun, numbers_in

NO_VALUE = "(none)"


def group_names(docs: pa.Table, columns: Sequence[str], what: str) -> pa.Array:
    """Values joined by "/", those in them escaped; (none) where there is no value. `what` says what the columns are
    for."""
    for column in columns:
        if column not in docs.column_names:
            raise CannotRun(f"documents have no column {column!r} {what}")
    if not columns:
        return pa.array(["all"]).take(pa.array([0] * len(docs), pa.int64()))
    parts = []
    for column in columns:
        text = pc.fill_null(docs[column].cast(pa.string()), NO_VALUE)
        parts.append(
            text if len(columns) == 1 else pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), "/", "\\/")
        )
    joined = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, "/")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def quoted(value: str, columns: int) -> str:
    """A value as it stands in the name of a group of so many columns."""
    return value if columns == 1 else value.replace("\\", "\\\\").replace("/", "\\/")


def parts_of(name: str, columns: int) -> list[str]:
    """The values that a group's name is made of."""
    if columns == 1:
        return [name]
    parts, escaped = [""], False
    for letter in name:
        if escaped or letter not in "\\/":
            parts[-1] += letter
            escaped = False
        elif letter == "/":
            parts.append("")
        else:
            escaped = True
    return parts


def numbers_of(docs: pa.Table, signal: str) -> pa.ChunkedArray:
    """A signal as float64, null where there is none; texts and lists are no signals."""
    if signal not in docs.column_names:
        raise CannotRun(f"documents have no signal {signal!r}; a stage before this one must measure it")
    return numbers_in(docs[signal], signal)
