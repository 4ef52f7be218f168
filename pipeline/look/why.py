"""Why a document went, in numbers: every reason that held, the signal behind it with its value, and where the document
would have stayed.

A rule is code, and nothing says which number in its settings decided. So it is asked: the signals of the document are
shown to it again with one of them moved. The signal that makes a reason vanish is the one behind it, and the value at
which it vanishes is the threshold, be it a field, an entry of a list, or set by a table for the document's language.
Measured: 5 ms a document and rule.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from gristmill.kernels.base.types import Floats, Mask
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.json_types import JSON
from gristmill.pipeline.leg.rules import BROKE, Deciding, outcome_of
from gristmill.pipeline.look.run_folder import Folder
from gristmill.pipeline.store.records import Part
from gristmill.pipeline.store.run_records import LegRules
from gristmill.pipeline.survey.records import CutEntry, Row, SurveyRecord, Value
from gristmill.pipeline.survey.thresholds import is_number
from gristmill.stages.stage import Rule, Verdict, with_columns

Opened = Callable[[str], AbstractContextManager[IO[bytes]]]
Cuts = Sequence[CutEntry]
CANNOT_ASK = (OSError, LookupError, ValueError, TypeError, ValidationError, RunFailed, pa.ArrowException)
POINTS = 64  # between a value that goes and one that stays, in each round
ROUNDS = 9
FEW = 4  # signals that are shown where no threshold on one of them explains a reason
NEXT = 2e-7  # of a value: as near as float32 comes
SAME = 1e-6  # is a number of the settings, but for float32


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


def reasons_held(rule: Rule, view: pa.RecordBatch, cuts: Cuts = ()) -> list[Held]:
    """Every reason that holds for the one document of a batch, in the rule's order, with its number where one signal
    alone decides."""
    held = [reason for reason, rows in _held(rule, view).items() if rows[0]]
    if not held:
        return []
    signals = [
        name
        for name in dict.fromkeys(rule.needs)
        if name in view.schema.names and is_number(view.schema.field(name).type)
    ]
    settings = list(numbers_in(rule.model_dump()))
    values = {name: view.column(name)[0].as_py() for name in rule.needs if name in view.schema.names}
    numbers = [number for _, number in settings]
    tried = {name: candidates(view.schema.field(name).type, numbers, number_of(values[name])) for name in signals}
    answers = dict(zip(signals, _asked(rule, view, list(tried.items())), strict=True)) if signals else {}
    # By reason and signal: two of the values tried, between which the document comes to stay.
    stays: dict[str, dict[str, tuple[float, float]]] = {}
    for reason in held:
        for name in signals:
            goes = answers[name].get(reason, np.zeros(len(tried[name]), bool))
            if not goes.all():
                change = nearest_change(tried[name], goes, number_of(values[name]) or 0.0)
                stays.setdefault(reason, {})[name] = change
    alone = {
        reason: next(iter(changes.items()))
        for reason, changes in stays.items()
        if len(changes) == 1 and is_known(values[next(iter(changes))])
    }
    edges = _edges(rule, view, alone)
    reasons = []
    for reason in held:
        if reason in edges:
            reasons.append(_numbered(rule, reason, alone[reason][0], values, edges[reason], settings, cuts))
        else:
            names = list(stays.get(reason, values if len(values) <= FEW else {}))
            reasons.append(Held(rule.called, reason, seen={name: values[name] for name in names}))
    return reasons


def is_known(value: Value) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def number_of(value: Value) -> float | None:
    return value if isinstance(value, int | float) and is_known(value) else None


def _held(rule: Rule, view: pa.RecordBatch) -> dict[str, Mask]:
    """For each reason the rows of which it holds; a row that breaks the rule is not called free of any."""
    outcome = outcome_of(rule, view)
    broke = outcome.first == BROKE
    return {
        reason: ((outcome.verdict.all >> np.uint64(bit)) & np.uint64(1) == 1) | broke
        for bit, reason in enumerate(outcome.verdict.reasons)
    }


def _asked(rule: Rule, view: pa.RecordBatch, moved: Sequence[tuple[str, Floats]]) -> list[dict[str, Mask]]:
    """What holds of the document with one signal moved to some values, and then another: one question for all."""
    ends = np.cumsum([len(values) for _, values in moved])
    wanted = view.take(pa.array(np.zeros(int(ends[-1]), np.int64)))
    columns: dict[str, pa.Array] = {}
    for (name, values), end in zip(moved, ends.tolist(), strict=True):
        whole = columns.get(name, wanted.column(name))
        columns[name] = pa.concat_arrays(
            [whole.slice(0, end - len(values)), as_kind(values, whole.type), whole.slice(end)]
        )
    answer = _held(rule, with_columns(wanted, columns))
    bounds = zip([0, *ends.tolist()[:-1]], ends.tolist(), strict=True)
    return [{reason: rows[start:end] for reason, rows in answer.items()} for start, end in bounds]


def as_kind(values: Floats, kind: pa.DataType) -> pa.Array:
    if pa.types.is_integer(kind):
        limits = np.iinfo(kind.to_pandas_dtype())
        return pa.array(
            np.clip(np.rint(values), float(limits.min), min(float(limits.max), 2.0**62)).astype(kind.to_pandas_dtype()),
            kind,
        )
    return pa.array(values).cast(kind, safe=False)


def candidates(kind: pa.DataType, settings: Sequence[float], own: float | None) -> Floats:
    """Values at which a document may stay: those about the rule's own numbers, none, and powers of two; below none only
    where something else is too."""
    powers = [2.0**k for k in range(0 if pa.types.is_integer(kind) else -12, 31)]
    near = [number + step * max(abs(number), 1e-3) for number in settings for step in (-1e-3, 0.0, 1e-3)]
    near += [number + step for number in settings for step in (-1.0, 1.0)]
    values = np.array([0.0, *powers, *(-power for power in powers), *near])
    if min([0.0, *settings, *([own] if own is not None else [])]) >= 0:
        values = values[values >= 0]
    return np.unique(as_kind(values, kind).to_numpy(zero_copy_only=False).astype(np.float64))


def nearest_change(tried: Floats, goes: Mask, value: float) -> tuple[float, float]:
    """The value nearest to the document's own at which it stays, and the last before it at which it goes: (goes,
    stays)."""
    stays = float(tried[~goes][np.argmin(np.abs(tried[~goes] - value))])
    before = tried[goes & (np.minimum(value, stays) <= tried) & (tried <= np.maximum(value, stays))]
    return float(before[np.argmin(np.abs(before - stays))]) if len(before) else value, stays


def _edges(
    rule: Rule, view: pa.RecordBatch, wanted: Mapping[str, tuple[str, tuple[float, float]]]
) -> dict[str, tuple[float, float]]:
    """For each reason, between a signal's value that goes and one that stays, the two that lie next to each other:
    (goes, stays)."""
    edges = {reason: edge for reason, (_, edge) in wanted.items()}
    for _ in range(ROUNDS):
        points = {}
        for reason, (goes, stays) in edges.items():
            if abs(goes - stays) <= NEXT * abs(stays):
                continue
            kind = view.schema.field(wanted[reason][0]).type
            between = np.linspace(goes, stays, POINTS + 2)[1:-1]
            between = as_kind(between, kind).to_numpy(zero_copy_only=False).astype(np.float64)
            between = between[(between != goes) & (between != stays)]
            if len(between):
                points[reason] = between
        if not points:
            break
        for (reason, between), answer in zip(
            points.items(), _asked(rule, view, [(wanted[r][0], p) for r, p in points.items()]), strict=True
        ):
            free = np.flatnonzero(~answer.get(reason, np.zeros(len(between), bool)))
            first = int(free[0]) if len(free) else len(between)
            goes, stays = edges[reason]
            edges[reason] = (
                float(between[first - 1]) if first else goes,
                float(between[first]) if first < len(between) else stays,
            )
    return edges


def _numbered(
    rule: Rule,
    reason: str,
    signal: str,
    values: Row,
    edge: tuple[float, float],
    settings: Sequence[tuple[str, float]],
    cuts: Cuts,
) -> Held:
    """The threshold as the settings have it. A document at it stays; where only the value that goes is in the settings,
    one at it goes."""
    goes, stays = edge
    above = goes > stays
    at_stays, at_goes = (
        next((number for _, number in settings if math.isclose(number, end, rel_tol=SAME, abs_tol=1e-9)), None)
        for end in (stays, goes)
    )
    sign = (">" if above else "<") if at_goes is None or at_stays is not None else "≥" if above else "≤"
    threshold = at_stays if at_stays is not None else at_goes if at_goes is not None else float(f"{stays:.6g}")
    fields = [
        str(cut["field"])
        for cut in cuts
        if (cut["stage"], cut["signal"], cut["side"]) == (rule.called, signal, "high" if above else "low")
    ]
    fields = fields or [path for path, number in settings if number == threshold]
    fields = nearest_names(fields, signal) if len(fields) > 1 else fields
    field = fields[0] if len(fields) == 1 else None
    return Held(rule.called, reason, signal, number_of(values[signal]), sign, threshold, field)


def nearest_names(paths: Sequence[str], signal: str) -> list[str]:
    """Those that share most words with a signal's name."""
    shared = [len({*path.replace(".", "_").split("_")} & {*signal.split("_")}) for path in paths]
    return [path for path, words in zip(paths, shared, strict=True) if words == max(shared) > 0]


