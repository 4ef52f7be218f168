"""Documents by the values of their signals: `topic=science, quality_bucket=2`, a cell of a mix or a part of one."""

from __future__ import annotations

import csv
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gristmill.stages.blend.groups import NO_VALUE

MOST = 8  # conditions


def conditions_of(text: str) -> dict[str, str]:
    """Values by signal; a value with a comma stands in quotation marks with its name. ValueError says what is wrong."""
    try:
        fields = next(csv.reader([text], skipinitialspace=True, strict=True), [])
    except csv.Error as error:
        raise ValueError(f"{text!r}: {error}") from error
    conditions: dict[str, str] = {}
    for field in filter(None, map(str.strip, fields)):
        name, equals, value = (part.strip() for part in field.partition("="))
        if not (name and equals) or name in conditions:
            raise ValueError(f"{field!r}: SIGNAL=VALUE was expected, each signal once, such as topic=science")
        conditions[name] = value
    if len(conditions) > MOST:
        raise ValueError(f"{len(conditions)} conditions; {MOST} at most")
    return conditions


def holds(batch: pa.RecordBatch | pa.Table, conditions: Mapping[str, str]) -> NDArray[np.bool_]:
    """Which rows have all the values; `(none)` is no value."""
    mask = np.ones(len(batch), np.bool_)
    for name, value in conditions.items():
        column = batch.column(name)
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            raise ValueError(f"{name}: a signal with one value a document was expected, not {column.type}")
        texts = pc.fill_null(column.cast(pa.string()), NO_VALUE)
        mask &= pc.equal(texts, value).to_numpy(zero_copy_only=False) if len(batch) else mask
    return mask
