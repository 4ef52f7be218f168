"""The contract between stages and the engine: what a stage decides by (`Signals`), what it answers (`Verdict`,
`Applied`, `Made`), what a rule declares (`Limit`), and the checks of every answer.

Answers are held against the contract by names, types and lengths, which costs microseconds a batch. Whoever breaks it
is the stage, never a document: nothing is tried again on fewer documents, and none is quarantined.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any, Literal, NamedTuple, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, ValidationInfo, model_validator

from gristmill.kernels.base.types import Array, Integers, Mask
from gristmill.kernels.common.settings import Settings, of_a_recipe
from gristmill.stages.documents import BASE, PAGE
from gristmill.stages.frames import names_in

IDENTITY = ("uid", "source")  # what no stage changes
MOST_REASONS = 64
Bound = float | Array  # of a limit: for all rows, or for each


class CannotRun(Exception):
    """A stage cannot work with what it was given; the message is for the person who wrote the recipe."""


class ContractBroken(CannotRun):
    """A stage answered with what no stage may; the message is for the person who wrote the stage."""


class NoSuchSignal(AttributeError):
    """A stage asked for a column that nobody put there: the recipe's fault, never a document's."""


# --- what a stage decides by ------------------------------------------------------------------------------------------


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
        return as_numpy(self.column(name))

    def coded(self, name: str) -> tuple[list[str | None], Integers]:
        """The values of a column of short texts, each once, and which of them each row has."""
        if name not in self._coded:
            codes = pc.dictionary_encode(self.column(name).cast("string"), null_encoding="encode")
            self._coded[name] = codes.dictionary.to_pylist(), as_numpy(codes.indices)
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


def as_numpy(column: pa.Array) -> np.ndarray[Any, Any]:
    """What `column.to_numpy` gives, which imports pandas where it is installed: 0.2 s of a command."""
    kind = column.type
    if column.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        values: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
        return values
    return np.from_dlpack(column)


def who_adds(signal: str) -> str:
    """What to call before, on a table of one's own. A run puts it in by itself."""
    stages = import_module("gristmill.stages")
    likely = sorted(stages.HOMES, key=lambda name: (name != "TextSignals", ".text." not in stages.HOMES[name]))
    name = next((name for name in likely if signal in getattr(stages, name).adds), None)
    name = name or next((kind.__name__ for kind in kinds_of(stages.Annotate) if signal in kind.adds), None)
    return f". Measure it first: {name}()(table)" if name else ""


def kinds_of(base: Any) -> Iterator[Any]:
    """All classes of a kind that are imported, a user's own among them."""
    for kind in base.__subclasses__():
        yield kind
        yield from kinds_of(kind)