def numbers_in(settings: JSON, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a rule's settings, however deep, with its path."""
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            yield from numbers_in(value, f"{path}.{name}" if path else str(name))
    elif isinstance(settings, list | tuple):
        for place, value in enumerate(settings):
            yield from numbers_in(value, f"{path}.{place}")
    elif isinstance(settings, int | float) and not isinstance(settings, bool) and math.isfinite(settings):
        yield path, float(settings)


# --- documents of a part ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RuleReasons:
    """What the rules of a leg say of one document."""

    held: list[Held]
    details: dict[str, str]  # by stage: what it said itself of the reason by which it takes the document


def reasons_in_part(
    opened: Opened, rules: Sequence[Deciding], part: Part, rows: Sequence[int], cuts: Cuts = ()
) -> list[RuleReasons]:
    """What the rules say of some documents of a part, by their rows in growing order. Rules that read texts are not
    asked again."""
    paths = [file["path"] for file in [part["documents"], *part["signals"]] if file is not None]
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
            reasons[row].held.extend(stored_as(d, held) for held in reasons_held(d.rule, view.slice(row, 1), cuts))
            reasons[row].details.update(detail_of(d, verdict, row))
    return reasons


def reasons_by_uid(
    opened: Opened, rules: Sequence[Deciding], part: Part, uids: Sequence[int]
) -> Iterator[tuple[int, RuleReasons]]:
    """The same of documents by their uids; nothing of a part of which a file is gone."""
    if not uids or part["documents"] is None:
        return
    try:
        with opened(part["documents"]["path"]) as file:
            there = pq.read_table(file, columns=["uid"]).column("uid").to_numpy()
        rows = np.flatnonzero(np.isin(there, np.array(uids, np.uint64))).tolist()
        yield from zip(there[rows].tolist(), reasons_in_part(opened, rules, part, rows), strict=True)
    except CANNOT_ASK:
        return


def stored_as(deciding: Deciding, held: Held) -> Held:
    if held.signal is None:
        return held
    return dataclasses.replace(held, column=deciding.columns.get(held.signal, held.signal))


def detail_of(deciding: Deciding, verdict: Verdict, row: int) -> dict[str, str]:
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


# --- one document of a run -------------------------------------------------------------------------------------------


def why_it_went(folder: Folder, leg: str, key: str, verdicts: str, row: int) -> list[Held]:
    """Every reason that held of a document that a leg's rules took, as the verdicts have it, with numbers as far as
    they can be had.

    A rule from a file of the user's own is not run again here: its numbers are those of the survey.
    """
    reasons = stored_reasons(folder, verdicts, row)
    if not any(reasons.values()) or not folder.has(f"legs/{leg}/rules.json"):
        return [Held(stage, reason) for stage, of_stage in reasons.items() for reason in of_stage]
    rules = folder.json_as(f"legs/{leg}/rules.json", LegRules)
    part = next((part for part in rules["parts"] if part["key"] == key), None)
    cuts = cuts_of(folder)
    opened: Opened = lambda path: folder.fs.open(folder.full(path), "rb")  # noqa: E731
    asked: list[Held] = []
    for rule in rules["rules"]:
        if part is not None and rule["stage"].get("code") is None:
            try:
                asked += reasons_in_part(opened, [Deciding.of(rule)], part, [row], cuts)[0].held
            except CANNOT_ASK:  # it reads a table that is gone, say; the verdicts and the survey are there still
                continue
    held: list[Held] = []
    for stage, of_stage in reasons.items():
        answered = [answer for answer in asked if answer.stage == stage]
        if {answer.reason for answer in answered} == set(of_stage):
            held += answered
        elif of_stage:
            held += from_survey(opened, stage, of_stage, [cut for cut in cuts if cut["stage"] == stage], part, row)
    return held


def stored_reasons(folder: Folder, verdicts: str, row: int) -> dict[str, list[str]]:
    """For each rule of a leg, in their order, the reasons that held of a document."""
    opened: Opened = lambda path: folder.fs.open(folder.full(path), "rb")  # noqa: E731
    with opened(verdicts) as file:
        schema = pq.read_schema(file)
    try:
        names = dict(json.loads((schema.metadata or {}).get(b"gristmill.reasons", b"{}")))
    except ValueError:
        return {}
    bits = rows_of(opened, verdicts, [row], {f"failed:{stage}" for stage in names})
    failed = {name.removeprefix("failed:"): int(bits.column(name)[0].as_py() or 0) for name in bits.column_names}
    return {
        stage: [reason for bit, reason in enumerate(reasons) if failed.get(stage, 0) >> bit & 1]
        for stage, reasons in names.items()
    }


def cuts_of(folder: Folder) -> list[CutEntry]:
    """The thresholds that the survey of a run found, each once: where sources have legs of their own, a rule that they
    share is in each."""
    cuts: list[CutEntry] = []
    for leg in folder.names("legs"):
        path = f"legs/{leg}/survey.json"
        if folder.has(path):
            try:
                cuts += folder.json_as(path, SurveyRecord).get("cuts") or []
            except (ValueError, TypeError, AttributeError):
                continue
    whole = [cut for cut in cuts if {"stage", "field", "signal", "side", "at_goes", "value"} <= cut.keys()]
    return list({(cut["stage"], cut["field"], cut["signal"], cut["side"]): cut for cut in whole}.values())


def from_survey(
    opened: Opened, stage: str, reasons: Sequence[str], cuts: Cuts, part: Part | None, row: int
) -> list[Held]:
    """Reasons of a rule that cannot be asked, with the thresholds that the document lies beyond."""
    values: Row = {}
    files = [part["documents"], *part["signals"]] if part is not None else []
    for file in (file for file in files if file is not None):
        taken = rows_of(opened, file["path"], [row], {str(cut["signal"]) for cut in cuts})
        values |= {name: taken.column(name)[0].as_py() for name in taken.column_names}
    beyond = []
    for cut in cuts:
        value, low, limit = number_of(values.get(str(cut["signal"]))), cut["side"] == "low", cut["value"]
        if value is not None and ((value < limit if low else value > limit) or (value == limit and cut["at_goes"])):
            sign = ("≤" if low else "≥") if cut["at_goes"] else "<" if low else ">"
            beyond.append(
                Held(stage, None, str(cut["signal"]), value, sign, limit, str(cut["field"]), str(cut["signal"]))
            )
    if len(beyond) == len(reasons) == 1:
        return [dataclasses.replace(beyond[0], reason=reasons[0])]
    return [*(Held(stage, reason) for reason in reasons), *beyond]
