"""Why a document was dropped, in numbers: every reason that held, and where a limit of the rule gave it
(`Rule.limits`), the signal with its value, the bound and the setting. Rules are asked on stored signals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.leg.bound_rule import BoundRule, outcome_of
from gristmill.pipeline.report_data.histograms import Row, Value
from gristmill.pipeline.store.records import Partition
from gristmill.stages.contract import Limit, setting_at
from gristmill.stages.stage import Rule, Signals, Verdict

Opened = Callable[[str], AbstractContextManager[IO[bytes]]]
CANNOT_ASK = (OSError, LookupError, ValueError, TypeError, ValidationError, RunFailed, pa.ArrowException)
FEW = 4  # signals that are shown where no limit explains a reason
SIGNS = {"low": "<", "high": ">"}


@dataclass(frozen=True)
class Held:
    """A reason that held for a document. With a threshold: the signal stands `sign` of it; without one, what the rule
    saw is in `seen`."""

    stage: str
    reason: str | None
    signal: str | None = None
    value: float | None = None
    sign: str | None = None
    threshold: float | None = None
    field: str | None = None  # of the rule's settings
    column: str | None = None  # where the signal is stored: `words@c4_lines` is what it was before c4_lines
    seen: Row = dataclasses.field(default_factory=dict)

    @property
    def words(self) -> str:
        if self.signal is not None and self.value is not None and self.threshold is not None:
            value, threshold = telling_digits(self.value, self.threshold)
            return f"{self.signal} {value} {self.sign} {threshold}"
        return ", ".join(f"{name} {as_value(value)}" for name, value in self.seen.items())


def telling_digits(a: float, b: float) -> tuple[str, str]:
    """Two numbers in four digits; in as many as it takes to tell them apart."""
    for digits in range(4, 18):
        both = as_value(a, digits), as_value(b, digits)
        if both[0] != both[1]:
            break
    return both


def as_value(value: Value, digits: int = 4) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "unknown"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return one_line(str(value))[:80]
    if abs(value) >= 1000:
        return f"{value:,.{0 if float(value).is_integer() else max(0, digits - 4)}f}"
    return f"{value:.{digits}g}"


# --- asking a rule ---------------------------------------------------------------------------------------------------


def reasons_held(rule: Rule, view: pa.RecordBatch) -> list[Held]:
    """Every reason that holds for the one document of a batch, in the rule's order, with its number where a limit of
    the rule gave it."""
    verdict, signals = outcome_of(rule, view).verdict, Signals(view)
    values = {name: view.column(name)[0].as_py() for name in rule.needs if name in view.schema.names}
    held = verdict.every_reason(0)
    limits = [limit for limit in rule.limits if limit.reason in held]
    bounded = list(zip(limits, rule.values(limits, signals), rule.bounds(limits, signals), strict=True))
    reasons = []
    for reason in held:
        passed = [each for each in bounded if each[0].reason == reason and each[0].beyond(*each[1:]).all()]
        if passed:
            limit, value, bound = next((each for each in passed if rule.governed(each[0], signals)[0]), passed[0])
            reasons.append(in_numbers(rule, limit, signals, value[0].item(), np.ravel(bound)[0].item()))
        else:
            names = list(values if len(values) <= FEW else {})
            reasons.append(Held(rule.called, reason, seen={name: values[name] for name in names}))
    return reasons


def in_numbers(rule: Rule, limit: Limit, signals: Signals, value: float, bound: float) -> Held:
    """A limit that the document is beyond: `bound` is that of its row, unless the limit's own setting governs it."""
    own = bool(rule.governed(limit, signals)[0])
    threshold = setting_at(rule, limit.setting) if own else bound
    setting = limit.setting if own and isinstance(limit.setting, str) else None
    return Held(rule.called, limit.reason, limit.signal, value, SIGNS[limit.side], threshold, setting)


# --- documents of a part ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RuleReasons:
    """What the rules of a leg say of one document."""

    held: list[Held]
    details: dict[str, str]  # by stage: what it said itself of the reason by which it takes the document


def reasons_in_part(
    opened: Opened, rules: Sequence[BoundRule], part: Partition, rows: Sequence[int]
) -> list[RuleReasons]:
    """What the rules say of some documents of a part, by their rows in growing order. Rules that read texts are not
    asked again."""
    paths = [file.path for file in [part.documents, *part.signals] if file is not None]
    deciding = [d for d in rules if d.rule.needs and "text" not in d.rule.needs]
    columns = {
        name for d in deciding for name in (*d.rule.needs, *(d.columns.get(need, need) for need in d.rule.needs))
    }
    by_name: dict[str, pa.ChunkedArray] = {}
    for path in paths:
        taken = rows_of(opened, path, rows, columns)
        by_name |= {name: taken.column(name) for name in taken.column_names}
    reasons = [RuleReasons([], {}) for _ in rows]
    whole = pa.table(by_name).combine_chunks().to_batches() if by_name and rows else []
    for d in deciding if whole else []:
        view = d.view(whole[0])
        view = view.select([name for name in view.schema.names if name in d.rule.needs])
        verdict = outcome_of(d.rule, view).verdict
        for row in np.flatnonzero(verdict.all).tolist():
            reasons[row].held.extend(stored_as(d, held) for held in reasons_held(d.rule, view.slice(row, 1)))
            reasons[row].details.update(detail_of(d, verdict, row))
    return reasons


def reasons_by_uid(
    opened: Opened, rules: Sequence[BoundRule], part: Partition, uids: Sequence[int]
) -> Iterator[tuple[int, RuleReasons]]:
    """The same of documents by their uids; nothing of a part of which a file is gone."""
    if not uids or part.documents is None:
        return
    try:
        with opened(part.documents.path) as file:
            there = pq.read_table(file, columns=["uid"]).column("uid").to_numpy()
        rows = np.flatnonzero(np.isin(there, np.array(uids, np.uint64))).tolist()
        yield from zip(there[rows].tolist(), reasons_in_part(opened, rules, part, rows), strict=True)
    except CANNOT_ASK:
        return


def stored_as(deciding: BoundRule, held: Held) -> Held:
    if held.signal is None:
        return held
    return dataclasses.replace(held, column=deciding.columns.get(held.signal, held.signal))


def detail_of(deciding: BoundRule, verdict: Verdict, row: int) -> dict[str, str]:
    return {deciding.rule.called: verdict.details[row]} if verdict.details.get(row) else {}


def rows_of(opened: Opened, path: str, rows: Sequence[int], columns: set[str]) -> pa.Table:
    """Rows of a Parquet file, by number in growing order; only their row groups are read, and the columns that it
    has."""
    tables, first = [], 0
    with opened(path) as file:
        parquet = pq.ParquetFile(file, pre_buffer=False)
        names = [name for name in parquet.schema_arrow.names if name in columns]
        for group in range(parquet.num_row_groups if names else 0):
            size = parquet.metadata.row_group(group).num_rows
            in_group = [row - first for row in rows if first <= row < first + size]
            if in_group:
                tables.append(parquet.read_row_group(group, columns=names).take(in_group))
            first += size
    return pa.concat_tables(tables) if tables else pa.table({})