def numbers_in(column: pa.Array | pa.ChunkedArray, name: str) -> pa.Array | pa.ChunkedArray:
    """A signal as float64, null where there is none; texts and lists are no numbers."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).cast(pa.float64())
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise CannotRun(f"{name!r} is of type {kind}, and a number is needed")
    return column.cast(pa.float64(), safe=False)


def with_columns(batch: pa.RecordBatch, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """The batch with columns added, or replaced where they are there already."""
    for name, values in columns.items():
        index = batch.schema.get_field_index(name)
        batch = batch.append_column(name, values) if index < 0 else batch.set_column(index, name, values)
    return batch


# --- what a rule declares ---------------------------------------------------------------------------------------------


class Range(Settings):
    """A closed interval; an end that is absent is open."""

    low: Annotated[float | None, Field(description="the lowest value in it")] = None
    high: Annotated[float | None, Field(description="the highest value in it")] = None

    @model_validator(mode="after")
    def _ends_are_in_order(self, info: ValidationInfo) -> Self:
        if of_a_recipe(info) and self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low:,g} is above high {self.high:,g}: no value lies between them")
        return self

    def holds(self, values: np.ndarray[Any, Any]) -> Mask:
        inside = np.ones(len(values), dtype=bool)
        if self.low is not None:
            inside &= values >= self.low
        if self.high is not None:
            inside &= values <= self.high
        return inside


@dataclass(frozen=True)
class Limit:
    """Documents whose signal lies beyond a setting go, for a reason.

    The signal may be a sum: `hash_ratio + ellipsis_ratio`. The setting is a path (`min_words`, `words.low`,
    `max_top_grams.1`), null where nothing is tested, or a number that no setting moves.
    """

    signal: str
    setting: str | float
    side: Literal["low", "high"]  # low: what lies below goes; high: what lies above
    reason: str

    @property
    def signals(self) -> list[str]:
        return self.signal.split(" + ")

    def values(self, signals: Signals) -> Array:
        """What is bounded; NaN is within any bound."""
        first, *others = (getattr(signals, name) for name in self.signals)
        return cast(Array, sum(others, start=first))

    def bound(self, settings: Settings) -> float:
        """The number that it bounds by; NaN where nothing is tested."""
        number = setting_at(settings, self.setting)
        return math.nan if number is None else number

    def beyond(self, values: Array, bound: Bound) -> Mask:
        """The bound is rounded as the values were: a share of exactly 0.3 is not above 0.3, whatever float32 makes of
        it."""
        if values.dtype == np.float32:
            bound = np.asarray(bound, np.float32)
        return cast(Mask, values < bound if self.side == "low" else values > bound)


def below(signal: str, setting: str | float, reason: str) -> Limit:
    """Drop where the signal is below the setting, or a number."""
    return Limit(signal, setting, "low", reason)


def above(signal: str, setting: str | float, reason: str) -> Limit:
    """Drop where the signal is above the setting, or a number."""
    return Limit(signal, setting, "high", reason)


def signals_bounded(limits: Sequence[Limit]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for limit in limits for name in limit.signals))


def setting_at(settings: Settings, path: str | float) -> float | None:
    """The number at a path."""
    place: object = settings
    for step in path.split(".") if isinstance(path, str) else ():
        if isinstance(place, Settings):
            place = getattr(place, step)
        else:
            place = place[step] if isinstance(place, Mapping) else cast(Sequence[object], place)[int(step)]
    number = place if isinstance(path, str) else path
    if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
        raise TypeError(f"{number!r} is no number")
    return number


# --- what a stage answers ---------------------------------------------------------------------------------------------


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

    def drop_beyond(self, limits: Sequence[Limit], values: Sequence[Array], bounds: Sequence[Bound]) -> Verdict:
        """Drop the rows whose value is beyond a limit's bound, for the limit's reason."""
        for limit, value, bound in zip(limits, values, bounds, strict=True):
            self.drop(limit.beyond(value, bound), limit.reason)
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


# --- checks of answers ------------------------------------------------------------------------------------------------


def check_answer(batch: pa.RecordBatch, applied: Any, rewrites: bool) -> Mask:
    """Hold a stage's answer on a batch against the contract; the rows that stay."""
    if not isinstance(applied, Applied):
        raise ContractBroken(f"{kind_of(applied)} was answered; Applied(batch, verdict) was expected")
    if not isinstance(applied.verdict, Verdict):
        raise ContractBroken(f"{kind_of(applied.verdict)} was answered where a Verdict was expected")
    kept = applied.verdict.kept
    check_batch(batch, applied.batch, kept, rewrites)
    if applied.made is not None:
        if not isinstance(applied.made, Made):
            raise ContractBroken(f"made: {kind_of(applied.made)} was answered; Made(batch, rows) was expected")
        check_made(applied.batch, *applied.made)
    return kept


def signals_of(answer: Any, batch: pa.RecordBatch, declared: Iterable[str]) -> dict[str, pa.Array]:
    """What an Annotate adds to a batch: the signals that it declares, all of them, a value for each row."""
    if not isinstance(answer, dict):
        raise ContractBroken(f"annotate() answered with {kind_of(answer)}; a dict of columns was expected")
    expected = dict.fromkeys(declared)
    for name in answer:
        if name in BASE.names or name in PAGE.names:
            raise ContractBroken(
                f"annotate() answered with {name!r}, a column that every document has; give the signal another name"
            )
        if name not in expected:
            raise ContractBroken(
                f"annotate() answered with {name!r}, which `adds` does not declare (it declares {listed(expected)})"
            )
    missing = [name for name in expected if name not in answer]
    if missing:
        raise ContractBroken(f"`adds` declares {listed(missing)}, and annotate() did not answer with it")
    columns = {
        name: values if isinstance(values, pa.Array) else arrow_of(name, values) for name, values in answer.items()
    }
    for name, values in columns.items():
        if len(values) != len(batch):
            raise ContractBroken(
                f"annotate() answered with {len(values)} values of {name!r} for {len(batch)} documents"
            )
    return columns


