"""What a stage answers: verdicts on documents, what it made of them; and the signals that it decides by."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.types import Integers, Mask
from gristmill.stages.contract import MOST_REASONS, CannotRun, ContractBroken
from gristmill.stages.frames import names_in


class Verdict:
    """Keep, or drop with one named first reason; every reason that held is remembered, and a detail where one was
    given.

    Built by chaining: `Verdict.keep(n).drop(mask, "too_short").drop(other, "too_long")`.
    """

    def __init__(self, rows: int) -> None:
        self.first = np.full(rows, -1, dtype=np.int16)  # index into reasons, -1 keeps
        self.all = np.zeros(rows, dtype=np.uint64)  # one bit a reason
        self.reasons: list[str] = []
        self.details: dict[int, str] = {}

    @classmethod
    def keep(cls, rows: int) -> Verdict:
        return cls(rows)

    def drop(self, where: Any, reason: str, details: Sequence[str] | list[str] | None = None) -> Verdict:
        """Drop the rows of a boolean mask (numpy or Arrow; null is false); `details` are aligned with the rows."""
        mask = mask_of(where, reason, len(self.first))
        if details is not None:
            check_details(details, reason, len(self.first))
        if reason not in self.reasons:
            if len(self.reasons) == MOST_REASONS:
                raise ContractBroken(f"a stage can name {MOST_REASONS} reasons at most")
            self.reasons.append(reason)
        index = self.reasons.index(reason)
        newly = mask & (self.first < 0)
        self.first[newly] = index
        self.all[mask] |= np.uint64(1 << index)
        if details is not None:
            self.details.update({row: details[row] for row in np.flatnonzero(newly).tolist()})
        return self

    def __len__(self) -> int:
        return len(self.first)

    @property
    def kept(self) -> Mask:
        return self.first < 0

    def held(self, bit: int) -> Mask:
        """The rows of which the reason of this number holds."""
        rows: Mask = (self.all >> np.uint64(bit)) & np.uint64(1) == 1
        return rows

    def reason(self, row: int) -> str | None:
        return self.reasons[self.first[row]] if self.first[row] >= 0 else None

    def every_reason(self, row: int) -> list[str]:
        return [name for bit, name in enumerate(self.reasons) if int(self.all[row]) >> bit & 1]


class Made(NamedTuple):
    """Documents that a stage made of others; all of them stay. `rows` are those of the batch that they were made of,
    and each stands behind its own."""

    batch: pa.RecordBatch
    rows: np.ndarray[Any, np.dtype[np.int64]]

    def between(self, batch: pa.RecordBatch, kept: Mask) -> pa.RecordBatch:
        """The rows of the batch that stay, and these where they belong, whatever the batch is a piece of."""
        both = pa.concat_batches([batch.filter(pa.array(kept)), self.batch])
        return both.take(pa.array(np.argsort(np.concatenate([np.flatnonzero(kept), self.rows]), kind="stable")))


@dataclass
class Applied:
    """What a map stage made of a batch: row-aligned columns and a verdict on each row."""

    batch: pa.RecordBatch
    verdict: Verdict
    # on each row, of a stage that works row by row: the slowest are reported
    seconds: np.ndarray[Any, np.dtype[np.float64]] | None = None
    # by name, how many of the documents kept have what the run's record should tell of
    noted: Mapping[str, int] = field(default_factory=dict)
    made: Made | None = None  # more documents, beside these


class NoSuchSignal(AttributeError):
    """A stage asked for a column that nobody put there: the recipe's fault, never a document's."""


class Signals:
    """Columns of a batch as numpy arrays, by name: `signals.words`, `signals.uid`."""

    def __init__(self, batch: pa.RecordBatch | pa.Table) -> None:
        self._batch = batch
        self._coded: dict[str, tuple[list[str | None], Integers]] = {}

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def __getattr__(self, name: str) -> np.ndarray[Any, Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        values: np.ndarray[Any, Any] = self.column(name).to_numpy(zero_copy_only=False)
        return values

    def coded(self, name: str) -> tuple[list[str | None], Integers]:
        """The values of a column of short texts, each once, and which of them each row has."""
        if name not in self._coded:
            codes = pc.dictionary_encode(self.column(name).cast("string"))
            values = [*codes.dictionary.to_pylist(), None]
            row = pc.fill_null(codes.indices, len(values) - 1).to_numpy(zero_copy_only=False)
            self._coded[name] = values, row
        return self._coded[name]

    def column(self, name: str) -> pa.Array:
        """The Arrow column itself, for text and where nulls matter."""
        index = self._batch.schema.get_field_index(name)
        if index < 0:
            raise NoSuchSignal(
                f"no signal {name!r} here; there are {names_in(self._batch.schema.names)}{who_adds(name)}"
            )
        column = self._batch.column(index)
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def who_adds(signal: str) -> str:
    """What to call before, on a table of one's own. A run puts it in by itself."""
    stages = import_module("gristmill.stages")
    likely = sorted(stages.HOMES, key=lambda name: (name != "TextSignals", ".text." not in stages.HOMES[name]))
    name = next((name for name in likely if signal in getattr(stages, name).adds), None)
    return f". Measure it first: {name}()(table)" if name else ""


def numbers_in(column: pa.Array | pa.ChunkedArray, name: str) -> pa.Array | pa.ChunkedArray:
    """A signal as float64, null where there is none; texts and lists are no numbers."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).cast(pa.float64())
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise CannotRun(f"{name!r} is of type {kind}, and a number is needed")
    return column.cast(pa.float64(), safe=False)


def mask_of(where: Any, reason: str, rows: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """The rows to drop, from a mask of true and false (null is false). NaN is neither, and so no mask holds numbers."""
    if not isinstance(reason, str) or not reason.strip():
        raise ContractBroken(f"a document was dropped without a reason ({reason!r}); name one, such as `too_short`")
    if isinstance(where, pa.Array | pa.ChunkedArray):
        values = where.to_numpy(zero_copy_only=False)
    else:
        values = np.asarray(where)
    if values.ndim != 1 or len(values) != rows:
        raise ContractBroken(
            f"{reason}: a mask of {'x'.join(map(str, values.shape)) or 'no'} rows for a verdict on {rows}"
        )
    if values.dtype == object:
        with contextlib.suppress(pa.ArrowException, TypeError):
            values = pa.array(values, pa.bool_(), from_pandas=True).fill_null(False).to_numpy(zero_copy_only=False)
    if values.dtype != bool and rows:
        raise ContractBroken(
            f"{reason}: a mask of true and false was expected, not of {values.dtype}; compare, as in "
            "`signals.words < 50`"
        )
    mask: np.ndarray[Any, np.dtype[np.bool_]] = values.astype(bool, copy=False)
    return mask


def check_details(details: Sequence[str], reason: str, rows: int) -> None:
    if len(details) != rows:
        raise ContractBroken(f"{reason}: {len(details)} details for a verdict on {rows} rows")