def arrow_of(name: str, values: Any) -> pa.Array:
    """A column that was given as an array of another kind, or as a list."""
    if isinstance(values, np.ndarray | list | tuple):
        return pa.array(values)
    hint = "; call combine_chunks()" if isinstance(values, pa.ChunkedArray) else ""
    raise ContractBroken(f"annotate() answered with {kind_of(values)} for {name!r}; an Arrow array was expected{hint}")


def check_batch(before: pa.RecordBatch, after: Any, kept: Any, rewrites: bool) -> None:
    """Hold a stage's answer on a batch against what it was given; `kept` tells the rows that stay."""
    if not isinstance(after, pa.RecordBatch):
        raise ContractBroken(f"a record batch was expected, not {kind_of(after)}")
    if len(after) != len(before) or len(kept) != len(before):
        raise ContractBroken(
            f"{len(before)} documents came, and {len(after)} rows and {len(kept)} verdicts were answered"
        )
    if after is before:
        return
    if not after.schema.equals(before.schema):
        check_schema(before.schema, after.schema, rewrites)
    for name in IDENTITY:
        place = before.schema.get_field_index(name)
        if place >= 0 and not after.column(name).equals(before.column(place)):
            raise ContractBroken(
                f"`{name}` was changed, or rows have changed places; a document is who it is by its {name}"
            )
    if rewrites:
        check_texts(before, after, kept)


def check_made(answer: pa.RecordBatch, made: Any, rows: Any) -> None:
    """Documents that a stage made of others are like its answer, and each is new."""
    if not isinstance(made, pa.RecordBatch):
        raise ContractBroken(f"made: a record batch was expected, not {kind_of(made)}")
    if len(rows) != len(made) or (len(rows) and not 0 <= min(rows) <= max(rows) < len(answer)):
        raise ContractBroken(f"made: {len(made)} documents, and {len(rows)} rows that they were made of")
    if not made.schema.equals(answer.schema):
        raise ContractBroken("made: its columns are not those of the answer")
    if "uid" not in made.schema.names:
        raise ContractBroken("made: a document has a uid")
    if pc.any(pc.is_in(made.column("uid"), value_set=answer.column("uid"))).as_py():
        raise ContractBroken("made: a new document has a `uid` of its own")


def check_schema(before: pa.Schema, after: pa.Schema, rewrites: bool) -> None:
    names = after.names
    there = set(names)
    if len(there) != len(names):
        raise ContractBroken(
            f"two columns of one name: {listed(sorted(name for name in there if names.count(name) > 1))}"
        )
    given = set(before.names)
    lost = [name for name in given - there if not (rewrites and name in PAGE.names)]
    if lost:
        raise ContractBroken(f"the answer lacks {listed(sorted(lost))}; a stage keeps the columns that it was given")
    for name in sorted(
        there - given | ({"text"} & there)
    ):  # those that may be new in kind; all of them would take ten times as long
        check_type(name, after.field(name).type)


def check_type(name: str, kind: pa.DataType) -> None:
    """Texts are strings, and pyarrow cannot filter views."""
    if name == "text" and kind not in (pa.string(), pa.large_string()):
        raise ContractBroken(f"`text` became {kind}; a text is a string")
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        raise ContractBroken(
            f"{name!r} is {kind}, which cannot be filtered; cast it to large_{str(kind).removesuffix('_view')}"
        )


def check_texts(before: pa.RecordBatch, after: pa.RecordBatch, kept: Any) -> None:
    """A text may be empty, or its document dropped; where one was, and once a page is extracted, it is never null in a
    document that stays."""
    text = after.column("text") if "text" in after.schema.names else None
    if text is None or not text.null_count:
        return
    null = pc.is_null(text).to_numpy(zero_copy_only=False) & np.asarray(kept)
    if any(name in after.schema.names for name in PAGE.names) or not any(
        name in before.schema.names for name in PAGE.names
    ):
        null &= pc.is_valid(before.column("text")).to_numpy(zero_copy_only=False)
    if null.any():
        raise ContractBroken(
            f"{int(null.sum())} of {len(before)} texts became null; a rewrite drops a document whose text "
            "it cannot make, or leaves it empty"
        )


def check_same_types(earlier: pa.Schema, now: pa.Schema) -> None:
    """All batches of a part have columns of the same names and types; a list of nothing but None has no type of its
    own."""
    if earlier.equals(now):
        return
    types = {column.name: column.type for column in earlier}
    for column in now:
        if column.name not in types:
            raise ContractBroken(f"{column.name!r} is in the answer on this batch, and was not on one before it")
        if column.type != types[column.name]:
            raise ContractBroken(
                f"{column.name!r} is {column.type} here, and was {types[column.name]} in a batch before; name "
                "the type, as in pa.array(values, pa.float64())"
            )
    absent = [name for name in types if name not in now.names]
    if absent:
        raise ContractBroken(f"{listed(absent)} was in the answer on a batch before, and is not on this one")
    if now.names != earlier.names:
        raise ContractBroken(
            f"columns changed places between batches: {listed(earlier.names)}, then {listed(now.names)}"
        )


def check_table(batch: pa.RecordBatch, table: Any) -> None:
    """What a sink writes of a batch: a row for each document that passes."""
    if not isinstance(table, pa.RecordBatch):
        raise ContractBroken(f"table() answered with {kind_of(table)}; a record batch was expected")
    if len(table) != len(batch):
        raise ContractBroken(
            f"table() answered with {len(table)} rows for {len(batch)} documents; a sink writes what passes through it"
        )


def kind_of(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "nothing"


def check_rows(function: str, made: Any, by: str | None) -> None:
    """Rows that a method of a global stage makes, cut by the values of a column; a table without rows need have
    none."""
    if not isinstance(made, pa.Table):
        raise ContractBroken(f"{function}() answered with {kind_of(made)}; a table was expected")
    if by is None or not len(made):
        return
    if by not in made.column_names:
        raise ContractBroken(
            f"{function}() answered without {by!r}, by which its rows are cut; it has {listed(made.column_names)}"
        )
    column = made.column(by)
    if column.type != pa.uint64() or column.null_count:
        raise ContractBroken(
            f"{function}() answered with {by!r} of "
            f"{column.type}{' with nulls' if column.null_count else ''}; rows are cut by a uint64"
        )


def check_verdicts(function: str, made: Any, changes: Iterable[str] = ()) -> None:
    """Rows that say of documents whether they go, and bring signals; `changes` are columns of documents that they may
    bring too."""
    check_rows(function, made, "uid")
    missing = [name for name in ("uid", "reason", "detail") if name not in made.column_names]
    if missing:
        raise ContractBroken(f"{function}() answered without {listed(missing)}; a document with a null reason stays")
    for name in ("reason", "detail"):
        kind = made.schema.field(name).type
        if kind not in (pa.string(), pa.large_string(), pa.null()):
            raise ContractBroken(
                f"{function}() answered with {name!r} of {kind}; strings were expected, null for documents that stay"
            )
    reason = made.column("reason")
    if reason.null_count < len(reason) and pc.any(pc.equal(pc.utf8_trim_whitespace(reason), "")).as_py():
        raise ContractBroken(f"{function}() dropped a document without a reason; name one, or leave it null")
    for column in made.schema:
        if (
            column.name != "uid"
            and column.name not in changes
            and (column.name in BASE.names or column.name in PAGE.names)
        ):
            raise ContractBroken(
                f"{function}() answered with {column.name!r}, a column that every document has; give the "
                "signal another name"
            )
        check_type(column.name, column.type)


def check_documents(function: str, made: pa.Table, documents: pa.Table) -> None:
    """Rows that are to lie beside documents, one for each and in their order."""
    if len(made) != len(documents):
        raise ContractBroken(f"{function}() answered with {len(made)} rows for {len(documents)} documents")
    if not made.column("uid").equals(documents.column("uid")):
        raise ContractBroken(f"{function}() answered with other uids than it was given, or in another order")
